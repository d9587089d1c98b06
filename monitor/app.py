"""The running monitor: opens, wires and closes. Every row passes `Monitor.record`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from aiohttp import web

from monitor.alerts import ProbeState, advance, current, silent_after, up
from monitor.conditions import Burn
from monitor.config import Config
from monitor.history import DAY_S, History, Slot, slot_of
from monitor.link import Heartbeat, ProbePlan, ResultRow, Row, Skip, SkipRow
from monitor.metrics import Metrics
from monitor.notify.words import clock
from monitor.pager import Looks, Pager, firing_counts
from monitor.slo import Fired, Slo, SloBook, numbers, start_of
from monitor.status import Health, ProbeStatus, State
from monitor.store import Keep, Store, StoreError
from monitor.store.periods import Periods, reading
from monitor.supervise import Child, Supervisor
from monitor.web import About, build_app
from probes.result import Excluded, Outcome

ENDING = (signal.SIGTERM, signal.SIGINT)
"""The signals that end the monitor in good order."""

_RENDER = 1.0
_ROLL_UP = 60.0
_PRUNE = 3600.0
_SILENT_SLOTS = 3
_SLOS = 30.0
_BURNS = 3 * DAY_S
"""Seconds of the longest burn window: what must be known before burn alerts are judged."""

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class StartError(Exception):
    """The monitor cannot start; the message is one line for the operator."""


def package_version() -> str:
    """Return the installed version; `unknown` when run from a bare tree."""
    try:
        return version("endpoint-perf-monitor")
    except PackageNotFoundError:
        return "unknown"


class Probe:
    """What the parent knows of one probe.

    Attributes:
        plan: Its endpoint, workload and schedule.
        labels: The endpoint's labels.
        history: Its last day.
        state: Its state machine.
        heard: When it last reported a result, monotonic.
        shown_up: The value of `endpoint_up` at /metrics now; None is no series.
        slos: Its objectives.
        slos_shown: When their figures at /metrics were last set, wall clock.
    """

    def __init__(self, plan: ProbePlan, labels: dict[str, str], slos: Iterable[Slo] = ()) -> None:
        self.plan = plan
        self.labels = labels
        self.slos = SloBook(slos)
        self.slos_shown = 0.0
        self.history = History()
        self.state = ProbeState(since=time.time())
        self.heard = time.monotonic()
        self.shown_up: int | None = None
        self._since_start: list[Slot] | None = []

    def patience(self) -> float:
        """Return the seconds after which a missing result is a fault of ours.

        Three intervals, but never less than an attempt may lawfully take.
        """
        limits = self.plan.workload.limits
        return max(
            _SILENT_SLOTS * self.plan.interval,
            self.plan.interval + limits.connect + limits.total,
        )

    def take(self, slot: Slot) -> None:
        """Take one slot that ended now."""
        self.history.add(slot)
        self._advance(slot)
        if self._since_start is not None:
            self._since_start.append(slot)

    def restore(self, slots: list[Slot]) -> None:
        """Take the slots that ended before a restart, oldest first, once.

        The state is made anew from all of them: those that ended meanwhile come last.
        """
        newer, self._since_start = self._since_start or [], None
        last, error = self.history.last, self.history.last_error
        for slot in slots:
            self.history.add(slot)
        self.history.last = last or self.history.last
        self.history.last_error = error or self.history.last_error
        self.state = ProbeState(since=slots[0].at if slots else self.state.since)
        for slot in (*slots, *newer):
            self._advance(slot)

    def _advance(self, slot: Slot) -> None:
        if slot.outcome is not None:
            self.state = advance(self.state, slot.outcome, slot.excluded, slot.at)

    def now(self, wall: float) -> ProbeState:
        """Return the state as it looks at this time."""
        interval = self.plan.interval
        wanted = self.history.skipped_on_purpose(wall - silent_after(interval), wall)
        return current(self.state, wall, interval, skipped_on_purpose=wanted)

    def day(self) -> tuple[int, int]:
        """Return the valid and the good results of the last day."""
        seen = self.history.summary(time.time())
        return seen.n, seen.good

    def status(self, wall: float) -> ProbeStatus:
        """Return what a person is shown."""
        seen, state = self.history.summary(wall), self.now(wall)
        return ProbeStatus(
            id=self.plan.id,
            endpoint=self.plan.endpoint.name,
            workload=self.plan.workload.name,
            kind=self.plan.workload.kind,
            interval=self.plan.interval,
            window_s=seen.window_s,
            state=state.state,
            since=None if state.state is State.STARTING else state.since,
            availability=seen.availability,
            coverage=seen.coverage,
            n=seen.n,
            good=seen.good,
            scheduled=seen.scheduled,
            outages=seen.outages,
            ttft=seen.ttft,
            tpot=seen.tpot,
            e2e=seen.e2e,
            last=self.history.last,
            last_error=self.history.last_error,
            excluded=seen.excluded,
            skipped=seen.skipped,
            blocks=self.history.blocks(60, wall),
            labels=self.labels,
        )


class Monitor:
    """Everything the parent keeps; also the `View` that the page reads."""

    def __init__(self, config: Config, store: Store, child: Child, pager: Pager) -> None:
        self._config = config
        self._store = store
        self.pager = pager
        self._probes = {
            plan.id: Probe(
                plan, dict(config.endpoints[plan.endpoint.name].labels), config.slos_of(plan)
            )
            for plan in config.probes
        }
        self._started_at = time.time()
        self._probing_since = time.time() - (time.monotonic() - child.started)
        self._restarts_seen = 0
        self._exposition = b""
        self._metrics = Metrics(version=package_version(), thresholds=config.thresholds())
        for probe in self._probes.values():
            self._metrics.watch(probe.plan, probe.history, probe.labels)
        self.supervisor = Supervisor(config.plan(), self.record, child)

    # -- rows ------------------------------------------------------------------------------

    async def refill(self) -> None:
        """Take the last day from the store, so that a restart forgets nothing.

        Ten seconds for 500 probes: it runs while probing goes on.
        """
        before: dict[str, list[Slot]] = defaultdict(list)
        async for name, slot in self._store.recent(time.time() - DAY_S):
            if slot.at < self._probing_since:  # later ones have come by the link
                before[name].append(slot)
        for name, probe in self._probes.items():
            probe.restore(sorted(before[name], key=lambda slot: slot.at))
        now = time.time()
        async with reading(self._config.store_url) as periods:
            await self._refill_slos(periods, now - _BURNS, self._probing_since)
            self.pager.restored = True
            await self._refill_slos(periods, now - self._config.retention.results, now - _BURNS)

    async def _refill_slos(self, periods: Periods, since: float, until: float) -> None:
        """Take a stretch of stored results into the objectives, as far as their windows reach."""
        for probe in self._probes.values():
            names = (probe.plan.endpoint.name, probe.plan.workload.name)
            for window in probe.slos.windows.values():
                oldest = max(since, start_of(window.slo.window, until))
                await periods.fill(*names, window, oldest, until)
            probe.slos.look_again()
            probe.slos_shown = 0.0

    def record(self, boot: str, row: Row) -> None:
        """Take one row: history, state, metrics, store. Called in the order of arrival."""
        if isinstance(row, Heartbeat):
            self._metrics.beat(row)
            return
        probe = self._probes.get(row.probe)
        if probe is None:
            return
        if isinstance(row, ResultRow) and self._maintained(row):
            row = SkipRow(row.seq, row.mono, row.probe, row.slot_at, Skip.MAINTENANCE, row.slot)
        if isinstance(row, ResultRow):
            self._record_result(boot, row, probe)
        else:
            probe.take(slot_of(row))
            self.pager.skipped(row.probe, row.reason)
            self._metrics.skip(row)
            self._put_skip(boot, row, probe.plan)
            log.warning("probe=%s skipped=%s", row.probe, row.reason.value)

    def _record_result(self, boot: str, row: ResultRow, probe: Probe) -> None:
        outcome = row.result.outcome
        if outcome is not Outcome.ABORTED:  # so ends a crashed attempt too
            probe.heard = time.monotonic()
            self.pager.heard(row.probe, outcome, row.slot_at)
        excluded = self.pager.excluded(outcome)
        probe.take(slot_of(row, excluded))
        self._metrics.observe(row, excluded)
        self._judge(probe, row, excluded or row.result.excluded)
        self._store.put_result(row, boot=boot, site=self._config.site, excluded=excluded)
        _log_result(row)
        self.pager.result(row.probe, self._looks_of(probe, time.time()))

    def _judge(self, probe: Probe, row: ResultRow, excluded: Excluded | None) -> None:
        """Count a result for the probe's objectives."""
        result = row.result
        times = {
            "ttft": result.ttft_s,
            "ttfat": result.ttfat_s,
            "tpot": result.tpot_s,
            "e2e": result.e2e_s,
        }
        for name, good in probe.slos.take(row.slot_at, result.outcome, excluded, times):
            self._metrics.count_slo(probe.plan, name, good=good)
            probe.slos_shown = 0.0

    def _maintained(self, row: ResultRow) -> bool:
        """Whether a result is of work that was announced: it enters nothing."""
        return self.pager.in_maintenance(row.result.endpoint, row.slot_at) is not None

    def _put_skip(self, boot: str, row: SkipRow, plan: ProbePlan) -> None:
        names = {"endpoint": plan.endpoint.name, "workload": plan.workload.name}
        self._store.put_skip(row, boot=boot, site=self._config.site, **names)

    def looks(self) -> Iterator[tuple[str, Looks]]:
        """Yield how every probe looks now, for the pager."""
        wall = time.time()
        if self.supervisor.restarts != self._restarts_seen:
            self._restarts_seen, self.pager.restarted_at = self.supervisor.restarts, wall
        for name, probe in self._probes.items():
            yield name, self._looks_of(probe, wall)

    def _looks_of(self, probe: Probe, wall: float) -> Looks:
        return Looks(
            state=probe.now(wall),
            day=probe.day,
            last_error=probe.history.last_error,
            burns=tuple(_burn(slo, fired) for slo, fired in probe.slos.burns(wall)),
        )

    # -- what the page asks ----------------------------------------------------------------

    def statuses(self) -> Sequence[ProbeStatus]:
        """Return every probe's status in the order of the configuration."""
        wall = time.time()
        return [probe.status(wall) for probe in self._probes.values()]

    def health(self) -> Health:
        """Return whether the monitor itself does its work."""
        now = time.monotonic()
        problems = [
            f"probe {probe.plan.id} has not reported a result for {now - probe.heard:.0f} s"
            for probe in self._probes.values()
            if now - probe.heard > probe.patience() and not self._paused(probe)
        ]
        if self._store.problem:
            problems.append(f"the store does not take rows: {self._store.problem}")
        return Health(problems=tuple(problems))

    def _paused(self, probe: Probe) -> bool:
        wall = time.time()
        return probe.history.skipped_on_purpose(wall - probe.patience(), wall)

    def metrics(self) -> tuple[bytes, str]:
        """Return the last rendered exposition; never waits."""
        return self._exposition, self._metrics.content_type

    def about(self) -> About:
        """Return facts about the monitor itself."""
        notices = [
            f"Alert {state.alert.key} ({state.severity}) since {clock(state.since)}: {state.what}"
            for state in self.pager.firing()
        ]
        if self.supervisor.restarts:
            notices.append(f"The prober was restarted {self.supervisor.restarts} times.")
        if self.supervisor.lost_rows:
            notices.append(f"{self.supervisor.lost_rows} rows were lost on the way.")
        return About(
            site=self._config.site,
            version=package_version(),
            started_at=self._started_at,
            window_s=DAY_S,
            notices=tuple(notices),
            queue_length=self._store.queue_length,
        )

    # -- background ------------------------------------------------------------------------

    async def render_forever(self) -> None:
        """Render the exposition once a second, off the loop."""
        while True:
            began = time.monotonic()
            self._update_gauges()
            self._exposition = await asyncio.to_thread(self._metrics.render)
            await asyncio.sleep(max(0.05, _RENDER - (time.monotonic() - began)))

    async def maintain_forever(self) -> None:
        """Close hours once a minute, and once an hour delete what is past keeping.

        What fails is tried again at the next turn.
        """
        kept = self._config.retention
        keep = Keep(
            results=kept.results,
            failures=kept.failures,
            minutes=kept.minutes,
            hours=kept.hours,
            days=kept.days,
        )
        pruned = time.monotonic()
        while True:
            await asyncio.sleep(_ROLL_UP)
            try:
                await self._store.roll_up(time.time())
                if time.monotonic() - pruned > _PRUNE:
                    pruned = time.monotonic()
                    await self._store.maintain(time.time(), keep)
            except StoreError as exc:
                log.warning("event=maintenance_failed reason=%r", str(exc))

    def _update_gauges(self) -> None:
        wall = time.time()
        for probe in self._probes.values():
            value = up(probe.now(wall))
            if value != probe.shown_up:
                self._metrics.set_up(probe.plan, value)
                probe.shown_up = value
            if probe.slos.windows and not 0 <= wall - probe.slos_shown < _SLOS:
                probe.slos_shown = wall
                self._metrics.set_slos(probe.plan, probe.slos.standings(wall))
        self._metrics.set_store(self._store.queue_length, self._store.dropped)
        self._metrics.set_restarts(self.supervisor.restarts)
        self._metrics.set_alerts(firing_counts(self.pager.book), self.pager.outbox.oldest_s(wall))


def _burn(slo: Slo, fired: Fired) -> Burn:
    return Burn(
        slo=slo.name,
        window=fired.alert.long,
        severity=fired.alert.severity,
        numbers=numbers(fired, slo.objective),
    )


def _log_result(row: ResultRow) -> None:
    result = row.result
    level = logging.INFO if result.outcome is Outcome.OK else logging.WARNING
    log.log(
        level,
        "probe=%s outcome=%s ttft_s=%s e2e_s=%s reason=%r request_id=%s",
        row.probe,
        result.outcome.value,
        _rounded(result.ttft_s),
        _rounded(result.e2e_s),
        result.reason,
        result.request_id,
    )


def _rounded(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.4f}"


async def serve(
    config: Config, address: tuple[str, int], child: Child, ready: Callable[[str], None]
) -> None:
    """Run the monitor until SIGTERM or SIGINT, which from then on are ignored.

    Args:
        config: What to run.
        address: Host and port of page and metrics; port 0 takes a free one.
        child: A started prober that has its plan.
        ready: Called with the base URL once the page answers.

    Raises:
        StartError: The store cannot be used or the address not bound.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, stopping.set)
    try:
        async with contextlib.AsyncExitStack() as stack:
            started = await _unless(stopping, _start(config, address, child, stack))
            if started is not None:
                monitor, port = started
                ready(f"http://{_host(address[0])}:{port}")
                await _run(monitor, stopping)
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # a second one must not spoil the end


async def _unless(stopping: asyncio.Event, work: Coroutine[None, None, _T]) -> _T | None:
    """Do work, but give it up for None when told to stop."""
    task, signalled = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def _start(
    config: Config, address: tuple[str, int], child: Child, stack: contextlib.AsyncExitStack
) -> tuple[Monitor, int]:
    """Open what the monitor needs, to be closed by the stack; return it and its port."""
    if (lacking := Pager.problem(config)) is not None:
        raise StartError(lacking)
    try:
        store = await Store.open(config.store_url)
        stack.push_async_callback(_close, store)
        pager = Pager(config, store.alerting(config.site), _page(address), store.put_event)
        await pager.load()
        monitor = Monitor(config, store, child, pager)
    except StoreError as exc:
        raise StartError(str(exc)) from None
    return monitor, await _listen(monitor, address, stack)


async def _refill(monitor: Monitor) -> None:
    try:
        await monitor.refill()
    except StoreError as exc:
        log.error("event=history_not_read reason=%r", str(exc))  # noqa: TRY400 - a known fault
        monitor.pager.restored = True  # better by what comes now than not at all


async def _run(monitor: Monitor, stopping: asyncio.Event) -> None:
    refilling = asyncio.create_task(_refill(monitor))
    background = [
        asyncio.create_task(monitor.supervisor.run()),
        asyncio.create_task(monitor.render_forever()),
        asyncio.create_task(monitor.maintain_forever()),
        asyncio.create_task(monitor.pager.run(monitor.looks)),
    ]
    await _until_stopped(stopping, background)
    refilling.cancel()
    await monitor.supervisor.stop()
    await _end(background)


async def _close(store: Store) -> None:
    lost = await store.close()
    if lost:
        log.error("event=rows_lost count=%d", lost)


async def _until_stopped(stopping: asyncio.Event, background: list[asyncio.Task[None]]) -> None:
    """Wait for the signal; a background task that ends by itself is a fault of ours."""
    signalled = asyncio.create_task(stopping.wait())
    await asyncio.wait({signalled, *background}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    for task in background:
        if task.done():
            task.result()


async def _end(background: list[asyncio.Task[None]]) -> None:
    supervising, *others = background
    for task in others:
        task.cancel()
    # The last rows are read by the supervisor's task until the prober's end of file.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(supervising, 2.0)
    await asyncio.gather(*background, return_exceptions=True)


async def _listen(
    monitor: Monitor, address: tuple[str, int], stack: contextlib.AsyncExitStack
) -> int:
    """Serve the page; return the port."""
    runner = web.AppRunner(
        build_app(monitor), access_log=None, handle_signals=False, shutdown_timeout=1.0
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, port = address
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as exc:
        # asyncio words the address into it; a name that does not resolve has no system errno
        why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)
        raise StartError(
            f"listen {host}:{port}: {why.lower()}, expected a free port (--listen HOST:PORT)"
        ) from None
    return int(runner.addresses[0][1])


def _page(address: tuple[str, int]) -> str:
    """Return the page's URL as far as it is known before listening; empty for a free port."""
    host, port = address
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104 - a question, not a bind
    return f"http://{_host(socket.gethostname() if everywhere else host)}:{port}" if port else ""


def _host(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
