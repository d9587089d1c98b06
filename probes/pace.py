"""Times of output events and what follows from them: TPOT, gaps, clumping; pure."""

from __future__ import annotations

from itertools import pairwise

from probes.result import Itl

BURST_TOKENS = 4
BURST_SPAN = 0.005
COARSE_GAPS = 3
COARSE_GAP = 0.002
COARSE_MEAN = 0.010


class Pace:
    """Arrival stamps of output events, monotonic seconds in order.

    Attributes:
        stamps: One per output event.
        answer_at: First output event that is not reasoning; None before one.
        merged: Events that share a stamp with another one: their own times are not known.
        summarized: Whether a reasoning summary was streamed. It is no pace of tokens, so the
            pace then starts at the answer.
    """

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.answer_at: float | None = None
        self.merged = 0
        self.summarized = False
        self._shared: float | None = None

    def add(self, at: float) -> None:
        """Take one output event."""
        if self.stamps and at == self.stamps[-1]:
            # Count the event and, once, the one whose stamp it shares.
            self.merged += 1 if self._shared == at else 2
            self._shared = at
        self.stamps.append(at)

    @property
    def first(self) -> float | None:
        """When the first output event came."""
        return self.stamps[0] if self.stamps else None

    @property
    def last(self) -> float | None:
        """When the last output event came."""
        return self.stamps[-1] if self.stamps else None

    def _span(self) -> float | None:
        start = self.answer_at if self.summarized else self.first
        return None if start is None else self.stamps[-1] - start

    def burst(self, visible: int | None) -> bool:
        """Whether at least 4 tokens came within 5 ms: too close to tell their pace."""
        span = self._span()
        return span is not None and (visible or 0) >= BURST_TOKENS and span < BURST_SPAN

    def tpot(self, visible: int | None) -> float | None:
        """Return (last - first) / (visible - 1) in seconds, tpot/1; None where undefined."""
        span = self._span()
        if span is None or visible is None or visible < 2 or self.burst(visible):
            return None
        return span / (visible - 1)

    def gaps(self) -> list[float]:
        """Return the times between output events, seconds."""
        return [later - earlier for earlier, later in pairwise(self.stamps)]

    def coarse(self) -> bool:
        """Whether delivery is clumped: half the gaps are next to nothing, yet the mean is not."""
        gaps = self.gaps()
        if len(gaps) < COARSE_GAPS or sum(gaps) / len(gaps) < COARSE_MEAN:
            return False
        return 2 * sum(gap < COARSE_GAP for gap in gaps) >= len(gaps)

    def itl(self) -> Itl | None:
        """Return count, nearest-rank percentiles and maximum of the gaps; None without one."""
        ranked = sorted(self.gaps())
        n = len(ranked)
        if not n:
            return None
        p50, p99 = ranked[-(-n * 50 // 100) - 1], ranked[-(-n * 99 // 100) - 1]
        return Itl(n=n, p50=p50, p99=p99, max=ranked[-1])
