"""Event-stream parser, sans-I/O: bytes in, events out.

Theory of operation. A stream is lines ended by CR, LF or CRLF; a blank line ends an event. The
parser keeps the bytes of the unfinished event, looks for the next blank line only where it has
not looked before (so one huge event costs linear time), and hands over an event in the call that
brought its blank line. A CRLF split between two reads is safe: the blank line is seen at the CR,
and the LF left over is itself a blank line without an event. Specification: WHATWG HTML, section
9.2 "Server-sent events".
"""

from __future__ import annotations

import re

import msgspec

# Two line ends or more. Possessive, or CRLF would backtrack into CR + LF and count as two; and
# beginning with a set, which the regex engine looks for ten times faster than for a group.
_BLANK_LINES = re.compile(rb"[\r\n](?:(?<=\r)\n)?+(?:\r\n|\n|\r)++")
_BOM = b"\xef\xbb\xbf"
_LONGEST_BLANK = 4


class EventTooLarge(Exception):  # noqa: N818 - the peer's fault, named as a fact
    """One event exceeds the cap; the peer's fault.

    Attributes:
        before: Events that the same bytes completed before it.
    """

    def __init__(self, limit: int, before: list[Event]) -> None:
        super().__init__(f"event longer than {limit} bytes")
        self.before = before


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: its type (empty if none was given) and its data lines joined by LF."""

    name: str
    data: bytes


class Parser:
    """Splits a byte stream into events.

    Attributes:
        comments: Comment lines seen.
        junk: Lines whose field no specification knows, such as HTML.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._mixed = False
        self._first = True
        self.comments = 0
        self.junk = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events completed by `data`.

        Raises:
            EventTooLarge: The unfinished or finished event is longer than the limit.
        """
        buffer = self._buffer
        # Nearly every read of a token stream is one whole event of one line.
        if not buffer and data[:6] == b"data: " and data[-2:] == b"\n\n":
            end = len(data) - 2
            if data.find(b"\n") == end and b"\r" not in data:
                if end > self._limit:
                    raise EventTooLarge(self._limit, [])
                self._first = False
                return [Event("", data[6:end])]
        if self._first:
            buffer += data
            self._drop_mark()
            data = bytes(buffer)
            buffer.clear()
        self._mixed = self._mixed or b"\r" in data
        if not buffer:
            events, rest = self._cut(data)
            buffer += data[rest:]
        else:
            buffer += data
            events, rest = self._cut(buffer)
            del buffer[:rest]
        # Some of what is left may be a blank line that was cut.
        self._searched = max(0, len(buffer) - _LONGEST_BLANK + 1)
        if self._searched > self._limit:
            raise EventTooLarge(self._limit, events)
        return events

    def _cut(self, source: bytes | bytearray) -> tuple[list[Event], int]:
        """Return the whole events and where the unfinished one begins."""
        events: list[Event] = []
        start, search = 0, self._searched
        while span := self._blank(source, search):
            end, search = span
            if end - start > self._limit:
                raise EventTooLarge(self._limit, events)
            event = self._event(bytes(source[start:end]))
            if event is not None:
                events.append(event)
            start = search
        return events, start

    def _blank(self, source: bytes | bytearray, start: int) -> tuple[int, int] | None:
        """Find the next blank lines. Few streams have a CR, and without one `find` is enough."""
        if not self._mixed:
            at = source.find(b"\n\n", start)
            if at < 0:
                return None
            if source[at + 2 : at + 3] != b"\n":
                return at, at + 2
        match = _BLANK_LINES.search(source, start)
        return match.span() if match else None

    def close(self) -> Event | None:
        """Return the event that the body's end cut off before its blank line, if any."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return self._event(rest)

    def _drop_mark(self) -> None:
        # Wait until it is clear whether a byte order mark stands at the head.
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return
        if self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
        self._first = False

    def _event(self, block: bytes) -> Event | None:
        # Nearly every event of a token stream is one data line: skip the general path.
        if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
            return Event("", block[6:])
        if block.startswith(b"{"):  # JSON that a failing server forgot to frame
            return Event("", block)
        name, lines = "", []
        for line in block.splitlines():  # on bytes this splits at CR, LF and CRLF only
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif not field and line:
                self.comments += 1
            elif line and field not in (b"id", b"retry"):
                self.junk += 1
        return Event(name, b"\n".join(lines)) if lines else None
