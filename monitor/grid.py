"""When slots are due: a fixed grid on the machine's monotonic clock; pure.

Slot k of a probe is due at phase + k x interval, counted from the clock's own zero, so a restarted
prober goes on with the same grid and a wall clock step moves nothing. The phase is hashed from the
probe's id: probes that start in lock-step were the largest TTFT error on a small machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_SPREAD = 30.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The slots of one probe.

    Attributes:
        interval: Seconds between slots.
        phase: Seconds, 0 <= phase < interval.
        opening: Number of the first slot.
        first: When that one is due, if before its place on the grid: after a start nobody wants
            to wait an interval for a first result.
    """

    interval: float
    phase: float
    opening: int
    first: float | None = None

    def due(self, slot: int) -> float:
        """Return the monotonic time at which a slot is due."""
        if slot == self.opening and self.first is not None:
            return self.first
        return self.phase + slot * self.interval

    def latest(self, now: float) -> int | None:
        """Return the last slot that was due at `now`; None before the first."""
        if now < self.due(self.opening):
            return None
        return max(self.opening, self._floor(now))

    def after(self, now: float) -> float:
        """Return when the next slot after `now` is due."""
        slot = max(self.opening, self._floor(now))
        while self.due(slot) <= now:
            slot += 1
        return self.due(slot)

    def between(self, last: int | None, latest: int) -> range:
        """Return the slots after `last` (None: from the first) and before `latest`."""
        return range(self.opening if last is None else last + 1, latest)

    def _floor(self, now: float) -> int:
        return math.floor((now - self.phase) / self.interval)


def phase(probe: str, interval: float) -> float:
    """Return the probe's fixed phase in seconds."""
    digest = hashlib.blake2b(probe.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * interval


def starting(probe: str, interval: float, first: float) -> Grid:
    """Return the grid of a probe that starts at `first`.

    Its first slot is the next on the grid brought forward to there, so that the second comes one
    to two intervals later and never overlaps it.
    """
    at = phase(probe, interval)
    return Grid(interval, at, math.ceil((first - at) / interval), first)


def resumed(probe: str, interval: float, last: int) -> Grid:
    """Return the grid of a probe whose slots up to `last` a predecessor has dealt with."""
    return Grid(interval, phase(probe, interval), last + 1)


def grids(probes: Sequence[tuple[str, float]], now: float, last: Mapping[str, int]) -> list[Grid]:
    """Return a grid for each (id, interval).

    Probes in `last` go on after the slot named there. The others start, spread over an interval
    or 30 s, the first of them at once.
    """
    return [
        resumed(probe, interval, last[probe])
        if probe in last
        else starting(probe, interval, now + min(interval, FIRST_SPREAD) * i / len(probes))
        for i, (probe, interval) in enumerate(probes)
    ]
