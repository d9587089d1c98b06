"""Token accounting: what usage says, whether to believe it, and what is left without it; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the server reports them; None where it says nothing.

    Attributes:
        output: Completion tokens, hidden reasoning included.
    """

    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cost: float | None = None


def _count(value: object) -> int | None:
    """Return a plausible count, or None: servers send null, floats, strings and negatives."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1 << 53 else None


def to_number(value: object) -> float | None:
    """Return a number of the peer's as a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return number if math.isfinite(number) else None


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := _count(usage.get(name))) is not None), None)


def _detail(usage: Mapping[str, Any], groups: tuple[str, ...], name: str) -> int | None:
    for group in groups:
        details = usage.get(group)
        if isinstance(details, Mapping) and (n := _count(details.get(name))) is not None:
            return n
    return None


def read_usage(usage: object) -> Usage | None:
    """Read a usage object in the spelling of chat, completions or responses.

    Where total = prompt + completion + reasoning, the server leaves reasoning out of the
    completion tokens (xAI): it is added. Returns None for anything that holds no count.
    """
    if not isinstance(usage, Mapping):
        return None
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    output = _first(usage, "completion_tokens", "output_tokens")
    total = _first(usage, "total_tokens")
    details = ("completion_tokens_details", "output_tokens_details")
    reasoning = _detail(usage, details, "reasoning_tokens")
    if reasoning is None:
        reasoning = _first(usage, "reasoning_tokens")
    cached = _detail(usage, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _first(usage, "cached_tokens", "prompt_cache_hit_tokens")
    if reasoning and output is not None and total == (prompt or 0) + output + reasoning:
        output += reasoning
    if prompt is None and output is None and total is None:
        return None
    if prompt is None and output is None:
        prompt = total  # rerankers report a total only
    return Usage(
        prompt=prompt,
        cached=cached,
        output=output,
        reasoning=reasoning,
        cost=to_number(usage.get("cost")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Output tokens and where the number comes from; None where nothing was counted."""

    output: int | None
    source: str | None
    visible: int | None
    flags: tuple[str, ...] = ()


def account(
    usage: Usage | None, events: int, *, streamed_reasoning: bool, tokenized: int | None = None
) -> Account:
    """Decide the output tokens of one streamed answer.

    Args:
        usage: Last usage seen.
        events: Number of output events.
        streamed_reasoning: Whether reasoning itself (not a summary) came as output events.
        tokenized: Count by the operator's tokenizer, if there is one.

    Sources in order: usage if plausible, tokenizer, output events. Usage of 0 beside output is
    implausible. Visible tokens are those that came as events: output less hidden reasoning.
    """
    claimed = usage.output if usage else None
    implausible = claimed == 0 and events > 0
    if claimed is not None and usage is not None and not implausible:
        hidden = 0 if streamed_reasoning else (usage.reasoning or 0)
        return Account(output=claimed, source="usage", visible=max(0, claimed - hidden))
    if not events:
        return Account(output=None, source=None, visible=None)
    flags = ("usage_implausible",) if implausible else ("usage_missing",)
    if tokenized is not None:
        return Account(output=tokenized, source="tokenizer", visible=tokenized, flags=flags)
    return Account(output=events, source="chunks", visible=events, flags=flags)
