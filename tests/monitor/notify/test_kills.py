from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
from contextlib import closing

import pytest

from tests.monitor.notify.receiver import Receiver, serving

KILLS = 100


@pytest.mark.slow
async def test_a_hundred_kills_lose_no_notice_and_double_none_under_a_new_key(
    sqlite_url: str,
) -> None:
    """CASES M53: between write and send, and after send before ack; each life goes on."""
    async with serving(Receiver(delay=0.004)) as hook:
        command = [sys.executable, "-m", "tests.monitor.notify.crasher", sqlite_url, hook.url]
        crasher = await asyncio.create_subprocess_exec(*command, str(KILLS))
        assert await asyncio.wait_for(crasher.wait(), 120) == 0
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        rows = database.execute("select key, incident, done_at from outbox order by id").fetchall()
        left = database.execute("select count(*) from alert_states where name like 'incident/%'")
        assert left.fetchone() == (0,)
    stored = [key for key, _, _ in rows]
    first_seen = list(dict.fromkeys(hook.keys))
    assert first_seen == stored  # none lost, none unknown, and in order
    assert all(done for _, _, done in rows)
    by_incident: dict[str, list[str]] = {}
    for body in {body["key"]: body for body in hook.bodies}.values():
        by_incident.setdefault(body["incident"], []).append(body["kind"])
    assert set(map(tuple, by_incident.values())) == {("firing", "resolved")}
    assert len(stored) > KILLS / 2
    doubled = len(hook.keys) - len(first_seen)
    logging.getLogger(__name__).info("notices=%d again=%d", len(stored), doubled)
    assert doubled > 0  # some were killed between send and mark, or nothing was shown
