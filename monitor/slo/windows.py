"""Rolling counts of one SLO on one probe: integers in rings of fixed size.

Theory of operation. Three rings of buckets, each fine enough for the windows it answers: minutes
for six hours, five minutes for three days, hours (quarters for calendar months, whose midnights
may lie at quarters of an hour UTC) for the SLO's own window. A bucket remembers which stretch of
time it counts, and a newer stretch takes the place of an older one, never the other way round; so
events may come in any order. One from a clock that ran ahead costs the single bucket whose place
it takes, and is not seen until its time comes.
"""

from __future__ import annotations

import math

import numpy as np

from monitor.slo.burn import BURN_WINDOWS, Counts, Fired, burning
from monitor.slo.objective import Slo
from monitor.slo.period import Month, longest, start_of

_LATE_S = 120.0
"""Seconds after its end for which a slice waits for results that come late."""

_MOST = np.iinfo(np.uint16).max


class _Ring:
    """Counts by buckets of `width` seconds, the newest `size` of them."""

    def __init__(self, width: int, size: int) -> None:
        self.width, self.size = width, size
        self._number = np.full(size, -1, np.int32)
        self._good = np.zeros(size, np.uint16)
        self._valid = np.zeros(size, np.uint16)

    def add(self, at: float, good: int, valid: int) -> None:
        number = int(at // self.width)
        place = number % self.size
        if number < self._number[place]:
            return
        if number > self._number[place]:
            self._number[place] = number
            self._good[place] = self._valid[place] = 0
        room = _MOST - int(self._valid[place])  # 65,535 a minute: not by probing
        self._good[place] += min(good, room)
        self._valid[place] += min(valid, room)

    def counts(self, since: float, now: float) -> Counts:
        """Return the counts of the buckets that hold any part of (since, now]."""
        last = int(now // self.width)
        first = max(math.floor(since / self.width), last - self.size + 1)
        numbers = np.arange(first, last + 1)
        places = numbers % self.size
        seen = self._number[places] == numbers
        good = int(self._good[places].sum(where=seen, dtype=np.int64))
        return Counts(good, int(self._valid[places].sum(where=seen, dtype=np.int64)))


class SloWindow:
    """Counts of one SLO on one probe over its burn windows and its own.

    A window is answered in whole buckets: it reaches back its full length and up to one bucket
    further (a minute up to 6 h, five minutes up to 3 d, an hour beyond).

    Attributes:
        slo: The objective.
        since: Slot of the oldest event taken; None before one.
        late: Events that came after their slice was closed, and are lost to it.
    """

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.since: float | None = None
        self.late = 0
        width = 900 if isinstance(slo.window, Month) else 3600
        size = math.ceil(longest(slo.window) / width) + 2
        self._rings = (_Ring(60, 362), _Ring(300, 866), _Ring(width, size))
        self._slices = _Slices(slo.slices.seconds, slo.slices.target) if slo.slices else None

    def add(self, at: float, *, good: bool) -> None:
        """Take one classified event, whose slot was due at `at`."""
        self.since = at if self.since is None else min(self.since, at)
        if self._slices is None:
            self._put(at, int(good), 1)
        elif not self._slices.add(at, good=good):
            self.late += 1

    def fill(self, at: float, counts: Counts) -> None:
        """Take many events of one minute (or slice) at once, as the store counts them."""
        if not counts.valid:
            return
        self.since = at if self.since is None else min(self.since, at)
        if self.slo.slices is None:
            self._put(at, counts.good, counts.valid)
        else:
            self._put(at, int(counts.good >= self.slo.slices.target * counts.valid), 1)

    def counts(self, seconds: float, now: float) -> Counts:
        """Return the counts of the last `seconds`."""
        self._close(now)
        return self._between(now - seconds, now)

    def burn_counts(self, now: float) -> dict[str, Counts]:
        """Return the counts of every burn window."""
        self._close(now)
        return {name: self._between(now - s, now) for name, s in BURN_WINDOWS.items()}

    def burning(self, now: float) -> tuple[Fired, ...]:
        """Return the burn alerts that burn now."""
        return burning(self.slo, self.burn_counts(now))

    def total(self, now: float) -> Counts:
        """Return the counts of the SLO's own window."""
        self._close(now)
        return self._rings[2].counts(start_of(self.slo.window, now), now)

    def filling(self, now: float) -> bool:
        """Whether the window is not yet full: its figures are of a shorter time than they say.

        A calendar month fills by its nature; it is not full if it was not seen from its start.
        """
        slack = 3600.0 if isinstance(self.slo.window, Month) else 0.0
        return self.since is None or self.since > start_of(self.slo.window, now) + slack

    def _between(self, since: float, now: float) -> Counts:
        for ring in self._rings:
            if now - since <= ring.width * (ring.size - 2):
                return ring.counts(since, now)
        return self._rings[-1].counts(since, now)

    def _put(self, at: float, good: int, valid: int) -> None:
        for ring in self._rings:
            ring.add(at, good, valid)

    def _close(self, now: float) -> None:
        if self._slices is not None:
            for at, good in self._slices.closed(now):
                self._put(at, int(good), 1)


class _Slices:
    """Slices of time that are still open."""

    def __init__(self, seconds: int, target: float) -> None:
        self._seconds, self._target = seconds, target
        self._open: dict[int, tuple[int, int]] = {}
        self._closed_to = -1

    def add(self, at: float, *, good: bool) -> bool:
        """Count a result; False if its slice is closed."""
        number = int(at // self._seconds)
        if number <= self._closed_to:
            return False
        had, valid = self._open.get(number, (0, 0))
        self._open[number] = (had + good, valid + 1)
        return True

    def closed(self, now: float) -> list[tuple[float, bool]]:
        """Return begin and verdict of the slices that end by now, once each."""
        last = int((now - _LATE_S) // self._seconds) - 1
        done = sorted(number for number in self._open if number <= last)
        self._closed_to = max(self._closed_to, last)
        found = []
        for number in done:
            good, valid = self._open.pop(number)
            found.append((float(number * self._seconds), good >= self._target * valid))
        return found
