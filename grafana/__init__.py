"""Dashboards for Grafana, generated; not part of the installed program."""
