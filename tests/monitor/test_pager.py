from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from monitor import pager as pager_module
from monitor.alerts import ProbeState, advance
from monitor.config import Config, load
from monitor.link import Skip
from monitor.operate import add_silence
from monitor.pager import Looks, Pager, firing_counts
from monitor.store import Store
from probes.result import Excluded, Outcome
from tests.monitor.notify.receiver import Receiver, serving

GOOD, BAD, DNS = Outcome.OK, Outcome.HTTP_5XX, Outcome.DNS


class Page:
    """A pager over made-up results of one workload of each endpoint."""

    def __init__(self, pager: Pager, config: Config) -> None:
        self.pager = pager
        self.states = {plan.id: ProbeState(since=time.time()) for plan in config.probes}

    def see(self, probe: str, outcome: Outcome) -> Excluded | None:
        now = time.time()
        self.pager.heard(probe, outcome, now)
        excluded = self.pager.excluded(outcome)
        self.states[probe] = advance(self.states[probe], outcome, excluded, now)
        self.pager.result(probe, self.look(probe))
        return excluded

    def look(self, probe: str) -> Looks:
        return Looks(state=self.states[probe], day=lambda: (100, 97))

    def looks(self) -> Iterator[tuple[str, Looks]]:
        return ((probe, self.look(probe)) for probe in self.states)


def config_of(tmp_path: Path, endpoints: int = 1, text: str = "") -> Config:
    names = "".join(f"  e{n}: {{url: http://h{n}, model: m}}\n" for n in range(endpoints))
    path = tmp_path / "m.yaml"
    path.write_text(f"endpoints:\n{names}workloads: {{chat: {{interval: 15s}}}}\n{text}")
    return load(path, {})


@asynccontextmanager
async def paging(config: Config) -> AsyncIterator[Page]:
    store = await Store.open(config.store_url)
    pager = Pager(config, store.alerting(config.site), "http://page", store.put_event)
    await pager.load()
    pager.restored = True
    page = Page(pager, config)
    task = asyncio.create_task(pager.run(page.looks))
    try:
        yield page
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


async def until(done: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_three_bad_results_are_a_page_at_the_receiver(tmp_path: Path) -> None:
    async with serving(Receiver()) as hook:
        config = config_of(
            tmp_path, text=f"notify: {{ops: {{type: webhook, url: '{hook.url}'}}}}\n"
        )
        async with paging(config) as page:
            for outcome in (GOOD, BAD, BAD, BAD):
                page.see("e0/chat", outcome)
            await until(lambda: hook.bodies)
            assert "3 bad results in a row. 97 of 100" in hook.bodies[0]["text"]
            assert firing_counts(page.pager.book) == {("Down", "page"): 1}
    with closing(sqlite3.connect(config.store_url.removeprefix("sqlite:///"))) as database:
        ((kind, detail),) = database.execute("select kind, detail from events").fetchall()
    assert (kind, json.loads(detail)["alerts"]) == ("alert_firing", ["Down/e0/chat"])


async def test_a_page_goes_out_although_the_database_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is recorded when it is free again, with the same key; it is sent once."""
    monkeypatch.setattr(pager_module, "WITHOUT_STORE_S", 0.5)
    async with serving(Receiver()) as hook:
        config = config_of(
            tmp_path, text=f"notify: {{ops: {{type: webhook, url: '{hook.url}'}}}}\n"
        )
        database = config.store_url.removeprefix("sqlite:///")
        async with paging(config) as page:
            with closing(sqlite3.connect(database, isolation_level=None)) as other:
                other.execute("begin exclusive")
                for outcome in (BAD, BAD, BAD):
                    page.see("e0/chat", outcome)
                await until(lambda: hook.bodies)
                other.execute("rollback")
                await until(lambda: not page.pager.outbox._unmarked)
                await asyncio.sleep(0.3)
                rows = other.execute("select key, done_at is not null from outbox").fetchall()
            assert rows == [(hook.keys[0], 1)]
            assert len(hook.keys) == 1


async def test_references_that_do_not_answer_make_the_monitor_blind(tmp_path: Path) -> None:
    """One failing probe is enough then; its failures are unknown and page nobody."""
    config = config_of(tmp_path, text="references: ['a.invalid:443', 'b.invalid:443']\n")
    async with paging(config) as page:
        page.see("e0/chat", GOOD)
        assert page.see("e0/chat", DNS) is None  # nobody could know yet
        await until(lambda: page.pager.excluded(DNS))
        for _ in range(3):
            assert page.see("e0/chat", DNS) is Excluded.UNKNOWN
        await until(lambda: firing_counts(page.pager.book) == {("MonitorBlind", "page"): 1})
        page.see("e0/chat", GOOD)
        await until(lambda: not firing_counts(page.pager.book))


async def test_a_reference_that_refuses_has_answered(tmp_path: Path) -> None:
    config = config_of(tmp_path, text="references: ['127.0.0.1:1', 'b.invalid:443']\n")
    async with paging(config) as page:
        page.see("e0/chat", DNS)
        await until(lambda: page.pager._references)
        assert page.pager.excluded(DNS) is None


async def test_a_silence_by_another_process_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager_module, "SILENCES_S", 0.05)
    async with serving(Receiver()) as hook:
        config = config_of(
            tmp_path, text=f"notify: {{ops: {{type: webhook, url: '{hook.url}'}}}}\n"
        )
        async with paging(config) as page:
            await add_silence(config, {"endpoint": "e0"}, 60, "")
            await until(lambda: page.pager._silences)
            for outcome in (BAD, BAD, BAD):
                page.see("e0/chat", outcome)
            await asyncio.sleep(0.3)
            assert hook.bodies == []
            assert firing_counts(page.pager.book) == {("Down", "page"): 1}


async def test_with_prometheus_as_the_sender_we_send_nothing(tmp_path: Path) -> None:
    """Two senders would page twice; the page shows what fires all the same."""
    text = "alerting: prometheus\nnotify: {ops: {type: webhook, url: 'http://127.0.0.1:1'}}\n"
    async with paging(config_of(tmp_path, text=text)) as page:
        for outcome in (BAD, BAD, BAD):
            page.see("e0/chat", outcome)
        assert firing_counts(page.pager.book) == {("Down", "page"): 1}
        await asyncio.sleep(0.2)
        assert page.pager.outbox.waiting == 0


async def test_a_spent_budget_is_an_alert_until_the_next_result(tmp_path: Path) -> None:
    async with paging(config_of(tmp_path)) as page:
        page.see("e0/chat", GOOD)
        page.pager.skipped("e0/chat", Skip.BUDGET)
        page.pager.tick(page.looks())
        assert firing_counts(page.pager.book) == {("BudgetExhausted", "ticket"): 1}
        page.see("e0/chat", GOOD)
        assert firing_counts(page.pager.book) == {}


async def test_five_hundred_probes_cost_a_small_part_of_a_core(tmp_path: Path) -> None:
    config = config_of(tmp_path, 500)
    store = await Store.open(config.store_url)
    pager = Pager(config, store.alerting(config.site), "")
    pager.restored = True
    page = Page(pager, config)
    for probe in page.states:
        page.see(probe, GOOD)
        page.see(probe, GOOD)
    took = []
    for _ in range(10):
        began = time.process_time()
        pager.tick(page.looks())
        took.append(time.process_time() - began)
    await store.close()
    assert min(took) < 0.05  # of each second; 0.01 measured on two busy cores
