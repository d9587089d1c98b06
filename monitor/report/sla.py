"""A vendor's rule beside ours, on the same stored slots; pure.

Credit is told for the estimate and for both ends of its interval: a month near a rung lands on
the wrong one as often as not (reference: audit methods, section 5), so only a rung on which all
three agree is worth a claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.config import Credit, SlaRule, SlaTerm
from monitor.slo import Estimate, Month, outages, own
from monitor.slo.period import previous_month
from monitor.store.periods import OUTCOMES, Slots
from probes.result import Outcome, Verdict, verdict

_BAD = frozenset(outcome for outcome in Outcome if verdict(outcome) is Verdict.BAD)
_OK = frozenset({Outcome.OK})

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaReport:
    """One promise over one calendar month.

    Attributes:
        whole: Whether the period holds the whole month; else nothing can be claimed from it.
        unit: What is counted: `requests` or `slices of N s`.
        n: Units that count under the vendor's rule.
        vendor: Attainment under the vendor's rule with its sampling error; None without a unit.
        ours: Attainment under ours: by requests, failed ones bad, no cap of context.
        met: Whether the vendor's rule is met by the estimate; None without one.
        credits: Share of the bill that is due at the high end of the interval, for the estimate
            and at the low end; None where the ladder is not known.
        claimable: Whether all three agree on a credit, and the month is whole.
        claim_until: Last moment for a claim, seconds since the epoch; None if not known.
        incomplete: What of the vendor's text is not known; `assumed` what was taken for granted.
    """

    vendor_name: str
    product: str
    term: str
    since: float
    until: float
    whole: bool
    objective: float
    unit: str
    n: int
    vendor: Estimate | None
    ours: Estimate | None
    met: bool | None
    credits: tuple[float, float, float] | None
    claimable: bool
    claim_until: float | None
    source: str
    read_at: str
    recheck: bool
    incomplete: tuple[str, ...]
    assumed: tuple[str, ...]


def judge(rule: SlaRule, slots: Slots, period: tuple[float, float]) -> Iterator[SlaReport]:
    """Yield every promise of a rule for each month that the period touches, oldest first."""
    for since, until, whole in _months(rule.window, *period):
        part = slots.between(since, until)
        for term in rule.terms:
            yield _judged(rule, term, part, (since, until, whole))


def credit(ladder: tuple[Credit, ...], attainment: float) -> float:
    """Return the share of the bill due at an attainment: the lowest rung that is undercut."""
    return max((rung.share for rung in ladder if attainment < rung.below - 1e-12), default=0.0)


def _months(window: Month, since: float, until: float) -> list[tuple[float, float, bool]]:
    """Return the months of a period as begin, end within the period, and whether whole."""
    found = list[tuple[float, float, bool]]()
    begin, end = previous_month(window, until)
    if end < until:  # the running month
        found.append((max(end, since), until, False))
    while end > since:
        found.append((max(begin, since), end, begin >= since))
        begin, end = previous_month(window, begin)
    return found[::-1]


def _judged(
    rule: SlaRule, term: SlaTerm, slots: Slots, span: tuple[float, float, bool]
) -> SlaReport:
    since, until, whole = span
    within = _within_cap(rule, slots)
    good = _estimate(*_units(term, slots, within))
    ours = _estimate(slots.at, *_requests(term, slots, _OK, _BAD))
    due = None
    if term.credits and good is not None:
        best, middle, worst = (
            credit(term.credits, value) for value in (good.high, good.value, good.low)
        )
        due = (best, middle, worst)
    agree = due is not None and due[0] == due[2] > 0
    return SlaReport(
        vendor_name=rule.vendor,
        product=rule.product,
        term=term.name,
        since=since,
        until=until,
        whole=whole,
        objective=term.objective,
        unit="requests" if term.slice_s is None else f"slices of {term.slice_s} s",
        n=0 if good is None else good.n,
        vendor=good,
        ours=ours,
        met=None if good is None else good.value >= term.objective - 1e-12,
        credits=due,
        claimable=whole and agree,
        claim_until=None if rule.claim_s is None else until + rule.claim_s,
        source=rule.source,
        read_at=rule.read_at,
        recheck=rule.recheck,
        incomplete=rule.incomplete,
        assumed=rule.assumed,
    )


def _within_cap(rule: SlaRule, slots: Slots) -> Bools:
    """Return which results count under the cap of context; an unknown length does."""
    if rule.context_cap is None:
        return np.ones(len(slots.at), bool)
    return ~(slots.prompt_tokens > rule.context_cap)


def _requests(
    term: SlaTerm, slots: Slots, good: frozenset[Outcome], bad: frozenset[Outcome]
) -> tuple[Bools, Bools]:
    """Return which results are valid and which good, by outcome and the term's threshold."""
    counts = slots.excluded == 0
    is_good = counts & _among(slots, good)
    is_bad = counts & _among(slots, bad)
    if term.metric is None or term.threshold is None:
        return is_good | is_bad, is_good
    values = slots.times[term.metric]
    measured = is_good & ~np.isnan(values)
    return measured | is_bad, measured & (values <= term.threshold)


def _among(slots: Slots, outcomes: frozenset[Outcome]) -> Bools:
    codes = [code for code, outcome in enumerate(OUTCOMES) if outcome in outcomes]
    return np.isin(slots.outcome, codes)


def _units(term: SlaTerm, slots: Slots, within: Bools) -> tuple[Floats, Bools, Bools]:
    """Return time, validity and verdict of each unit of a term."""
    valid, good = _requests(term, slots, term.good, term.bad)
    valid &= within
    if term.slice_s is None:
        return slots.at, valid, good
    at, good = slots.at[valid], good[valid]
    numbers, places = np.unique(at // term.slice_s, return_inverse=True)
    n = np.bincount(places, minlength=len(numbers))
    if term.mean:
        is_good = _mean_in_time(term, slots, valid, places, len(numbers))
    else:
        had = np.bincount(places, weights=good, minlength=len(numbers))
        is_good = had >= term.slice_target * n - 1e-9
    return numbers * term.slice_s, n >= term.slice_min, is_good


def _mean_in_time(
    term: SlaTerm, slots: Slots, valid: Bools, places: NDArray[np.intp], slices: int
) -> Bools:
    """Return which slices have a mean within the threshold; one without any time has not."""
    values = slots.times[str(term.metric)][valid]
    known = ~np.isnan(values)
    total = np.bincount(places[known], weights=values[known], minlength=slices)
    n = np.bincount(places[known], minlength=slices)
    return (n > 0) & (total <= (term.threshold or 0.0) * n)


def _estimate(at: Floats, valid: Bools, good: Bools) -> Estimate | None:
    runs = outages(at[valid], good[valid])
    return own(int(valid.sum()), [run.slots for run in runs])
