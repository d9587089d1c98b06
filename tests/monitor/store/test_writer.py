from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from monitor.store import Store
from monitor.store.engine import parse_url
from tests.monitor.rows import result_row


def put(store: Store, *seqs: int) -> None:
    for seq in seqs:
        store.put_result(result_row(seq, float(seq)), boot="b", site="here")


async def stored(store: Store) -> int:
    return sum((await store.counts()).values())


async def test_a_locked_database_loses_nothing_and_blocks_nobody(
    tmp_path: Path, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """uptime-kuma#3130: there, monitors stop. Here rows wait, and the trouble is said once."""
    store = await Store.open(sqlite_url, every=0.01)
    put(store, 0)
    await store.flush()
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        slowest = 0.0
        for seq in range(1, 300):
            before = time.monotonic()
            put(store, seq)
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - before)
        assert store.queue_length == 299
        assert store.problem is not None
        assert "database is locked" in store.problem
        assert slowest < 0.9  # a blocked loop would wait for the whole busy timeout
        other.execute("ROLLBACK")
    await asyncio.wait_for(store.flush(), 10)
    assert store.problem is None
    assert store.dropped == 0
    assert await stored(store) == 300
    assert caplog.text.count("store cannot write") == 1
    assert caplog.text.count("store writes again") == 1
    await store.close()


async def test_closing_does_not_wait_for_ever_on_a_locked_database(
    tmp_path: Path, sqlite_url: str
) -> None:
    """SIGTERM ends the program in time; what is lost is counted."""
    store = await Store.open(sqlite_url, every=0.01)
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        put(store, 1, 2, 3)
        before = time.monotonic()
        assert await store.close(within=0.3) == 3
        assert time.monotonic() - before < 5


async def test_a_connection_cut_by_the_server_loses_and_doubles_nothing(
    postgres_url: str,
) -> None:
    """The batch is written again by whoever the pool connects next."""
    store = await Store.open(postgres_url, every=0.01)
    admin = create_async_engine(parse_url(postgres_url))
    cut = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for seq in range(0, 2000, 50):
        put(store, *range(seq, seq + 50))
        async with admin.begin() as connection:
            await connection.execute(cut)
        await asyncio.sleep(0.01)
    await asyncio.wait_for(store.flush(), 20)
    assert await stored(store) == 2000
    assert store.dropped == 0
    await admin.dispose()
    await store.close()


_KILLED = """
import asyncio, sys
from monitor.store import Store
from tests.monitor.rows import result_row

async def main():
    store = await Store.open(sys.argv[1], every=0.001)
    seq = 0
    while True:
        for _ in range(7):
            seq += 1
            store.put_result(result_row(seq, float(seq)), boot="b", site="here")
        await store.flush()
        print(seq, flush=True)

asyncio.run(main())
"""


def _write_until_killed(url: str, acknowledged: int) -> int:
    """Return the last row of which the killed process knew that it was flushed."""
    command = [sys.executable, "-c", _KILLED, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acknowledged)]
        writer.kill()
        lines += writer.stdout.read().splitlines(keepends=True)
    return max(int(line) for line in lines if line.endswith("\n"))


@pytest.mark.parametrize("acknowledged", [1, 20])
async def test_kill_9_loses_nothing_that_was_flushed(
    sqlite_url: str, tmp_path: Path, acknowledged: int
) -> None:
    """And leaves a sound file."""
    flushed = await asyncio.to_thread(_write_until_killed, sqlite_url, acknowledged)
    store = await Store.open(sqlite_url)
    assert await stored(store) >= flushed
    await store.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
