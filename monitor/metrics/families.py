"""Every metric: name, help text, labels and bounds."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase

# Two or three bounds a decade: 500 probes with three histograms and an SLO each stay below 35,000
# lines. Exact percentiles are the quantile gauges; histograms are for sums over endpoints and for
# SLOs, whose thresholds become bounds of their own.
TTFT_BOUNDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 600.0)
E2E_BOUNDS = (0.02, 0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 60.0, 600.0)
TPOT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 2.0)
LAG_BOUNDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
INFO_LABELS = ("vendor", "model", "region", "release", "accelerator", "status", "owner")

# Otherwise every counter and histogram brings a second series with the time it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]


M = TypeVar("M", bound=MetricWrapperBase)


class Families:
    """The metrics of probes; each has the labels endpoint and workload before its own.

    Attributes:
        all: Every family in the order of the exposition.
        quantiles: The window quantiles, by the history's name of the metric.
    """

    def __init__(self, thresholds: Mapping[str, Iterable[float]]) -> None:
        self.registry = CollectorRegistry()
        self.all: list[MetricWrapperBase] = []

        ttft = _bounds(TTFT_BOUNDS, thresholds.get("ttft", ()))
        tpot = _bounds(TPOT_BOUNDS, thresholds.get("tpot", ()))
        e2e = _bounds(E2E_BOUNDS, thresholds.get("e2e", ()))
        self.results = self._counter("results", "Results by outcome, excluded ones too", "outcome")
        self.excluded = self._counter("excluded", "Results that no indicator uses", "reason")
        self.ttft = self._histogram("ttft", "Time to the first output event, ok results", ttft)
        self.ttfat = self._histogram("ttfat", "Time to the first event past reasoning", ttft)
        self.tpot = self._histogram("tpot", "Time per output token, tpot/1", tpot, "token_source")
        self.e2e = self._histogram("e2e", "Time to the end of the answer, ok results", e2e)
        self.phase = self._add(
            Summary,
            "probe_phase_seconds",
            "Time in a phase before the answer, ok results",
            "phase",
        )
        self.tokens = self._counter("output_tokens", "Output tokens received", "token_source")
        self.cost = self._counter("cost", "Money spent, in the unit of the endpoint's price")
        self.last_success = self._gauge(
            "probe_last_success_timestamp_seconds", "Start of the last ok result"
        )
        self.up = self._gauge("up", "Whether the last valid result was good; absent if unknown")
        self.quantiles = {name: self._quantile(name) for name in ("ttft", "tpot", "e2e")}
        self.slo_good = self._add(Counter, "slo_good", "Events good for an SLO", "slo")
        self.slo_valid = self._add(Counter, "slo_valid", "Events that count for an SLO", "slo")
        self.slo_budget = self._gauge(
            "slo_error_budget_remaining_ratio",
            "Error budget left of an SLO's window: 1 - bad / (valid x (1 - objective))",
            "slo",
        )
        self.slo_burn = self._gauge(
            "slo_burn_rate",
            "Bad share of a window over what the objective allows; long windows only",
            "slo",
            "window",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._add(Counter, f"probe_{name}", text, *labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._add(Gauge, name, text, *labels)

    def _quantile(self, name: str) -> Gauge:
        text = f"Exact quantiles of {name} over the ok results of a window"
        return self._add(Gauge, f"{name}_quantile_seconds", text, "quantile", "window")

    def _histogram(
        self, name: str, text: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        return self._add(Histogram, f"probe_{name}_seconds", text, *labels, buckets=bounds)

    def _add(self, kind: type[M], name: str, text: str, *labels: str, **options: Any) -> M:
        labels = ("endpoint", "workload", *labels)
        family = kind(name, text, labels, namespace="endpoint", registry=self.registry, **options)
        self.all.append(family)
        return family


class Own:
    """The metrics of the monitor itself and of the parent process."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        common: dict[str, Any] = {"namespace": "endpoint_monitor", "registry": self.registry}
        self.loop_lag = Gauge(
            "event_loop_lag_seconds",
            "Worst delay of the prober's event loop in the last minute",
            **common,
        )
        self.gc_pause = Gauge(
            "gc_pause_seconds",
            "Longest garbage collection of the prober in the last minute",
            **common,
        )
        self.schedule_lag = Histogram(
            "schedule_lag_seconds", "Start of a probe minus its slot", buckets=LAG_BOUNDS, **common
        )
        self.slots = Counter(
            "slots", "Slots that ended, as a result or skipped and why", ["status"], **common
        )
        self.queue = Gauge("store_queue_length", "Rows not yet committed", **common)
        self.restarts = Counter("prober_restarts", "Times the prober was replaced", **common)
        self.clock_steps = Counter("clock_steps", "Wall clock steps over 0.5 s", **common)
        self.dropped = Counter(
            "rows_dropped", "Rows lost on the link or before the database", ["at"], **common
        )
        self.unexported = Gauge(
            "probes_unexported", "Probes left out because of the cap on lines", **common
        )
        self.alerts = Gauge("alerts_firing", "Alerts that fire", ["alert", "severity"], **common)
        self.outbox_oldest = Gauge(
            "outbox_oldest_seconds", "Age of the oldest notice not delivered; 0 if none", **common
        )
        runtime = Gauge("runtime_info", "Versions", ["version", "python", "system"], **common)
        runtime.labels(version, platform.python_version(), platform.system()).set(1)
        for at in ("link", "store"):
            self.dropped.labels(at)  # a counter that is born with its first count hides it


def info_family() -> Gauge:
    """Return the family of what is known about endpoints; its value is always 1."""
    labels = ["endpoint", *INFO_LABELS]
    return Gauge("endpoint_info", "What is known about an endpoint", labels, registry=None)


def _bounds(usual: Iterable[float], thresholds: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted({*usual, *thresholds}))
