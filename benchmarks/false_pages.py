"""False pages by simulation: probes that are exactly at their objective, and how often they page.

    python -m benchmarks.false_pages [WEEKS]

Every slot is good with the probability of the objective, independently. A page is counted each
time that one of the two page-worthy burn alerts begins to burn, so one that flickers counts again.
The goal is less than one a week for 180 probes together.
"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
from numpy.typing import NDArray

from monitor.slo import BURN_ALERTS, BURN_WINDOWS, min_bad
from monitor.slo.burn import MIN_BAD_SHORT

PROBES = 180
WEEK_S = 7 * 86_400.0
INTERVALS = (15.0, 60.0)
OBJECTIVES = (0.99, 0.999)


def false_pages(
    rng: np.random.Generator,
    objective: float,
    interval: float,
    weeks: float,
    *,
    needed: bool = True,
) -> float:
    """Return false pages a week of `PROBES` probes; without `needed` by burn rates alone."""
    slots = int(weeks * WEEK_S / interval)
    warm_up = int(BURN_WINDOWS["6h"] / interval)
    pages = 0
    for _ in range(PROBES):
        bad = rng.random(warm_up + slots) >= objective
        total = np.concatenate(([0], np.cumsum(bad, dtype=np.int32)))
        for alert in BURN_ALERTS:
            if alert.severity == "page":
                long, short = (int(BURN_WINDOWS[w] / interval) for w in (alert.long, alert.short))
                limit = alert.factor * (1.0 - objective)
                in_long, in_short = _last(total, long, warm_up), _last(total, short, warm_up)
                fires = (in_long > limit * long) & (in_short > limit * short)
                if needed:
                    fires &= (in_long >= min_bad(long, objective)) & (in_short >= MIN_BAD_SHORT)
                pages += int(np.count_nonzero(fires[1:] & ~fires[:-1]))
    return pages / weeks


def _last(total: NDArray[np.int32], width: int, warm_up: int) -> NDArray[np.int32]:
    """Return the bad slots among the last `width` at each slot after the warm-up."""
    return total[warm_up + 1 :] - total[warm_up + 1 - width : -width]


def main() -> None:
    weeks = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    rng = np.random.default_rng(20260701)
    print(f"{PROBES} probes exactly at their objective, {weeks:g} weeks; false pages a week:")
    print("objective  interval  with both minima  by rates alone")
    for objective, interval in product(OBJECTIVES, INTERVALS):
        with_k = false_pages(rng, objective, interval, weeks)
        without = false_pages(rng, objective, interval, min(weeks, 1.0), needed=False)
        print(f"{100 * objective:8g}%  {interval:6g} s  {with_k:16.2f}  {without:14.1f}")


if __name__ == "__main__":
    main()
