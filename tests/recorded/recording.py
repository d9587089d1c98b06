"""Recorded HTTP exchanges, and their way through the pure meter without socket or clock.

A file of transcripts/ is JSON lines: first {"meta": ...}, then one {"t", "data" | "b64"} for each
recv(), `t` in seconds since the request's last byte was written, last {"end": ...}. The pieces are
raw HTTP/1.1, head and chunk framing included; h11 takes those off.
"""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import h11
from multidict import CIMultiDict

from probes import ProbeResult, Workload
from probes.meter import End
from tests.recorded import pure
from tests.recorded.pure import Asked, Read, ask

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "transcripts"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jsonl")))

_KIND_OF_PATH = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/audio/transcriptions": "transcription",
    "/v1/models": "models",
}
# What no kind of ours asks for (/health, /metrics, /tokenize, Anthropic's messages) is read as
# chat: an answer that a wrong URL can bring must be no exception either.
_STRANGER = "chat"


@dataclass(frozen=True)
class Recording:
    """One exchange as the socket gave it, and the same without HTTP.

    Attributes:
        meta: Server, request and date of the recording.
        pieces: (seconds, raw bytes) of each recv().
        closed_at: When the connection ended, seconds.
        headers: Of the response.
        reads: (seconds, body bytes) of each recv() that brought some of the body.
        ended_at: When the end of the body, or that it will never come, was known.
        end: How the body ended.
    """

    name: str
    meta: Mapping[str, Any]
    pieces: tuple[Read, ...]
    closed_at: float
    status: int
    headers: CIMultiDict[str]
    reads: tuple[Read, ...]
    ended_at: float
    end: End

    @cached_property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "")

    @property
    def kind(self) -> str:
        return _KIND_OF_PATH.get(self.meta["path"], _STRANGER)

    @property
    def workload(self) -> Workload:
        """What asks as the recorded client asked, as far as reading the answer depends on it."""
        request = self.meta["request"] or {}
        asked = {name: request[name] for name in ("n", "input") if name in request}
        streamed = bool(request.get("stream"))
        if self.kind == "transcription":  # the form itself was not recorded
            asked["stream"] = "true" if self.is_stream else None
        return Workload(name=self.name, kind=self.kind, stream=streamed, extra=asked)


@cache
def load(name: str) -> Recording:
    """Read one file of transcripts/."""
    lines = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    first, *rows, last = map(json.loads, lines)
    pieces = tuple((row["t"], _bytes(row)) for row in rows)
    return _dechunked(name, first["meta"], pieces, last["end"]["t"])


def _bytes(row: Mapping[str, Any]) -> bytes:
    data = row.get("data")
    return base64.b64decode(row["b64"]) if data is None else data.encode()


def _dechunked(
    name: str, meta: Mapping[str, Any], pieces: tuple[Read, ...], closed_at: float
) -> Recording:
    connection = h11.Connection(h11.CLIENT)
    connection.send(
        h11.Request(method=meta["method"], target=meta["path"], headers=[("host", "")])
    )
    connection.send(h11.EndOfMessage())
    response: h11.Response | None = None
    reads: list[Read] = []
    ended_at, end = closed_at, End.BROKEN
    for at, data in (*pieces, (closed_at, b"")):
        connection.receive_data(data)
        body = b""
        try:
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    response = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    ended_at, end = at, End.EOF
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError:
            assert not data, f"{name}: not HTTP at {at}"  # else only the end is missing
        if body:
            reads.append((at, body))
    assert response is not None
    headers = CIMultiDict((key.decode(), value.decode()) for key, value in response.headers)
    return Recording(
        name=name,
        meta=meta,
        pieces=pieces,
        closed_at=closed_at,
        status=response.status_code,
        headers=headers,
        reads=tuple(reads),
        ended_at=ended_at,
        end=end,
    )


@cache
def _asked(name: str) -> Asked:
    return ask(load(name).workload)


def measure(
    recording: Recording,
    reads: Iterable[Read] | None = None,
    ended_at: float | None = None,
    end: End | None = None,
) -> ProbeResult:
    """Measure a recording, or the same exchange with other reads and another end."""
    return pure.measure(
        _asked(recording.name),
        recording.reads if reads is None else reads,
        recording.ended_at if ended_at is None else ended_at,
        status=recording.status,
        headers=recording.headers,
        end=end or recording.end,
    )
