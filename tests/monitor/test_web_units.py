"""Numbers, times and foreign text as a person reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.web import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0.0, "0 ms"),
        (0.000_123_4, "0.123 ms"),
        (0.012_34, "12.3 ms"),
        (0.099_96, "100 ms"),
        (0.123_4, "123 ms"),
        (0.999_4, "999 ms"),
        (0.999_6, "1.00 s"),
        (1.0, "1.00 s"),
        (1.402, "1.40 s"),
        (9.996, "10.0 s"),
        (45.04, "45.0 s"),
        (234.5, "234 s"),
        (1234.0, "1230 s"),
    ],
)
def test_a_time_has_three_digits_and_is_in_ms_below_a_second(
    value: float | None, text: str
) -> None:
    assert units.seconds(value) == text


@given(st.floats(min_value=1e-7, max_value=1e5))
def test_a_time_is_shown_within_half_a_digit(value: float) -> None:
    number, unit = units.seconds(value).split()
    shown = float(number) * {"ms": 1e-3, "s": 1.0}[unit]
    assert shown == pytest.approx(value, rel=0.00501)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.9993, "99.93 %"),
        (0.999_99, "99.99 %"),
        (1 - 1e-12, "99.99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_ratio_is_rounded_down_so_that_100_means_all(value: float | None, text: str) -> None:
    assert units.percent(value) == text


@given(st.integers(1, 100_000), st.data())
def test_a_ratio_of_counts_is_never_shown_as_more_than_it_is(n: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, n))
    text = units.percent(good / n)
    if not text.startswith("<"):
        shown = float(text.split()[0])
        assert shown <= 100 * good / n + 1e-6
        assert 100 * good / n - shown < 0.010_01


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.5, "500 ms"),
        (5.0, "5 s"),
        (60.0, "60 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (200.0, "3 min 20 s"),
        (3600.0, "1 h"),
        (9000.0, "2 h 30 min"),
        (86400.0, "24 h"),
        (30 * 86400.0, "30 d"),
        (2 * 86400.0 + 3600, "2 d 1 h"),
    ],
)
def test_a_span_has_at_most_two_units(value: float | None, text: str) -> None:
    assert units.duration(value) == text


def test_times_are_iso_in_utc() -> None:
    assert units.iso(1_764_547_200.25) == "2025-12-01T00:00:00Z"
    assert units.iso(1_764_547_200.25, millis=True) == "2025-12-01T00:00:00.250Z"


def test_hiding_characters_are_spelled_out() -> None:
    assert units.plain("a\x00b\x1b[31m") == "a\\u0000b\\u001b[31m"
    assert units.plain("exe.\u202egnp") == "exe.\\u202egnp"
    assert units.plain("\ud800") == "\\ud800"
    assert units.plain("a\r\n\t b\u2028c") == "a b c"


def test_other_scripts_and_emoji_are_left_alone() -> None:
    text = "مدل در دسترس نیست می\u200cشود 模型 👩\u200d💻"
    assert units.plain(text) == text


@given(st.text(alphabet=st.characters(), max_size=1000))
def test_plain_text_is_short_and_can_always_be_encoded(text: str) -> None:
    shown = units.plain(text)
    assert len(shown) <= units.TEXT_LIMIT
    shown.encode()
