"""Alerting at work in a process that is killed at random, again and again.

Run as `python -m tests.monitor.notify.crasher STORE_URL WEBHOOK_URL KILLS`: imports once, forks a
worker for every life, kills it, and lets the last one finish.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from itertools import count

from monitor.alerting import Facts, decide, firing
from monitor.alerts import ProbeState
from monitor.conditions import ProbeFact
from monitor.config import Channel
from monitor.notify import About, Outbox
from monitor.status import State
from monitor.store import Store


def fact(endpoint: str, *, bad: bool) -> ProbeFact:
    now = time.time()
    state = ProbeState(
        since=now,
        state=State.DOWN,
        valid_at=now,
        heard_at=now,
        streak_since=now,
        bad_streak=3 * bad,
        good_streak=2 * (not bad),
    )
    return ProbeFact(endpoint=endpoint, workload="chat", interval=15.0, state=state)


async def live(store_url: str, webhook: str, ready: int, *, last: bool) -> None:
    """Resolve what an earlier life left firing, then fire and resolve new alerts for ever."""
    store = await Store.open(store_url)
    alerts = store.alerting("local")
    book = await alerts.load()
    channel = Channel(name="ops", type="webhook", url=webhook)
    outbox = Outbox([channel], alerts, About(), first_pause=0.01)
    outbox.put(await alerts.waiting())
    delivering = asyncio.create_task(outbox.run())
    os.write(ready, b"1")
    todo = [(state.alert.endpoint, False) for state in firing(book)]
    if not last:
        names = (f"e{time.time_ns()}-{n}" for n in count())
        todo += [(name, bad) for name, _ in zip(names, range(1000), strict=False)
                 for bad in (True, False)]  # fmt: skip
    for endpoint, bad in todo:
        book, notices = decide(book, Facts(probes=(fact(endpoint, bad=bad),)), time.time())
        letters = outbox.letters(notices)
        await alerts.save(book, letters)
        outbox.put(letters)
        await asyncio.sleep(random.uniform(0, 0.02))
    while outbox.waiting or outbox._unmarked:  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.01)
    delivering.cancel()
    await store.close()


async def make(store_url: str) -> None:
    await (await Store.open(store_url)).close()


def main(store_url: str, webhook: str, kills: int) -> None:
    asyncio.run(make(store_url))
    for life in range(kills + 1):
        last = life == kills
        watch, ready = os.pipe()
        child = os.fork()
        if child == 0:
            asyncio.run(live(store_url, webhook, ready, last=last))
            os._exit(0)
        if not last:
            if life % 10:  # every tenth is killed on its way up
                os.read(watch, 1)
            time.sleep(random.uniform(0.0, 0.08))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(watch)
        os.close(ready)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
