"""A monitor in a process group of its own, to be stopped, killed and looked at from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor.grid import phase
from tests.e2e.monitored import Monitored, wait_for

SECONDS = float(os.environ.get("FAULT_SECONDS", "6"))
"""How long a fault lasts that has a length; 60 for the real thing, short in CI."""

RANDOM = random.Random(os.environ.get("FAULT_SEED", "1"))

START = (sys.executable, "-m", "monitor.cli", "run")
_SLOW = 20.0  # a start takes two seconds, on a crowded machine several times that


def spawn(
    folder: Path,
    config: str,
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    listen: str = "127.0.0.1:0",
) -> Monitored:
    """Start a monitor and do not wait for it; a second call goes on with the same database."""
    path, log = folder / "monitor.yaml", folder / "monitor.log"
    path.write_text(config)
    with log.open("a") as err:
        process = subprocess.Popen(
            [*prefix, *START, str(path), "--listen", listen],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    return Monitored(process, "", folder / "endpoint-monitor.db", log)


def until_ready(monitor: Monitored) -> None:
    """Wait for the READY line."""
    assert monitor.process.stdout is not None
    line = monitor.process.stdout.readline()
    assert line.startswith("READY "), monitor.log.read_text()
    monitor.base = line.split("page=")[1].split()[0].rstrip("/")


def kill(monitor: Monitored) -> None:
    """End it as a crash would, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        monitor.process.kill()
    monitor.process.wait(10)
    if monitor.process.stdout is not None:
        monitor.process.stdout.close()


@contextlib.contextmanager
def running(
    folder: Path,
    config: str,
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Monitored]:
    """A monitor that is ready; however it is left, nothing of it stays."""
    monitor = spawn(folder, config, prefix=prefix, env=env)
    try:
        until_ready(monitor)
        yield monitor
    finally:
        if monitor.process.poll() is None:
            monitor.process.send_signal(signal.SIGCONT)
            monitor.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                monitor.process.wait(15)
        kill(monitor)


def refused(
    folder: Path, config: str, *, prefix: Sequence[str] = (), listen: str = "127.0.0.1:0"
) -> str:
    """Start a monitor that must not start: exit code 2, one line, no prober left. The line."""
    monitor = spawn(folder, config, prefix=prefix, listen=listen)
    try:
        assert monitor.process.wait(_SLOW) == 2, monitor.log.read_text()
    finally:
        kill(monitor)
    wait_for(lambda: not group(monitor.process.pid), 5)
    (line,) = monitor.log.read_text().splitlines()
    return line


# -- processes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    group: int
    state: str
    command: str


def processes() -> list[Process]:
    """Every process of this machine that has not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        state, parent, pgrp = stat.rpartition(")")[2].split()[:3]
        words = command.decode(errors="replace").replace("\0", " ")
        found.append(Process(int(entry.name), int(parent), int(pgrp), state, words))
    return [process for process in found if process.state not in "ZX"]


def group(pid: int) -> list[Process]:
    """What runs in a process group."""
    return [process for process in processes() if process.group == pid]


def prober(monitor: Monitored, *, other_than: int = 0) -> int:
    """Wait for the prober's pid."""
    pid = monitor.process.pid

    def child() -> int:
        found = [p.pid for p in processes() if p.parent == pid and "monitor.prober" in p.command]
        return next((p for p in found if p != other_than), 0)

    return int(wait_for(child, _SLOW, every=0.02))


def rss(pid: int) -> int:
    """Bytes of memory that a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


# -- slots ---------------------------------------------------------------------------------------

# Wall clock minus monotonic clock: constant, as no test that reads slots turns the clock.
OFFSET = time.time() - time.monotonic()


def slots(
    monitor: Monitored, intervals: Mapping[str, float], since: float = 0.0, until: float = 1e12
) -> dict[str, Counter[int]]:
    """How often each slot of the grid is in the database, as result or skip.

    The first slot after a start is brought forward and not on the grid: it is left out.
    """
    query = (
        "select probe, slot_at from results where slot_at between ?1 and ?2 union all "
        "select probe, slot_at from skips where slot_at between ?1 and ?2 order by slot_at"
    )
    found: dict[str, list[int]] = defaultdict(list)
    for probe, at in monitor.query(query, since, until):
        interval = intervals[probe]
        number = (at - OFFSET - phase(probe, interval)) / interval
        found[probe].append(round(number))
    return {probe: Counter(numbers[1:]) for probe, numbers in found.items()}


def missing(counts: Counter[int]) -> list[int]:
    """Slots between the first and the last that are not there."""
    numbers = sorted(counts)
    return [n for n in range(numbers[0], numbers[-1]) if n not in counts] if numbers else []


def doubled(counts: Counter[int]) -> list[int]:
    """Slots that are there twice."""
    return [number for number, times in counts.items() if times > 1]
