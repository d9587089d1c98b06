"""The prober process: runs probes on their grid and sends rows to the parent. Nothing else.

`python -m monitor.prober --fd N --boot ID`. No database, exposition, HTML or YAML runs here: one
/metrics rendering in this loop would bend every latency measured meanwhile.

Theory of operation. APScheduler wakes a probe; the grid (monitor.grid) says which slot is due. All
slots are accounted for: APScheduler loses fires silently when the loop stalls, so each wake-up
counts the slots passed over as skips. Its fire times are wall clock, so a watch compares wall and
monotonic clock twice a second and re-times all jobs from the grid after a step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import uvloop
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from monitor.grid import Grid, grids
from monitor.link import (
    Frames,
    Heartbeat,
    Plan,
    ProbePlan,
    ResultRow,
    Skip,
    SkipRow,
    decode_plan,
    encode,
)
from monitor.logs import log_to_stderr
from probes import Connections, LoopLag, Outcome, ProbeResult, run
from probes.prompts import salt
from probes.transport import clock

MAX_BUFFER = 8 << 20
CLOCK_STEP = 0.5
_WATCH = 0.5
_EARLY = 0.002
_STOP = 1.0

log = logging.getLogger(__name__)


class GridTrigger(BaseTrigger):  # type: ignore[misc]
    """Tells APScheduler the wall clock time of a grid's next slot."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_next_fire_time(
        self,
        previous_fire_time: datetime | None,
        now: datetime,
    ) -> datetime:
        """Return when the next slot is due; a slot due within 2 ms counts as fired.

        A new or re-timed job is fired at once: what is due is for the runner to know.
        """
        if previous_fire_time is None:
            return now
        mono = clock()
        return now + timedelta(seconds=self._grid.after(mono + _EARLY) - mono)


class Pauses:
    """Longest garbage collection since it was last asked for, seconds."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._longest = 0.0
        gc.callbacks.append(self._note)

    def take(self) -> float:
        """Return the longest pause and start anew."""
        longest, self._longest = self._longest, 0.0
        return longest

    def close(self) -> None:
        """Stop listening."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = clock()
        else:
            self._longest = max(self._longest, clock() - self._begun)


class Uplink(asyncio.Protocol):
    """The prober's end of the link. Sending never waits: past 8 MiB it drops and counts."""

    def __init__(self, on_plan: Callable[[Plan], None], on_end: Callable[[], None]) -> None:
        self._frames = Frames()
        self._on_plan = on_plan
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._seq = 0
        self.dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take plans."""
        for body in self._frames.feed(data):
            self._on_plan(decode_plan(body))

    def eof_received(self) -> bool:
        """The parent wants an end, or is gone; it may still read what we send."""
        self._on_end()
        return True

    def connection_lost(self, _exc: Exception | None) -> None:
        """The parent is gone: there is nobody to probe for."""
        self._on_end()

    @property
    def buffered(self) -> int:
        """Bytes that wait for the parent."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def next_seq(self) -> int:
        """Return the next row's number; a gap tells the parent of a lost row."""
        self._seq += 1
        return self._seq

    def send(self, row: ResultRow | SkipRow | Heartbeat) -> None:
        """Send a row or drop it."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.buffered > MAX_BUFFER:
            self.dropped += 1
            return
        self._transport.write(encode(row))

    async def drain(self, seconds: float) -> None:
        """Wait until the parent has taken everything, at most so long; then close."""
        end = clock() + seconds
        while self.buffered and clock() < end:  # noqa: ASYNC110 - nobody signals an empty buffer
            await asyncio.sleep(0.01)
        if self._transport is not None:
            self._transport.close()


class Runner:
    """One probe: its slots, and at most one attempt in flight."""

    def __init__(self, prober: Prober, plan: ProbePlan, grid: Grid) -> None:
        self._prober = prober
        self._plan = plan
        self.grid = grid
        self._last: int | None = None
        self._task: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Count the slots that passed while no prober ran."""
        latest = self.grid.latest(clock())
        if latest is not None:
            for slot in self.grid.between(None, latest + 1):
                self._skip(slot, Skip.PROBER_DOWN)
            self._last = latest

    async def fire(self) -> None:
        """Account for every slot that is due: run the latest, skip what was passed over."""
        latest = self.grid.latest(clock() + _EARLY)
        if latest is None or latest == self._last:
            return
        for slot in self.grid.between(self._last, latest):
            self._skip(slot, Skip.LATE)
        self._last = latest
        if self._task is not None and not self._task.done():
            self._skip(latest, Skip.OVERLAP)
        elif self._prober.full():
            self._skip(latest, Skip.CONCURRENCY)
        else:
            self._task = self._prober.spawn(self._attempt(latest))

    def _skip(self, slot: int, reason: Skip) -> None:
        link = self._prober.link
        at = self._prober.wall(self.grid.due(slot))
        link.send(SkipRow(link.next_seq(), clock(), self._plan.id, at, reason, slot))

    async def _attempt(self, slot: int) -> None:
        due = self.grid.due(slot)
        slot_at, started, begun = self._prober.wall(due), time.time(), clock()
        try:
            result = await self._prober.probe(self._plan, slot)
        except asyncio.CancelledError:
            result = _aborted(self._plan, started, "the monitor was stopped")
        except Exception as exc:  # the border: a slot must end, whatever is wrong with us
            log.exception("event=probe_crashed probe=%s", self._plan.id)
            why = f"a fault of the monitor itself ({type(exc).__name__}), see its log"
            result = _aborted(self._plan, started, why)
        result = replace(result, schedule_lag_s=max(0.0, begun - due))
        link = self._prober.link
        link.send(ResultRow(link.next_seq(), clock(), self._plan.id, slot_at, result, slot))


def _aborted(plan: ProbePlan, started: float, reason: str) -> ProbeResult:
    return ProbeResult(
        endpoint=plan.endpoint.name,
        workload=plan.workload.name,
        kind=plan.workload.kind,
        model=plan.endpoint.model,
        started_at=started,
        outcome=Outcome.ABORTED,
        reason=reason,
    )


class Prober:
    """Runs a plan until it is told to stop."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._plan = Plan(probes=())
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = Connections()
        self._lag = LoopLag()
        self._pauses = Pauses()
        self._stopping = asyncio.Event()
        self._clock_steps = 0
        self._offset = time.time() - clock()
        self.link = Uplink(self.adopt, self._stopping.set)

    def adopt(self, plan: Plan) -> None:
        """Run this plan from now on."""
        self._plan = plan
        secrets = {secret for probe in plan.probes for secret in probe.endpoint.secrets()}
        log_to_stderr(logging.WARNING, secrets)
        self._scheduler.remove_all_jobs()
        timed = grids([(p.id, p.interval) for p in plan.probes], clock(), plan.last)
        for probe, grid in zip(plan.probes, timed, strict=True):
            runner = Runner(self, probe, grid)
            if probe.id in plan.last:
                runner.resume()
            self._scheduler.add_job(
                runner.fire,
                GridTrigger(grid),
                id=probe.id,
                misfire_grace_time=None,
                coalesce=True,
                max_instances=16,  # it never waits, and a slot must not be lost to a late loop
            )
        # A full collection over a fresh heap took 239 ms, over a frozen one 0.006 ms.
        gc.collect()
        gc.freeze()

    def full(self) -> bool:
        """Whether no further attempt may start."""
        return len(self._tasks) >= self._plan.concurrency

    def wall(self, mono: float) -> float:
        """Return the wall clock time of a monotonic one."""
        return time.time() + (mono - clock())

    def spawn(self, attempt: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start an attempt and keep a reference to it."""
        task = asyncio.create_task(attempt)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def probe(self, plan: ProbePlan, slot: int) -> ProbeResult:
        """Make one attempt for a slot."""
        return await run(
            plan.endpoint,
            plan.workload,
            salt=salt(self._plan.seed, f"{self._boot}/{plan.id}", slot),
            keep_content=False,
            connections=self._connections,
            lag=self._lag,
        )

    async def serve(self, fd: int) -> None:
        """Serve the parent behind a socket until it ends the link; signals are its business."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.link, sock=socket.socket(fileno=fd))
        self._lag.start()
        self._scheduler.start()
        beats = asyncio.create_task(self._beat())
        watch = asyncio.create_task(self._watch_clock())
        await self._stopping.wait()
        self._scheduler.pause()
        await asyncio.sleep(0.01)  # what has just been fired begins, so that it can end as aborted
        self._scheduler.shutdown(wait=False)
        for task in (beats, watch, *self._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP):
                await asyncio.gather(*self._tasks, beats, watch, return_exceptions=True)
        await self.link.drain(_STOP)
        await self._connections.close()
        self._lag.stop()
        self._pauses.close()

    async def _beat(self) -> None:
        since = clock()
        while True:
            now = clock()
            self.link.send(
                Heartbeat(
                    seq=self.link.next_seq(),
                    mono=now,
                    boot=self._boot,
                    loop_lag=self._lag.worst(since),
                    gc_pause=self._pauses.take(),
                    clock_offset=time.time() - now,
                    buffered=self.link.buffered,
                    dropped=self.link.dropped,
                    in_flight=len(self._tasks),
                    clock_steps=self._clock_steps,
                )
            )
            since = now
            await asyncio.sleep(1.0)

    async def _watch_clock(self) -> None:
        """After a wall clock step, time every job anew: APScheduler itself would sleep on."""
        while True:
            await asyncio.sleep(_WATCH)
            offset = time.time() - clock()
            if abs(offset - self._offset) > CLOCK_STEP:
                self._clock_steps += 1
                log.warning("event=clock_step seconds=%.3f", offset - self._offset)
                for job in self._scheduler.get_jobs():
                    job.reschedule(job.trigger)
            self._offset = offset


def main() -> None:
    """Run the prober process."""
    parser = argparse.ArgumentParser(prog="python -m monitor.prober")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--boot", required=True)
    args = parser.parse_args()
    log_to_stderr(logging.WARNING)

    async def start() -> None:
        await Prober(args.boot).serve(args.fd)

    uvloop.run(start())


if __name__ == "__main__":
    main()
