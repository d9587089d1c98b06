"""Stored slots judged by objectives; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from monitor.config import SlaRule
from monitor.report.sla import SlaReport, judge
from monitor.slo import (
    BURN_ALERTS,
    BURN_WINDOWS,
    Counts,
    Estimate,
    Indicator,
    Month,
    Slo,
    budget_remaining,
    long_run,
    meaning,
    min_bad,
    outages,
    own,
    start_of,
)
from monitor.slo.burn import MIN_BAD_SHORT
from monitor.slo.estimate import Outage
from monitor.store.periods import EXCLUDED, OUTCOMES, Slots

NOTE = "MLPerf Endpoints-style; not an MLPerf result, not verified by MLCommons."

DAY_S = 86_400.0
_P99_NEEDS = 100
_HOUR_NEEDS = 10
_WORST = 5
_LISTED = 20

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Other figures in place of the configured ones; None leaves them.

    Attributes:
        objective: 0 to 1, for every SLO that is a ratio.
        threshold: Seconds, for every latency SLO.
    """

    objective: float | None = None
    threshold: float | None = None

    def applied(self, slo: Slo) -> Slo:
        """Return the SLO as it would be."""
        if self.objective is not None and slo.indicator is not Indicator.CONSISTENCY:
            slo = replace(slo, objective=self.objective)
        if self.threshold is not None and slo.indicator is Indicator.LATENCY:
            slo = replace(slo, threshold=self.threshold)
        return slo


@dataclass(frozen=True, slots=True, kw_only=True)
class SloReport:
    """One SLO over a span.

    Attributes:
        what: The objective in words.
        since: Begin of the span; seconds since the epoch, UTC.
        good: Good events; for consistency 0.
        valid: Events that count; for consistency ok results with a value.
        attainment: good / valid, or p99 / p50 for consistency; None without enough of them.
        met: Whether it is held; None where nobody can say.
        budget_remaining: Share of the error budget left; None without one.
        hour_spread: For consistency the greatest over the least median by hour of day (UTC).
        fired: How often each pair of windows would have begun to burn, by `1h/5m`.
        ratio: Whether it is good / valid; not for consistency.
    """

    name: str
    what: str
    objective: float
    since: float
    until: float
    good: int
    valid: int
    attainment: float | None
    met: bool | None
    budget_remaining: float | None = None
    hour_spread: float | None = None
    fired: Mapping[str, int] = field(default_factory=dict)
    ratio: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Valid and good results of one UTC day."""

    date: str
    good: int
    valid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """One probe over the period.

    Attributes:
        scheduled: Slots that ended, as results or skips.
        coverage: valid / scheduled; None without a slot.
        strict: Availability with 429 as bad.
        own: This period's own availability with its sampling error.
        long_run: The availability to expect, from outages as Poisson events.
        outages: The longest, longest first; `outage_count` of them all.
        longest_s: Of the longest, seconds to the first good slot.
        excluded: Results outside the ratio, by exclusion or outcome.
        worst_days: Days with the most bad results.
    """

    id: str
    endpoint: str
    workload: str
    interval: float
    scheduled: int
    valid: int
    good: int
    coverage: float | None
    strict: float | None
    own: Estimate | None
    long_run: Estimate | None
    outage_count: int
    longest_s: float | None
    outages: tuple[Outage, ...]
    excluded: Mapping[str, int]
    skipped: Mapping[str, int]
    worst_days: tuple[Day, ...]
    slos: tuple[SloReport, ...]
    slas: tuple[SlaReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All probes over a period.

    Attributes:
        kept_since: Before this, ok results are no longer kept and nothing is judged.
        what_if: What was asked in place of the configuration; None for nothing.
        unjudged: Rules that hold no promise, and why.
    """

    since: float
    until: float
    kept_since: float
    probes: tuple[ProbeReport, ...]
    what_if: WhatIf | None = None
    unjudged: tuple[str, ...] = ()
    note: str = NOTE


def judge_slots(slo: Slo, slots: Slots) -> tuple[Bools, Bools]:
    """Return which results are valid for an SLO, and which good; `classify` for arrays."""
    by_code = [[meaning(slo, o, e) for e in EXCLUDED] for o in OUTCOMES]
    table = np.array([[-1 if m is None else int(m) for m in row] for row in by_code], np.int8)
    found = table[slots.outcome, slots.excluded]
    valid, good = found >= 0, found == 1
    if slo.indicator is not Indicator.LATENCY:
        return valid, good
    values = slots.times[str(slo.metric)]
    valid &= ~(good & np.isnan(values))
    return valid, good & (values <= (slo.threshold or 0.0))


AVAILABLE = Slo(name="availability")
_STRICT = replace(AVAILABLE, count_429=True)


def report_probe(
    names: tuple[str, str, str],
    interval: float,
    slots: Slots,
    slos: Iterable[Slo],
    period: tuple[float, float],
    rules: Iterable[SlaRule] = (),
) -> ProbeReport:
    """Judge one probe.

    Args:
        names: Id, endpoint and workload.
        interval: Seconds between slots.
        slots: Of the period, which is [since, until).
        slos: Its objectives.
        period: Begin and end, seconds since the epoch.
        rules: Vendors' rules to judge it by as well.
    """
    valid, good = judge_slots(AVAILABLE, slots)
    n, n_good = int(valid.sum()), int(good.sum())
    strict_valid, strict_good = judge_slots(_STRICT, slots)
    runs = outages(slots.at[valid], good[valid])
    slots_of_runs = [run.slots for run in runs]
    lengths = {run: (run.end or period[1]) - run.at for run in runs}
    scheduled = len(slots.at) + len(slots.skip_at)
    by_length = sorted(runs, key=lambda run: -lengths[run])
    return ProbeReport(
        id=names[0],
        endpoint=names[1],
        workload=names[2],
        interval=interval,
        scheduled=scheduled,
        valid=n,
        good=n_good,
        coverage=n / scheduled if scheduled else None,
        strict=_share(strict_good, strict_valid),
        own=own(n, slots_of_runs),
        long_run=long_run(n, slots_of_runs),
        outage_count=len(runs),
        longest_s=max(lengths.values(), default=None),
        outages=tuple(by_length[:_LISTED]),
        excluded=_excluded(slots, valid),
        skipped=slots.skips,
        worst_days=tuple(_worst_days(slots.at[valid], good[valid])),
        slos=tuple(one for slo in slos for one in _reports(slo, slots, period)),
        slas=tuple(one for rule in rules for one in judge(rule, slots, period)),
    )


def _share(good: Bools, valid: Bools) -> float | None:
    return int(good.sum()) / int(valid.sum()) if valid.any() else None


def _excluded(slots: Slots, valid: Bools) -> dict[str, int]:
    """Count what availability leaves out, by exclusion, else by outcome."""
    pairs = zip(slots.outcome[~valid].tolist(), slots.excluded[~valid].tolist(), strict=True)
    return dict(Counter(str(EXCLUDED[e] or OUTCOMES[o]) for o, e in pairs).most_common())


def _worst_days(at: NDArray[np.float64], good: Bools) -> list[Day]:
    numbers = (at // DAY_S).astype(np.int64)
    days = []
    for number in np.unique(numbers[~good]).tolist():
        of_day = numbers == number
        date = datetime.fromtimestamp(number * DAY_S, UTC).date().isoformat()
        days.append(Day(date=date, good=int(good[of_day].sum()), valid=int(of_day.sum())))
    return sorted(days, key=lambda day: (day.good / day.valid, day.date))[:_WORST]


def _reports(slo: Slo, slots: Slots, period: tuple[float, float]) -> Iterator[SloReport]:
    for since, until in spans(slo, *period):
        part = slots.between(since, until)
        if slo.indicator is Indicator.CONSISTENCY:
            yield _consistency(slo, part, (since, until))
        else:
            yield _ratio(slo, part, (since, until))


def spans(slo: Slo, since: float, until: float) -> list[tuple[float, float]]:
    """Return what an SLO is judged over: the period, or its calendar months, oldest first."""
    if not isinstance(slo.window, Month):
        return [(since, until)]
    found, end = list[tuple[float, float]](), until
    while end > since:
        begin = start_of(slo.window, end - 1.0)
        found.append((max(begin, since), end))
        end = begin
    return found[::-1]


def _ratio(slo: Slo, slots: Slots, span: tuple[float, float]) -> SloReport:
    valid, good = judge_slots(slo, slots)
    at, is_good = slots.at[valid], good[valid]
    if slo.slices is not None:
        at, is_good = _sliced(at, is_good, slo.slices.seconds, slo.slices.target)
    counts = Counts(int(is_good.sum()), len(is_good))
    attainment = counts.good / counts.valid if counts.valid else None
    return SloReport(
        name=slo.name,
        what=words(slo),
        objective=slo.objective,
        since=span[0],
        until=span[1],
        good=counts.good,
        valid=counts.valid,
        attainment=attainment,
        # Counts, as 0.999 of 1000 is 999 and no float above it.
        met=None if attainment is None else counts.bad <= counts.valid * slo.budget + 1e-9,
        budget_remaining=budget_remaining(counts, slo.objective),
        fired=backtest(at, is_good, slo.objective),
    )


def _sliced(
    at: NDArray[np.float64], good: Bools, seconds: int, target: float
) -> tuple[NDArray[np.float64], Bools]:
    numbers, places = np.unique(at // seconds, return_inverse=True)
    valid = np.bincount(places, minlength=len(numbers))
    had = np.bincount(places, weights=good, minlength=len(numbers))
    return numbers * seconds, had >= target * valid - 1e-9


def backtest(at: NDArray[np.float64], good: Bools, objective: float) -> dict[str, int]:
    """Return how often each burn alert would have begun to burn, looking at each event.

    Windows that reach back before the first event hold what there is, as after a first start.
    """
    bad = np.concatenate(([0], np.cumsum(~good, dtype=np.int64)))
    newest = np.arange(1, len(at) + 1)
    found = {}
    for alert in BURN_ALERTS:
        limit = alert.factor * (1.0 - objective)
        if limit <= 0 or limit >= 1:
            continue
        fires = np.ones(len(at), bool)
        for name in (alert.long, alert.short):
            first = np.searchsorted(at, at - BURN_WINDOWS[name], side="right")
            n, n_bad = newest - first, bad[newest] - bad[first]
            fires &= n_bad > limit * n + 1e-9
            least = _min_bads(n, objective) if name == alert.long else MIN_BAD_SHORT
            fires &= n_bad >= least
        edges = np.count_nonzero(fires[1:] & ~fires[:-1]) + int(fires[:1].any())
        found[f"{alert.long}/{alert.short}"] = int(edges)
    return found


def _min_bads(valid: NDArray[np.int64], objective: float) -> NDArray[np.int64]:
    sizes, places = np.unique(valid, return_inverse=True)
    return np.array([min_bad(n, objective) for n in sizes.tolist()], np.int64)[places]


def _consistency(slo: Slo, slots: Slots, span: tuple[float, float]) -> SloReport:
    _, good = judge_slots(AVAILABLE, slots)
    values = slots.times[str(slo.metric)]
    measured = good & ~np.isnan(values)
    values, at = values[measured], slots.at[measured]
    ratio = None
    if len(values) >= _P99_NEEDS:
        p50, p99 = np.quantile(values, (0.5, 0.99), method="inverted_cdf").tolist()
        ratio = p99 / p50 if p50 > 0 else None
    return SloReport(
        name=slo.name,
        what=words(slo),
        objective=slo.threshold or 0.0,
        since=span[0],
        until=span[1],
        good=0,
        valid=len(values),
        attainment=ratio,
        met=None if ratio is None else ratio <= (slo.threshold or 0.0),
        hour_spread=_hour_spread(at, values),
        ratio=False,
    )


def _hour_spread(at: NDArray[np.float64], values: NDArray[np.float64]) -> float | None:
    """Return the greatest over the least median by hour of the day; None with fewer than two."""
    hours = (at // 3600 % 24).astype(np.int64)
    enough = [h for h in range(24) if np.count_nonzero(hours == h) >= _HOUR_NEEDS]
    medians = [float(np.median(values[hours == h])) for h in enough]
    return max(medians) / min(medians) if len(medians) > 1 and min(medians) > 0 else None


def words(slo: Slo) -> str:
    """Return an objective in words."""
    if slo.indicator is Indicator.CONSISTENCY:
        return f"{slo.metric} p99 at most {slo.threshold:g} x p50"
    what = {
        Indicator.AVAILABILITY: "available",
        Indicator.LATENCY: f"ok with {slo.metric} <= {slo.threshold or 0:g} s",
        Indicator.RATE_LIMITED: "not rate limited",
        Indicator.CORRECTNESS: "correct",
    }[slo.indicator]
    if slo.slices is not None:
        slices = f"of slices of {slo.slices.seconds} s that are {100 * slo.slices.target:g} %"
        return f"{100 * slo.objective:g} % {slices} {what}"
    return f"{100 * slo.objective:g} % {what}" + ", 429 is bad" * slo.count_429
