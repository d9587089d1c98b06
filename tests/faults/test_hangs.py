"""Processes that stand still: a hung prober is replaced, a hung parent costs nothing."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, wait_for
from tests.faults.rig import doubled, missing, prober, running, slots
from tests.figures import Figure
from tests.servers import reference_server

pytestmark = pytest.mark.slow

TTFT = 0.05
INTERVALS = {"a/chat": 0.5, "a/models": 0.2}
CONFIG = """
endpoints:
  a: {{url: "{url}", model: reference}}
workloads:
  chat: {{kind: chat, interval: 500ms, max_tokens: 4}}
  models: {{kind: models, interval: 200ms}}
"""


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    with reference_server("--ttft", str(TTFT)) as server:
        folder = tmp_path_factory.mktemp("hangs")
        with running(folder, CONFIG.format(url=server.url)) as monitor:
            yield monitor


def caught_up(monitor: Monitored) -> bool:
    """Whether a result that began just now is on disk."""
    return bool(monitor.query("select 1 from results where started_at > ?", time.time() - 1))


def all_slots_are_there(monitor: Monitored) -> bool:
    found = slots(monitor, INTERVALS, until=time.time() - 2)
    return all(not missing(counts) and not doubled(counts) for counts in found.values())


def test_a_parent_that_stood_still_keeps_prober_rows_and_stamps(monitor: Monitored) -> None:
    pid = prober(monitor)
    wait_for(lambda: caught_up(monitor), 10)
    time.sleep(1)
    began = time.time()
    os.kill(monitor.process.pid, signal.SIGSTOP)
    time.sleep(5)
    ended = time.time()
    os.kill(monitor.process.pid, signal.SIGCONT)
    wait_for(lambda: caught_up(monitor), 10)
    time.sleep(1)
    assert prober(monitor) == pid
    assert "prober_" not in monitor.log.read_text()
    rows = monitor.query(
        "select ttft_s, outcome from results where workload = 'chat' and not tainted "
        "and started_at between ? and ?", began, ended,
    )  # fmt: skip
    assert {outcome for _, outcome in rows} == {"ok"}
    # A stamp that had waited for the parent would be seconds late.
    assert len(rows) >= 7
    assert TTFT <= statistics.median(ttft for ttft, _ in rows) < TTFT + 0.02
    assert wait_for(lambda: all_slots_are_there(monitor), 5)


def test_a_prober_that_stands_still_is_replaced(monitor: Monitored, figure: Figure) -> None:
    pid, began, stopped_at = prober(monitor), time.monotonic(), time.time()
    os.kill(pid, signal.SIGSTOP)
    prober(monitor, other_than=pid)
    replaced = time.monotonic() - began
    new = "select 1 from results where started_at > ?"
    wait_for(lambda: monitor.query(new, stopped_at + 0.5), 15)
    figure(
        f"hung prober replaced after {replaced:.1f} s, "
        f"its successor's first row on disk after {time.monotonic() - began:.1f} s"
    )
    assert 3 <= replaced < 7
    assert not Path(f"/proc/{pid}").exists()
    assert "event=prober_hangs" in monitor.log.read_text()
    down = "select count(*) from skips where reason = 'prober_down' and probe = 'a/models'"
    wait_for(lambda: monitor.query(down)[0][0] >= 15, 5)
    assert wait_for(lambda: all_slots_are_there(monitor), 5)
    (stored,) = monitor.query("select count(*) from skips where reason = 'prober_down'")[0]
    key = (("status", "prober_down"),)
    wait_for(lambda: monitor.samples("endpoint_monitor_slots_total").get(key) == stored, 5)
    assert sum(monitor.samples("endpoint_monitor_prober_restarts_total").values()) == 1
    assert "prober was restarted 1 time" in monitor.get("/")


def test_a_probers_short_stop_is_ours_and_not_the_endpoints(monitor: Monitored) -> None:
    """Two seconds stopped is no hang; what was measured meanwhile is marked and left out."""
    pid, before = prober(monitor), monitor.stored_counts()
    stopped_at = time.time()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: caught_up(monitor), 10)
    time.sleep(0.5)
    assert prober(monitor) == pid
    late = "select count(*) from skips where reason = 'late' and slot_at > ?"
    assert monitor.query(late, stopped_at)[0][0] >= 8
    bad = [key for key in monitor.stored_counts() - before if key[2] != "ok"]
    assert not bad, "no false timeout"
    across = (
        "select tainted, loop_lag_s from results where started_at < ?1 "
        "and started_at + coalesce(e2e_s, 0) > ?1"
    )
    assert all(tainted and lag > 1 for tainted, lag in monitor.query(across, stopped_at))
    assert wait_for(lambda: all_slots_are_there(monitor), 5)
