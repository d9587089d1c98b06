"""POST /completions: text in, text out, without a chat template."""

from __future__ import annotations

from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt, streaming
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.wire import Piece, chat_document, chat_event
from probes.workload import Workload


class CompletionReader:
    """Reads text completions, streamed or whole; their chunks are chat chunks with `text`."""

    def event(self, event: Event) -> Piece:
        """Read one chunk."""
        return chat_event(event)

    def body(self, document: Any) -> Piece:
        """Read one whole completion."""
        return chat_document(document)


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request with the prompt as plain text."""
    fields = {
        "prompt": prompt(workload, salt),
        # The old name: `max_completion_tokens` exists for chat only.
        **({} if workload.max_tokens is None else {"max_tokens": workload.max_tokens}),
        **streaming(endpoint, workload),
    }
    return json_request("/completions", endpoint, workload, fields)


def reader(_workload: Workload, _request: Request) -> Reader:
    """Return a reader; it holds no state."""
    return CompletionReader()


def rules(workload: Workload) -> Rules:
    """A stream ends with `[DONE]`."""
    return Rules(streamed=workload.stream)


KIND = Kind(name="completions", build=build, reader=reader, rules=rules)
