"""The parent's side of the prober: start it, read its rows, replace it when it dies or hangs.

Theory of operation. The child gets one end of a socketpair and a boot id. Its rows arrive in
order; a missing heartbeat for three seconds means that it hangs, and it is ended by pid and
replaced. The parent's own stall would look the same, so silence counts only while this loop is on
time, and only after what lies in the socket has been read. Slots that passed while no prober ran
are counted as `prober_down`; the grid's numbers go on across restarts, so none is missed or
counted twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from monitor.grid import Grid, phase
from monitor.link import (
    Frames,
    Heartbeat,
    Plan,
    Row,
    Skip,
    SkipRow,
    decode_row,
    encode,
)

SILENCE = 3.0
FIRST_BEAT = 15.0
STOP = 4.0
_TICK = 0.5
_OWN_LAG = 1.0
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)

log = logging.getLogger(__name__)


class Child:
    """A started prober process and our end of its link."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(8)
        self.started = time.monotonic()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "monitor.prober"]
            command += ["--fd", str(theirs.fileno()), "--boot", self.boot]
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self.socket = ours

    def send(self, plan: Plan) -> None:
        """Give it its plan; called once, before anything is read from it."""
        self.socket.sendall(encode(plan))

    def kill(self) -> None:
        """End the process at once and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


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
        self._slots: dict[str, int] = {}
        self._heard = time.monotonic()
        self._stopping = False
        self.restarts = 0
        self.lost_rows = 0
        self.beat: Heartbeat | None = None

    @property
    def pid(self) -> int:
        """Process id of the current prober."""
        return self._child.process.pid

    async def run(self) -> None:
        """Serve probers until `stop`."""
        while True:
            began = time.monotonic()
            await self._serve()
            if self._stopping:
                return
            self._child.kill()
            # A prober that served a while was healthy: only quick deaths are slowed down.
            quick = self.restarts if time.monotonic() - began < 60 else 0
            self.restarts += 1
            log.error("event=prober_restarted restarts=%d", self.restarts)
            await asyncio.sleep(_BACKOFF[min(quick, len(_BACKOFF) - 1)])
            if self._stopping:
                return
            self._child = Child()
            self._child.send(self._plan)

    async def stop(self) -> None:
        """Ask the prober to end, wait for its last rows, then make sure that it is gone."""
        self._stopping = True
        with contextlib.suppress(ProcessLookupError):
            self._child.process.send_signal(signal.SIGTERM)
        for _ in range(int(STOP / 0.05)):
            if self._child.process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        self._child.kill()

    async def _serve(self) -> None:
        """Read one prober's rows until it is gone or hangs."""
        loop = asyncio.get_running_loop()
        link = _Downlink(self._take)
        self._seq, self._heard, self.beat = 0, time.monotonic(), None
        transport, _ = await loop.create_unix_connection(lambda: link, sock=self._child.socket)
        silence = asyncio.create_task(self._watch_silence())
        lost = asyncio.create_task(link.lost.wait())
        await asyncio.wait({silence, lost}, return_when=asyncio.FIRST_COMPLETED)
        for task in (silence, lost):
            task.cancel()
        transport.close()

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
            first, self.beat = self.beat is None, row
            if first and self.restarts:
                self._account_for_gap()
        else:
            self._slots[row.probe] = max(row.slot, self._slots.get(row.probe, row.slot))
        self._on_row(self._child.boot, row)

    def _account_for_gap(self) -> None:
        """Count the slots that passed while no prober ran."""
        now, wall = time.monotonic(), time.time()
        for probe in self._plan.probes:
            last = self._slots.get(probe.id, -1)
            if last < 0:
                continue
            grid = Grid(probe.interval, phase(probe.id, probe.interval), 0.0)
            latest = grid.latest(now)
            for slot in range(last + 1, (latest if latest is not None else -1) + 1):
                at = wall + (grid.due(slot) - now)
                row = SkipRow(0, now, probe.id, at, Skip.PROBER_DOWN, slot)
                self._slots[probe.id] = slot
                # A slot's number is unique within the machine's boot: it makes the row's id.
                self._on_row(f"gap-{probe.id}-{slot}-{int(at)}", row)
