"""Arrivals over a transport and a protocol that do nothing of their own accord."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import transport as module
from probes.transport import Arrivals, Garbled, StampedBody, Timeline, begin, note_sent


class Wire(asyncio.Transport):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.unsent = 0
        self.reading = True

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Inner(BaseProtocol):
    """Passes a body on to its stream as aiohttp's parser does, without HTTP around it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.content = aiohttp.StreamReader(self, 1 << 16, loop=loop)
        self.fault: BaseException | None = None

    def data_received(self, data: bytes) -> None:
        if data:
            self.content.feed_data(data)

    def exception(self) -> BaseException | None:
        return self.fault

    def resume_reading(self, resume_parser: bool = True) -> None:
        pass


class Clock:
    """Advances a second with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "clock", clock)
    monkeypatch.setattr(Arrivals, "idle", 0.0)
    return clock


def connected() -> tuple[Arrivals, Inner, Timeline]:
    wire, timeline = Wire(), Timeline()
    inner = wire.protocol = Inner(asyncio.get_running_loop())
    arrivals = timeline.arrivals = Arrivals(wire, timeline)
    wire.set_protocol(arrivals)
    return arrivals, inner, timeline


async def test_each_read_keeps_its_own_stamp_however_late_it_is_taken(clock: Clock) -> None:
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    clock.now = 10
    for data in (b"a", b"bc", b"def"):
        arrivals.data_received(data)
    assert await arrivals.reads() == [(11.0, b"a"), (13.0, b"bc"), (15.0, b"def")]


async def test_what_came_with_the_head_has_the_stamp_of_the_last_read(clock: Clock) -> None:
    """Late at worst, never early."""
    arrivals, inner, _ = connected()
    clock.now = 20
    arrivals.data_received(b"first")
    arrivals.data_received(b"second")
    arrivals.bind(inner.content)
    arrivals.data_received(b"third")
    assert await arrivals.reads() == [(22.0, b"firstsecond"), (23.0, b"third")]


async def test_a_read_that_brings_nothing_of_the_body_is_none(clock: Clock) -> None:
    """Chunk sizes may come in reads of their own."""
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    arrivals.data_received(b"")
    arrivals.data_received(b"x")
    assert len(await arrivals.reads()) == 1
    assert clock.now > 0


async def test_a_read_without_a_part_of_the_body_wakes_nobody() -> None:
    """A chunk's size may come in a read of its own; it ended the wait, and the answer with it."""
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    arrivals.data_received(b"")
    await asyncio.sleep(0)
    assert not waiting.done()
    arrivals.data_received(b"x")
    assert [data for _, data in await waiting] == [b"x"]


class Drain:
    """A sink that takes at most `wanted` reads."""

    def __init__(self, wanted: int) -> None:
        self.got: list[tuple[float, bytes]] = []
        self.over = False
        self._wanted = wanted

    def feed(self, at: float, data: bytes) -> None:
        self.got.append((at, data))
        self.over = len(self.got) >= self._wanted


def sinking(arrivals: Arrivals, inner: Inner, wanted: int) -> list[tuple[float, bytes]]:
    """Let a sink take at most `wanted` reads; returns what it gets."""
    drain = Drain(wanted)
    arrivals.bind(inner.content)
    arrivals.sink = drain
    return drain.got


async def test_a_read_that_comes_alone_goes_to_the_sink_at_once(clock: Clock) -> None:
    arrivals, inner, _ = connected()
    got = sinking(arrivals, inner, wanted=2)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    clock.now = 10
    arrivals.data_received(b"a")
    assert got == [(11.0, b"a")]
    await asyncio.sleep(0)
    assert not waiting.done()
    arrivals.data_received(b"b")
    assert len(got) == 2
    assert await waiting == []
    assert not arrivals.over


async def test_reads_that_come_together_are_all_stamped_before_one_is_parsed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 5.0)
    arrivals, inner, _ = connected()
    got = sinking(arrivals, inner, wanted=9)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    clock.now = 10
    arrivals.data_received(b"alone")
    arrivals.data_received(b"beside it")
    arrivals.data_received(b"and again")
    assert got == [(11.0, b"alone")]
    assert await waiting == [(13.0, b"beside it"), (15.0, b"and again")]


async def test_the_sink_never_overtakes_what_waits(clock: Clock) -> None:
    arrivals, inner, _ = connected()
    got = sinking(arrivals, inner, wanted=9)
    arrivals.data_received(b"first")
    arrivals.data_received(b"second")
    assert got == []
    assert [data for _, data in await arrivals.reads()] == [b"first", b"second"]
    assert clock.now > 2


async def test_much_at_once_is_left_to_the_task(clock: Clock) -> None:
    arrivals, inner, _ = connected()
    got = sinking(arrivals, inner, wanted=9)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    arrivals.data_received(b"x" * 5000)
    assert got == []
    assert len(await waiting) == 1
    assert clock.now > 1


async def test_a_fault_of_the_sink_is_the_task_s_not_the_connection_s(clock: Clock) -> None:
    """Else the loop would close the connection, and our fault would look like the endpoint's."""
    arrivals, inner, _ = connected()

    class Broken(Drain):
        def feed(self, at: float, data: bytes) -> None:
            raise RuntimeError("ours")

    arrivals.bind(inner.content)
    arrivals.sink = Broken(1)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    arrivals.data_received(b"x")
    with pytest.raises(RuntimeError, match="ours"):
        await waiting
    assert clock.now > 1


async def test_a_waiting_reader_is_woken_and_the_end_is_an_empty_list() -> None:
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    arrivals.data_received(b"x")
    assert [data for _, data in await waiting] == [b"x"]
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    inner.content.feed_eof()
    arrivals.data_received(b"")
    assert await waiting == []
    assert arrivals.over


async def test_what_came_before_the_end_is_given_first() -> None:
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    arrivals.data_received(b"x")
    inner.content.set_exception(aiohttp.ClientPayloadError("cut"))
    arrivals.connection_lost(None)
    assert [data for _, data in await arrivals.reads()] == [b"x"]
    with pytest.raises(aiohttp.ClientPayloadError, match="cut"):
        await arrivals.reads()


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (HttpProcessingError(code=400, message="bad chunk"), Garbled),
        (aiohttp.ServerDisconnectedError(), aiohttp.ServerDisconnectedError),
        (aiohttp.ClientOSError(104, "reset"), aiohttp.ClientOSError),
        (None, module.ConnectionLost),
    ],
)
async def test_a_lost_connection_ends_the_wait_with_its_reason(
    fault: BaseException | None, raised: type[Exception]
) -> None:
    arrivals, inner, timeline = connected()
    arrivals.bind(inner.content)
    waiting = asyncio.create_task(arrivals.reads())
    await asyncio.sleep(0)
    inner.fault = fault
    arrivals.connection_lost(None)
    with pytest.raises(raised):
        await waiting
    assert timeline.broken is not None


async def test_reading_pauses_while_much_waits_and_goes_on_after(clock: Clock) -> None:
    """Else a fast peer fills the memory of a reader that parses in steps."""
    arrivals, inner, _ = connected()
    arrivals.bind(inner.content)
    wire: Any = arrivals.transport
    for _ in range(16):
        arrivals.data_received(b"x" * (64 << 10))
    assert wire.reading
    arrivals.data_received(b"x")
    assert not wire.reading
    assert len(await arrivals.reads()) == 17
    assert wire.reading
    assert clock.now > 17


async def test_protocols_of_a_pooled_connection_do_not_pile_up() -> None:
    arrivals, inner, _ = connected()
    again = Arrivals(arrivals.transport, Timeline())
    assert again.inner is inner


async def test_t0_is_the_last_write_that_the_kernel_took_at_once() -> None:
    arrivals, _, timeline = connected()
    timeline.handed = 5.0
    note_sent(timeline)
    assert timeline.sent == 5.0
    timeline.handed = 9.0
    note_sent(timeline)
    assert timeline.sent == 5.0
    assert arrivals.heard is None


async def test_t0_waits_for_the_buffer_to_drain(clock: Clock) -> None:
    arrivals, inner, timeline = connected()
    wire: Any = arrivals.transport
    wire.unsent = 1
    arrivals.pause_writing()
    timeline.handed = 5.0
    note_sent(timeline)
    assert timeline.sent is None
    wire.unsent, clock.now = 0, 50.0
    arrivals.resume_writing()
    assert timeline.sent == 51.0
    assert not inner.writing_paused


async def test_a_drain_before_the_last_write_is_not_t0(clock: Clock) -> None:
    """The body goes out in pieces, and each may fill the buffer."""
    arrivals, _, timeline = connected()
    arrivals.pause_writing()
    arrivals.resume_writing()
    assert timeline.sent is None
    timeline.handed = clock()
    note_sent(timeline)
    assert timeline.sent == timeline.handed


class Writer(aiohttp.abc.AbstractStreamWriter):
    """Collects what is written."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None: ...

    async def drain(self) -> None: ...

    def enable_compression(
        self, encoding: str = "deflate", strategy: int | None = None
    ) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, status_line: str, headers: Any) -> None: ...


@given(st.integers(0, 300_000), st.none() | st.integers(0, 300_000))
@settings(max_examples=30, deadline=None)
async def test_a_body_is_written_whole_and_in_pieces(size: int, most: int | None) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    _, body = begin(data[:size], "text/plain")
    writer = Writer()
    assert isinstance(body, StampedBody)
    assert body.size == size
    assert body.content_type == "text/plain"
    await body.write_with_length(writer, most)
    assert b"".join(writer.pieces) == data[:size][:most]
    assert all(0 < len(piece) <= 64 << 10 for piece in writer.pieces)
