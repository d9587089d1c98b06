"""What an availability is worth: two figures that are often mistaken for each other.

*Own* is this period's availability as the slots show it; its error comes only from what happened
between slots. *Long run* asks what this endpoint is like: outages are the events, so few outages
tell little however many slots each of them hit. A binomial interval over slots answers neither:
with clustered outages it covers 10 to 75 % instead of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.slo.burn import poisson_tail

_Z = 1.959964  # two-sided 95 %
_RULE_OF_THREE = 3.0  # -ln(0.05): what zero events leave possible at 95 %
_TAIL = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An availability with its 95 % interval, 0 to 1.

    Attributes:
        n: What it rests on: valid slots, or outages.
    """

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A maximal run of bad valid slots.

    Attributes:
        at: First bad slot.
        end: First good slot after it; None while it lasts.
        slots: Bad slots in it.
    """

    at: float
    end: float | None
    slots: int


def outages(at: NDArray[np.float64], good: NDArray[np.bool_]) -> list[Outage]:
    """Return the runs of bad slots, oldest first. Only valid slots are to be given, in order."""
    edges = np.flatnonzero(good[1:] != good[:-1]) + 1
    starts = np.concatenate(([0], edges)).astype(int) if len(good) else edges
    ends = np.append(edges, len(good))
    return [
        Outage(
            at=float(at[start]),
            end=float(at[end]) if end < len(at) else None,
            slots=int(end - start),
        )
        for start, end in zip(starts, ends, strict=False)
        if start < len(good) and not good[start]
    ]


def own(valid: int, runs: Sequence[int]) -> Estimate | None:
    """Return this period's own availability with its sampling error; None without a valid slot.

    Slots sample an on-and-off process at even steps. The two edges of an outage that hits several
    slots are each known to one step: variance 1/6 slot^2 over both. One that hits a single slot
    may be shorter than a step, and others like it unseen: variance up to 1. So the standard error
    is sqrt(singles + longer / 6) / n; with singles alone the binomial one. Without a bad slot the
    rule of three bounds what was missed: 3 / n.

    Args:
        valid: Valid slots.
        runs: Bad slots of each outage.
    """
    if not valid:
        return None
    value = 1.0 - sum(runs) / valid
    singles = sum(run == 1 for run in runs)
    error = _Z * math.sqrt(singles + (len(runs) - singles) / 6.0) / valid
    low = value - error if runs else 1.0 - _RULE_OF_THREE / valid
    return Estimate(value=value, low=max(0.0, low), high=min(1.0, value + error), n=valid)


def long_run(valid: int, runs: Sequence[int]) -> Estimate | None:
    """Return the availability in the long run, from outages as Poisson events.

    Downtime is a compound Poisson sum: outages come at a constant rate, each with a length of its
    own. Its interval is that of a scaled Poisson count (Bohm and Zech, NIM A 748, 2014): scale s =
    sum(d^2) / sum(d), effective count m = sum(d) / s, and Garwood's exact interval for m, times s.
    Without an outage at most 3 / n is down (rule of three, outages of one slot assumed).

    Args:
        valid: Valid slots.
        runs: Bad slots of each outage.
    """
    if not valid:
        return None
    if not runs:
        return Estimate(value=1.0, low=max(0.0, 1.0 - _RULE_OF_THREE / valid), high=1.0, n=0)
    down = sum(runs)
    scale = sum(run * run for run in runs) / down
    least, most = garwood(down / scale)
    return Estimate(
        value=1.0 - down / valid,
        low=max(0.0, 1.0 - scale * most / valid),
        high=1.0 - scale * least / valid,
        n=len(runs),
    )


def garwood(count: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a Poisson mean after `count` events, whole or not."""
    low = _mean_with_tail(count, _TAIL) if count > 0 else 0.0
    return low, _mean_with_tail(count + 1.0, 1.0 - _TAIL)


def _mean_with_tail(k: float, tail: float) -> float:
    """Return the mean for which P(Poisson(mean) >= k) is `tail`, by bisection."""
    low, high = 0.0, k + 10.0 * math.sqrt(k) + 20.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if poisson_tail(k, middle) < tail else (low, middle)
    return (low + high) / 2.0
