"""Stored slots, made for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from monitor.store.periods import EXCLUDED, OUTCOMES, Slots
from probes.result import Excluded, Outcome

T0 = 1_796_083_200.0
"""2026-12-01 00:00 UTC."""


def slots(
    outcomes: Sequence[Outcome],
    *,
    at: Sequence[float] | None = None,
    excluded: Sequence[Excluded | None] | None = None,
    times: Mapping[str, Sequence[float]] | None = None,
    prompt_tokens: float = 100.0,
    skips: Sequence[str] = (),
) -> Slots:
    """Results a minute apart from T0 on, and skips half a minute later."""
    n = len(outcomes)
    nothing = np.full(n, np.nan)
    given = {name: np.array(values, float) for name, values in (times or {}).items()}
    codes = [EXCLUDED.index(why) for why in excluded or [None] * n]
    return Slots(
        at=np.array(at if at is not None else [T0 + 60.0 * k for k in range(n)], float),
        outcome=np.array([OUTCOMES.index(outcome) for outcome in outcomes], np.uint8),
        excluded=np.array(codes, np.uint8),
        times={name: given.get(name, nothing) for name in ("ttft", "ttfat", "tpot", "e2e")},
        prompt_tokens=np.full(n, prompt_tokens),
        skip_at=np.array([T0 + 30.0 + 60.0 * k for k in range(len(skips))], float),
        skip_why=np.array(skips, np.str_),
    )
