import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.slo import long_run, outages, own
from monitor.slo.estimate import garwood

RUNS = st.lists(st.integers(1, 50), max_size=20)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (10, 4.7954, 18.3904), (100, 81.3640, 121.6271)],
)
def test_garwoods_interval_is_that_of_the_tables(count: int, low: float, high: float) -> None:
    assert garwood(count) == pytest.approx((low, high), abs=1e-3)


@settings(deadline=None)
@given(RUNS)
def test_both_figures_lie_within_their_intervals(runs: list[int]) -> None:
    valid = sum(runs) + 1000
    for figure in (own(valid, runs), long_run(valid, runs)):
        assert figure is not None
        assert 0 <= figure.low <= figure.value <= figure.high <= 1
        assert figure.value == pytest.approx(1 - sum(runs) / valid)


def test_without_a_valid_slot_there_is_no_figure() -> None:
    assert own(0, []) is None
    assert long_run(0, []) is None


def test_a_clean_period_is_bounded_by_the_rule_of_three() -> None:
    figure = own(3000, [])
    assert figure is not None
    assert (figure.value, figure.low, figure.high) == (1.0, 0.999, 1.0)


def test_one_long_outage_is_known_well_and_tells_little_about_the_long_run() -> None:
    mine, long = own(43_200, [60]), long_run(43_200, [60])
    assert mine is not None
    assert long is not None
    assert mine.high - mine.low < 1e-4
    assert long.high - long.low > 5e-3


def test_runs_of_bad_slots_are_outages() -> None:
    at = np.arange(8.0) * 60
    good = np.array([False, True, True, False, False, True, True, False])
    found = outages(at, good)
    assert [(o.at, o.end, o.slots) for o in found] == [
        (0.0, 60.0, 1),
        (180.0, 300.0, 2),
        (420.0, None, 1),
    ]
    assert outages(at[:0], good[:0]) == []


def _period(
    rng: np.random.Generator, slots: int, rate: float, mean: float
) -> tuple[list[int], float]:
    """Outages of exponential length: the bad slots of each as seen, and the true availability."""
    count = rng.poisson(rate * slots)
    begin, length = rng.uniform(0, slots, count), rng.exponential(mean, count)
    bad, fine = np.zeros(slots, bool), np.zeros(slots * 20, bool)
    for b, d in zip(begin, length, strict=True):
        bad[int(np.ceil(b)) : int(np.ceil(b + d))] = True
        fine[int(b * 20) : int((b + d) * 20)] = True
    runs = [o.slots for o in outages(np.arange(float(slots)), ~bad)]
    return runs, 1 - float(fine.mean())


@pytest.mark.parametrize("mean", [0.5, 3.0, 30.0])
def test_the_own_interval_covers_what_happened_and_the_long_run_one_what_is_usual(
    mean: float,
) -> None:
    rng = np.random.default_rng(5)
    slots, rate = 5_000, 6 / 5_000
    truth = 1 - rate * mean
    mine = usual = 0
    for _ in range(300):
        runs, happened = _period(rng, slots, rate, mean)
        figure, long = own(slots, runs), long_run(slots, runs)
        assert figure is not None
        assert long is not None
        mine += figure.low <= happened <= figure.high
        usual += long.low <= truth <= long.high
    assert mine / 300 >= 0.93
    assert usual / 300 >= 0.85
