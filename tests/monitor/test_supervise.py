"""The parent's side of the prober, played against a prober that the test plays itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from monitor import supervise
from monitor.grid import resumed
from monitor.link import (
    Frames,
    Heartbeat,
    Plan,
    ProbePlan,
    ResultRow,
    Row,
    Skip,
    SkipRow,
    decode_plan,
    encode,
)
from monitor.supervise import Child, Supervisor
from probes import Endpoint, LoopLag, Workload
from tests.monitor.rows import result_row

PROBE = "a/chat"
INTERVAL = 60.0


def plan(prompt: str | None = None) -> Plan:
    endpoint = Endpoint(name="a", url="http://127.0.0.1:9/v1", model="m")
    workload = Workload(prompt=prompt)
    probe = ProbePlan(id=PROBE, endpoint=endpoint, workload=workload, interval=INTERVAL)
    return Plan(probes=(probe,))


class Played:
    """A child whose link's other end the test holds; its process does nothing."""

    made: list[Played]

    def __init__(self) -> None:
        self.boot = f"boot{len(self.made)}"
        self.started = time.monotonic()
        self.socket, self.theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        self.made.append(self)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.theirs.close()

    def say(self, *rows: Row) -> None:
        for row in rows:
            self.theirs.sendall(encode(row))

    async def plan(self) -> Plan:
        """The plan that it was given."""
        frames, loop = Frames(), asyncio.get_running_loop()
        self.theirs.setblocking(False)
        while True:
            for body in frames.feed(await loop.sock_recv(self.theirs, 1 << 20)):
                return decode_plan(body)


class Rows(list[tuple[str, Row]]):
    """Every row with the boot it came under."""

    def take(self, boot: str, row: Row) -> None:
        self.append((boot, row))

    def skips(self) -> list[SkipRow]:
        return [row for _, row in self if isinstance(row, SkipRow)]


def beat(seq: int) -> Heartbeat:
    return Heartbeat(seq, time.monotonic(), "x", 0.0, 0.0, 0.0, 0, 0, 0, 0)


def result(seq: int, slot: int) -> ResultRow:
    row = result_row(seq)
    return ResultRow(seq, row.mono, PROBE, row.slot_at, row.result, slot)


def skip(seq: int, slot: int) -> SkipRow:
    return SkipRow(seq, 1.0, PROBE, 1000.0, Skip.OVERLAP, slot)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what another task brings about
            await asyncio.sleep(0.005)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Played]]:
    Played.made = []
    monkeypatch.setattr(supervise, "Child", Played)
    monkeypatch.setattr(supervise, "STOP", 0.2)  # their processes do not end when told
    yield Played.made
    for child in Played.made:
        child.kill()
        child.socket.close()


@contextlib.asynccontextmanager
async def supervised(rows: Rows, child: Child, what: Plan) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(what, rows.take, child)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        await asyncio.wait_for(task, 5)


@pytest.fixture
async def supervisor(rows: Rows, children: list[Played]) -> AsyncIterator[Supervisor]:
    first: Child = supervise.Child()
    async with supervised(rows, first, plan()) as running:
        yield running


async def test_rows_arrive_in_order_under_the_boot_of_their_prober(
    supervisor: Supervisor, children: list[Played], rows: Rows
) -> None:
    sent: list[Row] = [beat(1), result(2, 7), skip(3, 8)]
    children[0].say(*sent)
    await until(lambda: len(rows) == 3)
    assert rows == [("boot0", row) for row in sent]
    assert supervisor.beat == sent[0]
    assert (supervisor.lost_rows, supervisor.restarts) == (0, 0)
    assert supervisor.pid == children[0].process.pid


async def test_a_gap_in_the_numbers_is_counted_as_lost_rows(
    supervisor: Supervisor, children: list[Played], rows: Rows
) -> None:
    children[0].say(beat(1), result(5, 7), beat(6))
    await until(lambda: len(rows) == 3)
    assert supervisor.lost_rows == 3


async def test_a_dead_probers_successor_is_told_the_last_slot(
    supervisor: Supervisor, children: list[Played], rows: Rows
) -> None:
    children[0].say(beat(1), result(2, 7), result(3, 8))
    children[0].theirs.close()
    await until(lambda: len(children) == 2)
    given = await children[1].plan()
    assert given.last == {PROBE: 8}
    assert given.probes == plan().probes
    assert children[0].process.poll() is not None
    children[1].say(beat(1), result(2, 9))
    await until(lambda: len(rows) == 5)
    assert rows[-1][0] == "boot1"
    assert (supervisor.lost_rows, supervisor.restarts) == (0, 1)
    assert not rows.skips()


async def test_a_slot_that_died_in_flight_is_counted_once_as_prober_down(
    supervisor: Supervisor, children: list[Played], rows: Rows
) -> None:
    """Slot 8 had begun: 9 and 10 overlapped it."""
    children[0].say(result(1, 7), skip(2, 9), skip(3, 10))
    children[0].theirs.close()
    await until(lambda: len(children) == 2)
    assert (await children[1].plan()).last == {PROBE: 10}
    children[1].theirs.close()
    await until(lambda: len(children) == 3)
    (down,) = [row for row in rows.skips() if row.reason is Skip.PROBER_DOWN]
    assert (down.probe, down.slot) == (PROBE, 8)
    due = resumed(PROBE, INTERVAL, 0).due(8)
    assert down.slot_at == pytest.approx(time.time() - time.monotonic() + due, abs=0.01)


async def test_a_probe_never_heard_of_starts_anew(
    supervisor: Supervisor, children: list[Played]
) -> None:
    children[0].say(beat(1))
    children[0].theirs.close()
    await until(lambda: len(children) == 2)
    assert supervisor.restarts == 1
    assert (await children[1].plan()).last == {}


async def test_bytes_that_are_no_rows_cost_a_prober_its_place(
    supervisor: Supervisor, children: list[Played]
) -> None:
    children[0].theirs.sendall(b"\xff" * 64)
    await until(lambda: len(children) == 2)
    assert supervisor.restarts == 1


async def test_a_silent_prober_is_replaced_and_one_that_only_starts_slowly_is_not(
    rows: Rows, children: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "SILENCE", 0.3)
    monkeypatch.setattr(supervise, "_TICK", 0.05)
    async with supervised(rows, supervise.Child(), plan()) as supervisor:
        await asyncio.sleep(0.6)
        assert supervisor.restarts == 0
        children[0].say(beat(1))
        await until(lambda: supervisor.restarts == 1)


async def test_silence_while_we_were_away_ourselves_does_not_count(
    rows: Rows, children: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "SILENCE", 0.5)
    monkeypatch.setattr(supervise, "_TICK", 0.05)
    async with supervised(rows, supervise.Child(), plan()) as supervisor:
        children[0].say(beat(1))
        await until(lambda: rows)
        time.sleep(1.2)  # noqa: ASYNC251 - the parent's own stall
        await asyncio.sleep(0.2)
        children[0].say(beat(2))
        await until(lambda: len(rows) == 2)
        assert supervisor.restarts == 0


async def test_deaths_in_a_row_are_slowed_down(
    rows: Rows, children: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_BACKOFF", (0.0, 0.1, 0.4))
    async with supervised(rows, supervise.Child(), plan()):
        for number in range(4):
            await until(lambda: len(children) == number + 1)  # noqa: B023 - awaited here
            children[number].theirs.close()
        await until(lambda: len(children) == 5)
    gaps = [b.started - a.started for a, b in pairwise(children)]
    assert gaps[0] < 0.1 <= gaps[1] < 0.4 <= gaps[2]
    assert gaps[3] < 1


async def test_stop_says_so_by_the_end_of_the_link_and_takes_the_last_rows(
    rows: Rows, children: list[Played]
) -> None:
    child = supervise.Child()
    async with supervised(rows, child, plan()) as supervisor:
        children[0].say(beat(1))
        await until(lambda: rows)
        stopping = asyncio.create_task(supervisor.stop())
        children[0].theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(children[0].theirs, 100) == b""
        children[0].say(result(2, 7))
        children[0].kill()
        await stopping
        await until(lambda: len(rows) == 2)
    assert (len(children), supervisor.restarts) == (1, 0)


# -- with real probers ---------------------------------------------------------------------------


async def test_a_plan_sent_to_a_dead_prober_is_no_fault_of_the_parent(rows: Rows) -> None:
    child = Child()
    child.kill()
    child.send(plan("x" * 300_000))
    async with supervised(rows, child, plan()) as supervisor:
        await until(lambda: any(isinstance(row, ResultRow) for _, row in rows))
        assert supervisor.restarts == 1


async def test_a_plan_larger_than_any_buffer_does_not_hold_up_the_parent(rows: Rows) -> None:
    child, large = Child(), plan("word " * 600_000)
    child.kill()
    lag = LoopLag()
    lag.start()
    async with supervised(rows, child, large) as supervisor:
        since = time.monotonic()
        await until(lambda: any(isinstance(row, ResultRow) for _, row in rows))
        worst = lag.worst(since)
        lag.stop()
        assert supervisor.restarts == 1
    # The child needs a third of a second to begin reading.
    assert worst < 0.25


async def test_modules_where_we_were_started_are_not_taken_for_ours(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("monitor", "probes", "queue", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    child = Child()
    child.send(plan())
    async with supervised(rows, child, plan()) as supervisor:
        await until(lambda: any(isinstance(row, ResultRow) for _, row in rows))
        assert supervisor.restarts == 0
