"""The service around `probes`: schedule, store, metrics, page, command line."""
