"""Rows as the prober sends them, for tests."""

from __future__ import annotations

from typing import Any

from monitor.link import ResultRow, Skip, SkipRow
from probes.result import Itl, Outcome, Phases, ProbeResult


def result_row(
    seq: int = 1,
    slot_at: float = 1000.0,
    outcome: Outcome = Outcome.OK,
    *,
    endpoint: str = "a",
    workload: str = "chat",
    **details: Any,
) -> ResultRow:
    """A result; `details` are fields of `ProbeResult`."""
    known: dict[str, Any] = {
        "kind": "chat",
        "model": "m",
        "started_at": slot_at + 0.01,
        "outcome": outcome,
    }
    result = ProbeResult(endpoint=endpoint, workload=workload, **known | details)
    return ResultRow(seq, 1.0, f"{endpoint}/{workload}", slot_at, result)


def skip_row(
    seq: int = 1, slot_at: float = 1000.0, reason: Skip = Skip.OVERLAP, probe: str = "a/chat"
) -> SkipRow:
    return SkipRow(seq, 1.0, probe, slot_at, reason)


FULL: dict[str, Any] = {
    "reason": "why",
    "http_status": 200,
    "phases": Phases(dns=0.001, connect=0.002, tls=0.003, send=0.004, wait=0.005),
    "ttfb_s": 0.1,
    "ttft_s": 0.2,
    "ttfat_s": 0.3,
    "last_s": 0.9,
    "tpot_s": 0.01,
    "e2e_s": 1.0,
    "itl": Itl(n=63, p50=0.01, p99=0.02, max=0.03),
    "chunks": 64,
    "prompt_tokens": 100,
    "cached_tokens": 1,
    "output_tokens": 64,
    "reasoning_tokens": 2,
    "visible_tokens": 62,
    "output_tokens_source": "usage",
    "flags": ("burst", "late_usage"),
    "finish_reason": "length",
    "served_model": "m-1",
    "fingerprint": "fp",
    "request_id_sent": "s",
    "request_id": "r",
    "error_code": "e",
    "error_excerpt": "x",
    "retry_after_s": 3.0,
    "ratelimit_remaining_requests": 5,
    "ratelimit_reset_requests_s": 6.0,
    "server_metrics": {"queue": 0.5},
    "loop_lag_s": 0.001,
    "schedule_lag_s": 0.002,
    "merged": 1,
    "late_s": 0.0001,
    "upload": True,
    "tainted": True,
    "cost": 0.00125,
    "text_sha256": "00",
    "text_chars": 7,
    "reasoning_chars": 8,
    "body_bytes": 9,
    "steps": ({"name": "search", "e2e_s": 0.5},),
}
