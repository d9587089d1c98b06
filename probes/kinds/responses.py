"""POST /responses: typed events, no `[DONE]`, four ways to end.

Source of the event names: the OpenAI OpenAPI description. A stream ends with response.completed,
response.incomplete (cut by a limit or filter), response.failed (its error is nested) or a flat
`error` event.
"""

from __future__ import annotations

from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.tokens import read_usage
from probes.wire import PeerError, Piece, ToolDelta, load_json, marker, read_error
from probes.workload import Workload

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesReader:
    """Reads a Responses stream or document; it remembers whether deltas came."""

    def __init__(self) -> None:
        self._streamed = False

    def event(self, event: Event) -> Piece:
        """Read one typed event."""
        if (piece := marker(event)) is not None:
            return piece
        document = load_json(event.data)
        if not isinstance(document, dict):
            return Piece()
        name = document.get("type") or event.name
        if name == "error":
            return Piece(error=read_error(document) or PeerError(None, None))
        if isinstance(name, str) and name.endswith(".delta"):
            return self._delta(name, document)
        if name == "response.output_item.added":
            return _item(document)
        if name in _ENDS:
            return self._ended(document)
        piece = Piece(error=read_error(document) if document.get("error") else None)
        _read_response(piece, document.get("response"))
        return piece

    def body(self, document: Any) -> Piece:
        """Read one whole response object."""
        piece = Piece()
        _read_response(piece, document)
        _read_output(piece, document)
        return piece

    def _delta(self, name: str, document: dict[str, Any]) -> Piece:
        text = document.get("delta")
        if not isinstance(text, str) or not text:
            return Piece()
        self._streamed = True
        if "reasoning_summary" in name:
            return Piece(summary=text)
        if "reasoning" in name:
            return Piece(reasoning=text)
        if "refusal" in name:
            return Piece(refusal=text)
        if "output_text" in name:
            return Piece(text=text)
        return Piece(tools=(ToolDelta(_tool_key(document), "", text),))

    def _ended(self, document: dict[str, Any]) -> Piece:
        piece = Piece(end=True)
        response = document.get("response")
        _read_response(piece, response)
        if not self._streamed:
            # Some gateways send only the end: what it holds came at once, as one event.
            _read_output(piece, response)
        return piece


def _tool_key(document: dict[str, Any]) -> str | None:
    key = document.get("output_index")
    return None if key is None else str(key)


def _item(document: dict[str, Any]) -> Piece:
    """Learn a tool call's name; an announced item is not yet output."""
    item = document.get("item")
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return Piece()
    return Piece(announced=(ToolDelta(_tool_key(document), item["name"], ""),))


def _read_response(piece: Piece, response: Any) -> None:
    """Read model, usage, status and error of a response object."""
    if not isinstance(response, dict):
        return
    if isinstance(response.get("model"), str):
        piece.model = response["model"] or None
    piece.usage = read_usage(response.get("usage"))
    status = response.get("status")
    if status in ("completed", "incomplete", "failed", "cancelled"):
        piece.finish = status
    if status in ("failed", "cancelled"):
        piece.error = read_error(response) or PeerError(status, f"response {status}")
    details = response.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason") == "content_filter":
        piece.filtered = True


def _read_output(piece: Piece, response: Any) -> None:
    """Read the output items of a whole response."""
    items = response.get("output") if isinstance(response, dict) else None
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call":
            name, arguments = item.get("name"), item.get("arguments")
            piece.tools += (ToolDelta(str(number), str(name or ""), str(arguments or "")),)
        parts = item.get("content")
        for part in parts if isinstance(parts, list) else ():
            _read_part(piece, part)


def _read_part(piece: Piece, part: Any) -> None:
    if not isinstance(part, dict):
        return
    if isinstance(part.get("refusal"), str):
        piece.refusal += part["refusal"]
    elif isinstance(part.get("text"), str) and "reasoning" in str(part.get("type")):
        piece.reasoning += part["text"]
    elif isinstance(part.get("text"), str):
        piece.text += part["text"]


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request with the prompt as `input`."""
    fields = {
        "input": prompt(workload, salt),
        "instructions": workload.system,
        "max_output_tokens": workload.max_tokens,
        "stream": True if workload.stream else None,
    }
    return json_request("/responses", endpoint, workload, fields)


def reader(_workload: Workload, _request: Request) -> Reader:
    """Return a reader for one answer."""
    return ResponsesReader()


def rules(workload: Workload) -> Rules:
    """A stream ends with its own event, never with `[DONE]`."""
    return Rules(done_marker=False, streamed=workload.stream)


KIND = Kind(name="responses", build=build, reader=reader, rules=rules)
