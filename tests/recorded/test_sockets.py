"""Recordings written to a real socket with their own pauses, only shorter, and probed.

What does not depend on time must be what the pure path says; times are checked only against what
the server cannot have been quicker than.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from probes import Limits, ProbeResult
from probes.result import Outcome
from tests.probes.raw_server import Peer, Script, probe, serve
from tests.recorded.recording import Recording, load, measure
from tests.recorded.test_golden import NAMED

SPAN = 0.25  # seconds that a replay takes
TIMED_FLAGS = {"burst", "coarse"}


def replay(recording: Recording, scale: float) -> Script:
    """Write each piece when it is due, framing and all, and close when the recorded server did."""

    async def script(peer: Peer) -> None:
        await peer.request()
        loop = asyncio.get_running_loop()
        start = loop.time()
        for at, data in (*recording.pieces, (recording.closed_at, b"")):
            await asyncio.sleep(start + at * scale - loop.time())
            await peer.send(data)

    return script


async def replayed(
    recording: Recording, scale: float, limits: Limits | None = None
) -> ProbeResult:
    workload = replace(recording.workload, limits=limits or Limits())
    async with serve(replay(recording, scale)) as server:
        return await probe(server.url, workload, keep_content=True)


def timeless(result: ProbeResult) -> dict[str, Any]:
    """What of a result no pause can change."""
    names = (
        "outcome reason http_status chunks prompt_tokens cached_tokens output_tokens "
        "reasoning_tokens visible_tokens output_tokens_source finish_reason served_model "
        "fingerprint request_id error_code error_excerpt server_metrics text_sha256 content"
    ).split()
    return {name: getattr(result, name) for name in names} | {
        "flags": {*result.flags} - TIMED_FLAGS,
        "n_gaps": result.itl.n if result.itl else 0,
    }


@pytest.mark.parametrize("name", NAMED)
async def test_a_replayed_stream_is_what_the_pure_path_says(name: str) -> None:
    recording = load(name)
    scale = min(1.0, SPAN / recording.closed_at)
    seen, pure = await replayed(recording, scale), measure(recording)
    assert timeless(seen) == timeless(pure)
    for field in ("ttfb_s", "ttft_s", "ttfat_s", "last_s", "e2e_s"):
        real, due = getattr(seen, field), getattr(pure, field)
        assert (real is None) == (due is None), field
        assert real is None or real >= due * scale - 1e-6, field


async def test_a_recorded_stall_past_the_limit_is_a_stall() -> None:
    recording = load("llmock__fault_stall")
    result = await replayed(recording, 0.1, Limits(stall=0.15))
    assert result.outcome is Outcome.TIMEOUT_STALL
    assert result.chunks == 2
    assert result.content is not None
    assert result.content.text == "Hello! LLMock "
    assert result.last_s is not None
    assert result.e2e_s == pytest.approx(result.last_s + 0.15)


async def test_pings_and_progress_do_not_put_off_the_first_token_limit() -> None:
    recording = load("llamacpp__chat_stream_longprompt_ping")
    result = await replayed(recording, 0.04, Limits(ttft=0.2))
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert result.http_status == 200
    assert result.ttfb_s is not None
    assert result.ttfb_s < 0.2
    assert result.ttft_s is None
