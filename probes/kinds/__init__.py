"""The kinds of workload. One file each; one row here makes a kind known everywhere."""

from __future__ import annotations

from probes.exchange import Kind
from probes.kinds import (
    chat,
    completions,
    embeddings,
    models,
    rerank,
    responses,
    transcription,
)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        chat.KIND,
        completions.KIND,
        responses.KIND,
        embeddings.KIND,
        rerank.KIND,
        transcription.KIND,
        models.KIND,
    )
}
