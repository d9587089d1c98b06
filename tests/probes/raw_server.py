"""A peer on loopback that plays a script of bytes: what no well-behaved server does.

A script is a coroutine that is given one connection. It runs in the test's own loop, so what it
did and when can be compared with what the client saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from probes import Endpoint, ProbeResult, Workload, run

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str, finish: str | None = None) -> bytes:
    """One chat chunk that says `text`."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(status: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """One whole response with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


ANSWER = HEAD + chunk(event("hello")) + chunk(event(" world", "stop")) + chunk(DONE) + END


@dataclass(slots=True)
class Peer:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: RawServer

    async def request(self) -> bytes | None:
        """Read one request, head and body, and note it; None when the client is done."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            request = head + await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.server.requests.append(request)
        return request

    async def send(self, *parts: bytes, gap: float = 0.0) -> None:
        """Write parts, each `gap` seconds after the last."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            if gap:
                await asyncio.sleep(gap)

    async def closed(self) -> None:
        """Wait until the client has closed or reset the connection."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await self.reader.read(1 << 16):
                pass

    def reset(self) -> None:
        """End the connection with a reset."""
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True)
class RawServer:
    """A running server and what it saw.

    Attributes:
        opened: Connections accepted so far.
        alive: Scripts that still run.
        requests: Every complete request, head and body.
    """

    script: Script
    scheme: str = "http"
    port: int = 0
    opened: int = 0
    requests: list[bytes] = field(default_factory=list)
    alive: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play the script, then close."""
        self.opened += 1
        task = asyncio.current_task()
        assert task is not None
        self.alive.add(task)
        try:
            await self.script(Peer(reader, writer, self))
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            self.alive.discard(task)
            writer.close()


@contextlib.asynccontextmanager
async def serve(
    script: Script, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[RawServer]:
    """Run a raw server for the length of a test."""
    raw = RawServer(script, scheme="https" if tls else "http")
    server = await asyncio.start_server(raw.accept, host, 0, ssl=tls, limit=1 << 20)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
        alive = list(raw.alive)
        for task in alive:
            task.cancel()
        await asyncio.gather(*alive, return_exceptions=True)


async def answer(peer: Peer) -> None:
    """Answer every request of a connection well."""
    while await peer.request() is not None:
        await peer.send(ANSWER)


async def silence(peer: Peer) -> None:
    """Read and never answer."""
    await peer.closed()


@contextlib.contextmanager
def serve_aside(script: Script) -> Iterator[RawServer]:
    """Run a raw server on a loop and thread of its own, so that it goes on while ours stalls."""
    ready: queue.SimpleQueue[tuple[RawServer, asyncio.Event]] = queue.SimpleQueue()

    async def run_until_told() -> None:
        async with serve(script) as raw:
            over = asyncio.Event()
            ready.put((raw, over))
            await over.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(run_until_told(),))
    thread.start()
    raw, over = ready.get(timeout=10)
    try:
        yield raw
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(timeout=10)
        loop.close()


async def probe(url: str, workload: Workload | None = None, **how: Any) -> ProbeResult:
    """Make one attempt; `how` goes to `run` where it knows the name, else to the endpoint."""
    known = {name: how.pop(name) for name in ("connections", "lag", "keep_content") if name in how}
    endpoint = Endpoint(**{"name": "e", "url": url, "model": "m", **how})
    return await run(endpoint, workload or Workload(), **known)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another task or thread brings about."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - a thread cannot set an asyncio.Event
            await asyncio.sleep(0.001)
