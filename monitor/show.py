"""Results as a program or a person reads them: JSON objects and a table; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from probes.result import Outcome, ProbeResult

if TYPE_CHECKING:
    from rich.table import Table

    from probes.calibrate import Calibration

_PLAIN = (
    "endpoint", "kind", "model", "reason", "http_status", "ttfb_s", "ttft_s", "ttfat_s",
    "tpot_s", "e2e_s", "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens",
    "visible_tokens", "output_tokens_source", "finish_reason", "served_model", "fingerprint",
    "request_id", "error_code", "retry_after_s", "loop_lag_s", "merged", "late_s",
    "stamp_source", "connection", "cache", "tainted", "cost", "text_sha256", "chunks",
)  # fmt: skip


def to_json(result: ProbeResult) -> dict[str, Any]:
    """Return a result under the field names of `probe --json`; times in seconds."""
    row: dict[str, Any] = {
        "started_at": datetime.fromtimestamp(result.started_at, UTC).isoformat(),
        "outcome": result.outcome.value,
        "phases": asdict(result.phases),
        "itl": _itl(result),
        "flags": list(result.flags),
        "server_metrics": {f"{name}_s": value for name, value in result.server_metrics.items()},
        "steps": list(result.steps),
    }
    return {name: getattr(result, name) for name in _PLAIN} | row


def _itl(result: ProbeResult) -> dict[str, float | int] | None:
    itl = result.itl
    if itl is None:
        return None
    return {"n": itl.n, "p50_s": itl.p50, "p99_s": itl.p99, "max_s": itl.max}


def seconds(value: float | None) -> str:
    """Return a time for people: milliseconds below one second; a dash when there is none."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.3g} ms" if value * 1000 < 100 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s"


def table(results: Sequence[ProbeResult]) -> Table:
    """Return one row a result."""
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False)
    for name in ("#", "outcome", "TTFT", "TPOT", "E2E", "connect", "tokens", "notes"):
        view.add_column(name, justify="left" if name in ("outcome", "notes") else "right")
    for number, result in enumerate(results, 1):
        good = result.outcome is Outcome.OK
        view.add_row(
            str(number),
            Text(result.outcome.value, style="green" if good else "red"),
            seconds(result.ttft_s),
            seconds(result.tpot_s),
            seconds(result.e2e_s),
            seconds(_connecting(result)),
            _tokens(result),
            Text(_notes(result)),
        )
    return view


def _connecting(result: ProbeResult) -> float | None:
    phases = result.phases
    parts = [p for p in (phases.dns, phases.connect, phases.tls) if p is not None]
    return sum(parts) if parts else None


def _tokens(result: ProbeResult) -> str:
    if result.output_tokens is None:
        return "-"
    mark = "" if result.output_tokens_source == "usage" else f" ({result.output_tokens_source})"
    return f"{result.output_tokens}{mark}"


def _notes(result: ProbeResult) -> str:
    notes = [result.reason or "", *result.flags, "tainted by our own delay" * result.tainted]
    return plain("; ".join(filter(None, notes)))


def plain(text: str) -> str:
    """Return one line without control characters: a peer's text must not steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)[:300]


def spread(results: Iterable[ProbeResult]) -> str:
    """Return one line with n and the middle of TTFT and TPOT over the ok results."""
    good = [r for r in results if r.outcome is Outcome.OK]
    parts = [f"{len(good)} ok"]
    for name in ("ttft", "tpot"):
        values = sorted(v for r in good if (v := getattr(r, f"{name}_s")) is not None)
        if values:
            middle = values[(len(values) - 1) // 2]
            parts.append(f"{name.upper()} p50 {seconds(middle)} (n={len(values)})")
    return ", ".join(parts)


def calibration_table(found: Sequence[Calibration]) -> Table:
    """Return our own error, one row a concurrency. Errors are measured minus true."""
    from rich.table import Table

    view = Table(box=None, pad_edge=False)
    for name in (
        "streams", "n", "failed", "TTFT error p50", "p99", "TPOT error p50", "p99",
        "p99 of TPOT", "CPU s / 1k tokens", "merged", "tainted", "worst loop lag",
    ):  # fmt: skip
        view.add_column(name, justify="right")
    for row in found:
        view.add_row(
            str(row.streams),
            str(row.n),
            str(row.failed),
            _error(row.ttft_p50),
            _error(row.ttft_p99),
            _error(row.tpot_p50),
            _error(row.tpot_p99),
            f"{row.tpot_share_p99:.2%}",
            f"{row.cpu_per_1000:.3f}",
            f"{row.merged:.1%}",
            f"{row.tainted:.0%}",
            _error(row.loop_lag),
        )
    return view


def _error(value: float) -> str:
    return f"{value * 1000:.3f} ms"
