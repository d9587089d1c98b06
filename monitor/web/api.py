"""`/api/v1/status`: every probe's status as JSON. Seconds, ISO times in UTC, null for unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from monitor.status import Last, ProbeStatus, Spread
from monitor.web.units import TEXT_LIMIT, iso


def status_json(statuses: Sequence[ProbeStatus]) -> bytes:
    """Return the list of probes. Plain ASCII: whatever an endpoint said stays an escape."""
    return json.dumps([_probe(status) for status in statuses], separators=(",", ":")).encode()


def _probe(status: ProbeStatus) -> dict[str, Any]:
    return {
        "endpoint": status.endpoint,
        "workload": status.workload,
        "kind": status.kind,
        "state": status.state,
        "availability": _number(status.availability),
        "coverage": _number(status.coverage),
        "n": status.n,
        "outages": {
            "count": status.outages.count,
            "longest_s": _number(status.outages.longest_s),
        },
        "ttft": _spread(status.ttft),
        "tpot": _spread(status.tpot),
        "e2e": _spread(status.e2e),
        "last": _last(status.last),
        "excluded": dict(status.excluded),
        "skipped": dict(status.skipped),
        "interval_s": _number(status.interval),
        "window_s": _number(status.window_s),
        "labels": dict(status.labels),
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {"p50": _number(spread.p50), "p90": _number(spread.p90), "n": spread.n}


def _last(last: Last | None) -> dict[str, Any] | None:
    if last is None:
        return None
    reason = None if last.reason is None else last.reason[:TEXT_LIMIT]
    return {"outcome": last.outcome, "at": iso(last.at, millis=True), "reason": reason}


def _number(value: float | None) -> float | None:
    """JSON knows no infinity and no NaN."""
    return value if value is not None and math.isfinite(value) else None
