from __future__ import annotations

import base64
import math

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.histogram import (
    HIGHEST_S,
    LOWEST_S,
    Histogram,
    count_at_or_below,
    count_durations,
    decode_counts,
    encode_counts,
    percentiles_of,
    sum_encoded,
)

seconds = st.floats(min_value=LOWEST_S, max_value=HIGHEST_S)
some = st.lists(seconds, max_size=60)
percents = st.floats(min_value=0, max_value=100)
READOUT = (0, 1, 25, 50, 90, 99, 99.9, 100)


def within(value: float, exact: float) -> bool:
    """Whether a readout lies within 0.1 % above, or half a microsecond beside, the exact value."""
    return exact - 0.6e-6 <= value <= exact * 1.001 + 0.6e-6


def test_empty_has_no_percentile_and_no_fraction() -> None:
    """The library says 0, which would be the best latency there is."""
    empty = Histogram()
    assert empty.count == 0
    assert empty.percentile(99) is None
    assert empty.percentiles(50, 99) == (None, None)
    assert empty.fraction_at_or_below(1.0) is None


@given(some, some)
@settings(max_examples=40, deadline=None)
def test_merging_equals_recording_everything(left: list[float], right: list[float]) -> None:
    """Hours add up to months without loss."""
    merged, both = Histogram(left), Histogram([*left, *right])
    merged.merge(Histogram(right))
    assert merged.encode() == both.encode()
    assert merged.percentiles(*READOUT) == both.percentiles(*READOUT)


@given(st.lists(seconds, min_size=1, max_size=60), percents, percents)
@settings(max_examples=40, deadline=None)
def test_percentiles_never_fall_as_p_rises(values: list[float], a: float, b: float) -> None:
    """A higher percentile is at least as long."""
    low, high = Histogram(values).percentiles(min(a, b), max(a, b))
    assert low is not None
    assert high is not None
    assert low <= high


@given(st.lists(seconds, min_size=1, max_size=60), percents)
@settings(max_examples=80, deadline=None)
def test_percentiles_agree_with_numpy_within_a_tenth_of_a_percent(
    values: list[float], p: float
) -> None:
    """An independent calculation gives the same rank, and the bin is 0.1 % wide."""
    got = Histogram(values).percentile(p)
    exact = float(np.percentile(np.array(values), p, method="inverted_cdf"))
    assert got is not None
    assert within(got, exact)


def test_a_rank_that_floats_round_up_stays_exact() -> None:
    """99.9 % of 1,000 values is the 999th, though 99.9 * 1000 / 100 may exceed 999."""
    histogram = Histogram(i / 1e6 for i in range(1, 1001))
    assert histogram.percentile(99.9) == pytest.approx(999e-6)
    assert histogram.percentile(50) == pytest.approx(500e-6)
    assert histogram.percentile(100) == pytest.approx(1000e-6)
    assert histogram.percentile(0) == pytest.approx(1e-6)


@given(st.lists(seconds, min_size=1, max_size=60), seconds)
@settings(max_examples=60, deadline=None)
def test_fraction_at_or_below_is_exact_within_a_bin(values: list[float], x: float) -> None:
    """The share lies between the shares at thresholds one bin to either side."""
    got = Histogram(values).fraction_at_or_below(x)
    below = sum(v <= x * 0.999 - 1e-6 for v in values) / len(values)
    above = sum(v <= x * 1.001 + 1e-6 for v in values) / len(values)
    assert got is not None
    assert below <= got <= above


def test_fraction_below_the_range_is_none_of_it_and_beyond_is_all() -> None:
    """Thresholds may lie outside the range."""
    histogram = Histogram([0.5, 1.5])
    assert histogram.fraction_at_or_below(0) == 0.0
    assert histogram.fraction_at_or_below(1) == 0.5
    assert histogram.fraction_at_or_below(math.inf) == 1.0


@pytest.mark.parametrize(
    ("value", "bound"),
    [(0.0, LOWEST_S), (-1.0, LOWEST_S), (5000.0, HIGHEST_S), (math.inf, HIGHEST_S)],
)
def test_values_outside_the_range_are_clamped_and_counted(value: float, bound: float) -> None:
    """The library loses them without a word."""
    histogram = Histogram([value])
    assert histogram.count == 1
    assert histogram.overflow == 1
    assert histogram.percentile(50) == pytest.approx(bound)


def test_the_bounds_themselves_are_inside() -> None:
    """1 us and 1 h are ordinary values."""
    histogram = Histogram([LOWEST_S, HIGHEST_S])
    assert histogram.overflow == 0
    assert histogram.percentile(0) == pytest.approx(LOWEST_S)
    assert histogram.percentile(100) == pytest.approx(HIGHEST_S)


def test_nan_is_refused() -> None:
    """NaN is no duration."""
    with pytest.raises(ValueError, match="NaN"):
        Histogram([math.nan])


@given(st.lists(st.floats(min_value=0, max_value=8000), max_size=60))
@settings(max_examples=40, deadline=None)
def test_encoding_round_trips_counts_percentiles_and_overflow(values: list[float]) -> None:
    """Nothing is lost in storage."""
    histogram = Histogram(values)
    copy = Histogram.decode(histogram.encode())
    assert copy.count == histogram.count
    assert copy.overflow == histogram.overflow
    assert copy.percentiles(*READOUT) == histogram.percentiles(*READOUT)
    copy.merge(histogram)
    assert copy.count == 2 * histogram.count


def test_other_tools_read_the_encoded_form() -> None:
    """The bytes are HdrHistogram's own wire form, here read by the library alone."""
    blob = base64.b64encode(Histogram([0.25, 0.5]).encode())
    assert blob.startswith(b"HISTFAAA")
    assert HdrHistogram.decode(blob).get_total_count() == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        b"\x00" * 40,
        Histogram([0.1]).encode()[:-3],
        Histogram([0.1]).encode() + b"x",
        Histogram([0.1]).encode()[:8] + b"\x00" * (len(Histogram([0.1]).encode()) - 8),
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    """A bad blob is an error, never an empty histogram."""
    with pytest.raises(ValueError, match="istogram"):
        Histogram.decode(data)


def test_other_bins_are_refused() -> None:
    """Adding other precisions would go through silently and bend percentiles."""
    foreign = base64.b64decode(HdrHistogram(1, 60_000, 2).encode())
    with pytest.raises(ValueError, match="other bins"):
        Histogram.decode(foreign)


@given(some, some)
@settings(max_examples=40, deadline=None)
def test_bare_counts_are_the_library_s(left: list[float], right: list[float]) -> None:
    """Same bins, same bytes, same readouts; so the fast way may be taken anywhere."""
    both, counts = Histogram([*left, *right]), count_durations(left) + count_durations(right)
    assert encode_counts(counts) == both.encode()
    assert (decode_counts(both.encode()) == counts).all()
    parts = [Histogram(left).encode(), Histogram(right).encode()]
    summed, first = sum_encoded(parts)
    assert (summed == counts[first : first + len(summed)]).all()
    assert summed.sum() == counts.sum()
    assert percentiles_of(summed, *READOUT, first=first) == both.percentiles(*READOUT)
    rest, at = sum_encoded([both.encode()], parts[:1])
    assert percentiles_of(rest, *READOUT, first=at) == Histogram(right).percentiles(*READOUT)
    assert percentiles_of(counts, *READOUT) == both.percentiles(*READOUT)
    for value in left:
        share = both.fraction_at_or_below(value)
        assert count_at_or_below(counts, value) == round((share or 0.0) * both.count)
        assert count_at_or_below(summed, value, first) == count_at_or_below(counts, value)


def test_bare_counts_hold_what_lies_out_of_range_at_the_bounds() -> None:
    """And say no to what is no number."""
    counts, slow = count_durations([0.0, 1e5]), Histogram([0.0, 1e5])
    assert percentiles_of(counts, 0, 100) == (LOWEST_S, HIGHEST_S)
    assert (decode_counts(slow.encode()) == counts).all()
    assert count_at_or_below(counts, 0.0) == 0
    assert count_at_or_below(counts, math.inf) == 2
    with pytest.raises(ValueError, match="NaN"):
        count_durations([math.nan])


@pytest.mark.parametrize("damage", [b"", b"x" * 60, Histogram([1.0]).encode()[:-4]])
def test_damaged_counts_are_refused(damage: bytes) -> None:
    """A broken page of a database must not become a latency."""
    with pytest.raises(ValueError, match=r"histogram|HdrHistogram"):
        decode_counts(damage)
    with pytest.raises(ValueError, match=r"histogram|HdrHistogram"):
        sum_encoded([Histogram([2.0]).encode(), damage])
    assert sum_encoded([Histogram([1.0]).encode()])[0].sum() == 1, "nothing of it is left"
