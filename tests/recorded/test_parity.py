"""Recorded chat and completions streams, counted a second time by plain means.

Nothing of `probes` is used but the result to compare: the body is cut at blank lines, each event
decoded by `json`, and its time is that of the read which brought its last byte.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.recorded.recording import NAMES, Recording, load, measure

STREAMS = [
    name
    for name in NAMES
    if (recording := load(name)).is_stream and recording.meta["path"].endswith("completions")
]
SPOKEN = ("content", "reasoning", "reasoning_content", "text")


def events(recording: Recording) -> list[tuple[float, str]]:
    """(arrival, data) of each event; every recorded server ends its lines with LF."""
    body, arrivals, position = recording.body, [], 0
    for at, data in recording.reads:
        arrivals += [at] * len(data)
    found = []
    while (end := body.find(b"\n\n", position)) >= 0:
        block = body[position:end].decode()
        position = end + 2
        lines = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if lines:
            found.append((arrivals[position - 1], "\n".join(lines)))
    return found


def is_output(choice: dict[str, Any]) -> bool:
    said = {**choice, **choice.get("delta", {})}
    calls = [call["function"] for call in said.get("tool_calls") or ()]
    return any(said.get(name) for name in SPOKEN) or any(
        call.get("name") or call.get("arguments") for call in calls
    )


@pytest.mark.parametrize("name", STREAMS)
def test_times_and_counts_are_those_of_a_plain_count(name: str) -> None:
    recording = load(name)
    stamps: list[float] = []
    done_at = error_at = usage = None
    for at, data in events(recording):
        if data == "[DONE]":
            done_at = at
            break
        try:
            document = json.loads(data)
        except ValueError:
            error_at = at
            break
        if "error" in document:
            error_at = at
            break
        usage = document.get("usage") or usage
        if any(is_output(choice) for choice in document["choices"]):
            stamps.append(at)
    result = measure(recording)
    assert result.chunks == len(stamps)
    assert (result.ttft_s, result.last_s) == ((stamps[0], stamps[-1]) if stamps else (None, None))
    assert result.e2e_s is not None
    assert result.e2e_s == (error_at or done_at or recording.ended_at)
    seen = sum(len(data) for at, data in recording.reads if at <= result.e2e_s)
    assert result.body_bytes == seen  # what comes after the end is not read
    gaps = [b - a for a, b in pairwise(stamps)]
    assert result.itl is None if not gaps else result.itl and result.itl.max == max(gaps)
    tokens = usage["completion_tokens"] if usage else len(stamps)
    assert (result.output_tokens or 0) == tokens
    assert result.prompt_tokens == (usage["prompt_tokens"] if usage else None)
    if tokens >= 2 and stamps and not {"burst"} & {*result.flags}:
        pace = (stamps[-1] - stamps[0]) / (tokens - 1)
        assert result.tpot_s == pytest.approx(pace, abs=1e-12)
