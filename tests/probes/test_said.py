from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

from probes import Endpoint
from probes.endpoint import Inline
from probes.result import ToolCall
from probes.said import Said, digest
from probes.wire import Piece, ToolDelta


def said(pieces: Iterable[Piece], **endpoint: object) -> Said:
    """Everything that was said, as the meter folds it."""
    gathered = Said(Endpoint(name="e", url="http://host/v1", **endpoint))  # type: ignore[arg-type]
    for piece in pieces:
        gathered.cut_repeated(piece)
        gathered.add(piece)
        gathered.retract()
    gathered.close()
    return gathered


def call(key: str | None, name: str, arguments: str) -> Piece:
    return Piece(tools=(ToolDelta(key, name, arguments),))


def test_parts_are_kept_apart() -> None:
    got = said(
        [Piece(reasoning="hm"), Piece(summary=" so"), Piece(text="yes"), Piece(refusal="no")]
    )
    assert (got.text("text"), got.text("reasoning"), got.text("refusal")) == ("yes", "hm so", "no")
    assert got.anything()
    assert not said([Piece()]).anything()


@pytest.mark.parametrize(
    ("piece", "answer"),
    [
        (Piece(text="a"), True),
        (Piece(refusal="a"), True),
        (Piece(others=True, others_answered=True), True),
        (Piece(others=True), False),
        (call("0", "f", ""), True),
        (Piece(reasoning="a"), False),
        (Piece(summary="a"), False),
        (Piece(), False),
    ],
)
def test_reasoning_is_no_answer(piece: Piece, *, answer: bool) -> None:
    assert Said(Endpoint(name="e", url="http://host/v1")).add(piece) is answer


def test_tool_calls_are_put_together_by_index_or_id() -> None:
    got = said(
        [
            call("0", "f", ""),
            call("1", "g", '{"b"'),
            call("0", "", '{"a":1}'),
            call("1", "", ":2}"),
        ]
    )
    assert got.content().tool_calls == (
        ToolCall(name="f", arguments='{"a":1}'),
        ToolCall(name="g", arguments='{"b":2}'),
    )


def test_without_an_index_a_name_begins_a_call_and_arguments_continue_it() -> None:
    """Gemini."""
    got = said([call(None, "f", "{"), call(None, "", "}"), call(None, "g", "{}")])
    assert [(c.name, c.arguments) for c in got.content().tool_calls] == [("f", "{}"), ("g", "{}")]


def test_deltas_that_repeat_everything_count_only_what_is_new() -> None:
    pieces = [Piece(text="a"), Piece(text="ab"), Piece(text="ab"), Piece(text="abc")]
    got = said(pieces, cumulative_content=True)
    assert got.text("text") == "abc"
    assert [piece.text for piece in pieces] == ["a", "b", "", "c"]


def test_reasoning_inside_the_text_is_taken_out() -> None:
    got = said([Piece(text="<think>a</th"), Piece(text="ink>b")], inline_reasoning=Inline.THINK)
    assert (got.text("reasoning"), got.text("text")) == ("a", "b")


def test_what_was_taken_for_the_answer_becomes_reasoning_at_an_unopened_closing_tag() -> None:
    """Templates that open the block themselves."""
    pieces = [Piece(text="hm "), Piece(text="so</think>"), Piece(text="yes")]
    got = said(pieces, inline_reasoning=Inline.THINK)
    assert (got.text("reasoning"), got.text("text")) == ("hm so", "yes")


def test_a_tag_that_was_none_is_given_at_the_end() -> None:
    assert said([Piece(text="a <thi")], inline_reasoning=Inline.THINK).text("text") == "a <thi"


def test_facts_of_a_kind_are_kept() -> None:
    assert said([Piece(content={"vectors": 1, "dims": 3})]).content().dims == 3


def test_a_digest_is_sha256_of_utf8_whatever_the_text() -> None:
    assert digest("é") == hashlib.sha256("é".encode()).hexdigest()
    assert digest("") is None
    assert digest("\ud800") is not None
