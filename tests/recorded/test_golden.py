"""Named streams of real servers: what each was, and what we make of it, read off by hand.

transcripts/NAME.yaml states beside its recording why it is kept and what the result must hold. The
figures were taken from the raw recording, not from our own output: look at it before changing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from probes import ProbeResult
from tests.recorded.recording import FOLDER, load, measure

NAMED = sorted(path.stem for path in FOLDER.glob("*.yaml"))
STATED = (
    "outcome http_status ttfb_s ttft_s ttfat_s last_s e2e_s tpot_s itl_n itl_max_s chunks merged "
    "prompt_tokens cached_tokens output_tokens reasoning_tokens visible_tokens "
    "output_tokens_source flags finish_reason served_model error_code request_id body_bytes "
    "server_metrics text_chars reasoning_chars tool_calls"
).split()
MAY_STATE = ["text", "reasoning", "error_excerpt"]
MICROSECOND = 1e-6  # as exact as the recordings are


def expected(name: str) -> Mapping[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))
    return document


def seen(result: ProbeResult) -> Mapping[str, Any]:
    content = result.content
    assert content is not None
    calls = [{"name": call.name, "arguments": call.arguments} for call in content.tool_calls]
    own = {name: getattr(result, name) for name in STATED if hasattr(result, name)}
    return {
        **own,
        "outcome": result.outcome.value,
        "itl_n": result.itl.n if result.itl else 0,
        "itl_max_s": result.itl.max if result.itl else None,
        "flags": list(result.flags),
        "tool_calls": calls,
        "text": content.text,
        "reasoning": content.reasoning,
        "error_excerpt": result.error_excerpt,
    }


def rounded(value: object) -> object:
    """Times as exact as they were recorded, whatever holds them."""
    if isinstance(value, float):
        return pytest.approx(value, abs=MICROSECOND)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("name", NAMED)
def test_a_named_stream_is_measured_as_read_off_by_hand(name: str) -> None:
    golden = dict(expected(name))
    assert golden.pop("why")
    assert {*golden} - {*MAY_STATE} == {*STATED}
    result = seen(measure(load(name)))
    assert {key: result[key] for key in golden} == {k: rounded(v) for k, v in golden.items()}


def test_the_named_streams_are_there() -> None:
    assert len(NAMED) >= 12
    stated = {expected(name)["outcome"] for name in NAMED}
    assert stated >= {"ok", "stream_error", "truncated", "protocol_error", "empty_output"}
