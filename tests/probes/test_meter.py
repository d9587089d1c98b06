from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import KINDS, Endpoint, Limits, Workload
from probes.meter import End, Meter, Mode

FACTS = (
    "mode protocol error failed filtered finish usage model over marked_end done_marker"
).split()
texts = st.sampled_from(["", "a", " word", "é漢😀", "\n\n", '"quoted"', "data: ", "[DONE]"])
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | texts,
        "reasoning_content": texts,
        "refusal": texts,
        "role": st.just("assistant"),
        "tool_calls": st.just([{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
    },
)
choices = st.builds(
    lambda delta, finish: {"index": 0, "delta": delta, "finish_reason": finish},
    deltas,
    st.sampled_from([None, None, None, "stop", "length"]),
)
chunks = st.builds(
    lambda choice, usage: {"choices": [choice], "usage": usage},
    choices,
    st.sampled_from([None, None, {"prompt_tokens": 3, "completion_tokens": 7}]),
)
ends = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"])
blocks = st.one_of(
    st.builds(lambda c, end: f"data: {json.dumps(c)}{end}", chunks, ends),
    st.builds(lambda c, end: f"data:{json.dumps(c, ensure_ascii=False)}{end}", chunks, ends),
    st.sampled_from([": ping\n\n", "\n", "event: ping\ndata: {}\n\n", "data: [DONE]\n\n"]),
)
bodies = st.lists(blocks, max_size=12).map(lambda parts: "".join(parts).encode())


def metered(
    reads: list[tuple[float, bytes]], encoding: str = "", limits: Limits | None = None
) -> Meter:
    endpoint = Endpoint(name="e", url="http://host/v1", model="m")
    workload = Workload(limits=limits or Limits())
    kind = KINDS["chat"]
    request = kind.build(endpoint, workload, "salt")
    meter = Meter(endpoint, workload, kind.reader(workload, request), kind.rules(workload))
    meter.head(200, "text/event-stream", encoding)
    for at, data in reads:
        meter.feed(at, data)
    meter.close(reads[-1][0] if reads else 0.0, End.EOF)
    return meter


def facts(meter: Meter) -> dict[str, Any]:
    found = {name: getattr(meter, name) for name in FACTS}
    pace, counted = meter.pace, meter.counted()
    return found | {
        "stamps": pace.stamps,
        "answer_at": pace.answer_at,
        "said": meter.said.content(),
        "counted": counted,
        "flags": meter.flags(counted),
    }


def cut(body: bytes, at: list[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise([0, *sorted(min(n, len(body)) for n in at), len(body)])]


@given(bodies, st.lists(st.integers(0, 2000), max_size=10))
@settings(max_examples=200, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_measurement_at_equal_times(
    body: bytes, at: list[int]
) -> None:
    whole = facts(metered([(1.0, body)]))
    assert facts(metered([(1.0, part) for part in cut(body, at)])) == whole
    assert facts(metered([(1.0, body[i : i + 1]) for i in range(len(body))])) == whole


@given(bodies, st.lists(st.integers(0, 2000), max_size=10))
@settings(max_examples=100, deadline=None)
def test_an_event_has_the_time_of_the_read_that_completed_it(body: bytes, at: list[int]) -> None:
    """Never that of an earlier read, whatever the split; and times never go back."""
    parts = cut(body, at)
    meter = metered([(float(n), part) for n, part in enumerate(parts)])
    stamps = meter.pace.stamps
    assert stamps == sorted(stamps)
    for n in range(len(parts)):
        fed = metered([(float(i), part) for i, part in enumerate(parts[: n + 1])])
        known = [stamp for stamp in stamps if stamp <= n]
        assert fed.pace.stamps[: len(known)] == known
    ordered = [meter.first_byte_at, meter.pace.first, meter.pace.answer_at, meter.ended_at]
    known_times = [time for time in ordered if time is not None]
    assert known_times == sorted(known_times)


@given(bodies, st.lists(st.integers(0, 2000), max_size=10), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_compression_changes_nothing(body: bytes, at: list[int], level: int) -> None:
    packed = gzip.compress(body, level)
    reads = [(1.0, part) for part in cut(packed, at)]
    assert facts(metered(reads, "gzip")) == facts(metered([(1.0, body)]))


def test_steps_of_a_read_say_what_the_whole_says() -> None:
    body = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n' * 5000 + b"data: [DONE]\n\n"
    packed = gzip.compress(body)
    whole = metered([(1.0, packed)], "gzip")
    stepped = metered([], "gzip")
    stepped.over, stepped.mode = False, Mode.UNKNOWN
    steps = sum(1 for _ in stepped.feed_steps(1.0, packed))
    stepped.close(1.0, End.EOF)
    assert steps > 10
    assert stepped.pace.stamps == whole.pace.stamps == [1.0] * 5000
    assert whole.marked_end


def test_nothing_after_the_end_marker_counts() -> None:
    said = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    meter = metered([(1.0, said + b"data: [DONE]\n\n" + said), (2.0, said)])
    assert meter.pace.stamps == [1.0]
    assert meter.ended_at == 1.0
    assert meter.said.text("text") == "a"


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_the_body_cap_counts_what_was_unpacked(encoding: str) -> None:
    body = b": comment\n\n" * 1000
    sent = gzip.compress(body) if encoding else body
    meter = metered([(1.0, sent)], encoding, Limits(body_bytes=5000))
    assert meter.over
    assert (meter.protocol or "").startswith("body longer than 5000 bytes")
    fits = metered([(1.0, sent)], encoding, Limits(body_bytes=len(body)))
    assert fits.protocol is None


def test_an_event_above_its_cap_ends_the_answer_after_those_before_it() -> None:
    said = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    meter = metered([(1.0, said + b"data: " + b"x" * 500)], limits=Limits(event_bytes=200))
    assert meter.protocol == "event longer than 200 bytes"
    assert meter.pace.stamps == [1.0]


@given(st.binary(max_size=200), st.sampled_from(list(End)))
@settings(max_examples=300, deadline=None)
def test_no_body_raises(body: bytes, end: End) -> None:
    meter = metered([])
    meter.over, meter.mode = False, Mode.UNKNOWN
    meter.feed(1.0, body)
    meter.close(2.0, end)
    meter.flags(meter.counted())
    meter.excerpt()
