from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.pace import Pace

stamps = st.lists(st.floats(0, 100), min_size=1, max_size=80).map(sorted)


def paced(*at: float) -> Pace:
    pace = Pace()
    for stamp in at:
        pace.add(stamp)
    return pace


def test_tpot_is_the_span_over_the_further_tokens() -> None:
    """tpot/1: (last - first output event) / (visible tokens - 1)."""
    assert paced(1.0, 1.1, 1.5).tpot(11) == pytest.approx(0.05)


@pytest.mark.parametrize("visible", [None, 0, 1])
def test_tpot_needs_two_tokens(visible: int | None) -> None:
    assert paced(1.0, 2.0).tpot(visible) is None
    assert Pace().tpot(5) is None


def test_tpot_counts_from_the_answer_where_reasoning_was_summarised() -> None:
    pace = paced(1.0, 3.0, 3.5)
    pace.summarized, pace.answer_at = True, 3.0
    assert pace.tpot(6) == pytest.approx(0.1)
    pace.answer_at = None
    assert pace.tpot(6) is None


@pytest.mark.parametrize(
    ("visible", "span", "burst"),
    [(4, 0.0049, True), (4, 0.0051, False), (3, 0.0, False), (None, 0.0, False)],
)
def test_a_burst_is_four_tokens_within_five_milliseconds(
    visible: int | None, span: float, *, burst: bool
) -> None:
    pace = paced(1.0, 1.0 + span)
    assert pace.burst(visible) is burst
    assert (pace.tpot(visible) is None) == (burst or visible is None)


def test_delivery_is_coarse_when_half_the_gaps_are_nothing_and_the_mean_is_not() -> None:
    assert paced(0, 0.001, 0.1, 0.101, 0.2).coarse()
    assert not paced(0, 0.001, 0.1).coarse()  # two gaps
    assert not paced(0, 0.001, 0.002, 0.003, 0.03).coarse()  # mean below 10 ms
    assert not paced(0, 0.05, 0.1, 0.101, 0.15, 0.2).coarse()  # one in five


def test_merged_counts_every_event_whose_own_time_is_unknown() -> None:
    assert paced(1, 2, 3).merged == 0
    assert paced(1, 2, 2, 3).merged == 2
    assert paced(1, 2, 2, 2, 3, 4, 4).merged == 5


@given(stamps)
@settings(max_examples=100, deadline=None)
def test_first_gaps_and_last_add_up(at: list[float]) -> None:
    pace = paced(*at)
    assert pace.first is not None
    assert pace.last is not None
    assert pace.first + sum(pace.gaps()) == pytest.approx(pace.last)
    assert all(gap >= 0 for gap in pace.gaps())
    shared = sum(at.count(stamp) for stamp in set(at) if at.count(stamp) > 1)
    assert pace.merged == shared


@given(st.lists(st.floats(0, 100), min_size=2, max_size=80).map(sorted))
@settings(max_examples=100, deadline=None)
def test_gap_percentiles_agree_with_numpy(at: list[float]) -> None:
    itl = paced(*at).itl()
    gaps = np.diff(np.array(at))
    assert itl is not None
    assert itl.n == len(gaps)
    for ours, p in ((itl.p50, 50), (itl.p99, 99), (itl.max, 100)):
        assert ours == np.percentile(gaps, p, method="inverted_cdf")


def test_one_event_has_no_gaps() -> None:
    assert paced(1.0).itl() is None
    assert not paced(1.0).coarse()
    assert Pace().first is None
    assert Pace().last is None
