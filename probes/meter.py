"""The pure meter: (time, bytes) in, measurement out; no clock, no socket.

Theory of operation. The client tells the meter what the response head said, each read with its
arrival stamp, and how the body ended. The meter finds out whether the body is an event stream or
one document, lets the kind read it, and folds what was said into times (`pace`), text (`said`) and
facts. `over` tells the client that nothing more can matter. `probes.judge` turns the rest into an
outcome. Normative: tests/conformance/README.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Protocol

from probes.endpoint import Endpoint
from probes.pace import Pace
from probes.said import Said
from probes.sse import Event, EventTooLarge, Parser
from probes.tokens import Account, Usage, account
from probes.wire import NotJson, PeerError, Piece, load_json, read_error
from probes.workload import Workload

GAP = " [...] "
_EXCERPT = 1024
_ERROR_BODY = 64 << 10
_HEAD = 64
_INFLATED = 8 << 10


class Reader(Protocol):
    """How a kind reads its answers."""

    def event(self, event: Event) -> Piece:
        """Read one event of a stream. Raises NotJson."""

    def body(self, document: Any) -> Piece:
        """Read one whole JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the meter must know of a kind beside how it reads.

    Attributes:
        done_marker: Whether a complete stream ends with `[DONE]`.
        streamed: Whether a stream was asked for; a document then is flagged `not_streamed`.
        generates: Whether the answer is generated text, so that none is `empty_output`.
        text_body: Whether a body that is not JSON is the answer itself (transcripts as text).
    """

    done_marker: bool = True
    streamed: bool = True
    generates: bool = True
    text_body: bool = False


class End(StrEnum):
    """How the body ended, as the client saw it."""

    EOF = "eof"
    """Properly."""
    BROKEN = "broken"
    """The connection ended or was reset inside it."""
    GARBLED = "garbled"
    """What came is not HTTP."""


class Mode(StrEnum):
    """What the body turned out to be."""

    UNKNOWN = "unknown"
    STREAM = "stream"
    DOCUMENT = "document"
    ERROR = "error"
    FOREIGN = "foreign"


# JSON may be nested so deep that only what walks through it gives up.
_UNREADABLE = (NotJson, RecursionError)
_BLANK = b"\xef\xbb\xbf \t\r\n"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


def _sniff(head: bytes, content_type: str, *, whole: bool) -> Mode:
    """Tell the body by its first bytes; content types are wrong too often to decide alone.

    Unless `head` is the whole body, what may yet become a stream's first field stays unknown: how
    a body is cut into reads must not decide what it is.
    """
    if not head:
        return Mode.UNKNOWN
    if head[:1] in (b"{", b"["):
        return Mode.DOCUMENT
    if head.startswith(_FIELDS) or ("event-stream" in content_type and head[:1] != b"<"):
        return Mode.STREAM
    if not whole and any(field.startswith(head) for field in _FIELDS):
        return Mode.UNKNOWN
    return Mode.DOCUMENT if "json" in content_type else Mode.FOREIGN


_FACTS = (
    "usage",
    "finish",
    "model",
    "fingerprint",
    "request_id",
    "error",
    "failed",
    "filtered",
    "invalid",
)
_facts_of = attrgetter(*_FACTS)


class Meter:
    """Measures one answer. Times are monotonic seconds of the caller's clock.

    Attributes:
        status: HTTP status; None before a response head.
        mode: What the body turned out to be.
        pace: Times of the output events.
        said: What was generated.
        first_byte_at: Arrival of the first body byte.
        ended_at: End marker, end of body, or the moment a failure was known.
        over: Whether nothing more can matter.
        marked_end: Whether an end marker or a whole document came.
        done_marker: Whether the end marker was `[DONE]`.
        protocol: Why the body breaks the protocol; None while it does not.
        error: Error reported by the peer, in an error body or inside a 200.
        failed: Finish reason, native or not, by which the server gave up.
        invalid: Why the answer fails its kind's own check.
        filtered: Whether a guardrail stopped the answer.
    """

    def __init__(
        self, endpoint: Endpoint, workload: Workload, reader: Reader, rules: Rules
    ) -> None:
        self.rules = rules
        self._limits = workload.limits
        self._reader = reader
        self._parser = Parser(workload.limits.event_bytes)
        self._encoding = ""
        self._inflate: Any = None
        self._plain_bytes = 0
        self._noted: tuple[Any, ...] = ()
        self._body = bytearray()
        self._type = ""
        self.pace = Pace()
        self.said = Said(endpoint)
        self.mode = Mode.UNKNOWN
        self.status: int | None = None
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None
        self.body_bytes = 0
        self.over = self.marked_end = self.done_marker = self.filtered = False
        self.protocol: str | None = None
        self.error: PeerError | None = None
        self.invalid: str | None = None
        self.finish: str | None = None
        self.failed: str | None = None
        self.usage: Usage | None = None
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.request_id: str | None = None
        self.metrics: dict[str, float] = {}

    def head(self, status: int, content_type: str, encoding: str) -> None:
        """Take the response head."""
        self.status = status
        self._type = content_type.lower()
        if not 200 <= status < 300:
            self.mode = Mode.ERROR
        named = (name.strip().lower() for name in encoding.split(","))
        self._encoding = ",".join(name for name in named if name not in ("", "identity"))

    def feed(self, at: float, data: bytes) -> None:
        """Take one read of the body and its arrival stamp."""
        for plain in self._plain(at, data):
            if self.mode is Mode.STREAM:
                self._feed_stream(at, plain)
            else:
                self._collect(at, plain)

    def feed_steps(self, at: float, data: bytes) -> Iterator[None]:
        """Take one read as `feed` does, little by little: a compressed one may hold very much."""
        for plain in self._plain(at, data):
            if self.mode is Mode.STREAM:
                self._feed_stream(at, plain)
            else:
                self._collect(at, plain)
            yield

    @property
    def compressed(self) -> bool:
        """Whether the body has a content encoding."""
        return bool(self._encoding)

    def close(self, at: float, end: End) -> None:
        """Take the end of the body and when it was known."""
        if self.over:
            return
        self.ended_at = at
        if self.mode is Mode.UNKNOWN:
            self._decide(at, whole=True)
        if self.mode is Mode.ERROR:
            self._read_error()
        elif end is End.GARBLED:
            self._breach(at, "answer is not HTTP")
        elif self.mode is Mode.STREAM:
            self._close_stream(at)
        elif self.mode is Mode.DOCUMENT:
            self._close_document(at, end)
        elif end is End.EOF:
            self._close_foreign(at)
        self.over = True

    def abandon(self, at: float) -> None:
        """Take the moment at which a limit, a fault or a shutdown ended the exchange."""
        self.ended_at = at
        if self.mode is Mode.ERROR:
            self._read_error()
        self.over = True

    # -- bytes -----------------------------------------------------------------------------

    def _plain(self, at: float, data: bytes) -> Iterable[bytes]:
        """Count a read and undo its encoding."""
        if self.over or not data:
            return ()
        if self.first_byte_at is None:
            self.first_byte_at = at
        self.body_bytes += len(data)
        if self.body_bytes > self._limits.body_bytes:
            self._breach(at, f"body longer than {self._limits.body_bytes} bytes")
            return ()
        return self._decoded(at, data) if self._encoding else (data,)

    def _decoded(self, at: float, data: bytes) -> Iterator[bytes]:
        """Undo a content encoding, though none was asked for, in pieces of bounded size."""
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            if self.mode is not Mode.ERROR:  # the status then says enough
                self._breach(at, f"content encoding {self._encoding[:40]!r} was not asked for")
            return
        if self._inflate is None:
            # Many send "deflate" bare, without the zlib header whose first byte says method 8.
            bare = self._encoding == "deflate" and data[0] & 0x0F != 8
            self._inflate = zlib.decompressobj(wbits=-15 if bare else 47)
        try:
            more = True
            while more and not self.over:
                plain = self._inflate.decompress(data, _INFLATED)
                data = self._inflate.unconsumed_tail
                if self._inflate.eof and self._inflate.unused_data.startswith(b"\x1f\x8b"):
                    data = self._inflate.unused_data  # another gzip member
                    self._inflate = zlib.decompressobj(wbits=47)
                more = bool(data) or len(plain) == _INFLATED
                self._plain_bytes += len(plain)
                if self._plain_bytes > self._limits.body_bytes:
                    limit = self._limits.body_bytes
                    self._breach(at, f"body longer than {limit} bytes when decompressed")
                elif plain:
                    yield plain
        except zlib.error as exc:
            self._breach(at, f"bad compression: {exc}")

    def _collect(self, at: float, data: bytes) -> None:
        """Keep bytes until the mode is known, or for a document's end."""
        self._body += data
        if self.mode is Mode.UNKNOWN and not self.rules.text_body:
            # Blank lines keep a connection alive before an answer (DeepSeek).
            self._body = self._body.lstrip(b" \t\r\n")
        if len(self._body) > self._limits.body_bytes:
            self._breach(at, f"body longer than {self._limits.body_bytes} bytes")
        if self.mode is Mode.UNKNOWN:
            self._decide(at)
        if self.mode in (Mode.ERROR, Mode.FOREIGN):
            del self._body[_ERROR_BODY:]

    def _decide(self, at: float, *, whole: bool = False) -> None:
        head = bytes(self._body if whole else self._body[:_HEAD]).lstrip(_BLANK)
        self.mode = _sniff(head, self._type, whole=whole)
        if self.mode is Mode.FOREIGN and self.rules.text_body and "html" not in self._type:
            self.mode = Mode.DOCUMENT
        if self.mode is Mode.STREAM:
            held = bytes(self._body)
            self._body.clear()
            self._feed_stream(at, held)

    def _feed_stream(self, at: float, data: bytes) -> None:
        broken = None
        try:
            events = self._parser.feed(data)
        except EventTooLarge as exc:
            events, broken = exc.before, str(exc)
        for event in events:
            if self.over:
                return
            self._read_event(at, event)
        if broken is not None and not self.over:
            self._breach(at, broken)

    def _close_stream(self, at: float) -> None:
        event = self._parser.close()
        if event is not None and _is_whole(event):
            self._read_event(at, event)
        silent = not (self.pace.stamps or self.marked_end or self.finish or self.error)
        if silent and self._parser.junk:
            self._breach(at, "body is not an event stream")
        self.said.close()

    def _close_document(self, at: float, end: End) -> None:
        data = bytes(self._body)
        if self.rules.text_body and data[:1] not in (b"{", b"["):
            self._fold_document(Piece(text=data.decode("utf-8", "replace")))
            return
        try:
            document = load_json(data)
            piece = self._reader.body(document)
            piece.error = piece.error or read_error(document)
        except _UNREADABLE as exc:
            if end is End.EOF:  # else it is only cut off
                self._breach(at, f"body is not JSON: {exc}")
            return
        self._fold_document(piece)

    def _close_foreign(self, at: float) -> None:
        if self.mode is Mode.FOREIGN:
            kind = self._type or "no content type"
            self._breach(at, f"body is neither a stream nor JSON ({kind[:80]})")
        elif "event-stream" not in self._type:
            self._breach(at, "body is empty")

    def _read_event(self, at: float, event: Event) -> None:
        try:
            piece = self._reader.event(event)
        except _UNREADABLE as exc:
            self._breach(at, f"event is not JSON: {exc}")
            self._body[:] = event.data
            return
        self._fold(at, piece)
        if piece.error is not None:
            self._body[:] = event.data

    def _read_error(self) -> None:
        """Read an error body. Its code may stand where no answer would have it."""
        try:
            document = load_json(bytes(self._body))
            self.error = read_error(document)
            if self.error is None and isinstance(document, dict):
                self.error = read_error({"error": document})
        except _UNREADABLE:
            return

    # -- pieces ----------------------------------------------------------------------------

    def _fold(self, at: float, piece: Piece) -> None:
        """Fold one event of a stream."""
        self.said.cut_repeated(piece)
        if piece.has_output():
            self.pace.add(at)
        if piece.summary:
            self.pace.summarized = True
        answers = self.said.add(piece)
        if self.said.retract():
            self.pace.answer_at = None
        if answers and self.pace.answer_at is None:
            self.pace.answer_at = at
        self._note(piece)
        if piece.error is not None:
            self.over, self.ended_at = True, at
        elif piece.end:
            self.over = self.marked_end = True
            self.done_marker = piece.done_marker
            self.ended_at = at
            self.said.close()

    def _fold_document(self, piece: Piece) -> None:
        self.said.add(piece)
        self.said.close()
        self._note(piece)
        self.marked_end = True

    def _note(self, piece: Piece) -> None:
        """Take what was said beside the output; the last word counts."""
        said = _facts_of(piece)
        if said != self._noted:  # nearly every chunk repeats the last one's
            self._noted = said
            for fact, value in zip(_FACTS, said, strict=True):
                if value:
                    setattr(self, fact, value)
        if piece.metrics:
            self.metrics |= piece.metrics

    def _breach(self, at: float | None, why: str) -> None:
        """The peer broke the protocol: nothing after this matters."""
        self.protocol = self.protocol or why
        self.over = True
        self.ended_at = self.ended_at if at is None else at

    # -- the measurement -------------------------------------------------------------------

    def counted(self) -> Account:
        """Return the token account of the answer."""
        thought = self.said.has("reasoning") and not self.pace.summarized
        if self.mode is Mode.STREAM or self.usage is not None:
            return account(self.usage, len(self.pace.stamps), streamed_reasoning=thought)
        missing = self.not_streamed()  # a document without usage has nothing to count
        flags = ("usage_missing",) if missing else ()
        return Account(output=None, source=None, visible=None, flags=flags)

    def not_streamed(self) -> bool:
        """Whether a stream was asked for and one document came."""
        whole = self.mode is Mode.DOCUMENT and self.error is None and self.protocol is None
        return whole and self.rules.streamed and self.said.anything()

    def flags(self, counted: Account) -> set[str]:
        """Return the facts about the answer that the bytes alone tell."""
        well = self.error is None and self.protocol is None
        done_missing = self.rules.done_marker and self.finish and not self.marked_end and well
        facts = {
            "burst": self.pace.burst(counted.visible),
            "coarse": self.pace.coarse(),
            "missing_done": self.mode is Mode.STREAM and done_missing,
            "no_finish_reason": self.done_marker and self.finish is None,
            "not_streamed": self.not_streamed(),
            "refusal": self.said.has("refusal"),
            "reasoning_summary": self.pace.summarized,
        }
        return {name for name, holds in facts.items() if holds} | {*counted.flags}

    def excerpt(self) -> str | None:
        """Return the first and last KiB of what was no answer; None where all was well."""
        data = bytes(self._body)
        well = self.mode in (Mode.DOCUMENT, Mode.STREAM) and not (self.error or self.protocol)
        if not data or well:
            return None
        text = data.decode("utf-8", "replace")
        if len(text) <= 2 * _EXCERPT:
            return text
        return f"{text[:_EXCERPT]}{GAP}{text[-_EXCERPT:]}"


def _is_whole(event: Event) -> bool:
    if event.data.strip() == b"[DONE]":
        return True
    try:
        load_json(event.data)
    except NotJson:
        return False
    return True
