"""POST /embeddings: vectors as floats or base64, checked for number, length and finite values."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.tokens import read_usage, to_number
from probes.wire import Piece, read_error, stray_event
from probes.workload import Workload

Vector = list[float | None]


class EmbeddingsReader:
    """Reads a list of vectors: how many were asked for, and of what length if that was said."""

    def __init__(self, asked: int, dimensions: int | None) -> None:
        self._asked = asked
        self._dimensions = dimensions

    def event(self, event: Event) -> Piece:
        """Read no more than an error: vectors are never streamed."""
        return stray_event(event)

    def body(self, document: Any) -> Piece:
        """Read all vectors, in the order of their inputs."""
        if not isinstance(document, Mapping):
            return Piece(invalid="answer holds no vectors")
        vectors = _vectors(document.get("data"))
        piece = Piece(usage=read_usage(document.get("usage")), error=read_error(document))
        if isinstance(document.get("model"), str):
            piece.model = document["model"] or None
        piece.invalid = self._fault(vectors) or _doubled(document.get("data"))
        first = vectors[0] if vectors else None
        piece.content = {
            "vectors": len(vectors),
            "dims": next((len(vector) for vector in vectors if vector), None),
            "first_vector": tuple(first) if first and None not in first else None,
        }
        return piece

    def _fault(self, vectors: list[Vector | None]) -> str | None:
        if len(vectors) != self._asked:
            return f"{self._asked} vectors asked for, {len(vectors)} came"
        if any(not vector for vector in vectors):
            return "a vector is empty or unreadable"
        lengths = {len(vector) for vector in vectors if vector}
        if len(lengths) > 1:
            return "vectors differ in length"
        if self._dimensions is not None and lengths != {self._dimensions}:
            return f"{self._dimensions} dimensions asked for, {lengths.pop()} came"
        if any(x is None for vector in vectors for x in vector or ()):
            return "a vector holds a value that is no finite number"
        return None


def _doubled(data: Any) -> str | None:
    """Say that two vectors claim one input: no client can tell which is whose."""
    items = data if isinstance(data, list) else []
    places = [str(i["index"]) for i in items if isinstance(i, Mapping) and "index" in i]
    return None if len({*places}) == len(places) else "an index is given twice"


def _vectors(data: Any) -> list[Vector | None]:
    """Return the vectors sorted by their `index`; None for one that cannot be read."""
    if not isinstance(data, list):
        return []
    items = [item if isinstance(item, Mapping) else {} for item in data]
    places = [item.get("index", place) for place, item in enumerate(items)]
    if all(isinstance(place, int) for place in places):
        items = [item for _, item in sorted(zip(places, items, strict=True), key=lambda p: p[0])]
    return [_vector(item.get("embedding")) for item in items]


def _vector(value: Any) -> Vector | None:
    """Read a list of numbers or base64 of little-endian float32; None for what is no number."""
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
        whole = len(raw) % 4 == 0
        return [to_number(x) for (x,) in struct.iter_unpack("<f", raw)] if whole else None
    if not isinstance(value, list):
        return None
    return [to_number(x) for x in value]


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request for one vector of the generated text."""
    fields = {"input": [prompt(workload, salt)], "encoding_format": "float"}
    return json_request("/embeddings", endpoint, workload, fields)


def reader(_workload: Workload, request: Request) -> Reader:
    """Return a reader that expects as many vectors as inputs were sent."""
    sent = request.document or {}
    inputs, dimensions = sent.get("input"), sent.get("dimensions")
    # A list of numbers is one input given as tokens.
    several = isinstance(inputs, list) and not all(isinstance(item, int) for item in inputs)
    return EmbeddingsReader(
        len(inputs) if isinstance(inputs, list) and several else 1,
        dimensions if isinstance(dimensions, int) else None,
    )


def rules(_workload: Workload) -> Rules:
    """A document, nothing generated."""
    return Rules(done_marker=False, streamed=False, generates=False)


KIND = Kind(name="embeddings", build=build, reader=reader, rules=rules)
