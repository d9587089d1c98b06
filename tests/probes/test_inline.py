from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.endpoint import Inline
from probes.inline import InlineSplitter

HARMONY = (
    "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final"
    "<|message|>Yes.<|return|>"
)


def split(style: Inline, *parts: str) -> tuple[str, str]:
    """All reasoning and all answer of a text that comes in parts."""
    splitter = InlineSplitter(style)
    reasoning = answer = ""
    for part in parts:
        more, text = splitter.feed(part)
        if splitter.reclassified:
            reasoning, answer = reasoning + answer, ""
        reasoning, answer = reasoning + more, answer + text
    more, text = splitter.close()
    return reasoning + more, answer + text


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (Inline.THINK, "<think>a</think>b", ("a", "b")),
        (Inline.THINK, "<think>\na\n</think>\n\nb", ("a\n", "b")),
        (Inline.THINK, "a</think>b", ("a", "b")),
        (Inline.THINK, "no tags at all", ("", "no tags at all")),
        (Inline.THINK, "<think>never closed", ("never closed", "")),
        (Inline.THINK, "x <thin", ("", "x <thin")),
        (Inline.THINK, "<think></think>b", ("", "b")),
        (Inline.THINK, "<think>a</think>b<think>c</think>d", ("ac", "bd")),
        (Inline.THINK, "<reasoning>a</reasoning>b", ("", "<reasoning>a</reasoning>b")),
        (Inline.REASONING, "<reasoning>a</reasoning>b", ("a", "b")),
        (Inline.HARMONY, HARMONY, ("I think.", "Yes.")),
        (Inline.HARMONY, "plain", ("", "plain")),
    ],
)
def test_marked_up_reasoning_is_told_from_the_answer(
    style: Inline, text: str, expected: tuple[str, str]
) -> None:
    assert split(style, text) == expected
    assert split(style, *text) == expected


pieces = st.sampled_from(
    ["<think>", "</think>", "<", "think>", "</", " ", "a", "b<", "\n", "<|end|>", "<|message|>",
     "<|channel|>", "analysis", "final"]
)  # fmt: skip


@given(
    st.sampled_from(list(Inline)),
    st.lists(pieces, max_size=12).map("".join),
    st.lists(st.integers(0, 60), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_any_split_of_the_text_says_the_same(style: Inline, text: str, at: list[int]) -> None:
    cuts = [0, *sorted(min(n, len(text)) for n in at), len(text)]
    assert split(style, *(text[a:b] for a, b in pairwise(cuts))) == split(style, text)


def test_text_is_held_back_only_while_it_may_be_a_tag() -> None:
    splitter = InlineSplitter(Inline.THINK)
    assert splitter.feed("a <") == ("", "a ")
    assert splitter.feed("b") == ("", "<b")
    assert splitter.feed("c </thi") == ("", "c ")
    assert splitter.feed("s") == ("", "</this")
