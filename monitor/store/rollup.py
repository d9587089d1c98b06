"""Closing hours: from raw results to one row an hour and a day, once and for good.

Theory of operation. Whoever writes a result or a skip lists its hour in `open_hours`, in the same
transaction. Closing an hour takes it off that list, reads its raw rows, and replaces its row of
`hours` and of `minutes` and that of its day, in one transaction too: a crash leaves the hour on
the list or closed, never half; doing it twice gives the same rows; a row that comes late opens
its hour again. The list is deleted from before the rows are read, so that on PostgreSQL a writer
and this either wait for each other or the writer lists the hour once more.

Raw results go after a fortnight, so an hour read again could be poorer than what was made of it:
a row is never replaced by one of fewer slots.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Row, Table, and_, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from monitor.store.tables import PROBE, TIMES, days, hours, minutes, open_hours, results, skips
from probes.histogram import Counts, count_durations, decode_counts, encode_counts
from probes.result import Outcome, Verdict, verdict

HOUR_S = 3600.0
DAY_S = 86_400.0
GRACE_S = 120.0
"""How long after its end an hour is closed: most of what began in it has come by then."""

BLOCK_S = 32 * DAY_S
"""Rows of days are running sums, which begin anew this often: a late row changes few of them."""

_AT_ONCE = 6  # hours of one probe in a transaction, which holds the lock for some 50 ms
_LISTED = 240

SUMS = tuple(
    "scheduled good bad rate_limited misconfigured neutral"
    " prompt_tokens cached_tokens output_tokens reasoning_tokens".split()
)
_sums: Callable[[Any], tuple[int, ...]] = attrgetter(*SUMS)
TALLIES = ("outcomes", "excluded", "skips")

Probe = tuple[str, str, str]
"""Endpoint, workload, site."""

RAW = tuple(
    results.c[name]
    for name in "slot_at outcome excluded ttft_s ttfat_s tpot_s e2e_s output_tokens_source"
    " prompt_tokens cached_tokens output_tokens reasoning_tokens cost".split()
)
"""The columns of a result that `close_hour` reads."""

_VERDICTS: Mapping[str, str] = {outcome.value: verdict(outcome).value for outcome in Outcome}
MINUTE_COUNTS = (*(v.value for v in Verdict), "excluded", "skipped")
"""What is counted a minute."""


@dataclass(slots=True, kw_only=True)
class Rollup:
    """What the slots of a span say; sums, so that spans add up exactly.

    Attributes:
        scheduled: Slots that ended in the span: results and skips.
        good: Results by verdict, those excluded left out; likewise the four that follow.
        outcomes: Results by outcome, but for ok, and for those excluded.
        excluded: Results outside every indicator, by reason.
        skips: Slots without a result, by reason.
        cost: Of every result, None when no price is known; as are tokens.
        times: Histograms by column of `hours`; none where empty.
    """

    scheduled: int = 0
    good: int = 0
    bad: int = 0
    rate_limited: int = 0
    misconfigured: int = 0
    neutral: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    excluded: Mapping[str, int] = field(default_factory=dict)
    skips: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, Counts] = field(default_factory=dict)


def hour_of(at: float) -> float:
    """Return the start of the hour that holds a moment."""
    return at // HOUR_S * HOUR_S


def close_hour(raw: Sequence[Any], skipped: Sequence[str]) -> Rollup:
    """Return what results (rows of `RAW`) and skips (their reasons) add up to."""
    counted = [row for row in raw if row.excluded is None]
    outcomes = Counter(row.outcome for row in counted)
    verdicts: Counter[str] = Counter()
    for outcome, n in outcomes.items():
        verdicts[_VERDICTS[outcome]] += n
    costs = [row.cost for row in raw if row.cost is not None]
    tokens = ("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    return Rollup(
        scheduled=len(raw) + len(skipped),
        **{v.value: verdicts[v.value] for v in Verdict},
        **{name: sum(getattr(row, name) or 0 for row in raw) for name in tokens},
        cost=sum(costs) if costs else None,
        outcomes={outcome: n for outcome, n in outcomes.items() if outcome != Outcome.OK},
        excluded=Counter(row.excluded for row in raw if row.excluded is not None),
        skips=Counter(skipped),
        times=_times([row for row in counted if row.outcome == Outcome.OK]),
    )


def merged(rollups: Iterable[Rollup]) -> Rollup:
    """Return the sum of several spans."""
    spans = list(rollups)
    columns = zip(*map(_sums, spans), strict=True)
    sums: dict[str, Any] = dict(zip(SUMS, map(sum, columns), strict=False))  # none of none
    total = Rollup(**sums)
    costs = [span.cost for span in spans if span.cost is not None]
    total.cost = sum(costs) if costs else None
    for name in TALLIES:
        for tally in filter(None, (getattr(span, name) for span in spans)):
            setattr(total, name, Counter(getattr(total, name)) + Counter(tally))
    for span in spans:
        total.times = added(total.times, span.times)
    return total


def less(whole: Rollup, part: Rollup) -> Rollup:
    """Return what is left of a span without a part of it."""
    both = zip(SUMS, _sums(whole), _sums(part), strict=True)
    sums: dict[str, Any] = {name: of_whole - of_part for name, of_whole, of_part in both}
    left = Rollup(**sums)
    left.cost = whole.cost if part.cost is None or whole.cost is None else whole.cost - part.cost
    for name in TALLIES:
        if tally := getattr(whole, name):
            setattr(left, name, Counter(tally) - Counter(getattr(part, name)))
    left.times = {name: counts - part.times.get(name, 0) for name, counts in whole.times.items()}
    return left


def added(left: Mapping[str, Counts], right: Mapping[str, Counts]) -> dict[str, Counts]:
    """Return the sum of histograms by name."""
    both = {name: left[name] + right[name] for name in left.keys() & right.keys()}
    return {**left, **right, **both}


def pack_minutes(start: float, raw: Iterable[Any], skip_times: Iterable[float]) -> bytes:
    """Return counts by minute of an hour, `MINUTE_COUNTS` each; some 30 bytes."""
    counts = np.zeros((60, len(MINUTE_COUNTS)), "<u2")
    for row in raw:
        kind = _VERDICTS[row.outcome] if row.excluded is None else "excluded"
        counts[_minute(start, row.slot_at), MINUTE_COUNTS.index(kind)] += 1
    for at in skip_times:
        counts[_minute(start, at), MINUTE_COUNTS.index("skipped")] += 1
    return zlib.compress(counts.tobytes())


def unpack_minutes(data: bytes) -> Counts:
    """Return an array of 60 minutes by `MINUTE_COUNTS`."""
    flat = np.frombuffer(zlib.decompress(data), "<u2")
    return flat.reshape(60, len(MINUTE_COUNTS)).astype(np.int64)


async def roll_up(writer: AsyncEngine, now: float, budget_s: float) -> bool:
    """Close hours that ended, oldest first, for about `budget_s`; return whether all are closed.

    Each transaction is short, and so are the pauses between them in which others write.
    """
    until = time.monotonic() + budget_s
    closable = open_hours.c.start_at <= now - HOUR_S - GRACE_S
    while True:
        listed = (
            select(open_hours.c.start_at, *_probe_of(open_hours))
            .where(closable)
            .order_by(open_hours.c.start_at, *_probe_of(open_hours))
            .limit(_LISTED)
        )
        async with writer.connect() as connection:
            rows = (await connection.execute(listed)).all()
            await connection.rollback()
        if not rows:
            return True
        for probe, starts in _units(rows):
            async with writer.begin() as connection:
                await _close(connection, probe, starts)
            if time.monotonic() > until:
                return False


def _units(rows: Iterable[Sequence[Any]]) -> list[tuple[Probe, list[float]]]:
    """Return hours to close in one transaction: of one probe and day, few, oldest first."""
    found = []
    by_day = sorted(
        (start // DAY_S, (endpoint, workload, site), start)
        for start, endpoint, workload, site in rows
    )
    for (_, probe), group in groupby(by_day, key=lambda row: row[:2]):
        starts = [start for *_, start in group]
        found += [(probe, starts[at : at + _AT_ONCE]) for at in range(0, len(starts), _AT_ONCE)]
    return found


async def _close(connection: AsyncConnection, probe: Probe, starts: Sequence[float]) -> None:
    """Close hours of one day of a probe."""
    changed = False
    for start in starts:
        taken = await connection.execute(
            delete(open_hours).where(row_of(open_hours, probe, start))
        )
        if taken.rowcount:  # else somebody else has closed it
            changed |= await _close_one(connection, probe, start)
    if changed:
        await _close_day(connection, probe, starts[0] // DAY_S * DAY_S)


async def _close_one(connection: AsyncConnection, probe: Probe, start: float) -> bool:
    """Replace an hour's rows; return whether there is anything new."""
    raw = (await connection.execute(within(select(*RAW), results, probe, start))).all()
    asked = within(select(skips.c.slot_at, skips.c.reason), skips, probe, start)
    skipped = (await connection.execute(asked)).all()
    closed = close_hour(raw, [reason for _, reason in skipped])
    if closed.scheduled <= await _known(connection, hours, probe, start):
        return False
    await _replace(connection, hours, probe, start, row_values(closed))
    packed = pack_minutes(start, raw, [at for at, _ in skipped])
    await _replace(connection, minutes, probe, start, {"counts": packed})
    return True


async def _close_day(connection: AsyncConnection, probe: Probe, day: float) -> None:
    """Replace a day's row, and carry the change to the days after it."""
    asked = select(hours).where(of_probe(hours, probe), starting(hours, day, day + DAY_S))
    own = merged(rollup_of(row) for row in (await connection.execute(asked)).all())
    block = day // BLOCK_S * BLOCK_S
    asked = select(days).where(of_probe(days, probe), starting(days, block, block + BLOCK_S))
    rows = (await connection.execute(asked.order_by(days.c.start_at))).all()
    before = next((rollup_of(row) for row in reversed(rows) if row.start_at < day), Rollup())
    old = next((rollup_of(row) for row in rows if row.start_at == day), before)
    if own.scheduled <= old.scheduled - before.scheduled:
        return
    new = merged([before, own])
    await _replace(connection, days, probe, day, row_values(new))
    change = less(new, old)
    for row in rows:
        if row.start_at > day:
            later = merged([rollup_of(row), change])
            await _replace(connection, days, probe, row.start_at, row_values(later))


async def _known(connection: AsyncConnection, table: Table, probe: Probe, start: float) -> int:
    """Return the number of slots that a row is made of; 0 without a row."""
    asked = select(table.c.scheduled).where(row_of(table, probe, start))
    return (await connection.execute(asked)).scalar() or 0


async def _replace(
    connection: AsyncConnection,
    table: Table,
    probe: Probe,
    start: float,
    values: Mapping[str, Any],
) -> None:
    await connection.execute(delete(table).where(row_of(table, probe, start)))
    key = dict(zip(PROBE, probe, strict=True))
    await connection.execute(table.insert().values(start_at=start, **key, **values))


# -- rows and columns ----------------------------------------------------------------------------


def row_values(rollup: Rollup) -> dict[str, Any]:
    """Return the columns of `hours` for a rollup."""
    values: dict[str, Any] = {name: getattr(rollup, name) for name in (*SUMS, "cost")}
    tallies = {name: dict(getattr(rollup, name)) or None for name in TALLIES}
    return values | tallies | dict.fromkeys(TIMES) | _encoded(rollup.times)


def rollup_of(row: Row[*tuple[Any, ...]]) -> Rollup:
    """Return the rollup that a row of `hours` holds."""
    values: dict[str, Any] = {name: getattr(row, name) for name in (*SUMS, "cost")}
    values |= {name: getattr(row, name) or {} for name in TALLIES}
    return Rollup(**values, times=_times_of(row))


def row_of(table: Table, probe: Probe, start: float) -> ColumnElement[bool]:
    """Return the condition that picks one row of a table of spans."""
    return and_(table.c.start_at == start, of_probe(table, probe))


def within(asked: Any, table: Table, probe: Probe, start: float) -> Any:
    """Return a question about an hour's raw rows."""
    slot = table.c.slot_at
    return asked.where(of_probe(table, probe), slot >= start, slot < start + HOUR_S)


def of_probe(table: Table, probe: Probe) -> ColumnElement[bool]:
    """Return the condition that picks the rows of a probe."""
    return and_(*(table.c[name] == value for name, value in zip(PROBE, probe, strict=True)))


def starting(table: Table, start: float, end: float) -> ColumnElement[bool]:
    """Return the condition that picks the spans that start in [start, end)."""
    return and_(table.c.start_at >= start, table.c.start_at < end)


def _probe_of(table: Table) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in PROBE]


def _times_of(row: Row[*tuple[Any, ...]]) -> dict[str, Counts]:
    blobs = ((name, getattr(row, name)) for name in TIMES)
    return {name: decode_counts(blob) for name, blob in blobs if blob is not None}


def _encoded(times: Mapping[str, Counts]) -> dict[str, bytes]:
    return {name: encode_counts(counts) for name, counts in times.items()}


def _times(rows: Sequence[Any]) -> dict[str, Counts]:
    """Return the histograms of ok results that count."""
    seconds: dict[str, list[float]] = {name: [] for name in TIMES}
    for row in rows:
        _note(seconds["ttft"], row.ttft_s)
        _note(seconds["ttfat"], row.ttfat_s)
        _note(seconds["e2e"], row.e2e_s)
        _note(seconds[f"tpot_{row.output_tokens_source or 'chunks'}"], row.tpot_s)
    return {name: count_durations(values) for name, values in seconds.items() if values}


def _note(values: list[float], seconds: float | None) -> None:
    if seconds is not None and seconds == seconds:  # noqa: PLR0124 - NaN, which PostgreSQL keeps
        values.append(seconds)


def _minute(start: float, at: float) -> int:
    return min(int((at - start) // 60), 59)
