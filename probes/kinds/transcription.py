"""POST /audio/transcriptions: a short bundled clip as multipart form, any response format.

The clip is speech synthesised for this project, "Nine buckets of gravel, please.", 8 kHz, 8 bit
mono and under 14 kB, so that the upload fits the first congestion window.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.tokens import read_usage
from probes.wire import Piece, chat_event, load_json, marker, to_seconds
from probes.workload import Workload

CLIP_TEXT = "Nine buckets of gravel, please."
_TEXT_FORMATS = ("text", "srt", "vtt")


class TranscriptionReader:
    """Reads transcripts: OpenAI's typed events, vLLM's chat-shaped chunks, or a document.

    It remembers whether deltas came: what only the end tells came at once, as one event.
    """

    def __init__(self) -> None:
        self._streamed = False

    def event(self, event: Event) -> Piece:
        """Read one event. vLLM gives a finish reason after every audio segment: no end."""
        if (piece := marker(event)) is not None:
            return piece
        if b'"transcript.text.' not in event.data:
            return chat_event(event)
        document = load_json(event.data)
        if not isinstance(document, dict):
            return Piece()
        delta = document.get("delta")
        if document.get("type") == "transcript.text.delta" and isinstance(delta, str):
            self._streamed = self._streamed or bool(delta)
            return Piece(text=delta)
        if document.get("type") == "transcript.text.done":
            text = document.get("text")
            whole = text if isinstance(text, str) and not self._streamed else ""
            return Piece(text=whole, end=True, usage=read_usage(document.get("usage")))
        return Piece()

    def body(self, document: Any) -> Piece:
        """Read a JSON transcript; `duration` may be a number or text."""
        if not isinstance(document, Mapping):
            return Piece()
        text = document.get("text")
        piece = Piece(text=text if isinstance(text, str) else "")
        piece.usage = read_usage(document.get("usage"))
        usage = document.get("usage")
        billed = usage.get("seconds") if isinstance(usage, Mapping) else None
        duration = document.get("duration")
        seconds = to_seconds(billed if duration is None else duration, 1.0)
        piece.content = {"audio_s": seconds} if seconds is not None else None
        return piece


@lru_cache(maxsize=1)
def clip() -> bytes:
    """Return the bundled WAV file."""
    return (resources.files("probes") / "data" / "speech.wav").read_bytes()


def build(endpoint: Endpoint, workload: Workload, _salt: str) -> Request:
    """Return a form with the clip, the model, and the workload's own fields."""
    fields: dict[str, Any] = {"model": endpoint.model, "response_format": "json"}
    fields |= workload.extra
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{_text(value)}\r\n'
        for name, value in fields.items()
        if value is not None
    ]
    file_head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="speech.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    head, tail = "".join(parts) + file_head, f"\r\n--{boundary}--\r\n"
    body = head.encode() + clip() + tail.encode()
    return Request(
        path="/audio/transcriptions",
        body=body,
        content_type=f"multipart/form-data; boundary={boundary}",
        document=fields,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def reader(_workload: Workload, _request: Request) -> Reader:
    """Return a reader for one answer."""
    return TranscriptionReader()


def rules(workload: Workload) -> Rules:
    """A stream only if the workload asks for one; text formats are no JSON."""
    asked = workload.extra.get("stream")
    return Rules(
        done_marker=False,
        streamed=asked in (True, "true"),
        text_body=workload.extra.get("response_format") in _TEXT_FORMATS,
    )


KIND = Kind(name="transcription", build=build, reader=reader, rules=rules)
