"""What is kept how long, and the deletes that see to it.

Every result that was not ok stays for `ERROR_DAYS`, and with it the results of the same probe
right before and after: an outage is read with its edges. Deletes go in batches, each its own
short transaction, so that the writer never waits long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from monitor.store.tables import events, results, skips
from probes.result import Outcome

DAY_S = 86_400.0
ERROR_DAYS = 400
_OK = Outcome.OK.value
_BATCH = 2000
_PAGES = 2000  # of 4 KiB: what one vacuum step may hold the lock for


async def prune(writer: AsyncEngine, now: float, raw_days: float) -> int:
    """Delete what is past keeping, give the space back, and return the number of rows deleted."""
    raw, old = now - raw_days * DAY_S, now - ERROR_DAYS * DAY_S
    # In this order, or an error deleted last would leave its neighbours to the next run.
    deleted = await _delete_older(writer, results.c.slot_at, old)
    deleted += await _delete_plain_ok(writer, raw)
    deleted += await _delete_older(writer, skips.c.slot_at, raw)
    deleted += await _delete_older(writer, events.c.at, old)
    if deleted and writer.dialect.name == "sqlite":
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
            await _delete_ids(connection, results, [row.id for row in rows])
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
    while True:
        async with writer.begin() as connection:
            batch = select(table.c.id).where(at < before).order_by(at).limit(_BATCH)
            ids = (await connection.execute(batch)).scalars().all()
            if not ids:
                return deleted
            await _delete_ids(connection, table, ids)
        deleted += len(ids)


async def _delete_ids(connection: AsyncConnection, table: Table, ids: Sequence[int]) -> None:
    each = delete(table).where(table.c.id == bindparam("doomed"))
    await connection.execute(each, [{"doomed": id_} for id_ in ids])


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
