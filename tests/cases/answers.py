"""Chat answers for tests, event by event, and their way through the pure core."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from multidict import CIMultiDict

from probes import Endpoint, ProbeResult, Workload
from probes.meter import End
from tests.recorded import pure

DONE = b"data: [DONE]\n\n"
Timed = tuple[float, bytes]
"""Milliseconds since the request was written, and bytes."""


def sse(document: object) -> bytes:
    """One event."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def delta(finish: str | None = None, **said: Any) -> bytes:
    """One chunk of the first choice."""
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return sse({"model": "m", "choices": [choice]})


def text(said: str) -> bytes:
    return delta(content=said)


ROLE = delta(role="assistant", content="")
STOP = delta("stop")


def usage(completion: int, prompt: int = 11, **more: Any) -> bytes:
    """The usage chunk; `more` are further fields of usage, `total_tokens` by default the sum."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return sse(
        {
            "model": "m",
            "choices": [],
            "usage": {"total_tokens": prompt + completion} | counts | more,
        }
    )


def chat(
    *timed: Timed,
    end: End = End.EOF,
    workload: Workload | None = None,
    endpoint: Endpoint | None = None,
) -> ProbeResult:
    """Measure a stream that ends with its last event."""
    reads = [(at / 1000, data) for at, data in timed]
    return pure.measure(pure.ask(workload, endpoint), reads, reads[-1][0], end=end)


def once(*events: bytes) -> ProbeResult:
    """Measure a stream whose events come 10 ms apart."""
    return chat(*every(10, events))


def every(gap: float, events: Iterable[bytes], first: float = 10) -> list[Timed]:
    """Place events `gap` milliseconds apart."""
    return [(first + number * gap, data) for number, data in enumerate(events)]


def whole(status: int, body: bytes, content_type: str = "application/json") -> ProbeResult:
    """Measure an answer that is one document, half a second after the request."""
    headers = CIMultiDict({"content-type": content_type})
    return pure.measure(pure.ask(), [(0.5, body)], 0.5, status=status, headers=headers)
