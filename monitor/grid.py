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
EXTRA = -1
"""Number of the extra slot at a start."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The slots of one probe.

    Attributes:
        interval: Seconds between slots.
        phase: Seconds, 0 <= phase < interval.
        opening: Number of the first slot on the grid.
        first: Monotonic time of the extra slot before it; None when there is none.
    """

    interval: float
    phase: float
    opening: int
    first: float | None = None

    def due(self, slot: int) -> float:
        """Return the monotonic time at which a slot is due."""
        if slot == EXTRA and self.first is not None:
            return self.first
        return self.phase + slot * self.interval

    def latest(self, now: float) -> int | None:
        """Return the last slot that was due at `now`; None before the first."""
        slot = self._floor(now)
        if slot >= self.opening:
            return slot
        return EXTRA if self.first is not None and now >= self.first else None

    def after(self, now: float) -> float:
        """Return when the next slot after `now` is due."""
        if self.first is not None and now < self.first:
            return self.first
        slot = max(self._floor(now), self.opening)
        while self.due(slot) <= now:
            slot += 1
        return self.due(slot)

    def between(self, last: int | None, latest: int) -> Sequence[int]:
        """Return the slots after `last` (None: from the beginning) and before `latest`."""
        on_grid = range(self.opening if last is None else max(last + 1, self.opening), latest)
        extra = last is None and self.first is not None and latest > EXTRA
        return [EXTRA, *on_grid] if extra else on_grid

    def _floor(self, now: float) -> int:
        return math.floor((now - self.phase) / self.interval)


def phase(probe: str, interval: float) -> float:
    """Return the probe's fixed phase in seconds."""
    digest = hashlib.blake2b(probe.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * interval


def starting(probe: str, interval: float, first: float) -> Grid:
    """Return the grid of a probe that starts with an extra slot at `first`.

    The grid begins an interval later, so the extra slot never overlaps the next.
    """
    at = phase(probe, interval)
    return Grid(interval, at, math.ceil((first + interval - at) / interval), first)


def resumed(probe: str, interval: float, last: int) -> Grid:
    """Return the grid of a probe whose slots up to `last` a predecessor has dealt with."""
    return Grid(interval, phase(probe, interval), last + 1)


def grids(
    probes: Sequence[tuple[str, float]], now: float, last: Mapping[str, int] | None = None
) -> list[Grid]:
    """Return a grid for each (id, interval); first slots are spread, the first one at once.

    A probe in `last` goes on after the slot that is named there and has no extra one.
    """
    last = last or {}
    return [
        resumed(probe, interval, last[probe])
        if probe in last
        else starting(probe, interval, now + min(interval, FIRST_SPREAD) * i / len(probes))
        for i, (probe, interval) in enumerate(probes)
    ]
