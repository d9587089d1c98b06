"""What parent and prober say to each other: the plan, the rows, and their framing.

The only module that knows the wire between the two processes: frames of a four-byte length and a
msgpack body, over one socketpair. Rows go up, plans go down.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from probes.endpoint import Endpoint
from probes.result import ProbeResult
from probes.workload import Workload

_LENGTH = struct.Struct("<I")
MAX_FRAME = 16 << 20


class Skip(StrEnum):
    """Why a slot has no result."""

    OVERLAP = "overlap"
    BUDGET = "budget"
    RETRY_AFTER = "retry_after"
    MAINTENANCE = "maintenance"
    PAUSED = "paused"
    LATE = "late"
    CLOCK = "clock"
    CONCURRENCY = "concurrency"
    PROBER_DOWN = "prober_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """One probe: an endpoint x a workload on a schedule.

    Attributes:
        id: Stable identity, `endpoint/workload` unless the configuration gives one.
        interval: Seconds between slots.
    """

    id: str
    endpoint: Endpoint
    workload: Workload
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the prober needs to know.

    Attributes:
        seed: Part of every prompt's salt.
        site: The place the prober runs.
        concurrency: Most probes in flight at once.
        last: By probe the last slot that an earlier prober dealt with, to go on after; empty at
            the monitor's start.
    """

    probes: tuple[ProbePlan, ...]
    seed: int = 0
    site: str = "local"
    concurrency: int = 64
    last: Mapping[str, int] = field(default_factory=dict)


class ResultRow(msgspec.Struct, frozen=True, tag="result"):
    """A slot that ended as a result.

    Attributes:
        seq: Number of the row since the prober's start.
        mono: When the row was made, the machine's monotonic clock.
        slot_at: When the slot was due, wall clock, seconds since the epoch, UTC.
        slot: Number of the slot on the probe's grid.
    """

    seq: int
    mono: float
    probe: str
    slot_at: float
    result: ProbeResult
    slot: int = -1


class SkipRow(msgspec.Struct, frozen=True, tag="skip"):
    """A slot that ended without a result; fields as in `ResultRow`."""

    seq: int
    mono: float
    probe: str
    slot_at: float
    reason: Skip
    slot: int = -1


class Heartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """The prober's own state, once a second.

    Attributes:
        loop_lag: Worst event loop delay since the last heartbeat, seconds.
        gc_pause: Longest collection since the last heartbeat, seconds.
        clock_offset: Wall clock minus monotonic clock, seconds.
        buffered: Bytes waiting for the parent.
        dropped: Rows thrown away since start because the parent did not read.
        in_flight: Probes running now.
        clock_steps: Wall clock steps over 0.5 s seen since start.
    """

    seq: int
    mono: float
    boot: str
    loop_lag: float
    gc_pause: float
    clock_offset: float
    buffered: int
    dropped: int
    in_flight: int
    clock_steps: int


Row = ResultRow | SkipRow | Heartbeat

_encoder = msgspec.msgpack.Encoder()
_rows: msgspec.msgpack.Decoder[Row] = msgspec.msgpack.Decoder(Row)
_plans = msgspec.msgpack.Decoder(Plan)


def encode(message: Any) -> bytes:
    """Return one frame: length and msgpack body."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_row(body: bytes) -> Row:
    """Decode a frame's body that came from the prober."""
    return _rows.decode(body)


def decode_plan(body: bytes) -> Plan:
    """Decode a frame's body that came from the parent."""
    return _plans.decode(body)


class Frames:
    """Splits a byte stream into frame bodies; sans-I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every body completed by `data`.

        Raises:
            ValueError: A frame longer than MAX_FRAME: the stream is not ours.
        """
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, at)
            if size > MAX_FRAME:
                raise ValueError(f"frame of {size} bytes")
            end = at + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[at + _LENGTH.size : end])
            at = end
        del self._buffer[:at]
