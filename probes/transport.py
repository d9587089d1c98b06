"""Arrival stamps and request phases of aiohttp, through its public seams only.

The only module that touches aiohttp's transports. Theory of operation:

- `StampedResponse.start` runs when the connection is ready and before the response is read. It
  slips `Arrivals` between transport and aiohttp's protocol (`transport.set_protocol`). Each read
  is stamped, then forwarded, and what it brought of the body is taken out of aiohttp's stream at
  once (`read_nowait`): bytes and stamp never part. Nothing is decompressed by aiohttp.
- A read that comes alone is parsed at once. Of those that become readable together all are stamped
  first: they wait for the reading task, which runs in the loop's next round.
- t0 is the moment the request's last byte was handed to the kernel: the beginning of the last
  write, if it left the transport's buffer empty (its end may be late by whatever the scheduler ran
  in between, often the peer itself), else when the transport drained (`resume_writing`). Under TLS
  up to 80 KiB may then still wait in the plain transport below, which no public name reaches.
- `TracedContext.wrap_bio` is called when TCP is connected and TLS begins.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError

clock = time.monotonic
_PIECE = 64 << 10
_MOST_HELD = 1 << 20
_SMALL = 4 << 10
_TOGETHER = 20e-6


@dataclass(slots=True)
class Timeline:
    """Moments of one exchange, monotonic seconds; None where they did not happen.

    Attributes:
        has_body: Whether the request has a body.
        handed: When the last piece of the request was given to the transport.
        drained: When the write buffer last ran empty after it had not; 0 means never.
        reused: Whether a pooled connection was taken.
        broken: When the connection ended.
        arrivals: What stamps the connection's reads; None before it is ready.
    """

    has_body: bool = True
    begun: float = field(default_factory=clock)
    dns_start: float | None = None
    dns_end: float | None = None
    connect_start: float | None = None
    tls_start: float | None = None
    connected: float | None = None
    ready: float | None = None
    handed: float | None = None
    drained: float = 0.0
    sent: float | None = None
    head: float | None = None
    reused: bool = False
    broken: float | None = None
    arrivals: Arrivals | None = None


_timeline: ContextVar[Timeline] = ContextVar("timeline")


class TracedContext(ssl.SSLContext):
    """A TLS context that notes when a handshake begins."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Stamp the beginning of TLS, then wrap as usual."""
        if (timeline := _timeline.get(None)) is not None:
            timeline.tls_start = clock()
        return super().wrap_bio(*args, **kwargs)


@lru_cache(maxsize=64)
def tls_context(ca_file: str | None, _modified: int | None) -> ssl.SSLContext:
    """Return a verifying client context, made once: reading the certificates takes 20 ms.

    A file that was modified since is read anew.

    Raises:
        OSError, ssl.SSLError: The CA file is missing or bad.
    """
    context = TracedContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


class LoopSocket(socket.socket):
    """A socket whose descriptor the event loop alone closes, never the garbage collector.

    A peer that resets inside the TLS handshake can make uvloop 0.23 close a transport before it
    has tied our socket object to it. Collected later, that object would close the same number a
    second time: by then another probe's connection, whereupon libuv aborts the process.
    """

    def __del__(self) -> None:
        """Leave the descriptor alone."""
        self.detach()


def loop_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a new socket for an address."""
    family, kind, protocol, _, _ = address
    return LoopSocket(family, kind, protocol)


class StampedBody(aiohttp.Payload):
    """A request body that tells when it was handed to the transport.

    It is written in pieces, each after the last one has drained: only so does an empty write
    buffer mean much under TLS, whose layer passes on at once whatever it is given.
    """

    def __init__(self, value: bytes, timeline: Timeline, content_type: str) -> None:
        super().__init__(value, content_type=content_type)
        self._data = value
        self._timeline = timeline

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._data)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        return self._data.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all of it."""
        await self.write_with_length(writer, None)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Write the body, then note the hand-over."""
        data = memoryview(self._data)[:content_length]
        at = clock()
        for start in range(0, len(data), _PIECE):
            await writer.drain()
            at = clock()
            await writer.write(data[start : start + _PIECE])
        self._timeline.handed = at
        note_sent(self._timeline)


def note_sent(timeline: Timeline) -> None:
    """Take t0 now if the kernel has all bytes; else `Arrivals.resume_writing` will."""
    arrivals = timeline.arrivals
    if timeline.sent is not None or timeline.handed is None or arrivals is None:
        return
    if arrivals.transport.get_write_buffer_size() == 0:
        timeline.sent = max(timeline.handed, timeline.drained)


_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([2-5]\d\d)[ \r\n]")


class Sink(Protocol):
    """What takes reads at once: the meter."""

    over: bool

    def feed(self, at: float, data: bytes) -> None:
        """Take one read and its arrival stamp."""


class Arrivals(asyncio.Protocol):
    """Stamps reads and the end of writing, and forwards everything to aiohttp's protocol.

    Attributes:
        inner: aiohttp's protocol.
        heard: Arrival of the last read before the body; None before one.
        over: Whether the body has ended, well or not.
        sink: Takes reads at once where that does no harm; None leaves all to `reads`.
        idle: When the last read of any connection was done with.
    """

    idle: ClassVar[float] = 0.0

    def __init__(self, transport: asyncio.Transport, timeline: Timeline) -> None:
        inner = transport.get_protocol()
        # A pooled connection still has the protocol of its last exchange: do not stack them.
        inner = inner.inner if isinstance(inner, Arrivals) else inner
        self.inner: asyncio.Protocol = cast("asyncio.Protocol", inner)
        self.transport = transport
        self.heard: float | None = None
        self._opening = b""
        self.over = False
        self.sink: Sink | None = None
        self._sated = False
        self._fault: Exception | None = None
        self._timeline = timeline
        self._content: aiohttp.StreamReader | None = None
        self._reads: list[tuple[float, bytes]] = []
        self._held = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Stamp, then forward."""
        at = clock()
        self.inner.data_received(data)
        if self._content is None:
            self.heard = at
            self._opening = self._opening or data[:16]
        else:
            self._take(at, self._content)
            Arrivals.idle = clock()

    def told_status(self) -> int | None:
        """Return the status that the first bytes tell, though aiohttp could not read the head."""
        found = _STATUS_LINE.match(self._opening)
        return int(found[1]) if found else None

    def pause_writing(self) -> None:
        """Forward."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """The write buffer has drained: what was written is with the kernel."""
        self._timeline.drained = clock()
        note_sent(self._timeline)
        self.inner.resume_writing()

    def eof_received(self) -> bool | None:
        """Forward."""
        return self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stamp, then forward."""
        at = self._timeline.broken = clock()
        self.inner.connection_lost(exc)
        if self._content is not None:
            self.over = True
            self._take(at, self._content)

    def bind(self, content: aiohttp.StreamReader) -> None:
        """Take the body's stream and what came with the head.

        Nearly always that is one read. Should more have come while the loop was late, all bytes
        get the last one's stamp: late, never early.
        """
        self._content = content
        self._take(clock() if self.heard is None else self.heard, content)

    def _take(self, at: float, content: aiohttp.StreamReader) -> None:
        """Take what a read brought of the body."""
        if content.exception() is not None:
            self.over = True
        else:
            data = content.read_nowait()
            if content.is_eof():
                self.over = True
            if data and not self._handed_on(at, data):
                self._hold(at, data)
        waiter = self._waiter
        if waiter is not None and (self._reads or self.over or self._sated):
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _handed_on(self, at: float, data: bytes) -> bool:
        """Give a read to the sink at once, if that delays nobody's stamp.

        It must be small and in its turn (the task waits, so it parses no earlier one), and the
        last read's work must be over: else several became readable together, and those that
        follow this one are still without a stamp.
        """
        in_turn = self._waiter is not None and not self._waiter.done()
        if (
            self.sink is None
            or not in_turn
            or len(data) > _SMALL
            or at - Arrivals.idle < _TOGETHER
        ):
            return False
        try:
            self.sink.feed(at, data)
            self._sated = self.sink.over
        except Exception as exc:  # noqa: BLE001 - ours: for the task, not for the transport
            self._fault, self._sated = exc, True
        return True

    def _hold(self, at: float, data: bytes) -> None:
        """Keep a read for the task."""
        self._reads.append((at, data))
        self._held += len(data)
        if self._held > _MOST_HELD and not self.transport.is_closing():
            self.transport.pause_reading()
            self._paused = True

    async def reads(self) -> list[tuple[float, bytes]]:
        """Wait for reads that the sink did not get, and return them with their stamps.

        Returns none when the body is over or the sink wants no more.

        Raises:
            aiohttp.ClientError: The body did not end well.
        """
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()
        if not self._reads and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._fault is not None:
            raise self._fault
        reads, self._reads, self._held = self._reads, [], 0
        sated, self._sated = self._sated, False
        if not reads and not sated and self._content is not None and not self._content.is_eof():
            # aiohttp keeps what is wrong with HTTP itself apart from what is wrong with the body.
            queue = cast("aiohttp.streams.DataQueue[object]", self.inner)
            exc = self._content.exception() or queue.exception()
            if isinstance(exc, HttpProcessingError):
                raise Garbled(exc.message) from exc
            raise exc or ConnectionLost("closed inside the body")
        return reads


class Garbled(aiohttp.ClientPayloadError):
    """A body breaks HTTP itself."""


class ConnectionLost(aiohttp.ClientConnectionError):
    """The connection ended before a response head.

    In place of aiohttp's own errors, after which it silently asks a second time for a GET.
    """


class StampedResponse(aiohttp.ClientResponse):
    """A response whose reads are stamped at the transport."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Put the stamping protocol in place, then read the head."""
        timeline = _timeline.get()
        transport = connection.transport
        if transport is None:
            raise ConnectionLost("closed before the request")
        timeline.ready = clock()
        arrivals = timeline.arrivals = Arrivals(transport, timeline)
        transport.set_protocol(arrivals)
        # With 0 the TLS layers of asyncio and uvloop pause although their buffer is empty.
        secure = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if secure else 0)
        if not timeline.has_body:
            timeline.handed = timeline.ready
        note_sent(timeline)
        try:
            response = await super().start(connection)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
            raise ConnectionLost(str(exc) or type(exc).__name__) from exc
        timeline.head = arrivals.heard
        arrivals.bind(response.content)
        return response


@lru_cache(maxsize=1)
def tracing() -> aiohttp.TraceConfig:
    """Return the trace that fills the connection phases of the current timeline."""
    trace = aiohttp.TraceConfig()

    def note(name: str) -> Any:
        async def hook(_session: object, _context: SimpleNamespace, _params: object) -> None:
            setattr(_timeline.get(), name, clock())

        return hook

    async def reused(_session: object, _context: SimpleNamespace, _params: object) -> None:
        _timeline.get().reused = True

    trace.on_dns_resolvehost_start.append(note("dns_start"))
    trace.on_dns_resolvehost_end.append(note("dns_end"))
    trace.on_connection_create_start.append(note("connect_start"))
    trace.on_connection_create_end.append(note("connected"))
    trace.on_connection_reuseconn.append(reused)
    return trace


def begin(body: bytes | None, content_type: str) -> tuple[Timeline, StampedBody | None]:
    """Start the timeline of one exchange in the current task."""
    timeline = Timeline(has_body=body is not None)
    _timeline.set(timeline)
    return timeline, None if body is None else StampedBody(body, timeline, content_type)
