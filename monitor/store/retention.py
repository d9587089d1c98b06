"""What is kept how long, and the deletes that see to it.

A result that was not ok stays longer, and with it the results of the same probe right before and
after: an outage is read with its edges. Nothing goes before its hour is closed. Deletes go in
batches, each its own short transaction, so that the writer never waits long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from monitor.store.rollup import BLOCK_S, HOUR_S
from monitor.store.tables import days, events, hours, minutes, open_hours, results, skips
from probes.result import Outcome

DAY_S = 86_400.0
_OK = Outcome.OK.value
_BATCH = 2000
_PAGES = 2000  # of 4 KiB: what one vacuum step may hold the lock for


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long each kind of record is kept, seconds.

    Attributes:
        results: Ok results and skips.
        failures: Results that were not ok with their neighbours, and events.
        minutes: Counts by minute.
        hours: Windows of an hour.
        days: Windows of a day.
    """

    results: float = 14 * DAY_S
    failures: float = 400 * DAY_S
    minutes: float = 400 * DAY_S
    hours: float = 400 * DAY_S
    days: float = 1826 * DAY_S


async def prune(writer: AsyncEngine, now: float, keep: Keep) -> int:
    """Delete what is past keeping, give the space back, and return the number of rows deleted."""
    async with writer.connect() as connection:
        oldest_open = (await connection.execute(select(func.min(open_hours.c.start_at)))).scalar()
        await connection.rollback()
    limit = math.inf if oldest_open is None else oldest_open
    raw = min((now - keep.results) // HOUR_S * HOUR_S, limit)
    old = min(now - max(keep.failures, keep.results), limit)
    # In this order, or an error deleted last would leave its neighbours to the next run.
    deleted = await _delete_older(writer, results.c.slot_at, old)
    deleted += await _delete_plain_ok(writer, raw)
    deleted += await _delete_older(writer, skips.c.slot_at, raw)
    deleted += await _delete_older(writer, events.c.at, now - keep.failures)
    deleted += await _delete_older(writer, minutes.c.start_at, now - keep.minutes - HOUR_S)
    # A day is made of its hours, so they go together; likewise a block of running sums.
    hours_from = (now - keep.hours) // DAY_S * DAY_S
    deleted += await _delete_older(writer, hours.c.start_at, min(hours_from, raw))
    days_from = (now - keep.days) // BLOCK_S * BLOCK_S
    deleted += await _delete_older(writer, days.c.start_at, days_from)
    if writer.dialect.name == "sqlite":
        await _vacuum(writer)
    return deleted


async def _delete_plain_ok(writer: AsyncEngine, before: float) -> int:
    """Delete ok results older than `before` whose neighbours are ok; one pass in time order."""
    deleted, reached = 0, 0.0
    plain = (
        select(results.c.id, results.c.slot_at)
        .where(results.c.slot_at < before, results.c.outcome == _OK)
        .where(_neighbour_is_ok(earlier=True), _neighbour_is_ok(earlier=False))
        .order_by(results.c.slot_at)
        .limit(_BATCH)
    )
    while True:
        async with writer.begin() as connection:
            batch = plain.where(results.c.slot_at >= reached)
            rows = (await connection.execute(batch)).all()
            if not rows:
                return deleted
            await _delete_rows(connection, results, [(row.id,) for row in rows])
        deleted += len(rows)
        reached = rows[-1].slot_at


def _neighbour_is_ok(*, earlier: bool) -> ColumnElement[bool]:
    """Whether the same probe's next result to one side is ok, or there is none."""
    near = results.alias()
    beside = near.c.slot_at < results.c.slot_at if earlier else near.c.slot_at > results.c.slot_at
    outcome = (
        select(near.c.outcome)
        .where(near.c.endpoint == results.c.endpoint, near.c.workload == results.c.workload)
        .where(near.c.site == results.c.site, beside)
        .order_by(near.c.slot_at.desc() if earlier else near.c.slot_at)
        .limit(1)
        .scalar_subquery()
    )
    return func.coalesce(outcome, _OK) == _OK


async def _delete_older(writer: AsyncEngine, at: Column[float], before: float) -> int:
    """Delete the rows of a table whose time `at` lies before a moment."""
    deleted, table = 0, at.table
    key = list(table.primary_key)
    while True:
        async with writer.begin() as connection:
            batch = select(*key).where(at < before).order_by(at).limit(_BATCH)
            rows = (await connection.execute(batch)).all()
            if not rows:
                return deleted
            await _delete_rows(connection, table, rows)
        deleted += len(rows)


async def _delete_rows(
    connection: AsyncConnection, table: Table, keys: Sequence[Sequence[Any]]
) -> None:
    columns = list(table.primary_key)
    each = delete(table).where(*(column == bindparam(f"{column.name}_") for column in columns))
    names = [f"{column.name}_" for column in columns]
    await connection.execute(each, [dict(zip(names, key, strict=True)) for key in keys])


async def _vacuum(writer: AsyncEngine) -> None:
    """Give SQLite's free pages back to the file system, a few at a time."""
    free = None
    async with writer.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        while True:
            ((now,),) = await driver.execute_fetchall("PRAGMA freelist_count")
            if not now or now == free:  # unchanged: a file made without auto_vacuum
                return
            free = now
            # As a script: SQLite frees one page a step, and `execute` takes only the first.
            await driver.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
