"""Maintenance windows: when work on an endpoint is expected; pure.

A recurring window begins at a wall-clock time of its zone and lasts its length in real time: two
hours stay two hours in the night of a clock change. A begin that a clock change skips is taken
with the offset before the gap, and one that comes twice is taken the first time, both as in
RFC 5545 section 3.3.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

EVERY_DAY = frozenset(range(7))
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window, recurring or once.

    Attributes:
        name: What a person calls it.
        length: Seconds it lasts.
        zone: IANA zone of `at`; it means nothing for a window that is once.
        at: Wall-clock time at which it begins; None for a window that is once.
        days: Week days on which it begins, Monday is 0.
        once_at: Begin of a window that is once, seconds since the epoch; else None.
        endpoints: Names of the endpoints it covers; empty covers all.
    """

    name: str
    length: float
    zone: str = "UTC"
    at: time | None = None
    days: frozenset[int] = EVERY_DAY
    once_at: float | None = None
    endpoints: frozenset[str] = field(default_factory=frozenset)

    def covers(self, endpoint: str) -> bool:
        """Whether the window is for this endpoint."""
        return not self.endpoints or endpoint in self.endpoints


def span(window: Window, now: float) -> tuple[float, float] | None:
    """Return begin and end of the window that holds `now`, seconds since the epoch, or None.

    The begin belongs to a window, its end does not.
    """
    for begin in _begins(window, now):
        if begin <= now < begin + window.length:
            return begin, begin + window.length
    return None


def active(windows: Iterable[Window], endpoint: str, now: float) -> Window | None:
    """Return the first window in which this endpoint is at `now`; None outside of all."""
    for window in windows:
        if window.covers(endpoint) and span(window, now) is not None:
            return window
    return None


def _begins(window: Window, now: float) -> Iterator[float]:
    """Yield the begins that may matter at `now`, latest first."""
    if window.once_at is not None:
        yield window.once_at
    elif window.at is not None:
        zone = ZoneInfo(window.zone)  # cached by the library
        today = datetime.fromtimestamp(now, zone).date()
        # A window of a day and more may have begun long ago; a zone may skip a whole day.
        for back in range(-1, int(window.length // 86400) + 3):
            day = today - back * _DAY
            if day.weekday() in window.days:
                yield _instant(day, window.at, zone)


def _instant(day: date, at: time, zone: ZoneInfo) -> float:
    return datetime.combine(day, at, zone).timestamp()  # fold 0: see the module's docstring
