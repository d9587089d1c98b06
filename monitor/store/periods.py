"""Stored slots of one probe over a stretch of time, as arrays; for reports and for refilling SLOs.

A reader of its own beside `Store`: it writes nothing, and never creates a database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    Table,
    and_,
    case,
    cast,
    func,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from monitor.slo import Counts, Indicator, Slo, SloWindow, meaning
from monitor.store.engine import StoreError, errors_named, named, open_engine, parse_url
from monitor.store.tables import results, skips
from probes.result import Excluded, Outcome

OUTCOMES = tuple(Outcome)
EXCLUDED: tuple[Excluded | None, ...] = (None, *Excluded)

_TIMES = ("ttft", "ttfat", "tpot", "e2e")
_OUTCOME = {outcome.value: code for code, outcome in enumerate(OUTCOMES)}
_EXCLUDED = {None: 0} | {why.value: code for code, why in enumerate(EXCLUDED) if why}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Slots of one probe, in order of their time.

    Attributes:
        at: When each result's slot was due, seconds since the epoch.
        outcome: Place of its outcome in `OUTCOMES`.
        excluded: Place of its exclusion in `EXCLUDED`; 0 is none.
        times: Seconds by `ttft`, `ttfat`, `tpot`, `e2e`; NaN where there is none.
        prompt_tokens: NaN where unknown.
        skip_at: When slots without a result were due.
        skip_why: The reason of each.
    """

    at: Floats
    outcome: NDArray[np.uint8]
    excluded: NDArray[np.uint8]
    times: Mapping[str, Floats]
    prompt_tokens: Floats
    skip_at: Floats
    skip_why: NDArray[np.str_]

    @property
    def skips(self) -> dict[str, int]:
        """Number of slots without a result, by reason."""
        names, numbers = np.unique(self.skip_why, return_counts=True)
        return dict(zip(names.tolist(), numbers.tolist(), strict=True))

    def between(self, since: float, until: float) -> Slots:
        """Return the slots in [since, until)."""
        rows = slice(*np.searchsorted(self.at, (since, until)).tolist())
        skipped = slice(*np.searchsorted(self.skip_at, (since, until)).tolist())
        return Slots(
            at=self.at[rows],
            outcome=self.outcome[rows],
            excluded=self.excluded[rows],
            times={name: values[rows] for name, values in self.times.items()},
            prompt_tokens=self.prompt_tokens[rows],
            skip_at=self.skip_at[skipped],
            skip_why=self.skip_why[skipped],
        )


class Periods:
    """Answers about stretches of time; made by `reading`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._name = named(engine.url)

    async def slots(self, endpoint: str, workload: str, since: float, until: float) -> Slots:
        """Return the slots of a probe in [since, until), all sites together."""
        names = [f"{name}_s" for name in _TIMES]
        columns = ("slot_at", "outcome", "excluded", *names, "prompt_tokens")
        asked = select(*(results.c[name] for name in columns)).order_by(results.c.slot_at)
        rows = await self._ask(asked.where(_of(results, endpoint, workload, since, until)))
        asked = select(skips.c.slot_at, skips.c.reason).order_by(skips.c.slot_at)
        skipped = await self._ask(asked.where(_of(skips, endpoint, workload, since, until)))
        return Slots(
            at=_floats(row[0] for row in rows),
            outcome=np.fromiter((_OUTCOME[row[1]] for row in rows), np.uint8),
            excluded=np.fromiter((_EXCLUDED[row[2]] for row in rows), np.uint8),
            times={n: _floats(row[3 + k] for row in rows) for k, n in enumerate(_TIMES)},
            prompt_tokens=_floats(row[-1] for row in rows),
            skip_at=_floats(at for at, _ in skipped),
            skip_why=np.array([why for _, why in skipped], np.str_),
        )

    async def counts(
        self, endpoint: str, workload: str, slo: Slo, since: float, until: float
    ) -> list[tuple[float, Counts]]:
        """Return good and valid results of an SLO by minute (or its slice), oldest first.

        The database counts; the result is that of `classify` over every row.
        """
        width = slo.slices.seconds if slo.slices else 60
        bucket = self._whole(results.c.slot_at / width)
        good, valid = _conditions(slo)
        asked = (
            select(bucket, _count(good), _count(valid))
            .where(_of(results, endpoint, workload, since, until), valid)
            .group_by(bucket)
            .order_by(bucket)
        )
        rows = await self._ask(asked)
        return [(float(b) * width, Counts(int(g), int(v))) for b, g, v in rows]

    async def fill(
        self, endpoint: str, workload: str, window: SloWindow, since: float, until: float
    ) -> None:
        """Take the events of [since, until) into a window that does not hold them yet."""
        for at, counts in await self.counts(endpoint, workload, window.slo, since, until):
            window.fill(at, counts)

    def _whole(self, number: ColumnElement[Any]) -> ColumnElement[Any]:
        """Round down: SQLite may have been built without `floor`, and PostgreSQL's cast rounds."""
        sqlite = self._engine.dialect.name == "sqlite"
        return cast(number, Integer) if sqlite else func.floor(number)

    async def _ask(self, question: Select[Any]) -> Sequence[Row[*tuple[Any, ...]]]:
        with errors_named(self._name):
            async with self._engine.connect() as connection:
                rows: Sequence[Row[*tuple[Any, ...]]] = (await connection.execute(question)).all()
        return rows


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Periods]:
    """Open a database that exists.

    Raises:
        StoreError: It does not, or cannot be read; one line for a person.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and _is_missing(str(parsed.database)):
        raise StoreError(f"{named(parsed)}: no such file, expected what `run` has written")
    engine = await open_engine(url)
    try:
        yield Periods(engine)
    finally:
        await engine.dispose()


def _is_missing(file: str) -> bool:
    return not Path(file).exists()


def _of(
    table: Table, endpoint: str, workload: str, since: float, until: float
) -> ColumnElement[bool]:
    of_probe = and_(table.c.endpoint == endpoint, table.c.workload == workload)
    return and_(of_probe, table.c.slot_at >= since, table.c.slot_at < until)


def _conditions(slo: Slo) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return `classify(...) is True` and `classify(...) is not None` as SQL."""
    by_meaning = {
        judged: [o.value for o in Outcome if meaning(slo, o, None) is judged]
        for judged in (True, False)
    }
    counts = results.c.excluded.is_(None)
    good = and_(counts, results.c.outcome.in_(by_meaning[True]))
    bad = and_(counts, results.c.outcome.in_(by_meaning[False]))
    if slo.indicator is not Indicator.LATENCY:
        return good, or_(good, bad)
    seconds = results.c[f"{slo.metric}_s"]
    measured = and_(good, seconds.is_not(None))
    return and_(measured, seconds <= slo.threshold), or_(measured, bad)


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _floats(values: Any) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)
