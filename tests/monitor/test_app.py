"""The parent in one process: what it makes of rows, its health, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from monitor import app, prober
from monitor.app import Monitor, Probe, StartError
from monitor.config import Config, load
from monitor.history import Slot
from monitor.link import ProbePlan, Skip
from monitor.status import State
from monitor.store import StoreError
from monitor.supervise import Child
from probes import Endpoint, Outcome, ProbeResult, Workload
from probes.workload import Limits
from tests.monitor.rows import result_row, skip_row

CONFIG = """
endpoints:
  a: {{url: "http://127.0.0.1:9/v1", model: m}}
workloads:
  stuck: {{kind: chat, interval: 200ms, limits: {limits}}}
  chat: {{kind: chat, interval: 200ms, limits: {limits}}}
"""
LIMITS = "{connect: 100ms, ttft: 100ms, stall: 100ms, total: 200ms}"


class InProcess:
    """A child whose prober runs in the test's own loop; its process only waits."""

    def __init__(self) -> None:
        self.boot, self.started = "boot", time.monotonic()
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.serving = asyncio.create_task(self._serve(theirs.detach()))

    async def _serve(self, fd: int) -> None:
        await prober.Prober(self.boot).serve(fd)
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_is() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raises
    root.setLevel(level)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "monitor.yaml"
    path.write_text(CONFIG.format(limits=LIMITS))
    return load(path)


async def until(holds: Callable[[], object], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what another task brings about
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def monitoring(config: Config) -> AsyncIterator[tuple[Monitor, str]]:
    """A monitor and its prober in this loop, and the page's address."""
    child = cast("Child", InProcess())
    loop = asyncio.get_running_loop()
    plan = config.plan()
    await loop.run_in_executor(None, Child.send, child, plan)
    async with contextlib.AsyncExitStack() as stack:
        monitor, port = await app._start(config, ("127.0.0.1", 0), child, stack)
        stopping = asyncio.Event()
        running = asyncio.create_task(app._run(monitor, stopping))
        try:
            yield monitor, f"http://127.0.0.1:{port}"
        finally:
            stopping.set()
            await asyncio.wait_for(running, 10)
            child.kill()


async def healthz(base: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(base + "/healthz") as answer:
        return answer.status, await answer.text()


def ok(endpoint: Endpoint, workload: Workload) -> ProbeResult:
    return ProbeResult(
        endpoint=endpoint.name,
        workload=workload.name,
        kind=workload.kind,
        model=endpoint.model,
        started_at=time.time(),
        outcome=Outcome.OK,
    )


async def test_a_deadlocked_probe_turns_healthz_red_until_it_reports_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlock = asyncio.Event()

    async def run(endpoint: Endpoint, workload: Workload, **_: object) -> ProbeResult:
        if workload.name == "stuck":
            await deadlock.wait()
        return ok(endpoint, workload)

    monkeypatch.setattr(prober, "run", run)
    async with monitoring(config) as (monitor, base):
        assert (await healthz(base))[0] == 200
        await until(lambda: not monitor.health().ok)
        status, words = await healthz(base)
        assert status == 503
        assert "probe a/stuck has not reported a result for" in words
        assert "a/chat" not in words
        deadlock.set()
        await until(lambda: monitor.health().ok)
        assert (await healthz(base))[0] == 200


async def test_attempts_that_crash_are_aborted_and_turn_healthz_red(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(endpoint: Endpoint, workload: Workload, **_: object) -> ProbeResult:
        if workload.name == "stuck":
            raise ZeroDivisionError
        return ok(endpoint, workload)

    monkeypatch.setattr(prober, "run", run)
    async with monitoring(config) as (monitor, base):
        await until(lambda: not monitor.health().ok)
        assert "a/stuck" in (await healthz(base))[1]
        crashed = next(row for row in monitor.statuses() if row.workload == "stuck")
        assert crashed.last is not None
        assert crashed.last.outcome is Outcome.ABORTED
        assert crashed.n == 0
        assert crashed.availability is None


async def test_a_store_that_takes_no_rows_turns_healthz_red(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(endpoint: Endpoint, workload: Workload, **_: object) -> ProbeResult:
        return ok(endpoint, workload)

    monkeypatch.setattr(prober, "run", run)
    async with monitoring(config) as (monitor, base):
        monkeypatch.setattr(type(monitor._store), "problem", "the disk is full")
        status, words = await healthz(base)
        assert status == 503
        assert "the store does not take rows: the disk is full" in words


@pytest.mark.parametrize(
    ("interval", "total", "patience"), [(60.0, 45.0, 180.0), (1.0, 45.0, 56.0), (0.1, 0.2, 10.3)]
)
def test_patience_is_three_intervals_or_what_an_attempt_may_take(
    interval: float, total: float, patience: float
) -> None:
    assert probe(interval, total).patience() == pytest.approx(patience)


def probe(interval: float = 60.0, total: float = 45.0) -> Probe:
    workload = Workload(limits=Limits(total=total))
    endpoint = Endpoint(name="a", url="http://h/v1")
    return Probe(ProbePlan(id="p", endpoint=endpoint, workload=workload, interval=interval), {})


def test_what_ended_before_a_restart_comes_before_what_ended_since() -> None:
    now = time.time()
    stored = [Slot(at=now - 300 + 60 * n, outcome=Outcome.CONNECT) for n in range(3)]
    since = Slot(at=now - 1, outcome=Outcome.OK)
    restarted, steady = probe(), probe()
    restarted.take(since)
    restarted.restore(stored)
    for slot in (*stored, since):
        steady.take(slot)
    assert restarted.state == steady.state
    assert restarted.state.state is State.DOWN
    assert restarted.status(now).last == steady.status(now).last
    assert restarted.status(now).n == 4


async def test_rows_of_a_probe_that_is_not_configured_are_passed_over(config: Config) -> None:
    async with monitoring(config) as (monitor, _):
        monitor.record("boot", result_row(endpoint="gone"))
        monitor.record("boot", skip_row(probe="gone/chat", reason=Skip.LATE))
        assert {row.id for row in monitor.statuses()} == {"a/stuck", "a/chat"}


async def test_failed_maintenance_is_said_and_tried_again(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []

    async def roll_up(*arguments: Any) -> None:
        asked.append(arguments)
        if len(asked) == 1:
            raise StoreError("store x: database is locked")

    monkeypatch.setattr(app, "_ROLL_UP", 0.01)
    async with monitoring(config) as (monitor, _):
        monkeypatch.setattr(monitor._store, "roll_up", roll_up)
        await until(lambda: len(asked) >= 2)
    assert "_failed reason='store x: database is locked'" in capsys.readouterr().err


async def test_work_is_given_up_when_told_to_stop() -> None:
    stopping, given_up = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.set()
            raise
        return 1

    asyncio.get_running_loop().call_later(0.01, stopping.set)
    assert await app._unless(stopping, work()) is None
    assert given_up.is_set()


async def test_work_that_is_done_or_fails_says_so() -> None:
    async def work(fault: Exception | None) -> int:
        if fault is not None:
            raise fault
        return 7

    assert await app._unless(asyncio.Event(), work(None)) == 7
    with pytest.raises(StartError, match="why"):
        await app._unless(asyncio.Event(), work(StartError("why")))


async def test_a_second_signal_is_ignored_when_serving_is_over(config: Config) -> None:
    child = InProcess()
    await asyncio.wait_for(
        asyncio.gather(
            app.serve(config, ("127.0.0.1", 0), cast("Child", child), lambda _: None),
            asyncio.to_thread(os.kill, os.getpid(), signal.SIGTERM),
        ),
        10,
    )
    child.socket.close()
    await child.serving
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
