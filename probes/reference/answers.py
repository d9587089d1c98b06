"""What the reference endpoint says: whole JSON answers and event streams.

Pure: no clock and no socket. An event is kept without its closing brace, so that `close_event`
can add the two clock readings at the last moment for the price of one format.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "fp_reference"
_CREATED = 1_764_500_000
_DIMENSIONS = 64
_MOST_DIMENSIONS = 4096
_SERVER_FAULT = 5
_TOKENS = tuple(
    f" {word}"
    for word in (
        "the clock that this server reads just before it writes is the clock that a monitor must "
        "agree with so every word you see here carries its own proof of when it was sent and any "
        "difference between that proof and a figure belongs to the one who measured it"
    ).split()
)
_TOKEN_BYTES = tuple(token.encode() for token in _TOKENS)
_HOLE = "\x00"

encode = msgspec.json.Encoder().encode


class RefusedError(Exception):
    """The request gets an HTTP error; the text goes into its body.

    Attributes:
        status: HTTP status.
        code: The error object's `code`.
        headers: Further header lines.
    """

    def __init__(
        self, message: str, status: int = 400, code: str | None = None, *headers: str
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one generated answer is to be.

    Attributes:
        length: Number of words, which are this server's tokens.
        finish: `stop`, or `length` when the request's limit cut the answer.
        usage: Whether a stream ends with a usage chunk.
    """

    id: str
    model: str
    prompt_tokens: int
    length: int
    finish: str
    usage: bool

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(islice(cycle(_TOKENS), self.length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One streamed answer: events around the tokens, each still open for its stamps.

    Attributes:
        before: What a token's event begins with, up to the word.
        after: What follows the word.
        error: The event that reports a failure in mid-stream.
        done: Whether `[DONE]` ends the stream.
    """

    opening: tuple[bytes, ...]
    before: bytes
    after: bytes
    closing: tuple[bytes, ...]
    error: bytes
    done: bool

    def token(self, index: int) -> bytes:
        """Return the event of one token."""
        return self.before + _TOKEN_BYTES[index % len(_TOKEN_BYTES)] + self.after


def close_event(event: bytes, read_ns: int, sent_ns: int) -> bytes:
    """Close an event with the two clock readings."""
    return b'%b,"read_ns":%d,"sent_ns":%d}\n\n' % (event, read_ns, sent_ns)


def close_document(document: Mapping[str, Any], read_ns: int, sent_ns: int) -> bytes:
    """Return a whole JSON answer with the two clock readings."""
    return encode({**document, "read_ns": read_ns, "sent_ns": sent_ns})


def error_document(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    """Return an error body in OpenAI's shape."""
    kind = "server_error" if status // 100 == _SERVER_FAULT else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code or status}}


def count_words(value: Any) -> int:
    """Count the words in all text of a request field: this server's prompt tokens."""
    if isinstance(value, str):
        return len(value.split())
    if isinstance(value, Mapping):
        return sum(count_words(part) for key, part in value.items() if key != "role")
    if isinstance(value, list):
        return sum(count_words(part) for part in value)
    return 0


def _event(document: Mapping[str, Any], name: str = "") -> bytes:
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + encode(document)[:-1]


def _around_word(document: Mapping[str, Any], name: str = "") -> tuple[bytes, bytes]:
    before, _, after = _event(document, name).partition(encode(_HOLE)[1:-1])
    return before, after


_DIED = error_document("the engine died", 500)


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.length,
        "total_tokens": reply.prompt_tokens + reply.length,
    }


def _chunk(
    reply: Reply, object_: str, choice: Mapping[str, Any] | None, finish: str | None = None
) -> dict[str, Any]:
    choices = [] if choice is None else [{"index": 0, **choice, "finish_reason": finish}]
    chunk = {
        "id": reply.id,
        "object": object_,
        "created": _CREATED,
        "model": reply.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
    }
    if reply.usage:
        chunk["usage"] = _usage(reply) if choice is None else None
    return chunk


def chat_script(reply: Reply) -> Script:
    """`/chat/completions` with `stream`: a role chunk, deltas, finish, usage if asked."""
    object_ = "chat.completion.chunk"
    before, after = _around_word(_chunk(reply, object_, {"delta": {"content": _HOLE}}))
    closing = [_event(_chunk(reply, object_, {"delta": {}}, reply.finish))]
    if reply.usage:
        closing.append(_event(_chunk(reply, object_, None)))
    role = {"delta": {"role": "assistant", "content": ""}}
    return Script(
        opening=(_event(_chunk(reply, object_, role)),),
        before=before,
        after=after,
        closing=tuple(closing),
        error=_event(_DIED),
        done=True,
    )


def completions_script(reply: Reply) -> Script:
    """`/completions` with `stream`: text chunks, finish, usage if asked."""
    object_ = "text_completion"
    before, after = _around_word(_chunk(reply, object_, {"text": _HOLE}))
    closing = [_event(_chunk(reply, object_, {"text": ""}, reply.finish))]
    if reply.usage:
        closing.append(_event(_chunk(reply, object_, None)))
    return Script(
        opening=(),
        before=before,
        after=after,
        closing=tuple(closing),
        error=_event(_DIED),
        done=True,
    )


def _typed(type_: str, **fields: Any) -> bytes:
    return _event({"type": type_, **fields}, type_)


def responses_script(reply: Reply) -> Script:
    """`/responses` with `stream`: typed events; the end is a typed event, not `[DONE]`."""
    started = {"id": reply.id, "object": "response", "model": reply.model, "output": []}
    delta = "response.output_text.delta"
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    before, after = _around_word({"type": delta, **where, "delta": _HOLE}, delta)
    document = responses_document(reply)
    part = document["output"][0]["content"][0]
    empty = {**document["output"][0], "status": "in_progress", "content": []}
    end = f"response.{document['status']}"
    return Script(
        opening=(
            _typed("response.created", response={**started, "status": "in_progress"}),
            _typed("response.in_progress", response={**started, "status": "in_progress"}),
            _typed("response.output_item.added", output_index=0, item=empty),
            _typed("response.content_part.added", **where, part={**part, "text": ""}),
        ),
        before=before,
        after=after,
        closing=(
            _typed("response.output_text.done", **where, text=reply.text),
            _typed("response.content_part.done", **where, part=part),
            _typed("response.output_item.done", output_index=0, item=document["output"][0]),
            _typed(end, response=document),
        ),
        error=_typed("error", code="server_error", message="the engine died", param=None),
        done=False,
    )


def transcription_script(reply: Reply) -> Script:
    """`/audio/transcriptions` with `stream`: OpenAI's transcript events."""
    delta = "transcript.text.delta"
    before, after = _around_word({"type": delta, "delta": _HOLE})
    done = {"type": "transcript.text.done", "text": reply.text, "usage": _token_usage(reply)}
    return Script(
        opening=(),
        before=before,
        after=after,
        closing=(_event(done),),
        error=_event(_DIED),
        done=False,
    )


def chat_document(reply: Reply) -> dict[str, Any]:
    """`/chat/completions` without `stream`."""
    message = {"role": "assistant", "content": reply.text}
    return _completion(reply, "chat.completion", {"message": message})


def completions_document(reply: Reply) -> dict[str, Any]:
    """`/completions` without `stream`."""
    return _completion(reply, "text_completion", {"text": reply.text})


def _completion(reply: Reply, object_: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {**_chunk(reply, object_, choice, reply.finish), "usage": _usage(reply)}


def _token_usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "output_tokens": reply.length,
        "total_tokens": reply.prompt_tokens + reply.length,
    }


def responses_document(reply: Reply) -> dict[str, Any]:
    """`/responses` without `stream`."""
    cut = reply.finish == "length"
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "incomplete" if cut else "completed",
        "content": [part],
    }
    return {
        "id": reply.id,
        "object": "response",
        "created_at": _CREATED,
        "model": reply.model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": [message],
        "usage": {**_token_usage(reply), "output_tokens_details": {"reasoning_tokens": 0}},
    }


def transcription_document(reply: Reply, form: Mapping[str, Any]) -> dict[str, Any]:
    """`/audio/transcriptions` without `stream`; `verbose_json` adds length and one segment."""
    seconds = _audio_seconds(form["file"])
    if form.get("response_format") == "verbose_json":
        return {
            "task": "transcribe",
            "language": "en",
            "duration": seconds,
            "text": reply.text,
            "segments": [{"id": 0, "start": 0.0, "end": seconds, "text": reply.text}],
        }
    return {"text": reply.text, "usage": {"type": "duration", "seconds": seconds}}


def _audio_seconds(audio: bytes) -> float:
    try:
        with wave.open(io.BytesIO(audio)) as sound:
            seconds: float = sound.getnframes() / sound.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError):
        return 0.0
    return seconds


def models_document(names: Sequence[str]) -> dict[str, Any]:
    """`/models`."""
    rows = [
        {"id": name, "object": "model", "created": _CREATED, "owned_by": "probes.reference"}
        for name in names
    ]
    return {"object": "list", "data": rows}


def embeddings_document(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """`/embeddings`: one unit vector an input, the same for the same text."""
    given = body.get("input")
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs:
        raise RefusedError("'input' must be a text or a list of texts")
    size = body.get("dimensions", _DIMENSIONS)
    if not isinstance(size, int) or not 0 < size <= _MOST_DIMENSIONS:
        raise RefusedError("'dimensions' must be a number from 1 to 4096")
    as_text = body.get("encoding_format") == "base64"
    rows = [
        {"object": "embedding", "index": i, "embedding": _packed(vector) if as_text else vector}
        for i, vector in enumerate(_vector(str(text), size) for text in inputs)
    ]
    tokens = count_words(inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": model, "data": rows, "usage": usage}


def _vector(text: str, size: int) -> list[float]:
    raw = hashlib.shake_128(text.encode()).digest(2 * size)
    values = struct.unpack(f"<{size}h", raw)
    norm = sum(value * value for value in values) ** 0.5 or 1.0
    return [round(value / norm, 6) for value in values]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def rerank_document(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """`/rerank`: documents by the share of the query's words that they hold, best first."""
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise RefusedError("'query' must be a text and 'documents' a list")
    texts = [str(d.get("text", "")) if isinstance(d, dict) else str(d) for d in documents]
    wanted = set(query.lower().split())
    scores = [len(wanted & set(t.lower().split())) / (len(wanted) or 1) for t in texts]
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
    top = body.get("top_n")
    results = [
        {"index": i, "document": {"text": texts[i]}, "relevance_score": round(scores[i], 4)}
        for i in order[: top if isinstance(top, int) else None]
    ]
    return {
        "id": "rerank-1",
        "model": model,
        "usage": {"total_tokens": count_words([query, *texts])},
        "results": results,
    }


_PART_NAME = re.compile(rb'content-disposition:[^\r\n]*?[; ]name="?([^";\r\n]+)"?', re.IGNORECASE)


def parse_form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Read a multipart form: the value, or the file's bytes, by field name."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if not content_type.startswith("multipart/form-data") or match is None:
        raise RefusedError("expected multipart/form-data")
    form: dict[str, bytes] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + match[1].encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head)
        if name is not None:
            form[name[1].decode("utf-8", "replace")] = value
    if "file" not in form:
        raise RefusedError("'file' is missing")
    return form


@dataclass(frozen=True, slots=True)
class Generation:
    """How one path of generated text speaks.

    Attributes:
        prompt: The request's field that holds the prompt.
    """

    script: Callable[[Reply], Script]
    document: Callable[[Reply], dict[str, Any]]
    prompt: str


GENERATIONS: Mapping[str, Generation] = {
    "/v1/chat/completions": Generation(chat_script, chat_document, "messages"),
    "/v1/completions": Generation(completions_script, completions_document, "prompt"),
    "/v1/responses": Generation(responses_script, responses_document, "input"),
}
"""The paths that generate text from text."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """How one path speaks that answers with a list in one JSON object.

    Attributes:
        rows: The answer's field that holds the list.
    """

    document: Callable[[Mapping[str, Any], str], dict[str, Any]]
    rows: str


LOOKUPS: Mapping[str, Lookup] = {
    "/v1/embeddings": Lookup(embeddings_document, "data"),
    "/v1/rerank": Lookup(rerank_document, "results"),
}
"""The paths that generate nothing."""
