"""Frames and rows: what one process says, the other hears, however the bytes are cut."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.link import (
    MAX_FRAME,
    Frames,
    Heartbeat,
    Plan,
    ProbePlan,
    Skip,
    SkipRow,
    decode_plan,
    decode_row,
    encode,
)
from probes import Endpoint, Workload
from probes.endpoint import Auth
from probes.result import Outcome
from probes.workload import Check, Limits
from tests.monitor.rows import FULL, result_row

BEAT = Heartbeat(1, 2.0, "boot", 0.001, 0.002, 3.0, 4, 5, 6, 7)
ROWS = (
    result_row(1),
    result_row(2, outcome=Outcome.TIMEOUT_TTFT, **FULL),
    SkipRow(3, 1.0, "a/chat", 1000.0, Skip.PROBER_DOWN, 17),
    BEAT,
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_a_row_arrives_as_it_was_sent(row: object) -> None:
    (body,) = Frames().feed(encode(row))
    assert decode_row(body) == row


def test_a_plan_arrives_as_it_was_sent() -> None:
    endpoint = Endpoint(name="a", url="http://h/v1", model="m", api_key="k", auth=Auth.QUERY,
                        headers={"x": "y"})  # fmt: skip
    workload = Workload(limits=Limits(ttft=3.5), check=Check(contains="x"), extra={"n": [1, None]})
    probe = ProbePlan(id="a/chat", endpoint=endpoint, workload=workload, interval=60.0)
    plan = Plan(probes=(probe,), seed=7, site="s", concurrency=3, last={"a/chat": 12})
    (body,) = Frames().feed(encode(plan))
    assert decode_plan(body) == plan


@given(st.lists(st.binary(max_size=40), max_size=10), st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    frames, found = Frames(), list[bytes]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert found == bodies


def test_a_frame_too_long_to_be_ours_is_refused_before_it_is_kept() -> None:
    frames = Frames()
    with pytest.raises(ValueError, match=f"frame of {MAX_FRAME + 1} bytes"):
        list(frames.feed(struct.pack("<I", MAX_FRAME + 1)))


def test_a_longest_frame_passes() -> None:
    body = bytes(MAX_FRAME)
    assert list(Frames().feed(struct.pack("<I", MAX_FRAME) + body)) == [body]


@pytest.mark.parametrize("body", [b"", b"\x90", b"\x81\xa4type\xa4what"])
def test_a_body_that_is_no_row_raises(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_row(body)
