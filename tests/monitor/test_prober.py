"""The prober in this process: its slots, its stalls, its own faults, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from monitor import prober as module
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
    decode_row,
    encode,
)
from monitor.prober import MAX_BUFFER, Prober
from probes import Endpoint, Outcome, ProbeResult, Workload
from probes.workload import Limits
from tests.servers import Server, reference_server

STALL = min(float(os.environ.get("FAULT_SECONDS", "2")), 5.0)
KEY = "planted-key-8Zq4vT"
PROBE = "a/chat"

RowT = TypeVar("RowT", bound=Row)


def planned(url: str, interval: float, **workload: object) -> ProbePlan:
    endpoint = Endpoint(name="a", url=url, model="reference", api_key=KEY)
    known = Workload(max_tokens=4)
    return ProbePlan(
        id=PROBE,
        endpoint=endpoint,
        workload=replace(known, **workload),  # type: ignore[arg-type]
        interval=interval,
    )


class Parent:
    """The other end of a prober's link."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._frames = Frames()
        self.rows: list[Row] = []
        self.ended = False

    async def listen(self) -> None:
        self._link.setblocking(False)
        while data := await asyncio.get_running_loop().sock_recv(self._link, 1 << 16):
            self.rows += map(decode_row, self._frames.feed(data))
        self.ended = True

    def give(self, *probes: ProbePlan, **how: object) -> None:
        self._link.sendall(encode(Plan(probes=probes, **how)))  # type: ignore[arg-type]

    def end(self) -> None:
        """What `Supervisor.stop` says."""
        self._link.shutdown(socket.SHUT_WR)

    def of(self, kind: type[RowT]) -> list[RowT]:
        return [row for row in self.rows if isinstance(row, kind)]

    def skipped(self, reason: Skip) -> list[int]:
        return [row.slot for row in self.of(SkipRow) if row.reason is reason]

    def slots(self) -> list[int]:
        ended = [row.slot for row in self.rows if not isinstance(row, Heartbeat)]
        return sorted(ended)


async def until(holds: Callable[[], object], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what another task brings about
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with reference_server("--pause", "30", "--ttft", "0.05") as running:
        yield running


@pytest.fixture(autouse=True)
def _logging_stays_as_it_is() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raises
    root.setLevel(level)


@contextlib.asynccontextmanager
async def probing() -> AsyncIterator[tuple[Parent, asyncio.Task[None]]]:
    ours, theirs = socket.socketpair()
    parent = Parent(ours)
    with ours:
        serving = asyncio.create_task(Prober("boot").serve(theirs.detach()))
        listening = asyncio.create_task(parent.listen())
        try:
            yield parent, serving
        finally:
            with contextlib.suppress(OSError):
                parent.end()
            await asyncio.wait_for(serving, 5)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def test_the_first_probe_of_a_start_runs_at_once(server: Server) -> None:
    began = time.monotonic()
    async with probing() as (parent, _):
        parent.give(planned(server.url, 600.0))
        await until(lambda: parent.of(ResultRow))
    assert time.monotonic() - began < 3
    (row,) = parent.of(ResultRow)
    assert row.result.outcome is Outcome.OK
    assert row.slot_at == pytest.approx(row.result.started_at, abs=0.2)
    assert row.result.schedule_lag_s is not None
    assert row.result.schedule_lag_s < 0.2


async def test_every_slot_is_a_result_on_the_grid(server: Server) -> None:
    async with probing() as (parent, _):
        parent.give(planned(server.url, 0.2))
        await until(lambda: len(parent.of(ResultRow)) == 8)
    slots = parent.slots()
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    grid = resumed(PROBE, 0.2, 0)
    offset = time.time() - time.monotonic()
    for row in parent.of(ResultRow)[1:]:
        assert row.slot_at == pytest.approx(offset + grid.due(row.slot), abs=0.005)


async def test_one_attempt_at_a_time_and_overlaps_are_counted(server: Server) -> None:
    slow = replace(planned(server.url, 0.2), endpoint=Endpoint(
        name="a", url=server.url, model="reference-hang"))  # fmt: skip
    async with probing() as (parent, _):
        parent.give(slow)
        await until(lambda: len(parent.skipped(Skip.OVERLAP)) == 4)
        await until(lambda: parent.of(Heartbeat)[-1].in_flight == 1)
    # The slot in flight ends as aborted: none is left open.
    slots = parent.slots()
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    (row,) = parent.of(ResultRow)
    assert row.result.outcome is Outcome.ABORTED
    assert row.result.reason == "the monitor was stopped"
    assert row.slot == slots[0]


async def test_no_more_probes_run_at_once_than_allowed(server: Server) -> None:
    hang = Endpoint(name="a", url=server.url, model="reference-hang")
    probes = [replace(planned(server.url, 0.2), id=f"p{n}", endpoint=hang) for n in range(3)]
    async with probing() as (parent, _):
        parent.give(*probes, concurrency=2)
        await until(lambda: len(parent.skipped(Skip.CONCURRENCY)) >= 2)
        await until(lambda: parent.of(Heartbeat)[-1].in_flight == 2)
    assert {row.probe for row in parent.of(SkipRow) if row.reason is Skip.CONCURRENCY} == {"p2"}


async def test_a_successor_counts_what_passed_without_a_prober(server: Server) -> None:
    interval = 0.25
    now = resumed(PROBE, interval, 0).latest(time.monotonic())
    assert now is not None
    async with probing() as (parent, _):
        parent.give(planned(server.url, interval), last={PROBE: now - 10})
        await until(lambda: len(parent.of(ResultRow)) == 3)
    down = parent.skipped(Skip.PROBER_DOWN)
    assert down[:10] == list(range(now - 9, now + 1))
    first = parent.of(ResultRow)[0].slot
    assert parent.slots()[: len(down) + 1] == [*down, first] == list(range(now - 9, first + 1))
    at = [row.slot_at for row in parent.of(SkipRow)[:2]]
    assert at[1] - at[0] == pytest.approx(interval, abs=0.001)


@pytest.mark.slow
async def test_a_stalled_loop_is_our_fault_and_not_the_endpoints(server: Server) -> None:
    """Slots that passed are skipped late; what was in flight is no timeout, but tainted."""
    limits = Limits(connect=5.0, ttft=0.5, stall=0.5, total=1.0)
    async with probing() as (parent, _):
        parent.give(planned(server.url, 0.2, limits=limits))
        await until(lambda: len(parent.of(ResultRow)) == 3)
        before = len(parent.of(ResultRow))
        # In the middle of an attempt: 20 ms after the slot, the answer comes after 50 ms.
        grid = resumed(PROBE, 0.2, 0)
        await asyncio.sleep(grid.after(time.monotonic()) - time.monotonic() + 0.02)
        time.sleep(STALL)  # noqa: ASYNC251 - the stall itself
        await until(lambda: len(parent.of(ResultRow)) >= before + 4)
    late = parent.skipped(Skip.LATE)
    assert STALL / 0.2 - 3 <= len(late) <= STALL / 0.2 + 1
    slots = parent.slots()
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    results = [row.result for row in parent.of(ResultRow)]
    assert {result.outcome for result in results} <= {Outcome.OK, Outcome.ABORTED}
    (across,) = [r for r in results if r.loop_lag_s and r.loop_lag_s > STALL / 2 and r.ttft_s]
    assert across.tainted
    assert not results[0].tainted
    assert max(beat.loop_lag for beat in parent.of(Heartbeat)) > STALL / 2


async def test_a_fault_of_our_own_ends_the_slot_and_tells_no_secret(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = planned(server.url, 0.2)
    broken = replace(broken, endpoint=replace(broken.endpoint, headers={"x": f"a\n{KEY}"}))
    async with probing() as (parent, _):
        parent.give(broken)
        await until(lambda: len(parent.of(ResultRow)) == 3)
    slots = parent.slots()
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    result = parent.of(ResultRow)[0].result
    assert result.outcome is Outcome.ABORTED
    assert result.reason == "a fault of the monitor itself (ValueError), see its log"
    said = capsys.readouterr().err
    assert "event=probe_crashed probe=a/chat" in said
    assert "Traceback" in said
    assert KEY not in said


async def test_rows_have_numbers_without_a_gap_and_a_beat_each_second(server: Server) -> None:
    async with probing() as (parent, _):
        parent.give(planned(server.url, 0.1))
        await until(lambda: len(parent.of(Heartbeat)) == 3)
    assert [row.seq for row in parent.rows] == list(range(1, len(parent.rows) + 1))
    beats = parent.of(Heartbeat)
    assert 0.9 < beats[2].mono - beats[1].mono < 2
    assert beats[0].boot == "boot"
    assert beats[0].clock_offset == pytest.approx(time.time() - time.monotonic(), abs=0.1)


async def test_a_parent_that_does_not_read_never_makes_the_prober_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_BUFFER == 8 << 20
    monkeypatch.setattr(module, "MAX_BUFFER", 10_000)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    prober = Prober("boot")
    serving = asyncio.create_task(prober.serve(theirs.detach()))
    parent = Parent(ours)
    parent.give(planned(server.url, 0.02))
    await until(lambda: prober.link.dropped >= 5)
    assert prober.link.buffered <= 10_000 + 2000
    listening = asyncio.create_task(parent.listen())
    await until(lambda: parent.of(Heartbeat) and parent.of(Heartbeat)[-1].dropped >= 5)
    parent.end()
    await asyncio.wait_for(serving, 5)
    await until(lambda: parent.ended)
    await listening
    ours.close()
    lags = [row.result.schedule_lag_s or 0.0 for row in parent.of(ResultRow)]
    assert max(lags) < 0.5


async def test_the_prober_ends_when_its_parent_is_gone(server: Server) -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(Prober("boot").serve(theirs.detach()))
    Parent(ours).give(planned(server.url, 0.1))
    await asyncio.sleep(0.5)
    ours.close()
    await asyncio.wait_for(serving, 5)


async def test_no_end_loses_a_slot_or_says_more_than_it_must(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ends at the very moment at which slots are fired: each is there, as ok or aborted."""
    probes = [replace(planned(server.url, 0.1), id=f"p{n}") for n in range(30)]
    for n in range(5):
        async with probing() as (parent, _):
            parent.give(*probes)
            await until(lambda: len(parent.of(ResultRow)) > 60)
            grid = resumed("p0", 0.1, 0)
            await asyncio.sleep(grid.after(time.monotonic()) - time.monotonic() + n * 0.001)
        for probe in probes:
            slots = sorted(
                row.slot for row in parent.rows
                if not isinstance(row, Heartbeat) and row.probe == probe.id
            )  # fmt: skip
            assert slots == list(range(slots[0], slots[0] + len(slots)))
    assert capsys.readouterr().err == ""


async def test_an_attempt_that_ignores_its_end_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stubborn(*_: object, **__: object) -> ProbeResult:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)
                raise RuntimeError

    monkeypatch.setattr(module, "run", stubborn)
    monkeypatch.setattr(module, "_STOP", 0.2)
    async with probing() as (parent, serving):
        parent.give(planned("http://127.0.0.1:9/v1", 60.0))
        await until(lambda: parent.rows)
        await asyncio.sleep(0.1)
        parent.end()
        await asyncio.wait_for(serving, 2)
