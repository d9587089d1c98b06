"""GET /models: reachability, the key, and whether the model is listed. Costs no tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.wire import Piece, read_error, stray_event
from probes.workload import Workload


class ModelsReader:
    """Reads the list of models and looks for one; None looks for none."""

    def __init__(self, model: str | None) -> None:
        self._model = model

    def event(self, event: Event) -> Piece:
        """Read no more than an error: lists are never streamed."""
        return stray_event(event)

    def body(self, document: Any) -> Piece:
        """Read the ids."""
        listed = document
        if isinstance(document, Mapping):
            listed = document.get("data") or document.get("models")
        ids = [_id(item) for item in listed] if isinstance(listed, list) else None
        piece = Piece(error=read_error(document))
        if ids is None:
            piece.invalid = "answer holds no list of models"
        elif self._model is not None and not any(_same(self._model, name) for name in ids):
            piece.invalid = f"model {self._model!r} is not among the {len(ids)} listed"
        return piece


def _id(item: Any) -> str:
    if isinstance(item, Mapping):
        item = item.get("id") or item.get("name")
    return item if isinstance(item, str) else ""


def _same(asked: str, listed: str) -> bool:
    """Whether a listed name is the model asked for; Ollama adds `:latest`, Google `models/`."""
    return asked in (listed, listed.removeprefix("models/"), listed.removesuffix(":latest"))


def build(endpoint: Endpoint, _workload: Workload, _salt: str) -> Request:
    """Return a plain GET; the document only carries the model to look for."""
    return Request(method="GET", path="/models", document={"model": endpoint.model})


def reader(_workload: Workload, request: Request) -> Reader:
    """Return a reader that looks for the endpoint's model."""
    model = (request.document or {}).get("model")
    return ModelsReader(model if isinstance(model, str) else None)


def rules(_workload: Workload) -> Rules:
    """A document, nothing generated."""
    return Rules(done_marker=False, streamed=False, generates=False)


KIND = Kind(name="models", build=build, reader=reader, rules=rules)
