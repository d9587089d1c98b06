from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.maintenance import EVERY_DAY, Window, active, span

HOUR = 3600.0


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def wall(text: str, zone: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def daily(at: str, hours: float, zone: str, days: frozenset[int] = EVERY_DAY) -> Window:
    return Window(name="w", at=time.fromisoformat(at), length=hours * HOUR, zone=zone, days=days)


# Nights of both clock changes of 2026, and what the clock shows an hour before them.
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_a_window_begins_at_local_time_and_keeps_its_length_over_a_clock_change(
    zone: str, day: str
) -> None:
    """CASES M21: a nightly window of three hours from 01:00, over the change at 02:00 or 03:00."""
    window = daily("01:00", 3, zone)
    begin = wall(f"{day}T01:00", zone)
    assert span(window, begin) == (begin, begin + 3 * HOUR)
    assert span(window, begin - 1) is None
    assert span(window, begin + 3 * HOUR - 1) == (begin, begin + 3 * HOUR)
    assert span(window, begin + 3 * HOUR) is None


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_the_days_around_a_clock_change_begin_at_the_same_local_time(zone: str, day: str) -> None:
    """The offset changes, the time on the wall does not."""
    window = daily("22:30", 1, zone)
    middle = datetime.fromisoformat(f"{day}T22:30").replace(tzinfo=ZoneInfo(zone))
    for days in (-1, 0, 1):
        begin = (middle + timedelta(days=days)).timestamp()
        assert span(window, begin) == (begin, begin + HOUR)
        assert span(window, begin - 1) is None


def test_a_begin_that_the_clock_skips_takes_the_offset_before_the_gap() -> None:
    """02:30 does not exist on 29 March in Berlin: the window begins as clocks show 03:30."""
    window = daily("02:30", 1, "Europe/Berlin")
    begin = utc("2026-03-29T01:30")
    assert span(window, begin) == (begin, begin + HOUR)
    assert span(window, begin - 1) is None


def test_a_begin_that_comes_twice_is_taken_once() -> None:
    """02:30 comes twice on 25 October in Berlin, the window only the first time."""
    window = daily("02:30", 0.5, "Europe/Berlin")
    assert span(window, utc("2026-10-25T00:30")) is not None
    assert span(window, utc("2026-10-25T01:30")) is None


def test_a_window_goes_on_over_midnight_and_week_days_are_those_of_its_begin() -> None:
    """Saturday 23:00 for two hours covers the first hour of Sunday."""
    window = daily("23:00", 2, "UTC", days=frozenset({5}))
    assert span(window, utc("2026-11-29T00:59")) is not None  # a Sunday
    assert span(window, utc("2026-11-29T01:00")) is None
    assert span(window, utc("2026-11-29T23:30")) is None


def test_a_window_may_last_days() -> None:
    """From Friday evening to Monday morning."""
    window = daily("18:00", 62, "Asia/Kolkata", days=frozenset({4}))
    assert span(window, wall("2026-11-30T07:59", "Asia/Kolkata")) is not None
    assert span(window, wall("2026-11-30T08:00", "Asia/Kolkata")) is None


def test_a_window_that_is_once_is_never_again() -> None:
    """One-off work has two instants and no zone."""
    window = Window(name="move", once_at=1000.0, length=60.0)
    assert span(window, 1000.0) == (1000.0, 1060.0)
    assert span(window, 999.9) is None
    assert span(window, 1060.0) is None


def test_a_window_covers_its_endpoints_only() -> None:
    """Empty covers all."""
    own = Window(name="own", once_at=0.0, length=10.0, endpoints=frozenset({"a"}))
    every = Window(name="every", once_at=5.0, length=10.0)
    assert active([own, every], "a", 6.0) is own
    assert active([own, every], "b", 6.0) is every
    assert active([own, every], "b", 1.0) is None


@given(
    st.floats(utc("2026-01-01"), utc("2027-12-31")),
    st.times().map(lambda t: t.replace(second=0, microsecond=0)),
    st.floats(0.1, 30),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
def test_every_window_found_holds_the_moment_and_has_its_length(
    now: float, at: time, hours: float, zone: str
) -> None:
    """Whatever the zone."""
    found = span(Window(name="w", at=at, length=hours * HOUR, zone=zone), now)
    if found is not None:
        begin, end = found
        assert begin <= now < end
        assert end - begin == pytest.approx(hours * HOUR)
    else:
        assert hours < 25.1  # a longer one that begins each day has no hole
