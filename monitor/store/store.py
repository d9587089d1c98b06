"""The store as the program sees it: rows in without waiting, questions out."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

from sqlalchemy import Insert, Row, Select, Table, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from monitor.history import Slot
from monitor.link import ResultRow, SkipRow
from monitor.store import retention, windows
from monitor.store.alerting import AlertStore
from monitor.store.engine import errors_named, named, open_engine, writing
from monitor.store.retention import Keep
from monitor.store.rollup import Probe, hour_of, roll_up
from monitor.store.rows import (
    RESULT_SLOT,
    SKIP_SLOT,
    Failure,
    Record,
    event_record,
    failure,
    result_record,
    result_slot,
    skip_record,
    skip_slot,
)
from monitor.store.tables import PROBE, events, open_hours, results, skips
from monitor.store.windows import Asked, SpanCounts, WindowSummary
from monitor.store.writer import Writer
from probes.result import Excluded, Outcome

_PAGE = 2000


class Store:
    """One database and its writer. Made by `open`; belongs to one event loop.

    Whatever asks the database raises `StoreError` when it does not answer.
    """

    def __init__(self, engine: AsyncEngine, *, bound: int, every: float) -> None:
        self._engine = engine
        self._name = named(engine.url)
        self._write_engine = writing(engine)
        self._writer = Writer(self._write, bound=bound, every=every)

    @classmethod
    async def open(cls, url: str, *, bound: int = 100_000, every: float = 0.2) -> Self:
        """Open a database, creating or upgrading its schema.

        Args:
            url: `sqlite:///file.db` or `postgresql://user@host/name`.
            bound: Most rows kept in memory while the database does not take them.
            every: Seconds between commits.

        Raises:
            StoreError: It cannot be used; the message is one line for a person.
        """
        return cls(await open_engine(url), bound=bound, every=every)

    @property
    def queue_length(self) -> int:
        """Rows not yet committed."""
        return len(self._writer)

    @property
    def dropped(self) -> int:
        """Rows lost since the start: the queue was full, or the database refused a value."""
        return self._writer.dropped

    @property
    def problem(self) -> str | None:
        """What keeps rows from being written, as a sentence; None when nothing does."""
        return self._writer.problem

    def put_result(
        self, row: ResultRow, *, boot: str, site: str, excluded: Excluded | None = None
    ) -> None:
        """Queue a result; `excluded` overrides what the result says of itself. Never blocks."""
        self._writer.put(partial(result_record, row, boot, site, excluded))

    def put_skip(
        self, row: SkipRow, *, boot: str, site: str, endpoint: str, workload: str
    ) -> None:
        """Queue a slot without a result. Never blocks."""
        self._writer.put(partial(skip_record, row, boot, site, endpoint, workload))

    def put_event(self, at: float, kind: str, detail: Mapping[str, Any] | None = None) -> None:
        """Queue something that happened to the monitor itself. Never blocks."""
        self._writer.put(partial(event_record, uuid.uuid4().hex, at, kind, detail or {}))

    def alerting(self, site: str) -> AlertStore:
        """Return what alerting keeps for a site."""
        return AlertStore(self._engine, site)

    async def flush(self) -> None:
        """Wait until everything queued is committed, however long the database takes."""
        await self._writer.flush()

    async def close(self, within: float = 5.0) -> int:
        """Commit what is queued and let go of the database; the way out on SIGTERM.

        Returns after about `within` seconds even if the database does not answer, with the
        number of rows that were lost.
        """
        lost = await self._writer.close(within)
        await self._engine.dispose()
        return lost

    async def recent(
        self, since: float, site: str | None = None
    ) -> AsyncIterator[tuple[str, Slot]]:
        """Yield (probe id, slot) from `since` on: results in order of their slots, then skips."""
        async for row in self._pages(select(*RESULT_SLOT), results, since, site):
            yield result_slot(row)
        async for row in self._pages(select(*SKIP_SLOT), skips, since, site):
            yield skip_slot(row)

    async def counts(self, since: float = 0.0) -> dict[tuple[str, str, Outcome], int]:
        """Return the number of results by endpoint, workload and outcome."""
        by = (results.c.endpoint, results.c.workload, results.c.outcome)
        asked = select(*by, func.count()).where(results.c.slot_at >= since).group_by(*by)
        rows = await self._ask(asked)
        return {(endpoint, workload, Outcome(o)): n for endpoint, workload, o, n in rows}

    async def last_errors(self, limit: int = 50, endpoint: str | None = None) -> list[Failure]:
        """Return the newest results that were not ok, newest first."""
        names = (results.c[name] for name in Failure.__dataclass_fields__)
        asked = select(*names).where(results.c.outcome != Outcome.OK.value)
        if endpoint is not None:
            asked = asked.where(results.c.endpoint == endpoint)
        asked = asked.order_by(results.c.slot_at.desc(), results.c.id.desc()).limit(limit)
        return [failure(row) for row in await self._ask(asked)]

    async def roll_up(self, now: float, budget_s: float = 5.0) -> bool:
        """Close hours that ended, for about `budget_s`; run it once a minute.

        After a gap it goes on from call to call, oldest hour first. Return whether all are
        closed.
        """
        with errors_named(self._name):
            return await roll_up(self._write_engine, now, budget_s)

    async def window(
        self,
        probe: Probe,
        start: float,
        end: float,
        asked: Asked | None = None,
    ) -> WindowSummary | None:
        """Return what the slots of a probe in [start, end) say; None without any."""
        with errors_named(self._name):
            found = await windows.windows(self._engine, start, end, asked or Asked(), probe)
        return found[0] if found else None

    async def windows(
        self, start: float, end: float, asked: Asked | None = None
    ) -> list[WindowSummary]:
        """Return what the slots in [start, end) say, for every probe with one."""
        with errors_named(self._name):
            return await windows.windows(self._engine, start, end, asked or Asked())

    async def daily(
        self, start: float, end: float, probe: Probe | None = None
    ) -> list[SpanCounts]:
        """Return counts by day (UTC) and probe, oldest first; today's so far."""
        with errors_named(self._name):
            return await windows.daily(self._engine, start, end, probe)

    async def by_minutes(
        self, probe: Probe, start: float, end: float, width: int = 1
    ) -> list[SpanCounts]:
        """Return counts by 1 or 5 minutes with a slot, oldest first, closed hours only."""
        with errors_named(self._name):
            return await windows.by_minutes(self._engine, start, end, probe, width)

    async def maintain(self, now: float, keep: Keep | None = None) -> int:
        """Delete what is past keeping and give the space back; run it once an hour.

        Return the number of rows deleted. Results that no hour knows of yet stay.
        """
        with errors_named(self._name):
            return await retention.prune(self._write_engine, now, keep or Keep())

    async def _ask(self, question: Select[Any]) -> Sequence[Row[*tuple[Any, ...]]]:
        with errors_named(self._name):
            async with self._engine.connect() as connection:
                rows: Sequence[Row[*tuple[Any, ...]]] = (await connection.execute(question)).all()
        return rows

    async def _write(self, records: Sequence[Record]) -> None:
        """Insert rows in one transaction; rows that are there already are left alone."""
        by_table: dict[Table, list[dict[str, Any]]] = defaultdict(list)
        for table, values in records:
            by_table[table].append(values)
        listed = {
            (hour_of(values["slot_at"]), *(values[name] for name in PROBE))
            for table, values in records
            if table is not events
        }
        names = ("start_at", *PROBE)
        # In one order, or two writers of one database could wait for each other.
        open_now = [dict(zip(names, key, strict=True)) for key in sorted(listed)]
        async with self._write_engine.begin() as connection:
            for table, rows in by_table.items():
                await connection.execute(self._insert(table), rows)
            if open_now:
                await connection.execute(self._list_open(), open_now)

    def _list_open(self) -> Insert:
        """Return what lists hours to close; those listed already are locked, see `rollup`."""
        if self._engine.dialect.name == "sqlite":
            return sqlite.insert(open_hours).on_conflict_do_nothing()
        asked = postgresql.insert(open_hours)
        key = list(open_hours.primary_key)
        return asked.on_conflict_do_update(
            index_elements=key, set_={"start_at": asked.excluded.start_at}
        )

    def _insert(self, table: Table) -> Insert:
        if self._engine.dialect.name == "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing(index_elements=["uid"])
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=["uid"])

    async def _pages(
        self, wanted: Select[Any], table: Table, since: float, site: str | None
    ) -> AsyncIterator[Any]:
        """Yield rows in order of slot and id, a page a query: no reader holds a snapshot long."""
        at, key = table.c.slot_at, table.c.id
        asked = wanted.order_by(at, key).limit(_PAGE)
        if site is not None:
            asked = asked.where(table.c.site == site)
        page = asked.where(at >= since)
        while True:
            rows = await self._ask(page)
            for row in rows:
                yield row
            if len(rows) < _PAGE:
                return
            last = rows[-1]
            page = asked.where(tuple_(at, key) > (last.slot_at, last.id))
