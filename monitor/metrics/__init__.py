"""Prometheus series of probes and of the monitor itself: the only package that knows its client.

What a result touches is updated at once; text is made by `Metrics.render`, in a thread of its
own, and served as it was last made.
"""

from monitor.metrics.exporter import Metrics

__all__ = ["Metrics"]
