"""POST /chat/completions."""

from __future__ import annotations

from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt, streaming, token_limit
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.wire import Piece, chat_document, chat_event
from probes.workload import Workload


class ChatReader:
    """Reads chat and text completions, streamed or whole."""

    def event(self, event: Event) -> Piece:
        """Read one chunk."""
        return chat_event(event)

    def body(self, document: Any) -> Piece:
        """Read one whole completion."""
        return chat_document(document)


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request with a system message, if there is one, and one user message."""
    messages = [{"role": "user", "content": prompt(workload, salt)}]
    if workload.system:
        messages.insert(0, {"role": "system", "content": workload.system})
    fields = {
        "messages": messages,
        **token_limit(endpoint, workload),
        **streaming(endpoint, workload),
    }
    return json_request("/chat/completions", endpoint, workload, fields)


def reader(_workload: Workload, _request: Request) -> Reader:
    """Return a reader; it holds no state."""
    return ChatReader()


def rules(workload: Workload) -> Rules:
    """A stream ends with `[DONE]`."""
    return Rules(streamed=workload.stream)


KIND = Kind(name="chat", build=build, reader=reader, rules=rules)
