from itertools import product

import numpy as np
import pytest

from benchmarks.false_pages import INTERVALS, OBJECTIVES, false_pages
from tests.figures import Figure

CASES = list(product(OBJECTIVES, INTERVALS))


@pytest.mark.parametrize(("objective", "interval"), CASES)
def test_180_probes_exactly_at_their_objective_page_falsely_less_than_once_a_week(
    objective: float, interval: float, figure: Figure
) -> None:
    weeks = 3.0 if interval < 60 else 6.0
    found = false_pages(np.random.default_rng(7), objective, interval, weeks)
    figure(f"false pages a week at {100 * objective:g} % and {interval:g} s: {found:.2f}")
    assert found < 1.0


def test_by_burn_rates_alone_they_would_page_all_day() -> None:
    assert false_pages(np.random.default_rng(7), 0.999, 60.0, 0.5, needed=False) > 500


def test_one_of_eight_replicas_failing_pages_within_ten_minutes_in_the_median(
    figure: Figure,
) -> None:
    """At 15 s and 99.9 %, slots that hit the bad replica are bad: k is 5 of 240."""
    rng = np.random.default_rng(3)
    waits = []
    for _ in range(2000):
        bad = rng.random(400) < 1 / 8
        total = np.cumsum(bad)
        recent = total - np.concatenate((np.zeros(20, int), total[:-20]))
        waits.append((int(np.argmax((total >= 5) & (recent >= 2))) + rng.random()) * 15.0)
    figure(f"seconds to page with one of eight replicas failing, median: {np.median(waits):.0f}")
    assert np.median(waits) <= 600.0
