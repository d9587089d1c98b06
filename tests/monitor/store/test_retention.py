from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from monitor.link import Skip
from monitor.store import Store
from monitor.store.retention import DAY_S
from probes.result import Outcome
from tests.monitor.rows import result_row, skip_row

BAD = Outcome.HTTP_5XX
NOW = 1000 * DAY_S


async def kept(store: Store) -> list[float]:
    """Days before now of what is left."""
    return [round((NOW - slot.at) / DAY_S, 3) async for _, slot in store.recent(0.0)]


def put(store: Store, *ages: tuple[float, Outcome], endpoint: str = "a") -> None:
    for seq, (age, outcome) in enumerate(ages):
        row = result_row(seq, NOW - age * DAY_S, outcome, endpoint=endpoint)
        store.put_result(row, boot=endpoint, site="here")


async def test_plain_ok_results_go_after_a_fortnight(store_url: str) -> None:
    """Younger ones stay."""
    store = await Store.open(store_url)
    put(store, (20, Outcome.OK), (15, Outcome.OK), (13, Outcome.OK), (1, Outcome.OK))
    await store.flush()
    assert await store.roll_up(NOW)
    assert await store.maintain(NOW) == 2
    assert await kept(store) == [13, 1]
    assert await store.maintain(NOW) == 0
    await store.close()


async def test_errors_and_their_neighbours_stay_four_hundred_days(store_url: str) -> None:
    """An outage is read with its edges; another probe's results are no neighbours."""
    store = await Store.open(store_url)
    good = [(float(age), Outcome.OK) for age in (300, 299, 298, 296, 295, 294)]
    put(store, *good, (297.0, BAD), (401.0, BAD), (402.0, Outcome.OK), (399.0, Outcome.OK))
    put(store, (297.5, Outcome.OK), (296.5, Outcome.OK), endpoint="b")
    await store.flush()
    assert await store.roll_up(NOW)
    await store.maintain(NOW)
    assert await kept(store) == [298, 297, 296]
    assert await store.maintain(NOW) == 0
    await store.close()


async def test_pruning_in_small_batches_leaves_the_same(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a batch deletes must not make new neighbours for the next."""
    monkeypatch.setattr("monitor.store.retention._BATCH", 3)
    store = await Store.open(store_url)
    outcomes = [BAD if i in (7, 8, 20) else Outcome.OK for i in range(40)]
    put(store, *((100 - i, outcome) for i, outcome in enumerate(outcomes)))
    await store.flush()
    assert await store.roll_up(NOW)
    await store.maintain(NOW)
    assert await kept(store) == [100 - i for i in (6, 7, 8, 9, 19, 20, 21)]
    await store.close()


async def test_skips_go_with_raw_results_and_events_stay(store_url: str) -> None:
    """A skip has no details worth a year."""
    store = await Store.open(store_url)
    for seq, age in enumerate((20, 1)):
        row = skip_row(seq, NOW - age * DAY_S, Skip.LATE)
        store.put_skip(row, boot="b", site="here", endpoint="a", workload="chat")
        store.put_event(NOW - age * DAY_S, "x")
    await store.flush()
    assert await store.roll_up(NOW)
    assert await store.maintain(NOW) == 1
    assert await kept(store) == [1]
    await store.close()


async def test_the_file_shrinks_when_less_is_kept(tmp_path: Path, sqlite_url: str) -> None:
    """uptime-kuma#1994: there, it never does."""
    store = await Store.open(sqlite_url)
    for seq in range(5000):
        row = result_row(seq, NOW - 20 * DAY_S + seq, error_excerpt="x" * 200)
        store.put_result(row, boot="b", site="here")
    await store.close()
    before = (tmp_path / "store.db").stat().st_size
    store = await Store.open(sqlite_url)
    assert await store.roll_up(NOW)
    assert await store.maintain(NOW) == 5000
    await store.close()
    assert (tmp_path / "store.db").stat().st_size < before / 10
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
