import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.slo import (
    BURN_ALERTS,
    BURN_WINDOWS,
    Counts,
    Slo,
    budget_remaining,
    burn_rate,
    burning,
    can_fire,
    min_bad,
    numbers,
)
from monitor.slo.burn import CHANCE, burns, poisson_tail

OBJECTIVES = st.floats(0.5, 0.9999)
VALID = st.integers(1, 200_000)


def tail_by_sum(k: int, mean: float) -> float:
    """P(Poisson >= k), term by term from k upwards."""
    return math.fsum(
        math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(k, k + 2000)
    )


@settings(deadline=None)
@given(st.integers(1, 400), st.floats(0.001, 300))
def test_the_tail_equals_the_sum_of_its_terms(k: int, mean: float) -> None:
    assert poisson_tail(k, mean) == pytest.approx(tail_by_sum(k, mean), rel=1e-8, abs=1e-300)


@settings(deadline=None)
@given(st.integers(0, 20_000), OBJECTIVES)
def test_min_bad_is_the_smallest_number_that_chance_does_not_explain(
    valid: int, objective: float
) -> None:
    k, mean = min_bad(valid, objective), valid * (1 - objective)
    assert poisson_tail(k, mean) <= CHANCE
    assert k == 1 or poisson_tail(k - 1, mean) > CHANCE


@pytest.mark.parametrize(
    ("valid", "objective", "k"), [(60, 0.999, 4), (240, 0.999, 5), (360, 0.999, 6), (60, 0.99, 7)]
)
def test_min_bad_of_usual_windows(valid: int, objective: float, k: int) -> None:
    assert min_bad(valid, objective) == k


def test_without_a_budget_one_bad_event_is_one_too_many() -> None:
    assert min_bad(0, 0.99) == min_bad(10, 1.0) == 1


@settings(deadline=None)
@given(VALID, OBJECTIVES, st.data())
def test_the_burn_rate_rises_with_every_bad_event(
    valid: int, objective: float, data: st.DataObject
) -> None:
    good = data.draw(st.integers(1, valid))
    less, more = (burn_rate(Counts(g, valid), objective) for g in (good, good - 1))
    assert less is not None
    assert more is not None
    assert 0 <= less < more


@settings(deadline=None)
@given(VALID, OBJECTIVES, st.data())
def test_what_is_left_of_the_budget_is_one_less_the_burn_rate(
    valid: int, objective: float, data: st.DataObject
) -> None:
    counts = Counts(data.draw(st.integers(0, valid)), valid)
    left, rate = budget_remaining(counts, objective), burn_rate(counts, objective)
    assert left is not None
    assert rate is not None
    assert left == pytest.approx(1 - rate)
    assert left <= 1


def test_a_budget_that_is_just_spent_is_zero() -> None:
    assert budget_remaining(Counts(9_990, 10_000), 0.999) == pytest.approx(0.0)


def test_no_event_and_no_tolerance_have_no_budget() -> None:
    for counts, objective in ((Counts(), 0.99), (Counts(5, 10), 1.0)):
        assert budget_remaining(counts, objective) is None
        assert burn_rate(counts, objective) is None


@settings(deadline=None)
@given(OBJECTIVES, st.data())
def test_more_bad_events_never_end_a_burn(objective: float, data: st.DataObject) -> None:
    long, short = data.draw(st.integers(1, 500)), data.draw(st.integers(1, 100))
    good = data.draw(st.integers(0, long))
    good_short = data.draw(st.integers(0, short))
    for alert in BURN_ALERTS:
        before = burns(alert, Counts(good, long), Counts(good_short, short), objective)
        worse = Counts(max(good - 1, 0), long), Counts(max(good_short - 1, 0), short)
        assert burns(alert, *worse, objective) >= before


def windows(**bad: tuple[int, int]) -> dict[str, Counts]:
    return {name: Counts(valid - b, valid) for name, (b, valid) in bad.items()}


def in_windows(**bad: tuple[int, int]) -> dict[str, Counts]:
    return windows(**{name.removeprefix("w"): counts for name, counts in bad.items()})


def test_a_full_outage_burns_the_quick_pair_first() -> None:
    counts = in_windows(w1h=(9, 60), w5m=(5, 5), w6h=(9, 360), w30m=(9, 30))
    [fired] = burning(Slo(name="a"), counts)
    assert (fired.alert.long, fired.alert.severity, fired.needed) == ("1h", "page", 7)
    assert numbers(fired, 0.99) == (
        "9 of 60 bad in 1h (15.0x the budget's rate, limit 14.4x; 7 needed) "
        "and 5 of 5 in 5m, objective 99 %."
    )


def test_both_windows_must_burn() -> None:
    assert not burning(Slo(name="a"), in_windows(w1h=(30, 60), w5m=(0, 5)))
    assert not burning(Slo(name="a"), in_windows(w1h=(1, 60), w5m=(1, 5)))


def test_one_lone_failure_pages_nobody_at_three_nines() -> None:
    counts = in_windows(w1h=(1, 60), w5m=(1, 5), w6h=(1, 360), w30m=(1, 30))
    assert not burning(Slo(name="a", objective=0.999), counts)


def test_a_rate_exactly_at_its_limit_does_not_burn() -> None:
    slow = BURN_ALERTS[1]
    assert not burns(slow, Counts(940, 1000), Counts(94, 100), 0.99)
    assert burns(slow, Counts(939, 1000), Counts(93, 100), 0.99)


def test_missing_windows_are_empty_and_burn_nothing() -> None:
    assert burning(Slo(name="a"), {}) == ()
    assert burning(Slo(name="a", objective=1.0), in_windows(w1h=(60, 60), w5m=(5, 5))) == ()


def test_an_alert_that_asks_for_more_than_everything_can_never_fire() -> None:
    quick = BURN_ALERTS[0]
    assert can_fire(quick, 0.93, 60.0) == "it asks for more than 101% bad results"
    assert not burns(quick, Counts(0, 60), Counts(0, 5), 0.93)
    assert can_fire(quick, 1.0, 60.0) == "an objective of 100 % has no error budget"
    assert can_fire(quick, 0.99, 60.0) is None


def test_a_schedule_too_thin_for_its_windows_is_told() -> None:
    quick = BURN_ALERTS[0]
    assert can_fire(quick, 0.99, 300.0) == "5m holds fewer than two results"
    assert can_fire(quick, 0.99, 1800.0) == "1h holds 2 results and it needs 3 bad ones"


@settings(deadline=None)
@given(OBJECTIVES, st.floats(5, 10_000))
def test_an_alert_that_can_fire_does_so_in_a_full_outage(
    objective: float, interval: float
) -> None:
    for alert in BURN_ALERTS:
        if can_fire(alert, objective, interval) is None:
            long, short = (
                Counts(0, int(BURN_WINDOWS[name] / interval)) for name in (alert.long, alert.short)
            )
            assert burns(alert, long, short, objective)
