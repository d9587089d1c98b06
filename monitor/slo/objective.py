"""What an SLO is, and whether one result is good for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from monitor.slo.period import DAY_S, Month
from probes.result import Excluded, Outcome, Verdict, verdict

TIMES = ("ttft", "ttfat", "tpot", "e2e")
"""Metrics that may have a threshold, by the names of a result's fields without `_s`."""

_CORRECT = frozenset({Outcome.OK, Outcome.WRONG_MODEL, Outcome.VALIDATION_FAILED})
_MODELS = "models"


class Indicator(StrEnum):
    """What is counted as good out of what is valid."""

    AVAILABILITY = "availability"
    """ok out of ok and failed."""
    LATENCY = "latency"
    """ok and within the threshold, out of ok with a value and failed."""
    RATE_LIMITED = "rate_limited"
    """Not answered by 429, out of all that the ratio of availability or 429 hold."""
    CORRECTNESS = "correctness"
    """ok, out of ok, wrong model and failed validation."""
    CONSISTENCY = "consistency"
    """No ratio: p99 / p50 of a metric over the window stays within a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Count slices of time in place of results.

    Attributes:
        seconds: Length of a slice; slices begin at its multiples since the epoch.
        target: Share of good results, 0 to 1, from which on a slice is good.
    """

    seconds: int
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A service level objective.

    Attributes:
        name: Label `slo`.
        objective: Share of good out of valid, 0 to 1, that is to be held; means nothing for
            consistency.
        window: Seconds that roll, or a calendar month.
        metric: Of a latency or consistency SLO, one of `TIMES`.
        threshold: Seconds that are still good, for latency; greatest p99 / p50 for consistency.
        count_429: Whether 429 is bad, for one's own fleet; else it is not valid.
        slices: None counts results.
        endpoints: Globs of endpoint names.
        workloads: Globs of workload names; empty is every workload but those that list models.
        source: Where its figures come from; None is the operator.
    """

    name: str
    objective: float = 0.99
    window: float | Month = 30 * DAY_S
    indicator: Indicator = Indicator.AVAILABILITY
    metric: str | None = None
    threshold: float | None = None
    count_429: bool = False
    slices: Slices | None = None
    endpoints: tuple[str, ...] = ("*",)
    workloads: tuple[str, ...] = field(default=())
    source: str | None = None

    @property
    def budget(self) -> float:
        """Share of valid results that may be bad."""
        return 1.0 - self.objective


def applies(slo: Slo, endpoint: str, workload: str, kind: str) -> bool:
    """Whether an SLO is about a probe."""
    if not any(fnmatchcase(endpoint, pattern) for pattern in slo.endpoints):
        return False
    if not slo.workloads:
        return kind != _MODELS
    return any(fnmatchcase(workload, pattern) for pattern in slo.workloads)


def meaning(slo: Slo, outcome: Outcome, excluded: Excluded | None) -> bool | None:
    """Say what an outcome is to an SLO before its times: good, bad, or None for not valid.

    A confirmation probe is never to be asked about: only slots of the grid enter an indicator.
    """
    if excluded is not None or slo.indicator is Indicator.CONSISTENCY:
        return None
    sort = verdict(outcome)
    if slo.indicator is Indicator.CORRECTNESS:
        return outcome is Outcome.OK if outcome in _CORRECT else None
    if slo.indicator is Indicator.RATE_LIMITED:
        counted = (Verdict.GOOD, Verdict.BAD, Verdict.RATE_LIMITED)
        return sort is not Verdict.RATE_LIMITED if sort in counted else None
    if sort is Verdict.RATE_LIMITED and slo.count_429:
        return False
    return sort is Verdict.GOOD if sort in (Verdict.GOOD, Verdict.BAD) else None


def classify(
    slo: Slo, outcome: Outcome, excluded: Excluded | None, times: Mapping[str, float | None]
) -> bool | None:
    """Say whether a result is good (True) or bad (False) for an SLO; None is not valid.

    For latency a failed valid result is bad, and an ok one without a value (a TPOT of one token,
    a burst) is not valid: nothing was measured that could be judged.

    Args:
        slo: The objective.
        outcome: How the attempt ended.
        excluded: Why the result does not count; None when it does.
        times: Seconds by the names in `TIMES`; missing is None.
    """
    good = meaning(slo, outcome, excluded)
    if not good or slo.indicator is not Indicator.LATENCY:
        return good
    value = times.get(slo.metric or "")
    return None if value is None else value <= (slo.threshold or 0.0)


_MLPERF = (
    "MLPerf Inference latency limits (inference_rules.adoc; rulesets v5.1 = v6.1): "
    "limit of a p99 under load; one stream passing it proves nothing"
)

_LIMITS: Mapping[str, Mapping[str, float]] = {
    "llama-3.1-8b-server": {"ttft": 2.0, "tpot": 0.1},
    "llama-3.1-8b-interactive": {"ttft": 0.5, "tpot": 0.03},
    "llama-2-70b-server": {"ttft": 2.0, "tpot": 0.2},
    "llama-2-70b-interactive": {"ttft": 0.45, "tpot": 0.04},
    "llama-3.1-405b-server": {"ttft": 6.0, "tpot": 0.175},
    "llama-3.1-405b-interactive": {"ttft": 4.5, "tpot": 0.08},
    "mixtral-8x7b-server": {"ttft": 2.0, "tpot": 0.2},
    "deepseek-r1-server": {"ttft": 2.0, "tpot": 0.08},
    "deepseek-r1-interactive": {"ttft": 1.5, "tpot": 0.015},
    "gpt-oss-120b-server": {"ttft": 3.0, "tpot": 0.08},
    "gpt-oss-120b-interactive": {"ttft": 2.0, "tpot": 0.02},
    "qwen3-vl-235b-server": {"e2e": 12.0},
}

PRESETS: Mapping[str, tuple[Slo, ...]] = {
    f"limits-{name}": tuple(
        Slo(
            name=metric,
            indicator=Indicator.LATENCY,
            metric=metric,
            threshold=seconds,
            source=_MLPERF,
        )
        for metric, seconds in limits.items()
    )
    for name, limits in _LIMITS.items()
}
"""SLOs by preset, each named by its metric; 99 % within the limit over 30 days."""
