from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select, text

from monitor.link import Skip
from monitor.store import Store
from monitor.store.engine import _MIGRATIONS, open_engine, writing
from monitor.store.rollup import (
    BLOCK_S,
    DAY_S,
    HOUR_S,
    RAW,
    close_hour,
    merged,
    pack_minutes,
    unpack_minutes,
)
from monitor.store.tables import days, hours, minutes, open_hours
from probes.histogram import decode_counts
from probes.result import Outcome
from tests.monitor.rows import result_row, skip_row

DAY = 640 * BLOCK_S  # a day on which a block begins
NOW = DAY + 3 * DAY_S
PROBE = ("a", "chat", "here")


def raw_row(outcome: str = "ok", **values: Any) -> Any:
    return SimpleNamespace(**(dict.fromkeys(c.name for c in RAW) | {"outcome": outcome} | values))


rows_of_an_hour = st.lists(
    st.builds(
        raw_row,
        st.sampled_from([outcome.value for outcome in Outcome]),
        excluded=st.sampled_from([None, None, "tainted", "unknown"]),
        ttft_s=st.none() | st.floats(min_value=0, max_value=5000),
        tpot_s=st.none() | st.floats(min_value=0, max_value=2),
        output_tokens_source=st.sampled_from(["usage", "tokenizer", "chunks"]),
        prompt_tokens=st.none() | st.integers(0, 10**6),
        cost=st.none() | st.integers(0, 1000).map(lambda n: n / 8),
    ),
    max_size=20,
)


@given(st.lists(rows_of_an_hour, max_size=5))
@settings(max_examples=50, deadline=None)
def test_the_sum_of_the_hours_is_the_hour_of_all(by_hour: list[list[Any]]) -> None:
    """Counts, tokens, cost and every histogram, exactly."""
    one = close_hour([row for rows in by_hour for row in rows], ["late"] * len(by_hour))
    total = merged(close_hour(rows, ["late"]) for rows in by_hour)
    assert total.times.keys() == one.times.keys()
    for name, counts in one.times.items():
        assert (total.times[name] == counts).all()
    one.times = total.times = {}
    assert total == one


def test_an_hour_counts_every_slot_in_one_place() -> None:
    """Good, bad and beside the ratio; excluded; skipped."""
    raw = [
        raw_row(ttft_s=0.1, cost=0.5, prompt_tokens=3),
        raw_row(excluded="tainted", ttft_s=9.0, cost=0.5),
        *(raw_row(o, ttft_s=5.0) for o in ("http_5xx", "http_5xx", "http_rate_limited")),
        *(raw_row(o) for o in ("http_auth", "aborted")),
    ]
    hour = close_hour(raw, ["budget", "budget", "late"])
    assert (hour.scheduled, hour.good, hour.bad, hour.rate_limited) == (10, 1, 2, 1)
    assert (hour.misconfigured, hour.neutral) == (1, 1)
    assert hour.excluded == {"tainted": 1}
    assert hour.skips == {"budget": 2, "late": 1}
    assert "ok" not in hour.outcomes
    assert sum(hour.outcomes.values()) + hour.good + 1 + 3 == hour.scheduled
    assert (hour.cost, hour.prompt_tokens) == (1.0, 3)
    assert hour.times.keys() == {"ttft"}, "of ok results that count"
    assert hour.times["ttft"].sum() == 1


def test_minutes_are_packed_small() -> None:
    """An hour at one result a minute in under fifty bytes."""
    raw = [raw_row(slot_at=DAY + 60 * n + 7, outcome="ok") for n in range(60)]
    packed = pack_minutes(DAY, raw, [DAY + 3599.9])
    assert len(packed) < 50
    assert unpack_minutes(packed).sum(axis=1).tolist() == [1] * 59 + [2]


def put(store: Store, seqs: Sequence[int], *, boot: str = "b", every: float = 600.0) -> None:
    """Queue results `every` seconds from `DAY` on; each tenth fails, each seventh is slow."""
    for seq in seqs:
        outcome = Outcome.HTTP_5XX if seq % 10 == 9 else Outcome.OK
        times: dict[str, Any] = {"ttft_s": 0.1 + 0.01 * (seq % 7), "e2e_s": 1.0, "cost": 0.25}
        row = result_row(seq, DAY + seq * every, outcome, **times)
        store.put_result(row, boot=boot, site="here")


async def content(store: Store) -> dict[str, list[Any]]:
    """Everything that was rolled up."""
    found = {}
    async with store._engine.connect() as connection:
        for table in (hours, days, minutes, open_hours):
            asked = select(table).order_by(*table.primary_key)
            found[table.name] = [tuple(row) for row in await connection.execute(asked)]
    return found


async def test_rolling_up_twice_is_rolling_up_once(store_url: str) -> None:
    """And three ways there end in the same rows."""
    store = await Store.open(store_url)
    put(store, range(300))
    await store.flush()
    assert await store.roll_up(NOW)
    once = await content(store)
    assert (len(once["hours"]), len(once["days"]), len(once["open_hours"])) == (50, 3, 0)
    assert await store.roll_up(NOW)
    assert await content(store) == once
    async with store._write_engine.begin() as connection:  # as after a crash: all listed again
        keys = select(hours.c.start_at, hours.c.endpoint, hours.c.workload, hours.c.site)
        await connection.execute(open_hours.insert().from_select(list(open_hours.c.keys()), keys))
    assert await store.roll_up(NOW)
    assert await content(store) == once
    await store.close()


@pytest.mark.parametrize("order", ["late", "backwards", "hour by hour"])
async def test_rows_may_come_in_any_order(store_url: str, order: str, tmp_path: Path) -> None:
    """A late row opens its hour again, and the running sums of later days follow."""
    store = await Store.open(store_url)
    seqs = list(range(400))
    first = {"late": [s for s in seqs if s % 5], "backwards": seqs[300:], "hour by hour": seqs[:6]}
    put(store, first[order])
    await store.flush()
    assert await store.roll_up(NOW)
    rest = [seq for seq in seqs if seq not in first[order]]
    size = 6 if order == "hour by hour" else 60
    parts = [rest[at : at + size] for at in range(0, len(rest), size)]
    for part in reversed(parts) if order == "backwards" else parts:
        put(store, part)
        await store.flush()
        assert await store.roll_up(NOW)
    other = await Store.open(f"sqlite:///{tmp_path}/other.db")
    put(other, seqs)
    await other.flush()
    assert await other.roll_up(NOW)
    assert await content(store) == await content(other)
    await store.close()
    await other.close()


async def test_a_day_is_the_sum_of_its_hours_and_a_running_sum(store_url: str) -> None:
    """Of all days of its block so far, so that a stretch of days is one subtraction."""
    store = await Store.open(store_url)
    put(store, range(36 * 6 + 2), every=14_400.0)  # into a second block
    await store.flush()
    while not await store.roll_up(NOW + 40 * DAY_S):
        pass
    async with store._engine.connect() as connection:
        rows = (await connection.execute(select(days).order_by(days.c.start_at))).all()
    own = await store.daily(DAY, NOW + 40 * DAY_S)
    assert [span.scheduled for span in own] == [6] * 36 + [2]
    good = [span.good for span in own]
    sums = [*np.cumsum(good[:32]), *np.cumsum(good[32:])]
    assert [row.good for row in rows] == sums
    assert [int(decode_counts(row.ttft).sum()) for row in rows] == sums
    await store.close()


async def test_an_hour_is_closed_after_its_end_and_not_before(store_url: str) -> None:
    """Nor one in the future, which a clock gone wrong may leave."""
    store = await Store.open(store_url)
    put(store, [0, 1, 6, 7, 10_000])
    await store.flush()
    assert await store.roll_up(DAY + HOUR_S + 100)
    assert len((await content(store))["hours"]) == 0
    assert await store.roll_up(DAY + HOUR_S + 130)
    rolled = await content(store)
    assert [row[0] for row in rolled["hours"]] == [DAY]
    assert len(rolled["open_hours"]) == 2
    await store.close()


async def test_after_a_gap_the_oldest_hours_come_first_in_bounded_turns(store_url: str) -> None:
    """A call without time does one transaction; what it did is done."""
    store = await Store.open(store_url)
    put(store, range(144 * 4))
    await store.flush()
    turns = 0
    while not await store.roll_up(DAY + 30 * DAY_S, budget_s=0.0):
        turns += 1
        rolled = await content(store)
        closed, left = ([row[0] for row in rolled[name]] for name in ("hours", "open_hours"))
        assert not left or max(closed) < min(left)
        assert len(closed) + len(left) == 96
    assert turns == 96 / 6
    await store.close()


async def test_an_hour_that_lost_its_raw_results_is_kept_as_it_was(store_url: str) -> None:
    """A row that comes a month late must not replace what was made of all of them."""
    store = await Store.open(store_url)
    put(store, range(144))
    await store.flush()
    late = DAY + 30 * DAY_S
    assert await store.roll_up(late)
    before = await content(store)
    assert await store.maintain(late) > 0
    put(store, [3, 4], boot="late")
    await store.flush()
    assert await store.roll_up(late)
    assert await content(store) == before
    await store.close()


async def test_results_no_hour_knows_of_are_not_deleted(store_url: str) -> None:
    """After a month's gap the hours are closed first."""
    store = await Store.open(store_url)
    put(store, range(50))
    await store.flush()
    assert await store.maintain(DAY + 30 * DAY_S) == 0
    assert await store.roll_up(DAY + 30 * DAY_S)
    assert await store.maintain(DAY + 30 * DAY_S) > 0
    await store.close()


async def test_skips_open_an_hour_too(store_url: str) -> None:
    """An hour of nothing but skips is an hour without coverage, not without a row."""
    store = await Store.open(store_url)
    row = skip_row(1, DAY + 5, Skip.BUDGET)
    store.put_skip(row, boot="b", site="here", endpoint="a", workload="chat")
    await store.flush()
    assert await store.roll_up(NOW)
    summary = await store.window(PROBE, DAY, DAY + DAY_S)
    assert summary is not None
    assert (summary.scheduled, summary.coverage, summary.availability) == (1, 0.0, None)
    assert summary.skips == {"budget": 1}
    await store.close()


async def test_rolling_up_and_writing_do_not_stop_each_other(store_url: str) -> None:
    """Nor do two monitors on one database close an hour twice or lose a row."""
    store = await Store.open(store_url, every=0.001)
    other = await Store.open(store_url)
    for at in range(0, 600, 20):
        put(store, range(at, at + 20))
        await asyncio.gather(store.flush(), store.roll_up(NOW + DAY_S), other.roll_up(NOW + DAY_S))
    await asyncio.gather(store.roll_up(NOW + 3 * DAY_S), other.roll_up(NOW + 3 * DAY_S))
    async with store._engine.connect() as connection:
        assert (await connection.execute(select(func.sum(hours.c.scheduled)))).scalar() == 600
    assert sum(day.scheduled for day in await store.daily(DAY, NOW + 9 * DAY_S)) == 600
    assert (store.dropped, other.dropped) == (0, 0)
    await store.close()
    await other.close()


async def test_a_database_of_the_first_revision_is_brought_up_with_its_rows(
    store_url: str,
) -> None:
    """Its last 13 days are closed from the results that are there."""
    store = await Store.open(store_url)
    put(store, range(300))
    put(store, [-144 * 20])
    await store.flush()
    await store.close()
    engine = await open_engine(store_url)

    def down(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")

    async with writing(engine).begin() as connection:
        await connection.run_sync(down)
        left = await connection.execute(text("SELECT count(*) FROM results"))
        assert left.scalar() == 301
    await engine.dispose()
    store = await Store.open(store_url)
    assert await store.roll_up(NOW)
    assert [row.scheduled for row in await store.daily(DAY - 30 * DAY_S, NOW)] == [144, 144, 12]
    await store.close()


async def test_a_kill_between_two_hours_loses_and_doubles_nothing(
    tmp_path: Path, sqlite_url: str
) -> None:
    """The file as it was after each transaction, opened anew and rolled up to its end."""
    store = await Store.open(sqlite_url)
    put(store, range(144))
    await store.flush()
    done = False
    while not done:
        done = await store.roll_up(NOW, budget_s=0.0)
        copy = tmp_path / "copy.db"
        copy.unlink(missing_ok=True)
        with (
            closing(sqlite3.connect(tmp_path / "store.db")) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        again = await Store.open(f"sqlite:///{copy}")
        assert await again.roll_up(NOW)
        (day,) = await again.daily(DAY, NOW)
        assert (day.scheduled, day.good) == (144, 130)
        await again.close()
    await store.close()
