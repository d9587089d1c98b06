"""The pure meter: (time, bytes) in, measurement out; no clock, no socket.

Theory of operation. The client tells the meter when the request's last byte was written, what the
response head said, each read with its arrival stamp, and how the body ended. The meter finds out
whether the body is an event stream or one document, lets the kind read it, and folds what was
said into times, counts and text. `over` tells the client that nothing more can matter. `outcome`
then judges in a fixed order: transport and limits, HTTP status, protocol, in-band error, filter,
truncation, empty output, wrong model, failed check. Normative: tests/conformance/README.md.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Protocol

from probes.endpoint import Endpoint
from probes.inline import InlineSplitter
from probes.result import Content, Itl, Outcome, ToolCall
from probes.sse import Event, EventTooLarge, Parser
from probes.tokens import Account, Usage, account
from probes.wire import (
    NotJson,
    PeerError,
    Piece,
    ToolDelta,
    is_failure,
    is_filtered,
    load_json,
    read_error,
)
from probes.workload import Check, Workload

BURST_TOKENS = 4
BURST_SPAN = 0.005
COARSE_GAPS = 3
COARSE_GAP = 0.002
COARSE_MEAN = 0.010
_EXCERPT = 1024
_ERROR_BODY = 64 << 10


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
    """How the exchange ended, as the client saw it."""

    EOF = "eof"
    """The body ended properly, or the meter was over."""
    BROKEN = "broken"
    """The connection ended or was reset inside the body."""
    GARBLED = "garbled"
    """What came is not HTTP."""


class Mode(StrEnum):
    """What the body turned out to be."""

    UNKNOWN = "unknown"
    STREAM = "stream"
    DOCUMENT = "document"
    ERROR = "error"
    FOREIGN = "foreign"


_FIELDS = (b"data", b"event", b"id", b"retry", b":")


def _sniff(head: bytes, content_type: str) -> Mode:
    """Tell the body by its first bytes; content types are wrong too often to decide alone."""
    head = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return Mode.UNKNOWN
    if head[:1] in (b"{", b"["):
        return Mode.DOCUMENT
    if any(head.startswith(f) or f.startswith(head) for f in _FIELDS):
        return Mode.STREAM
    if "event-stream" in content_type and head[:1] != b"<":
        return Mode.STREAM
    return Mode.DOCUMENT if "json" in content_type else Mode.FOREIGN


class Meter:
    """Measures one answer. Times are monotonic seconds of the caller's clock."""

    def __init__(
        self, endpoint: Endpoint, workload: Workload, reader: Reader, rules: Rules
    ) -> None:
        self._endpoint = endpoint
        self._workload = workload
        self._reader = reader
        self._rules = rules
        self._parser = Parser(workload.limits.event_bytes)
        style = endpoint.inline_reasoning
        self._inline = InlineSplitter(style) if style else None
        self._inflate: Any = None
        self._document = bytearray()
        self._tools: dict[str, list[str]] = {}
        self._texts: dict[str, list[str]] = {"text": [], "reasoning": [], "refusal": []}
        self._cumulative: dict[str, str] = {}
        self._answer_json: dict[str, Any] = {}
        self._summary = False
        self._filtered = False
        self._mode = Mode.UNKNOWN
        self._type = ""
        self._late_error: PeerError | None = None
        self._invalid: str | None = None
        self._merged_stamp: float | None = None
        self.status: int | None = None
        self.stamps: list[float] = []
        self.answer_at: float | None = None
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None
        self.merged = 0
        self.body_bytes = 0
        self.over = False
        self.done_marker = False
        self.marked_end = False
        self.finish: str | None = None
        self.error: PeerError | None = None
        self.protocol: str | None = None
        self.usage: Usage | None = None
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.request_id: str | None = None
        self.metrics: dict[str, float] = {}

    # -- what the client tells -------------------------------------------------------------

    def head(self, status: int, content_type: str, encoding: str) -> None:
        """Take the response head."""
        self.status = status
        self._type = content_type.lower()
        if not 200 <= status < 300:
            self._mode = Mode.ERROR
        encoding = encoding.strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=47)  # gzip or zlib, told by the header
        elif encoding not in ("", "identity"):
            self._fail_protocol(None, f"content encoding {encoding[:40]!r} was not asked for")

    def feed(self, at: float, data: bytes) -> None:
        """Take one read of the body and its arrival stamp."""
        if self.over or not data:
            return
        if self.first_byte_at is None:
            self.first_byte_at = at
        self.body_bytes += len(data)
        if self._inflate is not None:
            data = self._inflated(at, data)
        if self.body_bytes > self._workload.limits.body_bytes:
            self._fail_protocol(at, f"body longer than {self._workload.limits.body_bytes} bytes")
        elif self._mode is Mode.STREAM:
            self._feed_stream(at, data)
        else:
            self._collect(at, data)

    def close(self, at: float, end: End) -> None:
        """Take the end of the body. The time is when it was known."""
        if self.over:
            return
        self.ended_at = at
        if end is End.GARBLED:
            self._fail_protocol(at, "answer is not HTTP")
        elif self._mode is Mode.STREAM:
            self._close_stream(at)
        elif self._mode is Mode.ERROR:
            self._read_error_body()
        else:
            self._close_document(at, end)
        self.over = True

    def abandon(self, at: float) -> None:
        """Take the moment at which a limit or a shutdown ended the exchange."""
        self.ended_at = at
        if self._mode is Mode.ERROR:
            self._read_error_body()
        self.over = True

    # -- bytes -----------------------------------------------------------------------------

    def _inflated(self, at: float, data: bytes) -> bytes:
        limit = self._workload.limits.body_bytes
        try:
            data = self._inflate.decompress(data, limit + 1)
        except zlib.error as exc:
            self._fail_protocol(at, f"bad compression: {exc}")
            return b""
        if len(data) > limit:
            self._fail_protocol(at, f"body longer than {limit} bytes when decompressed")
        return bytes(data)

    def _collect(self, at: float, data: bytes) -> None:
        """Keep bytes until the mode is known, or for a document's end."""
        if self.over:
            return
        self._document += data
        if len(self._document) > self._workload.limits.body_bytes:
            self._fail_protocol(at, "body too long")
        if self._mode is Mode.ERROR:
            del self._document[_ERROR_BODY:]
        if self._mode is not Mode.UNKNOWN:
            return
        self._mode = _sniff(bytes(self._document[:64]), self._type)
        if self._mode is Mode.FOREIGN and self._rules.text_body and b"<" != self._document[:1]:
            self._mode = Mode.DOCUMENT
        if self._mode is Mode.STREAM:
            held = bytes(self._document)
            self._document.clear()
            self._feed_stream(at, held)
        elif self._mode is Mode.FOREIGN:
            del self._document[_ERROR_BODY:]

    def _feed_stream(self, at: float, data: bytes) -> None:
        try:
            events = self._parser.feed(data)
        except EventTooLarge as exc:
            self._fail_protocol(at, str(exc))
            return
        for event in events:
            if self.over:
                return
            self._read_event(at, event)

    def _close_stream(self, at: float) -> None:
        event = self._parser.close()
        if event is not None and _is_whole(event):
            self._read_event(at, event)
        if not self.stamps and not self.marked_end and self._parser.junk and not self.finish:
            self._fail_protocol(at, "body is not an event stream")
        if self._inline is not None:
            self._keep(*self._inline.close())

    def _read_event(self, at: float, event: Event) -> None:
        try:
            piece = self._reader.event(event)
        except NotJson as exc:
            self._fail_protocol(at, f"event is not JSON: {exc}", event.data)
            return
        self._fold(at, piece)
        if piece.error is not None:
            self._document[:] = event.data

    def _close_document(self, at: float, end: End) -> None:
        data = bytes(self._document)
        if self._mode is Mode.DOCUMENT:
            self._read_document(at, data, end)
        elif end is End.BROKEN:
            return
        elif self._mode is Mode.FOREIGN:
            kind = self._type or "no content type"
            self._fail_protocol(at, f"body is neither a stream nor JSON ({kind[:80]})", data)
        elif "event-stream" not in self._type:
            self._fail_protocol(at, "body is empty")

    def _read_document(self, at: float, data: bytes, end: End) -> None:
        if self._rules.text_body and data[:1] not in (b"{", b"["):
            self._fold_document(Piece(text=data.decode("utf-8", "replace")))
            return
        try:
            document = load_json(data)
        except NotJson as exc:
            if end is End.EOF:
                self._fail_protocol(at, f"body is not JSON: {exc}", data)
            return
        piece = self._reader.body(document)
        piece.error = piece.error or read_error(document)
        self._fold_document(piece)

    def _read_error_body(self) -> None:
        data = bytes(self._document)
        try:
            document = load_json(data)
        except NotJson:
            self._late_error = PeerError(None, None)
            return
        self._late_error = read_error(document) or PeerError(None, None)
        if self._late_error.code is None and isinstance(document, Mapping):
            code = document.get("code") or document.get("type")
            if isinstance(code, str | int) and code != "error":
                self._late_error = PeerError(str(code)[:200], self._late_error.message)

    # -- pieces ----------------------------------------------------------------------------

    def _fold(self, at: float, piece: Piece) -> None:
        """Fold one event of a stream."""
        if self._endpoint.cumulative_content:
            self._cut_repeated(piece)
        if piece.has_output():
            self._output(at, piece)
        self._facts(piece)
        if piece.error is not None:
            self.over, self.ended_at = True, at
        elif piece.end:
            self.over = self.marked_end = True
            self.done_marker = piece.done_marker
            self.ended_at = at
            if self._inline is not None:
                self._keep(*self._inline.close())

    def _fold_document(self, piece: Piece) -> None:
        if self._inline is not None and piece.text:
            reasoning, text = self._inline.feed(piece.text)
            held_reasoning, held_text = self._inline.close()
            piece.reasoning += reasoning + held_reasoning
            piece.text = text + held_text
        self._keep(piece.reasoning + piece.summary, piece.text)
        self._texts["refusal"].append(piece.refusal)
        self._add_tools(piece.tools)
        self._facts(piece)
        self.marked_end = True

    def _output(self, at: float, piece: Piece) -> None:
        if self.stamps and at == self.stamps[-1]:
            # Count the event and, once, the one whose stamp it shares.
            self.merged += 1 if self._merged_stamp == at else 2
            self._merged_stamp = at
        self.stamps.append(at)
        text, reasoning = piece.text, piece.reasoning
        if self._inline is not None and text:
            inline, text = self._inline.feed(text)
            reasoning += inline
            if self._inline.reclassified:
                self._reclassify()
        if piece.summary:
            self._summary = True
        answers = text or piece.refusal or piece.tools or piece.others
        if self.answer_at is None and answers:
            self.answer_at = at
        self._keep(reasoning + piece.summary, text)
        if piece.refusal:
            self._texts["refusal"].append(piece.refusal)
        if piece.tools:
            self._add_tools(piece.tools)

    def _keep(self, reasoning: str, text: str) -> None:
        if reasoning:
            self._texts["reasoning"].append(reasoning)
        if text:
            self._texts["text"].append(text)

    def _reclassify(self) -> None:
        """A thinking block ended that was never opened: what came before was reasoning."""
        self._texts["reasoning"] += self._texts["text"]
        self._texts["text"] = []
        self.answer_at = None

    def _cut_repeated(self, piece: Piece) -> None:
        """Turn text that repeats everything so far into what is new."""
        for name in ("text", "reasoning", "refusal"):
            said = getattr(piece, name)
            if said:
                before = self._cumulative.get(name, "")
                setattr(piece, name, said[len(before) :] if said.startswith(before) else said)
                self._cumulative[name] = said

    def _add_tools(self, deltas: tuple[ToolDelta, ...]) -> None:
        for delta in deltas:
            key = delta.key
            if key is None:
                # No index and no id (Gemini): a name starts a call, arguments continue one.
                fresh = delta.name or not self._tools
                key = f"#{len(self._tools)}" if fresh else next(reversed(self._tools))
            call = self._tools.setdefault(key, ["", ""])
            call[0] = call[0] or delta.name
            call[1] += delta.arguments

    def _facts(self, piece: Piece) -> None:
        self._add_tools(piece.announced)
        self.usage = piece.usage or self.usage
        self.finish = piece.finish or self.finish
        self.model = piece.model or self.model
        self.fingerprint = piece.fingerprint or self.fingerprint
        self.request_id = piece.request_id or self.request_id
        self.error = piece.error or self.error
        self._filtered = self._filtered or piece.filtered
        self._invalid = piece.invalid or self._invalid
        if piece.metrics:
            self.metrics |= piece.metrics
        if piece.content:
            self._answer_json |= piece.content

    def _fail_protocol(self, at: float | None, why: str, data: bytes = b"") -> None:
        self.protocol = self.protocol or why
        if data:
            self._document[:] = data
        self.over = True
        if at is not None:
            self.ended_at = at

    # -- the measurement -------------------------------------------------------------------

    @property
    def last_at(self) -> float | None:
        """When the last output event came."""
        return self.stamps[-1] if self.stamps else None

    @property
    def mode(self) -> Mode:
        """What the body turned out to be."""
        return self._mode

    def text(self, name: str) -> str:
        """Return all of `text`, `reasoning` or `refusal`."""
        return "".join(self._texts[name])

    def counted(self) -> Account:
        """Return the token account of the answer."""
        streamed = self._mode is Mode.STREAM
        reasoning = bool(self._texts["reasoning"]) and not self._summary
        if streamed or self.usage is not None:
            return account(self.usage, len(self.stamps), streamed_reasoning=reasoning)
        missing = self.mode is Mode.DOCUMENT and self._rules.generates and self._rules.streamed
        flags = ("usage_missing",) if missing and self._said_anything() else ()
        return Account(output=None, source=None, visible=None, flags=flags)

    def _said_anything(self) -> bool:
        return bool(any(map(any, self._texts.values())) or self._tools)

    def _pace_start(self) -> float | None:
        """A summary is no pace of tokens: then the pace starts at the answer."""
        if self._summary:
            return self.answer_at
        return self.stamps[0] if self.stamps else None

    def burst(self, visible: int | None) -> bool:
        """Whether the tokens came too close together to tell their pace."""
        start = self._pace_start()
        if start is None or visible is None or visible < BURST_TOKENS:
            return False
        return self.stamps[-1] - start < BURST_SPAN

    def tpot(self, visible: int | None) -> float | None:
        """Return (last - first) / (visible - 1) in seconds, tpot/1; None where undefined."""
        start = self._pace_start()
        if start is None or visible is None or visible < 2 or self.burst(visible):
            return None
        return (self.stamps[-1] - start) / (visible - 1)

    def gaps(self) -> list[float]:
        """Return the gaps between output events, seconds."""
        return [later - earlier for earlier, later in pairwise(self.stamps)]

    def flags(self, counted: Account, *, fell_back: bool) -> tuple[str, ...]:
        """Return the facts about the answer, sorted."""
        facts = {
            "burst": self.burst(counted.visible),
            "coarse": is_coarse(self.gaps()),
            "missing_done": self._missing_done(),
            "no_finish_reason": self.done_marker and self.finish is None,
            "not_streamed": self._not_streamed(),
            "refusal": bool(self._texts["refusal"]) and any(self._texts["refusal"]),
            "server_fallback": fell_back,
            "reasoning_summary": self._summary,
        }
        return tuple(sorted({name for name, holds in facts.items() if holds} | {*counted.flags}))

    def _missing_done(self) -> bool:
        return (
            self._rules.done_marker
            and self._mode is Mode.STREAM
            and self.finish is not None
            and not self.marked_end
            and self.error is None
            and self.protocol is None
        )

    def _not_streamed(self) -> bool:
        return (
            self._rules.streamed
            and self._mode is Mode.DOCUMENT
            and self.error is None
            and self.protocol is None
            and self._said_anything()
        )

    def content(self) -> Content:
        """Return what the endpoint said."""
        calls = (ToolCall(name=name, arguments=args) for name, args in self._tools.values())
        return Content(
            text=self.text("text"),
            reasoning=self.text("reasoning"),
            refusal=self.text("refusal"),
            tool_calls=tuple(calls),
            **self._answer_json,
        )

    def excerpt(self) -> str | None:
        """Return the first and last KiB of a body that was no answer; None without one."""
        data = bytes(self._document)
        if not data or (self._mode is Mode.DOCUMENT and not (self.error or self.protocol)):
            return None
        text = data.decode("utf-8", "replace")
        if len(text) <= 2 * _EXCERPT:
            return text
        return f"{text[:_EXCERPT]} [...] {text[-_EXCERPT:]}"

    def peer_error(self) -> PeerError | None:
        """Return the error as the peer words it, from an error body or inside a 200."""
        if self._late_error is not None:
            return self._late_error
        if self.error is None and is_failure(self.finish):
            return PeerError(self.finish, f"finish_reason {self.finish}")
        return self.error

    def outcome(self) -> tuple[Outcome, str | None]:
        """Judge an exchange that no transport fault and no limit ended: outcome and reason."""
        if self.status is not None and not 200 <= self.status < 300:
            return self._status_outcome(self.status)
        if self.protocol:
            return Outcome.PROTOCOL_ERROR, self.protocol
        error = self.peer_error()
        if error is not None and is_filtered(error.code):
            return Outcome.CONTENT_FILTER, "the endpoint's filter stopped the answer"
        if error is not None:
            said = error.message or error.code or "no message"
            return Outcome.STREAM_ERROR, f"error inside a 200 answer: {said}"
        if self._filtered or is_filtered(self.finish):
            return Outcome.CONTENT_FILTER, "the endpoint's filter stopped the answer"
        if self._truncated():
            return Outcome.TRUNCATED, "the answer ended without a finish reason or end marker"
        return self._quality()

    def _truncated(self) -> bool:
        return not self.marked_end and not (self.finish and self._rules.done_marker)

    def _quality(self) -> tuple[Outcome, str | None]:
        if self._rules.generates and not self._said_anything() and not self.stamps:
            return Outcome.EMPTY_OUTPUT, "the answer ended well but nothing was generated"
        expected = self._endpoint.expected_model
        if expected and self.model and not fnmatchcase(self.model, expected):
            return Outcome.WRONG_MODEL, f"model {self.model[:100]!r} answered, expected {expected!r}"
        why = self._invalid or failed_check(self._workload.check, self.text("text"))
        return (Outcome.VALIDATION_FAILED, why) if why else (Outcome.OK, None)

    def _status_outcome(self, status: int) -> tuple[Outcome, str]:
        error = self._late_error or PeerError(None, None)
        said = error.message or error.code
        reason = f"HTTP {status}" + (f": {said}" if said else "")
        return status_outcome(status, error.code), reason


def status_outcome(status: int, code: str | None) -> Outcome:
    """Map an HTTP status and the error code in its body to an outcome."""
    if is_filtered(code):
        return Outcome.CONTENT_FILTER
    if status == 402 or code == "insufficient_quota":
        return Outcome.HTTP_QUOTA
    exact = {
        401: Outcome.HTTP_AUTH,
        403: Outcome.HTTP_AUTH,
        404: Outcome.HTTP_NOT_FOUND,
        429: Outcome.HTTP_RATE_LIMITED,
    }
    if status in exact:
        return exact[status]
    if 300 <= status < 400:
        return Outcome.HTTP_REDIRECT
    if 400 <= status < 500:
        return Outcome.HTTP_BAD_REQUEST
    return Outcome.HTTP_5XX if status >= 500 else Outcome.PROTOCOL_ERROR


def failed_check(check: Check | None, text: str) -> str | None:
    """Say why an answer fails its check; None when it passes."""
    if check is None:
        return None
    if check.contains is not None and check.contains not in text:
        return f"answer does not contain {check.contains[:100]!r}"
    if check.equals is not None and text.strip() != check.equals.strip():
        return f"answer is not {check.equals[:100]!r}"
    if check.json:
        try:
            load_json(text.encode())
        except NotJson:
            return "answer is not JSON"
    return None


def is_coarse(gaps: list[float]) -> bool:
    """Whether delivery is clumped: half the gaps are next to nothing, yet the mean is not."""
    if len(gaps) < COARSE_GAPS:
        return False
    small = sum(gap < COARSE_GAP for gap in gaps)
    return 2 * small >= len(gaps) and sum(gaps) / len(gaps) >= COARSE_MEAN


def summarize(gaps: list[float]) -> Itl | None:
    """Return count, nearest-rank percentiles and maximum of the gaps; None without one."""
    if not gaps:
        return None
    ranked = sorted(gaps)
    n = len(ranked)
    return Itl(
        n=n, p50=ranked[(n - 1) // 2], p99=ranked[min(n - 1, -(-n * 99 // 100) - 1)], max=ranked[-1]
    )


def digest(text: str) -> str | None:
    """Return the SHA-256 of a text in hex; None for an empty one."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None


def _is_whole(event: Event) -> bool:
    if event.data.strip() == b"[DONE]":
        return True
    try:
        load_json(event.data)
    except NotJson:
        return False
    return True
