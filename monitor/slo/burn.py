"""Error budgets and burn rates: counts in, decisions out.

Formulas: Google SRE Workbook chapter 5 (multiwindow, multi-burn-rate alerts), with a condition
more for each window. The long one needs `min_bad` bad results: one out of sixty burns a budget of
0.1 % at 17 times its rate and means nothing. The short one needs two: with a single one the alert
would come and go with every lone failure (benchmarks/false_pages.py: 1.0 false pages a week
instead of 0.3 for 180 probes at 99.9 % and 15 s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from monitor.slo.objective import Slo

BURN_WINDOWS: Mapping[str, float] = {
    "5m": 300.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "2h": 7200.0,
    "6h": 21_600.0,
    "1d": 86_400.0,
    "3d": 259_200.0,
}
"""Seconds by the value of the label `window`."""

CHANCE = 1e-5
"""Greatest chance that an endpoint exactly at its objective shows `min_bad` bad results."""

MIN_BAD_SHORT = 2
"""Bad events that the short window needs."""

_DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnAlert:
    """One pair of windows.

    Attributes:
        factor: Burn rate that both windows must exceed.
        long: Key of `BURN_WINDOWS`; so is `short`.
        severity: `page` or `ticket`.
    """

    factor: float
    long: str
    short: str
    severity: str


BURN_ALERTS = (
    BurnAlert(factor=14.4, long="1h", short="5m", severity="page"),
    BurnAlert(factor=6.0, long="6h", short="30m", severity="page"),
    BurnAlert(factor=3.0, long="1d", short="2h", severity="ticket"),
    BurnAlert(factor=1.0, long="3d", short="6h", severity="ticket"),
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Good and valid events of a window; 0 <= good <= valid."""

    good: int = 0
    valid: int = 0

    @property
    def bad(self) -> int:
        """Valid events that were not good."""
        return self.valid - self.good

    def __add__(self, other: Counts) -> Counts:
        """Return the counts of two windows that do not overlap."""
        return Counts(self.good + other.good, self.valid + other.valid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A burn alert that burns.

    Attributes:
        long: Counts of its long window; `short` of its short one.
        needed: Bad events that the long window had to have.
    """

    alert: BurnAlert
    long: Counts
    short: Counts
    needed: int


def budget_remaining(counts: Counts, objective: float) -> float | None:
    """Return the share of the error budget that is left: 1 - bad / (valid x (1 - objective)).

    Below zero when overspent; None where there is no budget: no valid event, or an objective of 1.
    """
    allowed = counts.valid * (1.0 - objective)
    return 1.0 - counts.bad / allowed if allowed > _DUST else None


def burn_rate(counts: Counts, objective: float) -> float | None:
    """Return how many times faster than allowed: (bad / valid) / (1 - objective).

    At 1 the budget of a window is gone at its end. None as for `budget_remaining`.
    """
    allowed = counts.valid * (1.0 - objective)
    return counts.bad / allowed if allowed > _DUST else None


def poisson_tail(k: float, mean: float) -> float:
    """Return P(Poisson(mean) >= k), 1 for k <= 0; for k not whole, the incomplete gamma function.

    P(a, x) = x^a e^-x / gamma(a + 1) x (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...); DLMF 8.7.1. Small
    tails keep their relative precision, as nothing is subtracted.
    """
    if k <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    term = total = 1.0
    n = 0
    while term > total * 1e-17:
        n += 1
        term *= mean / (k + n)
        total += term
    log = k * math.log(mean) - mean - math.lgamma(k + 1.0) + math.log(total)
    return min(1.0, math.exp(log))


@lru_cache(maxsize=65_536)
def min_bad(valid: int, objective: float, chance: float = CHANCE) -> int:
    """Return the smallest k >= 1 with P(Poisson(valid x (1 - objective)) >= k) <= chance."""
    mean = valid * (1.0 - objective)
    low, high = 0, 1
    while poisson_tail(high, mean) > chance:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if poisson_tail(middle, mean) > chance else (low, middle)
    return high


def burns(alert: BurnAlert, long: Counts, short: Counts, objective: float) -> bool:
    """Whether one pair of windows burns: both rates exceed the factor, with enough bad events."""
    limit = alert.factor * (1.0 - objective)
    if limit <= _DUST or not long.valid or not short.valid:
        return False
    exceed = all(c.bad - limit * c.valid > _DUST * c.valid for c in (long, short))
    enough = short.bad >= MIN_BAD_SHORT and long.bad >= min_bad(long.valid, objective)
    return exceed and enough


def burning(slo: Slo, counts: Mapping[str, Counts]) -> tuple[Fired, ...]:
    """Return the alerts of `BURN_ALERTS` that burn, gravest first.

    Args:
        slo: The objective; one of 1, or a consistency SLO, has no budget and burns nothing.
        counts: By the keys of `BURN_WINDOWS`; a missing one is empty.
    """
    found = []
    for alert in BURN_ALERTS:
        long, short = (counts.get(name, Counts()) for name in (alert.long, alert.short))
        if burns(alert, long, short, slo.objective):
            needed = min_bad(long.valid, slo.objective)
            found.append(Fired(alert=alert, long=long, short=short, needed=needed))
    return tuple(found)


def numbers(fired: Fired, objective: float) -> str:
    """Return one sentence: how fast, over which windows, with n."""
    rate = burn_rate(fired.long, objective) or 0.0
    alert, long, short = fired.alert, fired.long, fired.short
    return (
        f"{long.bad:,} of {long.valid:,} bad in {alert.long} ({rate:.1f}x the budget's rate, "
        f"limit {alert.factor:g}x; {fired.needed} needed) and {short.bad:,} of {short.valid:,} "
        f"in {alert.short}, objective {100 * objective:g} %."
    )


def can_fire(alert: BurnAlert, objective: float, interval: float) -> str | None:
    """Return why an alert of a probe can never fire, or hardly, as a sentence; None if it can.

    Args:
        alert: A pair of windows.
        objective: 0 to 1.
        interval: Seconds between events that may be valid: slots, or slices where longer.
    """
    if objective >= 1.0:
        return "an objective of 100 % has no error budget"
    limit = alert.factor * (1.0 - objective)
    if limit >= 1.0 - _DUST:
        return f"it asks for more than {limit:.0%} bad results"
    valid = int(BURN_WINDOWS[alert.long] / interval)
    needed = min_bad(valid, objective)
    if needed > valid:
        return f"{alert.long} holds {valid} results and it needs {needed} bad ones"
    if BURN_WINDOWS[alert.short] < 2 * interval:
        return f"{alert.short} holds fewer than two results"
    return None
