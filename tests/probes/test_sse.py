from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.sse import Event, EventTooLarge, Parser

LINE_END = re.compile(rb"\r\n|\n|\r")
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
values = st.binary(max_size=12).map(lambda b: LINE_END.sub(b"", b))
fields = st.sampled_from([b"data: ", b"data:", b"event: ", b"id: ", b"retry: ", b": ", b":", b""])
lines = st.tuples(fields, values, ends).map(b"".join)
streams = st.lists(st.one_of(lines, ends), max_size=40).map(b"".join)


def parse(parts: Iterable[bytes], limit: int = 1 << 23) -> list[Event]:
    parser = Parser(limit)
    events = [event for part in parts for event in parser.feed(part)]
    rest = parser.close()
    return events if rest is None else [*events, rest]


def cut(body: bytes, at: Sequence[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise([0, *sorted(min(n, len(body)) for n in at), len(body)])]


def by_the_book(body: bytes) -> list[Event]:
    """WHATWG HTML 9.2.6, word for word, over the whole body; what the end cut off is given too."""
    events, name, data = [], "", list[bytes]()
    for line in [*LINE_END.split(body.removeprefix(b"\xef\xbb\xbf")), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data:
                events.append(Event(name, b"\n".join(data)))
            name, data = "", []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return events


@given(streams, st.lists(st.integers(0, 400), max_size=12))
@example(b"data: a\r\n\r\ndata: b\r\r", [8, 9, 10])
@example(b"data: a\r\n\rdata: b\n\n", [9, 10])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
@settings(max_examples=150, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_events(body: bytes, at: list[int]) -> None:
    whole = parse([body])
    assert parse(cut(body, at)) == whole
    assert parse([body[i : i + 1] for i in range(len(body))]) == whole


@given(streams)
@settings(max_examples=150, deadline=None)
def test_events_are_those_of_the_specification(body: bytes) -> None:
    """Except that a block which begins with a brace is an error that nobody framed."""
    unframed = [b for b in re.split(rb"(?:\r\n|\n|\r){2,}", body) if b.startswith(b"{")]
    if not unframed:
        assert parse([body]) == by_the_book(body)


def test_line_ends_may_be_mixed_inside_one_event() -> None:
    body = b"event: x\rdata: 1\r\ndata: 2\n\r\ndata: 3\r\r"
    assert parse([body]) == [Event("x", b"1\n2"), Event("", b"3")]


def test_an_event_is_handed_over_with_the_read_that_completes_it() -> None:
    """Nothing waits for the LF of a CRLF, or the stamp would be the next event's."""
    parser = Parser(1000)
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [Event("", b"1")]
    assert parser.feed(b"data: 2\r\n\r") == [Event("", b"2")]
    assert parser.feed(b"\ndata: 3") == []
    assert parser.feed(b"\r\rdata: 4\n\nda") == [Event("", b"3"), Event("", b"4")]


def test_the_quick_way_and_the_general_way_agree() -> None:
    """One whole line a read is the common case and has a path of its own."""
    for body in (
        b"data: x\n\n",
        b"data: \n\n",
        b"data: a\rb\n\n",
        b"data:  x\n\n",
        b"data: x\n\n\n",
    ):
        assert parse([body]) == parse([body[:3], body[3:]]) == by_the_book(body)


def test_a_byte_order_mark_counts_only_at_the_head() -> None:
    mark = b"\xef\xbb\xbf"
    assert parse([mark + b"data: 1\n\n"]) == [Event("", b"1")]
    assert parse([b"data: 1\n\n" + mark + b"data: 2\n\n"]) == [Event("", b"1")]
    assert parse([b"\xef", b"data: 1\n\n"]) == []


def test_what_the_end_of_the_body_cut_off_is_given_at_the_close() -> None:
    parser = Parser(1000)
    assert parser.feed(b"data: 1\n\ndata: [DONE]") == [Event("", b"1")]
    assert parser.close() == Event("", b"[DONE]")
    assert parser.close() is None


def test_comments_and_unknown_lines_are_counted() -> None:
    parser = Parser(1000)
    parser.feed(b": ping\n\n:\nid: 7\nretry: 5\ndata: x\n<html>\n<body>\n\n")
    assert (parser.comments, parser.junk) == (2, 2)


@given(st.integers(1, 60), st.integers(1, 60), ends, st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_cap_is_the_same_however_the_bytes_are_cut(
    limit: int, size: int, end: bytes, at: list[int]
) -> None:
    """An event above the cap is refused, those before it are handed over, those at it are not."""
    body = b"data:x" + end + end + b"data:" + b"y" * size + end + end
    parser, got = Parser(limit), list[Event]()
    refused = False
    for part in cut(body, at):
        try:
            got += parser.feed(part)
        except EventTooLarge as exc:
            got += exc.before
            refused = True
            break
    assert refused == (size + 5 > limit or limit < 6)
    assert got == parse([body])[: 0 if limit < 6 else 1 if refused else 2]


def test_an_endless_line_is_refused_when_the_cap_is_reached() -> None:
    parser = Parser(1 << 20)
    parser.feed(b"data: ")
    for _ in range((1 << 20) // 4096 - 1):
        assert parser.feed(b"x" * 4096) == []
    with pytest.raises(EventTooLarge, match="event longer than 1048576 bytes"):
        parser.feed(b"x" * 4096)


class Searched:
    """Counts the bytes that are searched for blank lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        search = Parser._blank

        def counting(
            parser: Parser, source: bytes | bytearray, start: int
        ) -> tuple[int, int] | None:
            span = search(parser, source, start)
            self.bytes += (span[1] if span else len(source)) - start
            return span

        monkeypatch.setattr(Parser, "_blank", counting)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Searched:
    return Searched(monkeypatch)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_huge_event_costs_linear_work(searched: Searched, end: bytes) -> None:
    """20 MB in reads of 64 KiB: each byte is searched once, whatever the number of reads."""
    parser, read = Parser(1 << 25), b"x" * (64 << 10)
    parser.feed(b": hi" + end + b"data: ")
    for _ in range(320):
        assert parser.feed(read) == []
    assert len(parser.feed(end + end)[0].data) == 20 << 20
    assert 20 << 20 < searched.bytes < (20 << 20) + 322 * 8


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_many_events_in_one_read_cost_linear_work(searched: Searched, end: bytes) -> None:
    body = (b"data: x" + end + end) * 20_000
    assert len(Parser(1000).feed(body)) == 20_000
    assert searched.bytes == len(body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_without_events_are_passed_over_at_once(end: bytes) -> None:
    """A megabyte of line ends is one search, not a million."""
    parser = Parser(1000)
    source = end * (1 << 20)
    parser._mixed = b"\r" in end
    assert parser._blank(source, 0) == (0, len(source))
    assert parser.feed(source + b"data: x" + end + end) == [Event("", b"x")]
