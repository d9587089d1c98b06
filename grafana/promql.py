"""The queries of the dashboards, as text. Pure; knows metric names, nothing of Grafana's model."""

from __future__ import annotations

from probes.result import Outcome, Verdict, verdict

PROBE = 'endpoint=~"$endpoint", workload=~"$workload"'
"""What the dashboard's variables select."""

BY_PROBE = "endpoint, workload"

_BORN_BELOW = 10
"""A counter that is first seen at this value or above was not born there, but found."""


def series(name: str, *more: str) -> str:
    """Return the selector of a probe metric, with further matchers."""
    return f"{name}{{{', '.join((PROBE, *more))}}}"


def results(*verdicts: Verdict) -> str:
    """Return the selector of the results with an outcome of these verdicts; of all without one."""
    names = "|".join(outcome for outcome in Outcome if verdict(outcome) in verdicts)
    return series("endpoint_probe_results_total", *([f'outcome=~"{names}"'] if names else []))


def counted(selector: str, window: str) -> str:
    """Return by how much a counter rose in a window, its first event included.

    A labelled counter is born with its first event, as 1 and not as 0, and `increase` sees only
    steps: a fault that happened once would count as none. What stays hidden is a counter that
    comes back after the monitor's restart at just the value it had before.
    """
    rise = f"increase({selector}[{window}])"
    first = f"(min_over_time({selector}[{window}]) < {_BORN_BELOW})"
    return f"({rise} + {first} unless {selector} offset {window} or {rise})"


def total(selector: str, window: str, by: str = BY_PROBE) -> str:
    """Return `counted`, added up by some labels."""
    return f"sum by ({by}) {counted(selector, window)}"


def availability(window: str) -> str:
    """Return good / valid; 0 where nothing was good, nothing where nothing was valid."""
    good = total(results(Verdict.GOOD), window)
    valid = total(results(Verdict.GOOD, Verdict.BAD), window)
    return f"({good} or 0 * {valid}) / ({valid} > 0)"


def quantile(family: str, q: float, *more: str) -> str:
    """Return a quantile of a histogram of probes over $window, where enough results carry it."""
    by = ", ".join((BY_PROBE, *more))
    buckets = f"sum by (le, {by}) (rate({series(family + '_bucket')}[$window]))"
    n = f"sum by ({by}) (increase({series(family + '_count')}[$window]))"
    return f"histogram_quantile({q:g}, {buckets}) and {n} >= {needed(q)}"


def own_quantile(family: str, q: float) -> str:
    """Return a quantile of one of the monitor's own histograms over $window, as `quantile`."""
    buckets = f"sum by (le) (rate({family}_bucket[$window]))"
    n = f"sum (increase({family}_count[$window]))"
    return f"histogram_quantile({q:g}, {buckets}) and {n} >= {needed(q)}"


def mean(family: str, by: str, at_least: int) -> str:
    """Return the mean of a summary over $window, where it has that many values."""
    seconds = f"sum by ({by}) (rate({series(family + '_sum')}[$window]))"
    n = f"sum by ({by}) (increase({series(family + '_count')}[$window]))"
    per_second = f"sum by ({by}) (rate({series(family + '_count')}[$window]))"
    return f"{seconds} / {per_second} and {n} >= {at_least}"


def needed(q: float) -> int:
    """Return how many results a quantile needs: one beyond it, so a p99 needs a hundred."""
    return round(1 / (1 - q))
