"""What stored hours and days say of a stretch of time: counts, and percentiles from histograms.

Theory of operation. A window is cut into whole days, which are differences of running sums; whole
hours at its ends; and what no hour knows of, the hour not over yet and the parts of an hour at
the edges, read raw. All from one snapshot, so nothing is seen twice or not at all. Where an
edge's raw results are gone the whole hour is taken, and the window says so.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Row, Select, Table, and_, func, null, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from monitor.store.rollup import (
    BLOCK_S,
    DAY_S,
    HOUR_S,
    MINUTE_COUNTS,
    RAW,
    SUMS,
    TALLIES,
    Probe,
    Rollup,
    close_hour,
    hour_of,
    merged,
    of_probe,
    starting,
    unpack_minutes,
)
from monitor.store.tables import PROBE, TIMES, days, hours, minutes, open_hours, results, skips
from probes.histogram import Counts, count_at_or_below, percentiles_of, sum_encoded

_RAW_S = 6 * HOUR_S
"""How far back slots that no hour knows of are read; after a gap there may be a month of them."""

_COUNTS = (*SUMS, "cost", *TALLIES)
_COLUMNS = ("start_at", *PROBE, *_COUNTS)
_SUMS, _REST = slice(4, 4 + len(SUMS)), slice(4 + len(SUMS), len(_COLUMNS))
_NOTHING = (0,) * len(SUMS)
_SPAN = ("good", "bad", "rate_limited", "scheduled")

Rows = Sequence[Row[*tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be read from the histograms of a window.

    Attributes:
        times: Columns of `TIMES`; each costs time, so name the few that are shown.
        percentiles: 0 to 100.
        at_or_below: Thresholds by column, seconds, whose results are to be counted.
        raw: Whether to read the slots that no hour knows of yet, and parts of an hour at the
            edges, a hundred rows a millisecond; without, only whole hours that are closed.
    """

    times: Sequence[str] = TIMES
    percentiles: Sequence[float] = (50.0, 90.0, 99.0)
    at_or_below: Mapping[str, Sequence[float]] = field(default_factory=dict)
    raw: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations of the ok results of a window that count.

    Attributes:
        n: How many.
        percentiles: Seconds by percentile, never below the exact one and at most 0.1 % above.
            One too extreme for n is left out: a p99 needs a hundred results.
        at_or_below: Results by threshold in seconds, which counts exactly within 0.1 % of it.
    """

    n: int
    percentiles: Mapping[float, float]
    at_or_below: Mapping[float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """What the slots of one probe in a stretch of time say; counts as in `Rollup`.

    Attributes:
        start_at: What was read; earlier than asked where only whole hours or days are kept.
        end_at: End of what was read, itself not part of it.
        times: By column of `TIMES`; what was not asked for or has no value is missing.
    """

    endpoint: str
    workload: str
    site: str
    start_at: float
    end_at: float
    scheduled: int
    good: int
    bad: int
    rate_limited: int
    misconfigured: int
    neutral: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: float | None
    outcomes: Mapping[str, int]
    excluded: Mapping[str, int]
    skips: Mapping[str, int]
    times: Mapping[str, Times]

    @property
    def n(self) -> int:
        """Valid results: good and bad."""
        return self.good + self.bad

    @property
    def availability(self) -> float | None:
        """Good of valid; None without a valid result."""
        return self.good / self.n if self.n else None

    @property
    def coverage(self) -> float | None:
        """Valid of scheduled; None without a slot."""
        return self.n / self.scheduled if self.scheduled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCounts:
    """Counts of one probe in a day or some minutes; `valid` is good and bad together."""

    endpoint: str
    workload: str
    site: str
    start_at: float
    good: int
    valid: int
    rate_limited: int
    scheduled: int


@dataclass(slots=True)
class _Parts:
    """What is found of one probe, to be added up."""

    start: float
    end: float
    plus: list[Any] = field(default_factory=list)
    minus: list[Any] = field(default_factory=list)
    raw: list[Any] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Where a window is cut: hours from `first`, days from `day` to `night`, hours to `last`."""

    first: float
    day: float
    night: float
    last: float


def snapshot(engine: AsyncEngine) -> AsyncConnection:
    """Return a connection whose questions all see one state of the database."""
    if engine.dialect.name == "postgresql":  # SQLite's transactions always do
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    return engine.connect()


async def windows(
    engine: AsyncEngine, start: float, end: float, asked: Asked, probe: Probe | None = None
) -> list[WindowSummary]:
    """Return a summary of [start, end) for every probe with a slot in it, or for one."""
    async with snapshot(engine) as connection:
        reading = _Reading(connection, start, end, asked, probe)
        await reading.read()
    found = sorted(reading.found.items())
    summaries = await asyncio.to_thread(lambda: [_summary(*one, asked) for one in found])
    return [summary for summary in summaries if summary.scheduled]


async def daily(
    engine: AsyncEngine, start: float, end: float, probe: Probe | None = None
) -> list[SpanCounts]:
    """Return counts by day (UTC) and probe, oldest first; today's so far."""
    first = start // DAY_S * DAY_S
    names = ("start_at", *PROBE, *_SPAN)
    asked = select(*(days.c[name] for name in names)).order_by(*days.primary_key)
    asked = asked.where(starting(days, first // BLOCK_S * BLOCK_S, end), *_only(days, probe))
    async with snapshot(engine) as connection:
        rows = (await connection.execute(asked)).all()
    spans: list[SpanCounts] = []
    sums: dict[Any, Sequence[int]] = {}
    for at, endpoint, workload, site, *running in rows:
        block, key = at // BLOCK_S, (endpoint, workload, site)
        before = sums.get((block, key), (0,) * len(_SPAN))
        sums[block, key] = running
        if at >= first:
            counts = [now - then for now, then in zip(running, before, strict=True)]
            spans.append(_span(key, at, dict(zip(_SPAN, counts, strict=True))))
    return spans


async def by_minutes(
    engine: AsyncEngine, start: float, end: float, probe: Probe, width: int = 1
) -> list[SpanCounts]:
    """Return counts of a probe by 1 or 5 minutes with a slot, oldest first, closed hours only."""
    asked = select(minutes.c.start_at, minutes.c.counts).order_by(minutes.c.start_at)
    inside = starting(minutes, hour_of(start), end)
    async with snapshot(engine) as connection:
        rows = (await connection.execute(asked.where(inside, of_probe(minutes, probe)))).all()
    spans = []
    for hour, packed in rows:
        counts = unpack_minutes(packed).reshape(60 // width, width, -1).sum(axis=1)
        for place, numbers in enumerate(counts.tolist()):
            at = hour + place * width * 60.0
            if start <= at < end and any(numbers):
                counts = dict(zip(MINUTE_COUNTS, numbers, strict=True))
                spans.append(_span(probe, at, counts | {"scheduled": sum(numbers)}))
    return spans


def _span(probe: Probe, at: float, counts: Mapping[str, int]) -> SpanCounts:
    endpoint, workload, site = probe
    return SpanCounts(
        endpoint=endpoint,
        workload=workload,
        site=site,
        start_at=at,
        good=counts["good"],
        valid=counts["good"] + counts["bad"],
        rate_limited=counts["rate_limited"],
        scheduled=counts["scheduled"],
    )


class _Reading:
    """One window being read.

    Attributes:
        found: What there is, by probe.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        start: float,
        end: float,
        asked: Asked,
        probe: Probe | None,
    ) -> None:
        self._connection = connection
        self._start = start if asked.raw else hour_of(start)
        self._end = end if asked.raw else hour_of(end)
        self._asked = asked
        self._probe = probe
        self.found: dict[Probe, _Parts] = {}

    async def read(self) -> None:
        cut = await self._cut()
        await self._add_hours(cut.first, min(cut.day, cut.last))
        await self._add_days(cut.day, cut.night)
        await self._add_hours(max(cut.night, cut.first), cut.last)
        if self._asked.raw:
            await self._add_raw(cut)

    async def _cut(self) -> _Cut:
        """Cut at whole hours and days.

        Today counts as whole when the window holds every hour there is of it. A day whose hours
        are kept no longer can only be taken whole, too.
        """
        ends = [select(f(hours.c.start_at)).scalar_subquery() for f in (func.min, func.max)]
        ((oldest, newest),) = await self._rows(select(*ends))
        if newest is not None and not self._asked.raw:
            self._end = min(self._end, newest + HOUR_S)
        first = math.ceil(self._start / HOUR_S) * HOUR_S
        last = hour_of(self._end)
        if oldest is None or newest is None:
            return _Cut(first=first, day=last, night=last, last=last)
        day, night = math.ceil(first / DAY_S) * DAY_S, last // DAY_S * DAY_S
        if newest + HOUR_S <= last:
            night = max(night, (newest // DAY_S + 1) * DAY_S)
        if self._start // DAY_S < oldest // DAY_S:
            day = self._start // DAY_S * DAY_S
        if self._end // DAY_S < oldest // DAY_S:
            night = math.ceil(self._end / DAY_S) * DAY_S
        if day >= night:
            return _Cut(first=first, day=last, night=last, last=last)
        return _Cut(first=first, day=day, night=night, last=last)

    async def _add_hours(self, first: float, last: float) -> None:
        if first < last:
            inside = starting(hours, first, last)
            for row in await self._rows(self._wanted(hours).where(inside)):
                self._parts(_probe(row)).plus.append(row)

    async def _add_days(self, day: float, night: float) -> None:
        """Take each block's running sum at the end of the stretch less that before it."""
        if day >= night:
            return
        first = day // BLOCK_S * BLOCK_S
        blocks = np.arange(first, night, BLOCK_S).tolist()
        ends = [min(night, block + BLOCK_S) for block in blocks]
        before, *latest = await self._latest([(first, day), *zip(blocks, ends, strict=True)])
        for block, rows in zip(blocks, latest, strict=True):
            for probe, row in rows.items():
                if row.start_at < day:
                    continue  # it has no day in the stretch
                parts = self._parts(probe)
                parts.plus.append(row)
                parts.start = min(parts.start, max(day, block))
                if block == first and probe in before:
                    parts.minus.append(before[probe])

    async def _latest(self, stretches: Sequence[tuple[float, float]]) -> list[dict[Probe, Any]]:
        """Return every probe's last row of `days` in each stretch.

        Nearly always all have one on the last day, which is found six times as fast.
        """
        only, by = _only(days, self._probe), [days.c[name] for name in PROBE]
        probes = [select(*by).where(starting(days, *s), *only).distinct() for s in stretches]
        counts = [select(func.count()).select_from(p.subquery()).scalar_subquery() for p in probes]
        (known,) = await self._rows(select(*counts))
        last_days = [end - DAY_S for _, end in stretches]
        on_last = await self._rows(self._wanted(days).where(days.c.start_at.in_(last_days)))
        latest = []
        for (start, end), n in zip(stretches, known, strict=True):
            rows: Rows = [row for row in on_last if start <= row.start_at == end - DAY_S]
            if len(rows) < n:
                newest = select(*by, func.max(days.c.start_at).label("newest"))
                newest = newest.where(starting(days, start, end), *only).group_by(*by)
                found = newest.subquery()
                same = [days.c[name] == found.c[name] for name in PROBE]
                last = and_(*same, days.c.start_at == found.c.newest)
                rows = await self._rows(self._wanted(days).join(found, last))
            latest.append({_probe(row): row for row in rows})
        return latest

    async def _add_raw(self, cut: _Cut) -> None:
        edges = {hour_of(at) for at in (self._start, self._end) if at % HOUR_S}
        closed = await self._closed(edges)
        unknown = await self._unknown()
        for hour in sorted(edges | {at for at, _ in unknown}):
            raw, skipped = await self._slots(hour)
            for probe in raw.keys() | skipped.keys() | {p for at, p in closed if at == hour}:
                row, mine = closed.get((hour, probe)), raw.get(probe, [])
                reasons = skipped.get(probe, [])
                if row is None and (hour, probe) not in unknown:
                    continue
                if row is not None and len(mine) + len(reasons) < row.scheduled:
                    self._add_whole(probe, row)
                    continue
                parts = self._parts(probe)
                parts.raw += [one for one in mine if self._start <= one.slot_at < self._end]
                inside = [why for at, why in reasons if self._start <= at < self._end]
                parts.skipped += inside

    def _add_whole(self, probe: Probe, row: Any) -> None:
        """Take an edge's hour whole: its raw results are kept no longer."""
        parts = self._parts(probe)
        parts.start = min(parts.start, row.start_at)
        parts.end = max(parts.end, row.start_at + HOUR_S)
        parts.plus.append(row)

    async def _closed(self, edges: set[float]) -> dict[tuple[float, Probe], Any]:
        """Return the rows of hours at the edges."""
        if not edges:
            return {}
        asked = self._wanted(hours).where(hours.c.start_at.in_(sorted(edges)))
        return {(row.start_at, _probe(row)): row for row in await self._rows(asked)}

    async def _unknown(self) -> set[tuple[float, Probe]]:
        """Return the hours with slots that no hour knows of, as far back as they are read."""
        key = [open_hours.c[name] == hours.c[name] for name in ("start_at", *PROBE)]
        newest = select(func.max(open_hours.c.start_at)).where(open_hours.c.start_at < self._end)
        ((last,),) = await self._rows(newest)
        if last is None:
            return set()
        since = max(hour_of(self._start), last - _RAW_S)
        asked = (
            select(open_hours)
            .outerjoin(hours, and_(*key))
            .where(hours.c.start_at.is_(null()), starting(open_hours, since, self._end))
            .where(*_only(open_hours, self._probe))
        )
        return {(row.start_at, _probe(row)) for row in await self._rows(asked)}

    async def _slots(
        self, hour: float
    ) -> tuple[dict[Probe, list[Any]], dict[Probe, list[tuple[float, str]]]]:
        """Return the raw results and skips of an hour by probe."""
        raw: dict[Probe, list[Any]] = defaultdict(list)
        skipped: dict[Probe, list[tuple[float, str]]] = defaultdict(list)
        asked = select(*(results.c[name] for name in PROBE), *RAW)
        for row in await self._rows(self._within(asked, results, hour)):
            raw[_probe(row)].append(row)
        asked = select(*(skips.c[name] for name in PROBE), skips.c.slot_at, skips.c.reason)
        for row in await self._rows(self._within(asked, skips, hour)):
            skipped[_probe(row)].append((row.slot_at, row.reason))
        return raw, skipped

    def _within(self, asked: Select[Any], table: Table, hour: float) -> Select[Any]:
        slot = table.c.slot_at
        return asked.where(slot >= hour, slot < hour + HOUR_S, *_only(table, self._probe))

    def _wanted(self, table: Table) -> Select[Any]:
        names = (*_COLUMNS, *self._asked.times)
        return select(*(table.c[name] for name in names)).where(*_only(table, self._probe))

    def _parts(self, probe: Sequence[str]) -> _Parts:
        endpoint, workload, site = probe
        return self.found.setdefault((endpoint, workload, site), _Parts(self._start, self._end))

    async def _rows(self, asked: Select[Any]) -> Rows:
        rows: Rows = (await self._connection.execute(asked)).all()
        return rows


def _probe(row: Any) -> Probe:
    return row.endpoint, row.workload, row.site


def _only(table: Table, probe: Probe | None) -> list[ColumnElement[bool]]:
    return [] if probe is None else [of_probe(table, probe)]


def _summary(probe: Probe, parts: _Parts, asked: Asked) -> WindowSummary:
    total = _stored(parts)
    recent: Mapping[str, Counts] = {}
    if parts.raw or parts.skipped:
        raw = close_hour(parts.raw, parts.skipped)
        recent, raw.times = raw.times, {}
        total = merged([total, raw])
    times = {}
    for name in asked.times:
        counts, first = _histogram(name, parts, recent)
        if found := _times(counts, first, asked, asked.at_or_below.get(name, ())):
            times[name] = found
    endpoint, workload, site = probe
    return WindowSummary(
        endpoint=endpoint,
        workload=workload,
        site=site,
        start_at=parts.start,
        end_at=parts.end,
        **{name: getattr(total, name) for name in _COUNTS},
        times=times,
    )


def _stored(parts: _Parts) -> Rollup:
    """Return the sums of rows less those of others, without histograms."""
    costs: list[float] = []
    tallies: dict[str, Counter[str]] = {name: Counter() for name in TALLIES}
    for sign, rows in ((1, parts.plus), (-1, parts.minus)):
        for cost, *told in (row[_REST] for row in rows):
            if cost is not None:
                costs.append(sign * cost)
            for name, found in zip(TALLIES, told, strict=True):
                for key, n in (found or {}).items():
                    tallies[name][key] += sign * n
    values: dict[str, Any] = dict(
        zip(SUMS, map(sub, _column_sums(parts.plus), _column_sums(parts.minus)), strict=True)
    )
    values |= {name: +tally for name, tally in tallies.items()}
    return Rollup(**values, cost=sum(costs) if costs else None)


def _column_sums(rows: Sequence[Any]) -> Sequence[int]:
    if len(rows) == 1:
        sums: Sequence[int] = rows[0][_SUMS]
        return sums
    return [sum(column) for column in zip(_NOTHING, *(row[_SUMS] for row in rows), strict=True)]


def _histogram(name: str, parts: _Parts, recent: Mapping[str, Counts]) -> tuple[Counts, int]:
    """Return counts and their first bin."""
    plus, minus = (
        [blob for row in rows if (blob := getattr(row, name)) is not None]
        for rows in (parts.plus, parts.minus)
    )
    stored, first = sum_encoded(plus, minus)
    if name not in recent:
        return stored, first
    total = recent[name].copy()
    total[first : first + len(stored)] += stored
    return total, 0


def _times(counts: Counts, first: int, asked: Asked, thresholds: Sequence[float]) -> Times | None:
    n = int(counts.sum())
    if not n:
        return None
    shown = [p for p in asked.percentiles if p <= 90 or n * (100 - p) >= 100 - 1e-6]
    found = percentiles_of(counts, *shown, first=first)
    return Times(
        n=n,
        percentiles={p: seconds for p, seconds in zip(shown, found, strict=True) if seconds},
        at_or_below={seconds: count_at_or_below(counts, seconds, first) for seconds in thresholds},
    )
