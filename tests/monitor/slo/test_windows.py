from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.slo import BURN_WINDOWS, Counts, Month, Slices, Slo, SloWindow, start_of
from monitor.slo.period import DAY_S, longest, previous_month

NOW = 1_800_000_000.0  # a whole minute, and a whole five


def filled(slo: Slo, events: list[tuple[float, bool]]) -> SloWindow:
    window = SloWindow(slo)
    for at, good in events:
        window.add(at, good=good)
    return window


AGES = st.floats(0, 30 * DAY_S)


@settings(deadline=None)
@given(st.lists(st.tuples(AGES, st.booleans()), max_size=60))
def test_a_window_counts_all_of_its_length_and_at_most_a_bucket_more(
    events: list[tuple[float, bool]],
) -> None:
    window = filled(Slo(name="a"), [(NOW - age, good) for age, good in events])
    for seconds, more in (*((s, 300 if s > 21_600 else 60) for s in BURN_WINDOWS.values()),
                          (30 * DAY_S, 3600)):  # fmt: skip
        counts = window.counts(seconds, NOW)
        within = sum(age <= seconds for age, _ in events)
        at_most = sum(age <= seconds + more for age, _ in events)
        assert 0 <= counts.good <= counts.valid
        assert within <= counts.valid <= at_most


@settings(deadline=None)
@given(st.lists(st.tuples(AGES, st.booleans()), max_size=30), st.randoms())
def test_the_order_of_arrival_does_not_matter(
    events: list[tuple[float, bool]], random: Random
) -> None:
    rows = [(NOW - age, good) for age, good in events]
    shuffled = random.sample(rows, len(rows))
    one, other = filled(Slo(name="a"), rows), filled(Slo(name="a"), shuffled)
    assert one.burn_counts(NOW) == other.burn_counts(NOW)
    assert one.total(NOW) == other.total(NOW)


def test_a_slot_from_a_clock_gone_wrong_costs_one_bucket_and_waits_for_its_time() -> None:
    window = filled(Slo(name="a"), [(NOW - 60 * n, True) for n in range(60)])
    before = window.burn_counts(NOW)
    window.add(NOW + DAY_S, good=False)
    for name, counts in window.burn_counts(NOW).items():
        assert counts.good == counts.valid >= before[name].valid - 1
    assert window.counts(300.0, NOW + DAY_S) == Counts(0, 1)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = filled(Slo(name="a"), [(NOW, False)])
    assert window.total(NOW + 30 * DAY_S) == Counts(0, 1)
    assert window.total(NOW + 30 * DAY_S + 3601) == Counts()
    assert window.counts(3600.0, NOW + 3 * DAY_S) == Counts()


def test_a_month_of_a_probe_every_fifteen_seconds_is_counted_to_the_last_one() -> None:
    window = SloWindow(Slo(name="a"))
    for minute in range(30 * 24 * 60):
        window.fill(NOW - 60.0 * minute, Counts(3, 4))
    assert window.total(NOW) == Counts(3 * 43_200, 4 * 43_200)


def test_buckets_never_overflow_into_less() -> None:
    window = SloWindow(Slo(name="a"))
    for _ in range(3):
        window.fill(NOW, Counts(30_000, 40_000))
    counts = window.counts(60.0, NOW)
    assert counts.good <= counts.valid == 65_535


def test_a_window_is_filling_until_it_was_seen_whole() -> None:
    window = SloWindow(Slo(name="a"))
    assert window.filling(NOW)
    window.add(NOW - 29 * DAY_S, good=True)
    assert window.filling(NOW)
    assert not window.filling(NOW + DAY_S)


def test_a_burn_alert_fires_out_of_a_window() -> None:
    window = SloWindow(Slo(name="a", objective=0.999))
    for n in range(360):
        window.add(NOW - 60.0 * n, good=n >= 5)
    assert [fired.alert.long for fired in window.burning(NOW)] == ["1h"]


# --- slices --------------------------------------------------------------------------------------


def sliced() -> Slo:
    return Slo(name="s", slices=Slices(seconds=60, target=0.9))


def test_a_slice_is_good_when_enough_of_it_is() -> None:
    window = SloWindow(sliced())
    for n in range(10):
        window.add(NOW - 600 + n, good=n != 0)  # nine of ten
        window.add(NOW - 540 + n, good=n > 1)  # eight of ten
    assert window.total(NOW) == Counts(1, 2)


def test_a_slice_without_a_valid_result_is_no_slice() -> None:
    window = filled(sliced(), [(NOW - 3000, True), (NOW - 600, True)])
    assert window.total(NOW) == Counts(2, 2)


def test_an_open_slice_waits_for_late_results_and_a_closed_one_takes_none() -> None:
    window = filled(sliced(), [(NOW, True)])
    assert window.total(NOW + 170) == Counts()
    window.add(NOW + 1, good=False)
    assert window.total(NOW + 180) == Counts(0, 1)
    window.add(NOW + 2, good=True)
    assert (window.total(NOW + 240), window.late) == (Counts(0, 1), 1)


def test_stored_minutes_fill_as_slices() -> None:
    window = SloWindow(sliced())
    window.fill(NOW - 600, Counts(4, 4))
    window.fill(NOW - 540, Counts(3, 4))
    assert window.total(NOW) == Counts(1, 2)


# --- calendar months -----------------------------------------------------------------------------


def local(zone: str, *when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("Europe/Berlin", 3, 31 * 24 - 1),  # spring takes an hour
        ("Europe/Berlin", 10, 31 * 24 + 1),  # autumn gives it back
        ("America/New_York", 3, 31 * 24 - 1),
        ("America/New_York", 11, 30 * 24 + 1),
        ("Asia/Kathmandu", 4, 30 * 24),
        ("UTC", 2, 28 * 24),
    ],
)
def test_a_calendar_month_is_as_long_as_its_zone_says(zone: str, month: int, hours: int) -> None:
    begin = local(zone, 2026, month, 1)
    end = local(zone, 2026, month + 1, 1)
    assert start_of(Month(zone=zone), end - 1) == begin
    assert start_of(Month(zone=zone), begin) == begin
    assert previous_month(Month(zone=zone), end + 5) == (begin, end)
    assert (end - begin) / 3600 == hours
    assert end - begin <= longest(Month(zone=zone))


def test_a_month_begins_at_its_own_midnight_even_at_a_quarter_past() -> None:
    slo = Slo(name="m", window=Month(zone="Asia/Kathmandu"))
    begin = local("Asia/Kathmandu", 2026, 4, 1)
    assert datetime.fromtimestamp(begin, UTC).minute == 15
    window = filled(slo, [(begin - 1, False), (begin, True), (begin + 30 * DAY_S - 1, True)])
    assert window.total(begin + 30 * DAY_S - 1) == Counts(2, 2)
    assert window.total(begin + 30 * DAY_S) == Counts()


def test_both_hours_of_the_autumn_night_belong_to_the_month() -> None:
    slo = Slo(name="m", window=Month(zone="Europe/Berlin"))
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    window = filled(slo, [(first, True), (first + 3600, False)])
    assert window.total(local("Europe/Berlin", 2026, 10, 31, 23, 59)) == Counts(1, 2)
