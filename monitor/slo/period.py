"""Windows of time: seconds that roll, or calendar months of a zone with its clock changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

DAY_S = 86_400.0
_LONGEST_MONTH_S = 31 * DAY_S + 3600.0  # 31 days with the hour that an autumn night repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A calendar month, from midnight of the first to midnight of the next first.

    Attributes:
        zone: IANA name of the zone whose midnights count.
    """

    zone: str = "UTC"


def start_of(window: float | Month, now: float) -> float:
    """Return when the window that ends at `now` began, seconds since the epoch, UTC."""
    if not isinstance(window, Month):
        return now - window
    local = datetime.fromtimestamp(now, ZoneInfo(window.zone))
    return local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0).timestamp()


def previous_month(window: Month, now: float) -> tuple[float, float]:
    """Return begin and end of the last whole month before `now`: what a contract settles."""
    end = start_of(window, now)
    return start_of(window, end - 1.0), end


def longest(window: float | Month) -> float:
    """Return the greatest length of a window, seconds."""
    return _LONGEST_MONTH_S if isinstance(window, Month) else window
