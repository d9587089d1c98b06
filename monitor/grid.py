"""When slots are due: a fixed grid on the machine's monotonic clock; pure.

Slot k of a probe is due at phase + k x interval, counted from the clock's own zero, so a restarted
prober goes on with the same grid and a wall clock step moves nothing. The phase is hashed from the
probe's id: probes that start in lock-step were the largest TTFT error on a small machine.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

FIRST_SPREAD = 30.0
_FIRST = -1


@dataclass(frozen=True, slots=True)
class Grid:
    """The slots of one probe.

    Attributes:
        interval: Seconds between slots.
        phase: Seconds, 0 <= phase < interval.
        first: Monotonic time of the extra slot -1 after a start.
    """

    interval: float
    phase: float
    first: float

    def due(self, slot: int) -> float:
        """Return the monotonic time at which a slot is due."""
        return self.first if slot == _FIRST else self.phase + slot * self.interval

    def latest(self, now: float) -> int | None:
        """Return the last slot that was due at `now`; None before the first."""
        if now < self.first:
            return None
        slot = math.floor((now - self.phase) / self.interval)
        return slot if self.due(slot) >= self._opening() else _FIRST

    def after(self, now: float) -> float:
        """Return when the next slot after `now` is due."""
        if now < self.first:
            return self.first
        earliest = max(now, self._opening())
        slot = math.floor((earliest - self.phase) / self.interval)
        while self.due(slot) <= now or self.due(slot) < self._opening():
            slot += 1
        return self.due(slot)

    def between(self, last: int | None, latest: int) -> range:
        """Return the grid slots after `last` and before `latest`."""
        if latest == _FIRST:
            return range(0)
        opening = math.ceil((self._opening() - self.phase) / self.interval)
        start = opening if last is None or last == _FIRST else max(last + 1, opening)
        return range(start, latest)

    def _opening(self) -> float:
        """The grid begins an interval after the extra slot, which so never overlaps its next."""
        return self.first + self.interval


def phase(probe: str, interval: float) -> float:
    """Return the probe's fixed phase in seconds."""
    digest = hashlib.blake2b(probe.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * interval


def grids(probes: list[tuple[str, float]], now: float) -> list[Grid]:
    """Return a grid for each (id, interval); first slots are spread, the first one at once."""
    spread = [min(interval, FIRST_SPREAD) * i / len(probes) for i, (_, interval) in
              enumerate(probes)]  # fmt: skip
    return [
        Grid(interval, phase(probe, interval), now + late)
        for (probe, interval), late in zip(probes, spread, strict=True)
    ]
