"""The recent slots of one probe in memory, and what a person is told of them.

The only keeper of the exact window: counts, availability, outages and percentiles of the last day
come from here, so neither page nor metrics wait for the database.

One thread writes (`add`, `skip`), any may read: a slot once visible is never changed, and the
rows in use are swapped as one tuple. Rows are kept in the order of their time even when they
arrive late or the clock was set back; a slot ahead of `now` is not seen until its time comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.alerts import ON_PURPOSE
from monitor.link import ResultRow, Skip, SkipRow
from monitor.status import Block, Last, Outages, Spread
from probes.result import Excluded, Outcome, Verdict, verdict

DAY_S = 86_400.0

# How a slot ended, in one byte: outcome and exclusion, or skip. One count over the byte answers
# most questions. 0 is an ok result that counts.
_Ending = tuple[Outcome | None, Excluded | None, Skip | None]
_RESULTS: tuple[_Ending, ...] = tuple((o, e, None) for e in (None, *Excluded) for o in Outcome)
_ENDINGS: tuple[_Ending, ...] = (*_RESULTS, *((None, None, skip) for skip in Skip))
_CODE = {ending: code for code, ending in enumerate(_ENDINGS)}
_OK = _CODE[Outcome.OK, None, None]


def _is_valid(ending: _Ending) -> bool:
    outcome, excluded, _ = ending
    counts = outcome is not None and verdict(outcome) in (Verdict.GOOD, Verdict.BAD)
    return counts and excluded is None


_VALID = np.array([_is_valid(ending) for ending in _ENDINGS])
_WANTED = np.array([skip in ON_PURPOSE for _, _, skip in _ENDINGS])

_SLOT = np.dtype(
    [("at", "f8"), ("ttft", "f4"), ("tpot", "f4"), ("e2e", "f4"), ("ending", "u1")], align=True
)
_FEW = 64
_ALWAYS_SHOWN = 0.9
_TIMES = ("ttft", "tpot", "e2e")

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot that ended, in short: a result, or a skip (then `outcome` is None).

    Attributes:
        at: When the slot was due; wall clock, seconds since the epoch, UTC.
        excluded: Why a result does not count; None when it does.
        ttft: Seconds, None where there is none; so are `tpot` and `e2e`.
        reason: One plain sentence for a person.
    """

    at: float
    outcome: Outcome | None = None
    skip: Skip | None = None
    excluded: Excluded | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    reason: str | None = None


def slot_of(row: ResultRow | SkipRow, excluded: Excluded | None = None) -> Slot:
    """Return what the history keeps of a row; `excluded` overrides what the result says."""
    if isinstance(row, SkipRow):
        return Slot(at=row.slot_at, skip=row.reason)
    result = row.result
    return Slot(
        at=row.slot_at,
        outcome=result.outcome,
        excluded=excluded or result.excluded,
        ttft=result.ttft_s,
        tpot=result.tpot_s,
        e2e=result.e2e_s,
        reason=result.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the slots of a window say; the fields mean what they mean in `ProbeStatus`.

    Attributes:
        e2e: As `ttft`, for kinds that stream nothing.
    """

    window_s: float
    availability: float | None = None
    coverage: float | None = None
    n: int = 0
    good: int = 0
    scheduled: int = 0
    outages: Outages = field(default_factory=Outages)
    ttft: Spread = field(default_factory=Spread)
    tpot: Spread = field(default_factory=Spread)
    e2e: Spread = field(default_factory=Spread)
    excluded: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles (0 to 1) in seconds over `n` ok results; one too extreme for n is left out."""

    n: int
    values: Mapping[float, float]


class History:
    """The slots of one probe, a day of them and up to as many again.

    Attributes:
        last: The newest result to arrive; None before one.
        last_error: The newest result to arrive that was not ok; None before one.
    """

    def __init__(self, keep_s: float = DAY_S) -> None:
        self._keep_s = keep_s
        self._window = (np.empty(_FEW, _SLOT), 0)
        self.last: Last | None = None
        self.last_error: Last | None = None

    def __len__(self) -> int:
        return self._window[1]

    def add(self, slot: Slot) -> None:
        """Keep a slot."""
        times = [np.nan if time is None else time for time in (slot.ttft, slot.tpot, slot.e2e)]
        self._insert((slot.at, *times, _CODE[slot.outcome, slot.excluded, slot.skip]))
        if slot.outcome is None:
            return
        self.last = Last(outcome=slot.outcome, at=slot.at, reason=slot.reason)
        if slot.outcome is not Outcome.OK:
            self.last_error = self.last

    def summary(self, now: float, window_s: float = DAY_S) -> Summary:
        """Return counts, ratios, outages and spreads of the slots in (now - window_s, now]."""
        rows = self._between(now - window_s, now)
        endings = rows["ending"]
        counts = np.bincount(endings, minlength=len(_ENDINGS))
        valid, good = _VALID[endings], endings == _OK
        n, n_good, scheduled = int(counts[_VALID].sum()), int(counts[_OK]), len(rows)
        excluded, skipped = _outside(counts)
        return Summary(
            window_s=window_s,
            availability=n_good / n if n else None,
            coverage=n / scheduled if scheduled else None,
            n=n,
            good=n_good,
            scheduled=scheduled,
            outages=_outages(rows["at"][valid], good[valid], now) if n > n_good else Outages(),
            ttft=_spread(rows["ttft"][good]),
            tpot=_spread(rows["tpot"][good]),
            e2e=_spread(rows["e2e"][good]),
            excluded=excluded,
            skipped=skipped,
        )

    def blocks(self, count: int = 60, now: float | None = None) -> tuple[Block, ...]:
        """Return the last `count` slots, oldest first; none after `now` where it is given."""
        rows = self._between(-np.inf, np.inf if now is None else now)
        return tuple(_block(row) for row in rows[-count:].tolist())

    def quantiles(
        self, now: float, window_s: float, qs: Iterable[float] = (0.5, 0.9, 0.99)
    ) -> dict[str, Quantiles]:
        """Return quantiles of `ttft`, `tpot` and `e2e` over the ok results of a window.

        A metric without a value is left out. So is a quantile beyond 0.9 over fewer than
        1 / (1 - q) values: a p99 needs a hundred.
        """
        rows = self._between(now - window_s, now)
        good = rows["ending"] == _OK
        found = {}
        for name in _TIMES:
            values = _sorted(rows[name][good])
            if len(values):
                picked = {q: _nearest(values, q) for q in qs if _enough(len(values), q)}
                found[name] = Quantiles(n=len(values), values=picked)
        return found

    def skipped_on_purpose(self, since: float, now: float) -> bool:
        """Whether a slot in (since, now] was skipped because somebody wanted it."""
        return bool(_WANTED[self._between(since, now)["ending"]].any())

    def _between(self, after: float, until: float) -> Rows:
        rows, end = self._window
        first, last = rows["at"][:end].searchsorted((after, until), side="right")
        return rows[first:last]

    def _insert(self, row: tuple[float, ...]) -> None:
        rows, end = self._window
        if end == len(rows):
            rows, end = self._compact(row[0])
        if end and row[0] < rows["at"][end - 1]:
            rows = _inserted(rows, end, row)
        else:
            rows[end] = row
        self._window = (rows, end + 1)

    def _compact(self, at: float) -> tuple[Rows, int]:
        """Drop what is past keeping and make room; called each time the array is full.

        A single slot from a clock gone wrong must not drop the day, so the age of the newest
        two counts.
        """
        rows, _ = self._window
        oldest = min(at, float(rows["at"][-1])) - self._keep_s
        kept = rows[rows["at"].searchsorted(oldest, side="right") :]
        roomy = np.empty(max(_FEW, 2 * len(kept)), _SLOT)
        roomy[: len(kept)] = kept
        return roomy, len(kept)


def _inserted(rows: Rows, end: int, row: tuple[float, ...]) -> Rows:
    """Return a copy of the rows with one more at its place: readers may hold the old ones."""
    place = int(rows["at"][:end].searchsorted(row[0], side="right"))
    copy = np.empty_like(rows)
    copy[:place] = rows[:place]
    copy[place] = row
    copy[place + 1 : end + 1] = rows[place:end]
    return copy


def _outages(at: NDArray[np.float64], good: NDArray[np.bool_], now: float) -> Outages:
    """Count maximal runs of bad results; each lasts from its first to the next good one, or now.

    Only valid results are given, so a skip or a 429 inside a run neither ends nor splits it; at
    least one of them is bad.
    """
    edges = np.flatnonzero(good[1:] != good[:-1]) + 1
    if len(good) and not good[0]:
        edges = np.concatenate(([0], edges))
    times = at[edges]
    if len(edges) % 2:
        times = np.append(times, now)
    lengths = times[1::2] - times[::2]
    return Outages(count=len(lengths), longest_s=float(lengths.max()))


def _sorted(values: NDArray[np.float32]) -> NDArray[np.float32]:
    ordered = np.sort(values)  # NaN last
    return ordered[: ordered.searchsorted(np.nan)]


def _nearest(ordered: NDArray[np.float32], q: float) -> float:
    """Return the nearest-rank quantile: the first value up to which at least q of them lie."""
    rank = math.ceil(q * len(ordered) - 1e-9)
    return float(ordered[max(rank, 1) - 1])


def _enough(n: int, q: float) -> bool:
    return q <= _ALWAYS_SHOWN or n * (1 - q) > 1 - 1e-9


def _spread(values: NDArray[np.float32]) -> Spread:
    ordered = _sorted(values)
    if not len(ordered):
        return Spread()
    return Spread(n=len(ordered), p50=_nearest(ordered, 0.5), p90=_nearest(ordered, 0.9))


def _outside(counts: NDArray[np.intp]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the results outside the ratio, by exclusion or else outcome, and skips by reason."""
    excluded, skipped = dict[str, int](), dict[str, int]()
    for code in np.flatnonzero((counts > 0) & ~_VALID).tolist():
        outcome, exclusion, skip = _ENDINGS[code]
        tally, name = (excluded, exclusion or outcome) if skip is None else (skipped, skip)
        tally[str(name)] = tally.get(str(name), 0) + int(counts[code])
    return excluded, skipped


def _block(row: tuple[Any, ...]) -> Block:
    at, ttft, _tpot, _e2e, code = row
    outcome, excluded, skip = _ENDINGS[code]
    ttft_s = None if math.isnan(ttft) else ttft
    return Block(at=at, outcome=outcome, skip=skip, ttft_s=ttft_s, excluded=excluded)
