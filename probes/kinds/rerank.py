"""POST /rerank: a ranking in the shape of Cohere, Jina, vLLM, OpenVINO or TEI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.endpoint import Endpoint
from probes.exchange import Kind, Request
from probes.kinds._ask import json_request, prompt
from probes.meter import Reader, Rules
from probes.sse import Event
from probes.tokens import Usage, read_usage, to_number
from probes.wire import Piece, read_error, stray_event
from probes.workload import Workload

_DOCUMENTS = [
    "The bridge over the river is made of old stone.",
    "Honey is sold each summer when the roads are dry.",
    "A long wooden fence keeps the horses in.",
]


class RerankReader:
    """Reads a ranking of `asked` results over `documents` documents."""

    def __init__(self, documents: int, asked: int) -> None:
        self._documents = documents
        self._asked = asked

    def event(self, event: Event) -> Piece:
        """Read no more than an error: rankings are never streamed."""
        return stray_event(event)

    def body(self, document: Any) -> Piece:
        """Read the ranking, best first."""
        fields = document if isinstance(document, Mapping) else {}
        results = document if isinstance(document, list) else fields.get("results")
        if results is None:
            results = fields.get("data")
        scored = [_scored(item) for item in results] if isinstance(results, list) else []
        ranked = sorted((s for s in scored if s), key=lambda pair: -pair[1])
        ranking = tuple(index for index, _ in ranked)
        piece = Piece(usage=_usage(fields), error=read_error(fields))
        if isinstance(fields.get("model"), str):
            piece.model = fields["model"] or None
        piece.content = {"ranking": ranking}
        piece.invalid = self._fault(ranking, unread=len(scored) - len(ranked))
        return piece

    def _fault(self, ranking: tuple[int, ...], *, unread: int) -> str | None:
        if unread:
            return "a result has no index or no finite score"
        if len(ranking) != self._asked:
            return f"{self._asked} results asked for, {len(ranking)} came"
        if sorted(set(ranking)) != sorted(ranking):
            return "a document is ranked twice"
        if any(not 0 <= index < self._documents for index in ranking):
            return "a result names a document that was not sent"
        return None


def _scored(item: Any) -> tuple[int, float] | None:
    if not isinstance(item, Mapping) or not isinstance(item.get("index"), int):
        return None
    score = to_number(item.get("relevance_score", item.get("score")))
    return None if score is None else (item["index"], score)


def _usage(fields: Mapping[str, Any]) -> Usage | None:
    meta = fields.get("meta")
    tokens = meta.get("tokens") if isinstance(meta, Mapping) else None
    return read_usage(fields.get("usage")) or read_usage(tokens)


def build(endpoint: Endpoint, workload: Workload, salt: str) -> Request:
    """Return a request that ranks three short documents."""
    fields = {"query": prompt(workload, salt), "documents": _DOCUMENTS}
    return json_request("/rerank", endpoint, workload, fields)


def reader(_workload: Workload, request: Request) -> Reader:
    """Return a reader that expects every document, or as many as `top_n` asks for."""
    sent = request.document or {}
    documents = sent.get("documents") or sent.get("texts")
    count = len(documents) if isinstance(documents, list) else 0
    top = sent.get("top_n")
    return RerankReader(count, min(count, top) if isinstance(top, int) else count)


def rules(_workload: Workload) -> Rules:
    """A document, nothing generated."""
    return Rules(done_marker=False, streamed=False, generates=False)


KIND = Kind(name="rerank", build=build, reader=reader, rules=rules)
