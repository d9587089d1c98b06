"""From what the prober sent to table rows and back; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Row, Table

from monitor.history import Slot
from monitor.link import ResultRow, Skip, SkipRow
from monitor.store import tables
from probes.result import Excluded, Outcome, ProbeResult

Record = tuple[Table, dict[str, Any]]

# A result's attribute goes into the column of its name; the rest is spelled out below.
_SAME_NAME = tuple(
    f.name
    for f in fields(ProbeResult)
    if f.name in tables.results.c and f.name not in ("flags", "server_metrics", "steps")
)

# By value: a start reads a day of rows, and calling an enumeration is slow.
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_EXCLUDED = {None: None} | {excluded.value: excluded for excluded in Excluded}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A stored result that was not ok, as far as a person needs it."""

    probe: str
    endpoint: str
    workload: str
    slot_at: float
    outcome: Outcome
    reason: str | None
    http_status: int | None
    error_code: str | None
    error_excerpt: str | None
    request_id: str | None


def result_record(
    row: ResultRow, boot: str, site: str, excluded: Excluded | None = None
) -> Record:
    """Return the row of `results` for a result; `excluded` overrides the result's own."""
    result, phases, itl = row.result, row.result.phases, row.result.itl
    values = {name: getattr(result, name) for name in _SAME_NAME}
    values |= {f"{name}_s": getattr(phases, name) for name in ("dns", "connect", "tls")}
    values |= {f"{name}_s": getattr(phases, name) for name in ("send", "wait")}
    values |= {
        "uid": f"{boot}:{row.seq}",
        "probe": row.probe,
        "site": site,
        "slot_at": row.slot_at,
        "excluded": excluded or result.excluded,
        "itl_n": itl and itl.n,
        "itl_p50_s": itl and itl.p50,
        "itl_p99_s": itl and itl.p99,
        "itl_max_s": itl and itl.max,
        "flags": list(result.flags) or None,
        "server_metrics": dict(result.server_metrics) or None,
        "steps": list(result.steps) or None,
    }
    return tables.results, _storable(values)


def skip_record(row: SkipRow, boot: str, site: str, endpoint: str, workload: str) -> Record:
    """Return the row of `skips` for a slot without a result."""
    return tables.skips, {
        "uid": f"{boot}:{row.seq}",
        "probe": row.probe,
        "endpoint": endpoint,
        "workload": workload,
        "site": site,
        "slot_at": row.slot_at,
        "reason": row.reason.value,
    }


def event_record(uid: str, at: float, kind: str, detail: Mapping[str, Any]) -> Record:
    """Return the row of `events` for something that happened to the monitor itself."""
    return tables.events, {"uid": uid, "at": at, "kind": kind, "detail": dict(detail)}


RESULT_SLOT = (
    *(tables.results.c.id, tables.results.c.slot_at, tables.results.c.probe),
    *(tables.results.c[name] for name in "outcome excluded ttft_s tpot_s e2e_s reason".split()),
)
"""The columns that `result_slot` reads, in its order."""

SKIP_SLOT = (
    tables.skips.c.id,
    tables.skips.c.slot_at,
    tables.skips.c.probe,
    tables.skips.c.reason,
)
"""The columns that `skip_slot` reads, in its order."""


def result_slot(row: Sequence[Any]) -> tuple[str, Slot]:
    """Return probe id and history's slot of a stored result."""
    _, at, probe, outcome, excluded, ttft, tpot, e2e, reason = row
    return probe, Slot(
        at=at,
        outcome=_OUTCOMES[outcome],
        excluded=_EXCLUDED[excluded],
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        reason=reason,
    )


def skip_slot(row: Sequence[Any]) -> tuple[str, Slot]:
    """Return probe id and history's slot of a stored skip."""
    _, at, probe, reason = row
    return probe, Slot(at=at, skip=Skip(reason))


def failure(row: Row[*tuple[Any, ...]]) -> Failure:
    """Return a stored result that was not ok."""
    names = (f.name for f in fields(Failure))
    values = {name: getattr(row, name) for name in names}
    return Failure(**values | {"outcome": Outcome(row.outcome)})


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    """Take NUL characters out of text, which a peer may send and PostgreSQL refuses."""
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = str(value).replace("\0", "")
    return values
