from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import select

from monitor.history import Slot, slot_of
from monitor.link import Skip
from monitor.store import Store, StoreError
from monitor.store.tables import events, results, skips
from probes.result import Excluded, Itl, Outcome, Phases, ProbeResult
from tests.monitor.rows import FULL, result_row, skip_row

BAD = Outcome.HTTP_5XX


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await Store.open(store_url)
    yield opened
    assert await opened.close() == 0


async def rows(store: Store, table: Any) -> list[dict[str, Any]]:
    async with store._engine.connect() as connection:
        found = await connection.execute(select(table).order_by(table.c.id))
        return [dict(row) for row in found.mappings()]


def put(store: Store, *all_rows: Any, boot: str = "b") -> None:
    for row in all_rows:
        store.put_result(row, boot=boot, site="here")


async def test_a_result_comes_back_as_it_went_in(store: Store) -> None:
    """Every field has a column of its own; times keep their microseconds."""
    row = result_row(7, 1_796_083_200.123456, **FULL)
    put(store, row)
    await store.flush()
    (stored,) = await rows(store, results)
    assert stored["uid"] == "b:7"
    assert stored["site"] == "here"
    assert stored["probe"] == "a/chat"
    assert stored["slot_at"] == 1_796_083_200.123456
    assert stored["excluded"] == "tainted"
    assert stored["steps"] == [{"name": "search", "e2e_s": 0.5}]
    assert stored["flags"] == ["burst", "late_usage"]
    assert stored["server_metrics"] == {"queue": 0.5}
    phases, itl = row.result.phases, row.result.itl
    assert isinstance(itl, Itl)
    assert all(stored[f"{f.name}_s"] == getattr(phases, f.name) for f in fields(Phases))
    assert (stored["itl_n"], stored["itl_p50_s"]) == (itl.n, itl.p50)
    assert (stored["itl_p99_s"], stored["itl_max_s"]) == (itl.p99, itl.max)
    elsewhere = {"phases", "itl", "content", "flags", "server_metrics", "steps"}
    for name in {f.name for f in fields(ProbeResult)} - elsewhere:
        assert stored[name] == getattr(row.result, name), name


async def test_what_was_not_measured_is_null_and_not_zero(store: Store) -> None:
    """Absent is not 0."""
    put(store, result_row(1, outcome=Outcome.CONNECT, server_metrics={"t": math.nan}))
    await store.flush()
    (stored,) = await rows(store, results)
    absent = ("ttft_s", "e2e_s", "dns_s", "itl_n", "flags", "steps", "cost", "excluded")
    assert [stored[name] for name in absent] == [None] * len(absent)
    assert stored["server_metrics"] == {"t": None}


async def test_an_exclusion_by_the_parent_overrides_the_result(store: Store) -> None:
    """Only the parent knows that our own network was down."""
    store.put_result(result_row(outcome=BAD), boot="b", site="x", excluded=Excluded.UNKNOWN)
    await store.flush()
    assert (await rows(store, results))[0]["excluded"] == "unknown"


async def test_the_same_row_twice_is_stored_once(store: Store) -> None:
    """A batch written again after a broken connection adds nothing."""
    put(store, result_row(1), result_row(2), result_row(1))
    await store.flush()
    put(store, result_row(2), result_row(3))
    put(store, result_row(1), boot="another")
    await store.flush()
    assert [row["uid"] for row in await rows(store, results)] == ["b:1", "b:2", "b:3", "another:1"]


async def test_skips_and_events_are_kept_too(store: Store) -> None:
    """A slot without a result is data."""
    store.put_skip(
        skip_row(4, 5.0, Skip.BUDGET), boot="b", site="here", endpoint="a", workload="chat"
    )
    store.put_event(9.0, "prober_restarted", {"pid": 3})
    await store.flush()
    (skip,) = await rows(store, skips)
    assert (skip["uid"], skip["slot_at"], skip["reason"]) == ("b:4", 5.0, "budget")
    assert (skip["endpoint"], skip["workload"], skip["site"]) == ("a", "chat", "here")
    (event,) = await rows(store, events)
    assert (event["at"], event["kind"], event["detail"]) == (9.0, "prober_restarted", {"pid": 3})


async def test_hostile_text_is_stored_without_its_nul(store: Store) -> None:
    """PostgreSQL refuses NUL; a server that sends one must not stop the store."""
    put(store, result_row(1, served_model="a\0b", reason="'); DROP TABLE results; --"))
    await store.flush()
    (stored,) = await rows(store, results)
    assert stored["served_model"] == "ab"
    assert stored["reason"] == "'); DROP TABLE results; --"
    assert store.dropped == 0


async def test_a_row_that_the_database_refuses_does_not_hold_up_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It is dropped, counted and logged without its values."""
    bad = result_row(2, chunks=1 << 70, error_excerpt="secret text")
    put(store, result_row(1), bad, result_row(3))
    await store.flush()
    assert [row["uid"] for row in await rows(store, results)] == ["b:1", "b:3"]
    assert store.dropped == 1
    assert store.problem is None
    assert "refuses a row" in caplog.text
    assert "secret text" not in caplog.text


async def test_recent_yields_what_the_history_needs(store: Store) -> None:
    """The refilled history equals the one that lived through it."""
    put(
        store,
        result_row(1, 100.0),
        result_row(2, 300.0, BAD, reason="500", tainted=True),
        result_row(3, 200.0, ttft_s=0.1, tpot_s=0.2, e2e_s=0.3, endpoint="z"),
    )
    store.put_skip(skip_row(4, 250.0), boot="b", site="here", endpoint="a", workload="chat")
    await store.flush()
    assert [found async for found in store.recent(200.0)] == [
        ("z/chat", slot_of(result_row(3, 200.0, ttft_s=0.1, tpot_s=0.2, e2e_s=0.3))),
        ("a/chat", slot_of(result_row(2, 300.0, BAD, reason="500", tainted=True))),
        ("a/chat", Slot(at=250.0, skip=Skip.OVERLAP)),
    ]
    assert [found async for found in store.recent(0.0, site="elsewhere")] == []


async def test_recent_turns_pages_without_losing_rows_of_one_instant(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots at the same moment may lie on both sides of a page's edge."""
    monkeypatch.setattr("monitor.store.store._PAGE", 3)
    put(store, *(result_row(i, float(i // 5)) for i in range(14)))
    await store.flush()
    assert [slot.at async for _, slot in store.recent(0.0)] == [float(i // 5) for i in range(14)]


async def test_counts_are_by_endpoint_workload_and_outcome(store: Store) -> None:
    """From a moment on."""
    put(store, result_row(1, 1.0), result_row(2, 2.0), result_row(3, 3.0, BAD))
    put(store, result_row(4, 3.0, endpoint="b", workload="models"))
    await store.flush()
    assert await store.counts() == {
        ("a", "chat", Outcome.OK): 2,
        ("a", "chat", BAD): 1,
        ("b", "models", Outcome.OK): 1,
    }
    assert await store.counts(since=3.0) == {
        ("a", "chat", BAD): 1,
        ("b", "models", Outcome.OK): 1,
    }


async def test_last_errors_are_the_newest_first(store: Store) -> None:
    """With what a ticket at the vendor needs."""
    put(store, *(result_row(i, float(i), BAD, request_id=f"r{i}") for i in range(1, 5)))
    put(store, result_row(9, 9.0), result_row(10, 10.0, Outcome.DNS, endpoint="z"))
    await store.flush()
    newest = await store.last_errors(2)
    assert [(e.endpoint, e.outcome, e.slot_at) for e in newest] == [
        ("z", Outcome.DNS, 10.0),
        ("a", BAD, 4.0),
    ]
    assert [e.request_id for e in await store.last_errors(endpoint="a")] == [
        "r4",
        "r3",
        "r2",
        "r1",
    ]


async def test_a_question_to_a_broken_database_is_an_error_of_ours(store: Store) -> None:
    """Nobody outside this package knows what SQLAlchemy raises."""
    async with store._write_engine.begin() as connection:
        await connection.run_sync(results.drop)
    for question in (store.counts(), store.last_errors(), store.maintain(1e9)):
        with pytest.raises(StoreError, match=r"^store .*results"):
            await question
    with pytest.raises(StoreError):
        _ = [row async for row in store.recent(0.0)]


async def test_rows_are_committed_without_anybody_asking(store: Store) -> None:
    """At most 0.2 s after they came."""
    put(store, result_row(1))
    assert store.queue_length == 1
    await asyncio.wait_for(store._writer._empty.wait(), 5)
    assert len(await rows(store, results)) == 1


async def test_a_full_queue_drops_and_counts(store_url: str) -> None:
    """Memory is bounded, and loss is never silent."""
    store = await Store.open(store_url, bound=3, every=60.0)
    put(store, *(result_row(i) for i in range(5)))
    assert (store.queue_length, store.dropped) == (3, 2)
    await store.flush()
    assert store.queue_length == 0
    put(store, result_row(9))
    assert await store.close() == 0


async def test_closing_commits_what_is_queued(store_url: str) -> None:
    """A stop is not a loss: SIGTERM ends in `close`."""
    store = await Store.open(store_url, every=60.0)
    put(store, *(result_row(i) for i in range(2500)))
    assert await store.close() == 0
    store = await Store.open(store_url)
    assert sum((await store.counts()).values()) == 2500
    await store.close()
    put(store, result_row(1))
    assert (store.queue_length, store.dropped) == (0, 1)
