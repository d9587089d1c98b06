"""Shapes of OpenAI-compatible answers: chunks, bodies and errors of every spelling; pure.

The only module that knows field names of answers. It never judges and never raises for a shape it
does not know: what is not understood says nothing. `Piece` is what one event or body said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from probes.sse import Event
from probes.tokens import Usage, read_usage


class NotJson(Exception):  # noqa: N818 - the peer's fault, named as a fact
    """Data that should be JSON is not; the peer's fault."""


class PeerError(msgspec.Struct, frozen=True):
    """An error as the peer words it; code and message None when it gives none.

    Attributes:
        cause: Code of the inner error (Azure); None where there is none.
    """

    code: str | None
    message: str | None
    cause: str | None = None

    def by_filter(self) -> bool:
        """Whether the error is that a filter stepped in."""
        return is_filtered(self.code) or is_filtered(self.cause)


class ToolDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. `key` is its index or id; None continues the last call."""

    key: str | None
    name: str
    arguments: str


class Piece(msgspec.Struct):
    """What one event or one whole body said.

    Attributes:
        text: Answer text of the first choice.
        reasoning: Reasoning text of any spelling.
        summary: Summary of hidden reasoning.
        announced: Tool calls whose names are known before their first output.
        others: Whether a further choice had output.
        others_answered: Whether any of that output was not reasoning.
        finish: Finish reason; None when none was given.
        end: Whether this is an end marker.
        done_marker: Whether the end marker is `[DONE]`.
        error: The peer reported an error inside its answer.
        failed: Finish reason, native or not, that says the server gave up.
        filtered: A guardrail stopped the answer.
        metrics: Server-side times, seconds by name.
        content: Facts for `result.Content` by field name (vectors, ranking, audio_s ...).
        invalid: Why the answer fails its kind's own check; None when it passes.
    """

    text: str = ""
    reasoning: str = ""
    summary: str = ""
    refusal: str = ""
    tools: tuple[ToolDelta, ...] = ()
    announced: tuple[ToolDelta, ...] = ()
    others: bool = False
    others_answered: bool = False
    usage: Usage | None = None
    finish: str | None = None
    end: bool = False
    done_marker: bool = False
    error: PeerError | None = None
    failed: str | None = None
    filtered: bool = False
    model: str | None = None
    fingerprint: str | None = None
    request_id: str | None = None
    metrics: dict[str, float] | None = None
    content: dict[str, Any] | None = None
    invalid: str | None = None

    def has_output(self) -> bool:
        """Whether generated text of any sort is here."""
        said = self.text or self.reasoning or self.summary or self.others
        return bool(said) or self.has_answer()

    def has_answer(self) -> bool:
        """Whether generated text is here that is not reasoning."""
        return bool(
            self.text
            or self.refusal
            or self.others_answered
            or any(tool.name or tool.arguments for tool in self.tools)
        )


SILENT = Piece()
DONE = Piece(end=True, done_marker=True)
_PINGS = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})


_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def load_json(data: bytes) -> Any:
    """Decode JSON as the peer meant it.

    NaN and Infinity are read, as many encoders write them; bytes that are not UTF-8 are replaced,
    as the event-stream standard says.

    Raises:
        NotJson: It is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except _UNDECODED:
        pass
    try:
        return _paired(json.loads(data.decode("utf-8-sig", "replace")))
    except (ValueError, RecursionError) as exc:
        raise NotJson(str(exc)[:200]) from None


def _paired(value: Any) -> Any:
    """Replace the halves of surrogate pairs in every text: no encoder of ours takes them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_paired(item) for item in value]
    if isinstance(value, dict):
        return {_paired(key): _paired(item) for key, item in value.items()}
    return value


def marker(event: Event) -> Piece | None:
    """Read what is no JSON in any kind's stream: `[DONE]`, errors by event name, pings.

    Returns None when the event's data is for the kind to read.
    """
    data = event.data
    if data[:1] == b"{" and event.name != "error":
        return None
    data = data.strip()
    if data == b"[DONE]":
        return DONE
    if event.name == "error":
        return Piece(error=_named_error(data))
    # A proxy's keep-alive comment that was wrapped into a data line.
    if not data or data.startswith(b":") or event.name in _PINGS:
        return SILENT
    return None


def stray_event(event: Event) -> Piece:
    """Read an event in the place of a document: nothing but an error has a meaning there.

    Raises:
        NotJson: The data is neither JSON nor a marker.
    """
    return marker(event) or Piece(error=read_error(load_json(event.data)))


def _named_error(data: bytes) -> PeerError:
    try:
        document = load_json(data)
    except NotJson:
        return PeerError(None, data.decode("utf-8", "replace")[:2000])
    # The event's name says that it is an error, so its data may be the error object itself.
    return (
        read_error(document)
        or read_error({"error": document})
        or PeerError(None, _text(document) or None)
    )


def read_error(document: Any) -> PeerError | None:
    """Find an error in any of the shapes servers use; None when the document reports none.

    Shapes: error{message,type,param,code}, error{code,status}, [{error}], error string beside
    error_type, error_type with error_message, {object: error}, {type: error}, detail as text, list
    or object, base_resp{status_code,status_msg}. A code may be a number or text.
    """
    if isinstance(document, list):
        return next((e for item in document[:1] if (e := read_error(item))), None)
    if not isinstance(document, Mapping):
        return None
    for read in (_error_field, _error_type, _error_object, _base_resp, _detail):
        if error := read(document):
            return error
    return None


def _label(value: Any) -> str | None:
    """Return a code as text; None for what is no code, and for 0, which means no error."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value)[:200]
    return None if text in ("", "0") else text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:2000]
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:2000]


def _coded(source: Mapping[str, Any], *extra: Any) -> PeerError:
    candidates = (source.get("code"), source.get("type"), source.get("status"), *extra)
    code = next((label for value in candidates if (label := _label(value))), None)
    inner = source.get("innererror")
    cause = _label(inner.get("code")) if isinstance(inner, Mapping) else None
    return PeerError(code, _text(source.get("message")) or None, cause)


def _error_field(document: Mapping[str, Any]) -> PeerError | None:
    error = document.get("error")
    if not error:
        return None
    if isinstance(error, Mapping):
        return _coded(error, document.get("error_type"))
    if isinstance(error, bool):
        return PeerError(_label(document.get("code")), _text(document.get("message")) or None)
    code = _label(document.get("error_type")) or _label(document.get("code"))
    return PeerError(code, _text(error))


def _error_type(document: Mapping[str, Any]) -> PeerError | None:
    code = _label(document.get("error_type")) or _label(document.get("error_code"))
    message = document.get("error_message")
    if code is None and not message:
        return None
    return PeerError(code, _text(message or document.get("message")) or None)


def _error_object(document: Mapping[str, Any]) -> PeerError | None:
    if document.get("object") != "error" and document.get("type") != "error":
        return None
    code = _label(document.get("code"))
    if code is None and document.get("type") != "error":
        code = _label(document.get("type"))
    return PeerError(code, _text(document.get("message")) or None)


def _base_resp(document: Mapping[str, Any]) -> PeerError | None:
    base = document.get("base_resp")
    if not isinstance(base, Mapping) or (code := _label(base.get("status_code"))) is None:
        return None
    return PeerError(code, _text(base.get("status_msg")) or None)


def _detail(document: Mapping[str, Any]) -> PeerError | None:
    detail = document.get("detail")
    if not detail or document.get("choices") is not None:
        return None
    if isinstance(detail, Mapping):
        return read_error(detail) or PeerError(None, _text(detail))
    return PeerError(None, _text(detail))


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: Any = None
    finish_reason: Any = None
    native_finish_reason: Any = None
    usage: Any = None
    error: Any = None


class _Chunk(msgspec.Struct, rename={"guardrail": "amazon-bedrock-guardrailAction"}):
    choices: list[_Choice] | None = None
    model: Any = None
    system_fingerprint: Any = None
    usage: Any = None
    x_groq: Any = None
    timings: Any = None
    time_info: Any = None
    perf_metrics: Any = None
    guardrail: Any = None
    error: Any = None
    error_type: Any = None
    error_message: Any = None
    error_code: Any = None
    base_resp: Any = None
    object: Any = None
    type: Any = None
    code: Any = None
    message: Any = None
    detail: Any = None


_chunks = msgspec.json.Decoder(_Chunk)
_FAILED = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
_FILTERED = frozenset({"content_filter", "ResponsibleAIPolicyViolation"})


def is_filtered(code: str | None) -> bool:
    """Whether a finish reason or error code says that a filter stepped in."""
    return code is not None and (code in _FILTERED or "guardrail" in code)


def chat_event(event: Event) -> Piece:
    """Read one event of a chat, completions or vLLM transcription stream.

    Raises:
        NotJson: The data is neither JSON nor a marker.
    """
    piece = marker(event)
    return chat_piece(event.data) if piece is None else piece


def chat_piece(data: bytes) -> Piece:
    """Read one chunk.

    Raises:
        NotJson: The data is not JSON.
    """
    try:
        chunk = _chunks.decode(data)
    except _UNDECODED:
        return chat_document(load_json(data))
    return _chunk_piece(chunk)


def chat_document(document: Any) -> Piece:
    """Read one whole completion, or a chunk whose shape the typed decoder refuses."""
    return _chunk_piece(_lenient(document))


def _chunk_piece(chunk: _Chunk) -> Piece:
    piece = Piece()
    if chunk.usage:
        piece.usage = read_usage(chunk.usage)
    if chunk.model and isinstance(chunk.model, str):
        piece.model = chunk.model
    if chunk.system_fingerprint and isinstance(chunk.system_fingerprint, str):
        piece.fingerprint = chunk.system_fingerprint
    for choice in chunk.choices or ():
        _read_choice(piece, choice)
    if chunk.x_groq or chunk.timings or chunk.time_info or chunk.perf_metrics or chunk.guardrail:
        _read_extras(piece, chunk)
    # A chunk with choices and no error field is the common case and worth one cheap test.
    if piece.error is None and (chunk.error or not chunk.choices or chunk.base_resp):
        piece.error = _chunk_error(chunk)
    return piece


def _lenient(document: Any) -> _Chunk:
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict):
        return _Chunk()
    chunk = msgspec.convert({**document, "choices": None}, _Chunk)
    choices = document.get("choices")
    if isinstance(choices, list):
        chunk.choices = [_lenient_choice(c) for c in choices if isinstance(c, dict)]
    return chunk


def _lenient_choice(choice: dict[str, Any]) -> _Choice:
    parts = {
        name: value if isinstance(value := choice.get(name), dict) else None
        for name in ("delta", "message")
    }
    return msgspec.convert({**choice, **parts}, _Choice)


def _chunk_error(chunk: _Chunk) -> PeerError | None:
    fields = {name: getattr(chunk, name) for name in chunk.__struct_fields__}
    return read_error({name: value for name, value in fields.items() if value is not None})


def _read_choice(piece: Piece, choice: _Choice) -> None:
    first = choice.index == 0 or choice.index is None
    said = piece if first else Piece()
    delta = choice.delta or choice.message
    if delta is not None:
        _read_delta(said, delta)
    if choice.text and isinstance(choice.text, str):
        said.text += choice.text
    if not first and said.has_output():
        piece.others = True
        piece.others_answered = piece.others_answered or said.has_answer()
    if choice.finish_reason or choice.native_finish_reason:
        _read_finish(piece, choice, first=first)
    if choice.usage:
        piece.usage = read_usage(choice.usage) or piece.usage
    if choice.error:
        piece.error = read_error({"error": choice.error})


def _read_finish(piece: Piece, choice: _Choice, *, first: bool) -> None:
    finish, native = choice.finish_reason, choice.native_finish_reason
    # Old servers send "" where null is meant.
    if isinstance(finish, str) and finish and (first or piece.finish is None):
        piece.finish = finish
    # OpenRouter may call a failure "stop" and leave the truth to the native reason.
    for reason in (native, finish):
        if isinstance(reason, str) and reason.lower() in _FAILED:
            piece.failed = reason


def _read_delta(piece: Piece, delta: _Delta) -> None:
    content = delta.content
    if isinstance(content, str):
        piece.text += content
    elif isinstance(content, list):
        for part in content:
            _read_part(piece, part)
    # Servers repeat one text under several spellings: the first that speaks wins.
    reasoning = (
        delta.reasoning_content
        or delta.reasoning
        or delta.reasoning_text
        or delta.thinking
        or delta.reasoning_details
    )
    if reasoning:
        piece.reasoning += _nested_text(reasoning)
    if delta.refusal and isinstance(delta.refusal, str):
        piece.refusal += delta.refusal
    if delta.tool_calls or delta.function_call:
        piece.tools += _read_tools(delta)


def _read_part(piece: Piece, part: Any) -> None:
    """Read one part of a content list (Mistral): thinking parts nest text parts."""
    if isinstance(part, str):
        piece.text += part
    elif isinstance(part, dict):
        if part.get("type") in ("thinking", "reasoning"):
            piece.reasoning += _nested_text(
                part.get("thinking") or part.get("reasoning") or part.get("text")
            )
        elif part.get("type") == "refusal":
            piece.refusal += _nested_text(part.get("refusal"))
        else:
            piece.text += _nested_text(part.get("text"))


def _nested_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_nested_text(item) for item in value)
    if isinstance(value, dict):
        return _nested_text(value.get("text") or value.get("content") or value.get("summary"))
    return ""


def _read_tools(delta: _Delta) -> tuple[ToolDelta, ...]:
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    read = [_read_tool(call, call.get("function")) for call in calls if isinstance(call, dict)]
    if isinstance(delta.function_call, dict):
        read.append(_read_tool({"index": 0}, delta.function_call))
    return tuple(read)


def _read_tool(call: dict[str, Any], function: Any) -> ToolDelta:
    function = function if isinstance(function, dict) else {}
    key = call.get("index")
    if key is None:
        key = call.get("id")
    name, arguments = function.get("name"), function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolDelta(
        None if key is None else str(key), name if isinstance(name, str) else "", arguments or ""
    )


def _read_extras(piece: Piece, chunk: _Chunk) -> None:
    if isinstance(chunk.x_groq, dict):
        _read_groq(piece, chunk.x_groq)
    if chunk.timings:
        piece.metrics = _times(chunk.timings, _LLAMA_TIMES, 1e-3)
    if chunk.time_info:
        piece.metrics = _times(chunk.time_info, _QUEUE_TIMES, 1.0)
    if chunk.perf_metrics:
        piece.metrics = _times(chunk.perf_metrics, _PERF_TIMES, 1.0)
    if chunk.guardrail == "INTERVENED":
        piece.filtered = True


_LLAMA_TIMES = {"prompt_ms": "prompt", "predicted_ms": "completion"}
_QUEUE_TIMES = {
    "queue_time": "queue",
    "prompt_time": "prompt",
    "completion_time": "completion",
    "total_time": "total",
}
_PERF_TIMES = {"server-time-to-first-token": "ttft", "server-processing-time": "processing"}


def _read_groq(piece: Piece, groq: dict[str, Any]) -> None:
    if isinstance(groq.get("id"), str):
        piece.request_id = groq["id"]
    if groq.get("error"):
        piece.error = read_error(groq)
    usage = groq.get("usage")
    if isinstance(usage, dict):
        piece.usage = read_usage(usage) or piece.usage
        piece.metrics = _times(usage, _QUEUE_TIMES, 1.0)


def _times(source: Any, names: Mapping[str, str], unit: float) -> dict[str, float] | None:
    """Pick server-side times out of an object, in seconds."""
    if not isinstance(source, Mapping):
        return None
    found = {
        ours: seconds
        for theirs, ours in names.items()
        if (seconds := to_seconds(source.get(theirs), unit)) is not None
    }
    return found or None


def to_seconds(value: Any, unit: float) -> float | None:
    """Return a non-negative number or numeric text in seconds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value) * unit
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
