"""`kill -9` at random moments: what was committed stays, once, and no slot is lost."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, wait_for
from tests.faults.rig import (
    RANDOM,
    doubled,
    group,
    kill,
    missing,
    prober,
    slots,
    spawn,
    until_ready,
)
from tests.figures import Figure
from tests.servers import Server, reference_server

pytestmark = pytest.mark.slow

PARENTS, PROBERS_EACH = 10, 2
INTERVALS = {"a/chat": 0.3, "a/models": 0.2, "b/models": 0.2, "b/slow": 0.5}

CONFIG = """
endpoints:
  a: {{url: "{url}", model: reference}}
  b: {{url: "{url}", model: reference}}
workloads:
  chat: {{kind: chat, interval: 300ms, max_tokens: 4, endpoints: [a]}}
  models: {{kind: models, interval: 200ms}}
  slow: {{kind: chat, interval: 500ms, max_tokens: 60, endpoints: [b]}}
"""


@dataclass
class Witness:
    """Reads the database beside the monitor.

    Attributes:
        seen: Every row that was found committed.
        back: Seconds from each kill of a prober to its successor's first row on disk.
        gone: Seconds from each kill of a parent to the end of its prober.
        lives: Wall clock of start and kill of each parent.
    """

    monitor: Monitored
    seen: set[tuple[str, float]] = field(default_factory=set)
    back: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    lives: list[tuple[float, float]] = field(default_factory=list)

    def look(self) -> None:
        """Take what is committed now; nothing that was may be missing."""
        rows = self.monitor.query("select uid, slot_at from results")
        assert len(rows) == len(set(rows))
        lost = self.seen - set(rows)
        assert not lost, f"lost {len(lost)}: {sorted(lost)[:3]}"
        self.seen |= set(rows)

    def kill_prober(self) -> None:
        pid = prober(self.monitor)
        self.look()
        os.kill(pid, signal.SIGKILL)
        began, killed_at = time.monotonic(), time.time()
        new = "select 1 from results where started_at > ?"
        wait_for(lambda: self.monitor.query(new, killed_at), 20, every=0.02)
        self.back.append(time.monotonic() - began)

    def kill_parent(self, started_at: float) -> None:
        if self.monitor.database.exists() and self.seen:
            self.look()
        kill(self.monitor)
        self.lives.append((started_at, time.time()))
        began = time.monotonic()
        wait_for(lambda: not group(self.monitor.process.pid), 20, every=0.02)
        self.gone.append(time.monotonic() - began)
        if self.seen:
            self.look()
            assert self.monitor.query("pragma integrity_check") == [("ok",)]


def pause() -> None:
    time.sleep(RANDOM.uniform(0.5, 2.0))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with reference_server("--ttft", "0.02", "--gap", "0.005") as running:
        yield running


def live(folder: Path, server: Server, witness: Witness | None, *, probers: int) -> Witness:
    """Run a monitor, kill its prober some times, then it."""
    started_at = time.time()
    monitor = spawn(folder, CONFIG.format(url=server.url))
    try:
        if witness is None:
            witness = Witness(monitor)
        witness.monitor = monitor
        if probers:
            until_ready(monitor)
        for _ in range(probers):
            pause()
            witness.kill_prober()
        pause()
    finally:
        if witness is not None:
            witness.kill_parent(started_at)
    return witness


def test_thirty_kills_lose_nothing_committed_and_double_nothing(
    tmp_path: Path, server: Server, figure: Figure
) -> None:
    witness = None
    for number in range(PARENTS):
        # Some are killed before they are ready, and none of their probers was.
        probers = 0 if number % 5 == 3 else PROBERS_EACH + (number % 5 == 4) * 2
        witness = live(tmp_path, server, witness, probers=probers)
    assert witness is not None
    log = witness.monitor.log.read_text()
    figure(
        f"kills: {len(witness.gone)} of parents, {len(witness.back)} of probers; "
        f"{len(witness.seen)} rows seen committed, 0 lost, 0 doubled; "
        f"prober back in {max(witness.back):.2f} s at most, "
        f"orphan gone in {max(witness.gone):.2f} s at most"
    )
    assert "Traceback" not in log, log
    # Up to two seconds of it are what slows a crash loop down; a crowded machine adds its part.
    assert statistics.median(witness.back) < 3, witness.back
    assert max(witness.back) < 10, witness.back
    for started_at, killed_at in witness.lives:
        check_slots(witness.monitor, started_at, killed_at)


def check_slots(monitor: Monitored, started_at: float, killed_at: float) -> None:
    """While one parent lived, every slot is there once, but for what was then in flight."""
    for probe, counts in slots(monitor, INTERVALS, started_at, killed_at - 1.0).items():
        assert not doubled(counts), probe
        lost = missing(counts)
        in_flight = lost and max(counts) - lost[0] <= 5.0 / INTERVALS[probe]
        assert len(lost) <= bool(in_flight), (probe, lost)
