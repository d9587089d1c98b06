from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.redact import MASK, clean, redact

KEY = "zq-Ab/9+Xy=7Kk"


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    assert redact(f"key {KEY}, again:{KEY}", [KEY]) == f"key {MASK}, again:{MASK}"


def test_a_longer_secret_is_masked_before_its_part() -> None:
    assert redact("Bearer abcdef", ["abcdef", "Bearer abcdef"]) == MASK


def test_very_short_values_are_left_alone() -> None:
    """A header's value such as `1` would mask every figure."""
    assert redact("HTTP 401: no 1", ["1", "no"]) == "HTTP 401: no 1"


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abcdefgh12345678",
        "Incorrect API key provided: sk-abcd****************wxyz.",
        "gsk_abcdefgh12345678 is not valid",
        "nvapi-abcdefgh12345678",
        "token hf_abcdefgh12345678",
        "Authorization: Bearer abcdefgh.12345678",
        "https://host/v1?api-key=abcdefgh12345678",
        "https://host/v1?a=b&key=abcdefgh12345678&c=d",
    ],
)
def test_what_looks_like_a_key_is_masked_though_nobody_named_it(text: str) -> None:
    masked = redact(text, [])
    assert masked is not None
    assert MASK in masked
    assert "1234" not in masked
    assert "abcd" not in masked


@pytest.mark.parametrize(
    "text", ["", "plain words", "the keys-and-locks shop", "tokens=5", "sk-short", "key: value"]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text, []) == text


def test_nothing_is_nothing() -> None:
    assert redact(None, [KEY]) is None


@given(st.text(max_size=20), st.text(max_size=20), st.integers(4, 13))
@settings(max_examples=200, deadline=None)
def test_no_part_of_a_secret_is_left_at_a_cut(before: str, after: str, kept: int) -> None:
    """An excerpt that ends inside a key would show the rest of it."""
    tail = redact(before + KEY[:kept], [KEY], cut=True)
    head = redact(KEY[-kept:] + after, [KEY], cut=True)
    assert tail is not None
    assert head is not None
    assert tail.endswith(MASK)
    assert head.startswith(MASK)


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_cleaned_text_is_one_that_every_store_takes(text: str) -> None:
    got = clean(text + "\0\udcff")
    assert "\0" not in got
    assert got.encode()
    assert clean(got) == got


@given(st.text(max_size=60), st.lists(st.text(min_size=4, max_size=8), max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_secret_survives(text: str, secrets: list[str]) -> None:
    masked = redact(text + "".join(secrets), secrets)
    assert masked is not None
    left = masked.replace(MASK, "")
    assert not any(secret in left for secret in secrets if clean(secret) == secret)
