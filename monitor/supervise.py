"""The parent's side of the prober: start it, read its rows, replace it when it dies or hangs.

Theory of operation. The child gets one end of a socketpair and a boot id. Its rows arrive in
order; a missing heartbeat for three seconds means that it hangs, and it is ended by pid and
replaced. The parent's own stall would look the same, so silence counts only while this loop is on
time, and only after what lies in the socket has been read. The grid's numbers go on across
restarts, so no slot is missed or counted twice: what a dead prober had begun is counted here as
`prober_down`, and its successor is told the last slot and counts what passed without a prober.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from monitor.grid import resumed
from monitor.link import Frames, Heartbeat, Plan, Row, Skip, SkipRow, decode_row, encode

SILENCE = 3.0
FIRST_BEAT = 15.0
STOP = 3.0
_TICK = 0.5
_OWN_LAG = 1.0
_HEALTHY = 10.0
_BACKOFF = (0.0, 0.2, 0.5, 1.0, 2.0)

log = logging.getLogger(__name__)


class Child:
    """A started prober process and our end of its link."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(8)
        self.started = time.monotonic()
        self.socket, theirs = socket.socketpair()
        # -P: a file `monitor.py` or `queue.py` where we were started is not ours. The child looks
        # for modules where we do, in place of there.
        command = [sys.executable, "-P", "-m", "monitor.prober"]
        command += ["--fd", str(theirs.fileno()), "--boot", self.boot]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs, _signals_blocked():
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env
            )

    def send(self, plan: Plan) -> None:
        """Give it its plan before anything is read from it; called at most once.

        A child that does not take it is ended, which its supervisor will see and mend.
        """
        self.socket.settimeout(FIRST_BEAT)
        try:
            self.socket.sendall(encode(plan))
        except OSError:
            self.kill()

    def kill(self) -> None:
        """End the process at once and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Have a child inherit that SIGINT and SIGTERM are blocked.

    Ctrl-C and systemd reach it too, but the parent decides and says so by the end of the link.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Slots:
    """Which slots of one probe have ended.

    Attributes:
        last: The last one that has.
        open: Those before it that have not.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.open: set[int] = set()

    def end(self, slot: int) -> None:
        if self.last is None:
            self.last = slot
        self.open.update(range(self.last + 1, slot))
        self.open.discard(slot)
        self.last = max(self.last, slot)


class _Downlink(asyncio.Protocol):
    def __init__(self, on_row: Callable[[Row], None]) -> None:
        self._frames = Frames()
        self._on_row = on_row
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._on_row(decode_row(body))

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lost.set()


class Supervisor:
    """Keeps a prober running a plan that its first child has been given.

    Attributes:
        restarts: Probers replaced since start.
        lost_rows: Gaps seen in the rows' numbers since start.
        beat: The last heartbeat; None before the first.
    """

    def __init__(self, plan: Plan, on_row: Callable[[str, Row], None], child: Child) -> None:
        self._plan = plan
        self._on_row = on_row
        self._child = child
        self._seq = 0
        self._slots = {probe.id: _Slots() for probe in plan.probes}
        self._heard = time.monotonic()
        self._stopping = False
        self._transport: asyncio.WriteTransport | None = None
        self.restarts = 0
        self.lost_rows = 0
        self.beat: Heartbeat | None = None

    @property
    def pid(self) -> int:
        """Process id of the current prober."""
        return self._child.process.pid

    async def run(self) -> None:
        """Serve probers until `stop`."""
        plan, quick = None, 0
        while True:
            began = time.monotonic()
            await self._serve(plan)
            if self._stopping:
                return
            self._bury()
            # One that served a while was healthy: only quick deaths in a row are slowed down.
            quick = 0 if time.monotonic() - began > _HEALTHY else quick
            await asyncio.sleep(_BACKOFF[min(quick, len(_BACKOFF) - 1)])
            quick += 1
            if self._stopping:
                return
            self._child = Child()
            plan = self._plan_to_go_on()

    async def stop(self) -> None:
        """Ask the prober to end, wait for its last rows, then make sure that it is gone."""
        self._stopping = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()
        for _ in range(int(STOP / 0.05)):
            if self._child.process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        self._child.kill()

    async def _serve(self, plan: Plan | None) -> None:
        """Give one prober a plan, unless it has one; read its rows until it is gone or hangs."""
        loop = asyncio.get_running_loop()
        link = _Downlink(self._take)
        self._seq, self._heard, self.beat = 0, time.monotonic(), None
        transport, _ = await loop.create_unix_connection(lambda: link, sock=self._child.socket)
        self._transport = transport
        if plan is not None:
            transport.write(encode(plan))  # never blocks, whatever the child does
        silence = asyncio.create_task(self._watch_silence())
        lost = asyncio.create_task(link.lost.wait())
        await asyncio.wait({silence, lost}, return_when=asyncio.FIRST_COMPLETED)
        for task in (silence, lost):
            task.cancel()
        transport.abort()
        await link.lost.wait()

    async def _watch_silence(self) -> None:
        """Return when the prober has been silent too long while we were listening."""
        due = time.monotonic() + _TICK
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            if now - due > _OWN_LAG:
                self._heard = now  # we were away, not the prober
            due = now + _TICK
            allowed = FIRST_BEAT if self.beat is None else SILENCE
            if now - self._heard > allowed and not self._stopping:
                log.error("event=prober_hangs pid=%d silent_s=%.1f", self.pid, now - self._heard)
                return

    def _take(self, row: Row) -> None:
        self._heard = time.monotonic()
        self.lost_rows += max(0, row.seq - self._seq - 1)
        self._seq = row.seq
        if isinstance(row, Heartbeat):
            self.beat = row
        elif row.probe in self._slots:
            self._slots[row.probe].end(row.slot)
        self._on_row(self._child.boot, row)

    def _bury(self) -> None:
        """End a lost prober and count the slots that it had begun and can no longer end."""
        self._child.kill()
        self.restarts += 1
        log.error("event=prober_restarted restarts=%d", self.restarts)
        mono, wall = time.monotonic(), time.time()
        for probe in self._plan.probes:
            slots, grid = self._slots[probe.id], resumed(probe.id, probe.interval, -1)
            for slot in sorted(slots.open):
                at = wall + grid.due(slot) - mono
                row = SkipRow(slot, mono, probe.id, at, Skip.PROBER_DOWN, slot)
                self._on_row(f"{self._child.boot}-{probe.id}", row)
            slots.open.clear()

    def _plan_to_go_on(self) -> Plan:
        last = {probe: slots.last for probe, slots in self._slots.items()}
        return replace(self._plan, last={p: s for p, s in last.items() if s is not None})
