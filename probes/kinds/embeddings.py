"""POST /embeddings: vectors as floats or base64, checked for number, length and finite values."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.tokens import read_usage
from probes.wire import Piece, marker, read_error
from probes.workload import Workload


class EmbeddingsReader:
    """Reads a list of vectors; `asked` is how many were asked for."""

    def __init__(self, asked: int) -> None:
        self._asked = asked

    def event(self, event: Event) -> Piece:
        """Say nothing: vectors are never streamed."""
        return marker(event) or Piece()

    def body(self, document: Any) -> Piece:
        """Read all vectors, in the order of their inputs."""
        if not isinstance(document, Mapping):
            return Piece(invalid="answer holds no vectors")
        vectors = _vectors(document.get("data"))
        piece = Piece(usage=read_usage(document.get("usage")), error=read_error(document))
        if isinstance(document.get("model"), str):
            piece.model = document["model"] or None
        piece.invalid = self._fault(vectors)
        good = [vector for vector in vectors if vector]
        piece.content = {
            "vectors": len(vectors),
            "dims": len(good[0]) if good else None,
            "first_vector": tuple(vectors[0]) if vectors and vectors[0] else None,
        }
        return piece

    def _fault(self, vectors: list[list[float] | None]) -> str | None:
        if len(vectors) != self._asked:
            return f"{self._asked} vectors asked for, {len(vectors)} came"
        if any(not vector for vector in vectors):
            return "a vector is empty or unreadable"
        if len({len(vector) for vector in vectors if vector}) > 1:
            return "vectors differ in length"
        if any(not math.isfinite(x) for vector in vectors for x in vector or ()):
            return "a vector holds a value that is not finite"
        return None


def _vectors(data: Any) -> list[list[float] | None]:
    """Return the vectors sorted by their `index`; None for one that cannot be read."""
    if not isinstance(data, list):
        return []
    items = [item if isinstance(item, Mapping) else {} for item in data]
    places = [item.get("index", place) for place, item in enumerate(items)]
    if all(isinstance(place, int) for place in places):
        items = [item for _, item in sorted(zip(places, items, strict=True), key=lambda p: p[0])]
    return [_vector(item.get("embedding")) for item in items]


def _vector(value: Any) -> list[float] | None:
    """Read a list of numbers or base64 of little-endian float32."""
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
        return [x for (x,) in struct.iter_unpack("<f", raw)] if len(raw) % 4 == 0 else None
    if not isinstance(value, list):
        return None
    return [float(x) if isinstance(x, int | float) else math.nan for x in value]


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request for one vector of the generated text."""
    fields = {"input": [prompt(workload, salt)], "encoding_format": "float"}
    return json_request("/embeddings", endpoint, workload, fields)


def reader(_workload: Workload, request: Request) -> Reader:
    """Return a reader that expects as many vectors as inputs were sent."""
    inputs = (request.document or {}).get("input")
    return EmbeddingsReader(len(inputs) if isinstance(inputs, list) else 1)


def rules(_workload: Workload) -> Rules:
    """A document, nothing generated."""
    return Rules(done_marker=False, streamed=False, generates=False)


KIND = Kind(name="embeddings", build=build, reader=reader, rules=rules)
