"""HTTP/1.1 as far as the reference endpoint needs it: requests in, bytes out. Knows no model.

Written by hand because a send stamp is only worth something when the bytes leave right after it:
`Connection.send` hands them to the kernel at once (on uvloop too, see `connection_made`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qs, urlsplit

_HEAD_BYTES = 64 << 10
_BODY_BYTES = 64 << 20
_LINGER_RESET = struct.pack("ii", 1, 0)
LAST_CHUNK = b"0\r\n\r\n"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, complete.

    Attributes:
        headers: Values by lower-case name.
        read_ns: Monotonic clock when the last byte was read, nanoseconds.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    read_ns: int


def head(status: int, content_type: str, *more: str) -> bytes:
    """Return a response head; `more` are whole header lines and must frame the body."""
    reason = _REASONS.get(status, "Unknown")
    lines = (f"HTTP/1.1 {status} {reason}", f"content-type: {content_type}", *more)
    return "\r\n".join((*lines, "", "")).encode()


def chunk(data: bytes) -> bytes:
    """Frame one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class MalformedError(Exception):
    """What came is not a request that we read; `status` says how to refuse it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def take_request(buffer: bytearray, read_ns: int) -> Request | None:
    """Remove one request from the front of `buffer`; None while it is incomplete.

    Raises:
        MalformedError: Not HTTP/1.1, or larger than we read.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _HEAD_BYTES:
            raise MalformedError(413)
        return None
    method, target, headers = _parse_head(bytes(buffer[:end]))
    taken = _take_body(buffer, end + 4, headers)
    if taken is None:
        return None
    body, after = taken
    del buffer[:after]
    parts = urlsplit(target)
    return Request(method, parts.path, parse_qs(parts.query), headers, body, read_ns)


def _parse_head(raw: bytes) -> tuple[str, str, dict[str, str]]:
    lines = raw.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    target, _, version = rest.partition(" ")
    if version != "HTTP/1.1":
        raise MalformedError(400)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedError(400)
        headers[name.strip().lower()] = value.strip()
    return method, target, headers


def _take_body(
    buffer: bytearray, start: int, headers: Mapping[str, str]
) -> tuple[bytes, int] | None:
    if "transfer-encoding" in headers:
        return _take_chunks(buffer, start)
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise MalformedError(400)
    if int(text) > _BODY_BYTES:
        raise MalformedError(413)
    end = start + int(text)
    return None if len(buffer) < end else (bytes(buffer[start:end]), end)


def _take_chunks(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    pieces: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        try:
            size = int(bytes(buffer[at:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise MalformedError(400) from None
        if size + at > _BODY_BYTES:
            raise MalformedError(413)
        start = line_end + 2
        if len(buffer) < start + size + 2:
            return None
        if size == 0:
            return b"".join(pieces), start + 2
        pieces.append(bytes(buffer[start : start + size]))
        at = start + size + 2
    return None


def _waits_for_leave(buffer: bytearray) -> bool:
    """Say whether all that came is a head that asks before it sends the body."""
    return buffer.find(b"\r\n\r\n") == len(buffer) - 4 and b"100-continue" in buffer.lower()


class Connection(asyncio.Protocol):
    """One client: reads requests one after the other and lets the server answer each.

    Attributes:
        busy: Whether an answer is being written; the next request waits until `finish`.
        closed: Whether the client is gone.
    """

    def __init__(
        self,
        answer: Callable[[Connection, Request], None],
        opened: Callable[[Connection], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self._answer = answer
        self._opened = opened
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._last = False
        self.busy = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: nothing may wait in the write buffer."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        # uvloop keeps writes until the end of the loop's turn unless the buffer has no allowance.
        self._transport.set_write_buffer_limits(high=0)
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        """Stamp first, then see whether a request is complete."""
        read_ns = time.monotonic_ns()
        self._buffer += data
        if not self.busy:
            self._advance(read_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end and tell the server."""
        self.closed = True
        self._lost(self)

    def _advance(self, read_ns: int) -> None:
        try:
            request = take_request(self._buffer, read_ns)
        except MalformedError as exc:
            self.send(head(exc.status, "text/plain", "content-length: 0", "connection: close"))
            self.close()
            return
        if request is not None:
            self.busy = True
            self._last = request.headers.get("connection", "").lower() == "close"
            self._answer(self, request)
        elif _waits_for_leave(self._buffer):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send(self, data: bytes) -> None:
        """Hand bytes to the kernel; they wait in our buffer only if its own is full."""
        self._transport.write(data)

    def finish(self) -> None:
        """Say that the answer is complete; the next request may be here already."""
        self.busy = False
        if self._last:
            self.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self.busy and not self.closed:
            self._advance(time.monotonic_ns())

    def close(self) -> None:
        """Close after what was sent has left."""
        self._transport.close()

    def reset(self) -> None:
        """Break the connection with a TCP reset in place of an orderly end."""
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
