from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.tokens import Usage, account, read_usage

CHAT = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (CHAT, Usage(prompt=10, output=20)),
        ({"input_tokens": 10, "output_tokens": 20}, Usage(prompt=10, output=20)),
        (
            {**CHAT, "completion_tokens_details": {"reasoning_tokens": 5}},
            Usage(prompt=10, output=20, reasoning=5),
        ),
        ({**CHAT, "reasoning_tokens": 5}, Usage(prompt=10, output=20, reasoning=5)),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(prompt=1, output=2, reasoning=1),
        ),
        (
            {**CHAT, "prompt_tokens_details": {"cached_tokens": 7}},
            Usage(prompt=10, output=20, cached=7),
        ),
        ({**CHAT, "prompt_cache_hit_tokens": 7}, Usage(prompt=10, output=20, cached=7)),
        ({"total_tokens": 9}, Usage(prompt=9)),
        ({**CHAT, "cost": 0.25}, Usage(prompt=10, output=20, cost=0.25)),
        ({**CHAT, "cost": "free"}, Usage(prompt=10, output=20)),
        ({"prompt_tokens": "10", "completion_tokens": 20.0}, Usage(prompt=10, output=20)),
    ],
)
def test_usage_is_read_in_every_spelling(usage: Any, expected: Usage) -> None:
    assert read_usage(usage) == expected


def test_reasoning_left_out_of_completion_tokens_is_added() -> None:
    """xAI: total = prompt + completion + reasoning."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 90,
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    assert read_usage(usage) == Usage(prompt=10, output=80, reasoning=60)
    assert read_usage({**usage, "total_tokens": 30}) == Usage(prompt=10, output=20, reasoning=60)


@pytest.mark.parametrize("junk", [None, [], "usage", 5, {}, {"queue_time": 1.0}])
def test_what_holds_no_count_is_no_usage(junk: Any) -> None:
    assert read_usage(junk) is None


junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.none())
)
names = st.sampled_from(
    "prompt_tokens completion_tokens total_tokens input_tokens output_tokens cost "
    "completion_tokens_details prompt_tokens_details reasoning_tokens cached_tokens".split()
)


@given(st.dictionaries(names, junk | st.dictionaries(names, junk, max_size=3), max_size=6))
@settings(max_examples=200, deadline=None)
def test_no_usage_makes_a_negative_or_fractional_count(usage: dict[str, Any]) -> None:
    read = read_usage(usage)
    for count in () if read is None else (read.prompt, read.output, read.cached, read.reasoning):
        assert count is None or (type(count) is int and count >= 0)


def test_usage_wins_over_tokenizer_and_events() -> None:
    got = account(Usage(output=50), 10, streamed_reasoning=False, tokenized=48)
    assert (got.output, got.source, got.visible, got.flags) == (50, "usage", 50, ())


def test_without_usage_the_tokenizer_counts_then_the_events() -> None:
    tokenized = account(None, 10, streamed_reasoning=False, tokenized=48)
    assert (tokenized.output, tokenized.source) == (48, "tokenizer")
    events = account(None, 10, streamed_reasoning=False)
    assert (events.output, events.source, events.visible) == (10, "chunks", 10)
    assert tokenized.flags == events.flags == ("usage_missing",)


def test_usage_of_nothing_beside_output_is_not_believed() -> None:
    got = account(Usage(output=0), 10, streamed_reasoning=False)
    assert (got.output, got.source, got.flags) == (10, "chunks", ("usage_implausible",))


def test_hidden_reasoning_is_not_visible_and_streamed_reasoning_is() -> None:
    usage = Usage(output=600, reasoning=500)
    assert account(usage, 100, streamed_reasoning=False).visible == 100
    assert account(usage, 600, streamed_reasoning=True).visible == 600
    more = Usage(output=5, reasoning=9)
    assert account(more, 5, streamed_reasoning=False).visible == 0


def test_nothing_said_and_nothing_claimed_is_no_count() -> None:
    got = account(None, 0, streamed_reasoning=False)
    assert (got.output, got.source, got.visible, got.flags) == (None, None, None, ())
    assert account(Usage(output=0), 0, streamed_reasoning=False).output == 0
