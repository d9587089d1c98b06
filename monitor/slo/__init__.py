"""Objectives: what counts as good, how fast the error budget goes, when that is worth a page.

Pure: integers in, decisions out; no clock, no I/O. `objective` says what an SLO is and judges one
result, `burn` reckons with counts, `windows` keeps rolling counts, `book` those of one probe,
`period` knows windows of time, `estimate` what a figure is worth.
"""

from monitor.slo.book import SloBook, Standing
from monitor.slo.burn import (
    BURN_ALERTS,
    BURN_WINDOWS,
    BurnAlert,
    Counts,
    Fired,
    budget_remaining,
    burn_rate,
    burning,
    can_fire,
    min_bad,
    numbers,
)
from monitor.slo.estimate import Estimate, long_run, outages, own
from monitor.slo.objective import PRESETS, Indicator, Slices, Slo, applies, classify, meaning
from monitor.slo.period import Month, longest, start_of
from monitor.slo.windows import SloWindow

__all__ = [
    "BURN_ALERTS",
    "BURN_WINDOWS",
    "PRESETS",
    "BurnAlert",
    "Counts",
    "Estimate",
    "Fired",
    "Indicator",
    "Month",
    "Slices",
    "Slo",
    "SloBook",
    "SloWindow",
    "Standing",
    "applies",
    "budget_remaining",
    "burn_rate",
    "burning",
    "can_fire",
    "classify",
    "long_run",
    "longest",
    "meaning",
    "min_bad",
    "numbers",
    "outages",
    "own",
    "start_of",
]
