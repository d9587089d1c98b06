"""SIGTERM, Ctrl-C and closed pipes at any moment: a quick end in good order."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, wait_for
from tests.faults.rig import RANDOM, START, group, kill, prober, running, spawn
from tests.figures import Figure
from tests.servers import Server, reference_server

pytestmark = pytest.mark.slow

CONFIG = """
endpoints:
  a: {{url: "{url}", model: reference}}
  hangs: {{url: "{url}", model: reference-hang}}
workloads:
  chat: {{kind: chat, interval: 300ms, max_tokens: 4}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with reference_server("--pause", "30") as running:
        yield running


@pytest.fixture
def config(server: Server) -> str:
    return CONFIG.format(url=server.url)


def in_flight(monitor: Monitored) -> bool:
    """Whether an attempt on the endpoint that hangs has begun: its next slots are overlaps."""
    if not monitor.query("select 1 from sqlite_master where name = 'skips'"):
        return False
    overlaps = "select 1 from skips where endpoint = 'hangs' and reason = 'overlap'"
    return bool(monitor.query(overlaps))


def ends_well(monitor: Monitored) -> float:
    """Wait for the end; return how long it took."""
    began = time.monotonic()
    assert monitor.process.wait(15) == 0, monitor.log.read_text()
    took = time.monotonic() - began
    wait_for(lambda: not group(monitor.process.pid), 5)
    said = monitor.log.read_text()
    for word in ("Traceback", "Exception", "ERROR", "Error"):
        assert word not in said, said
    return took


@pytest.mark.parametrize(
    ("name", "whole_group", "times"),
    [("SIGTERM", False, 1), ("SIGTERM", False, 5), ("SIGTERM", True, 1), ("SIGINT", True, 3)],
)
def test_the_monitor_ends_in_mid_probe_and_stores_what_was_in_flight(
    tmp_path: Path, config: str, name: str, whole_group: bool, times: int, figure: Figure
) -> None:
    number = signal.Signals[name]
    with running(tmp_path, config) as monitor:
        wait_for(lambda: in_flight(monitor), 10)
        for _ in range(times):
            send = os.killpg if whole_group else os.kill
            send(monitor.process.pid, number)
            time.sleep(0.02)
        took = ends_well(monitor)
        (aborted,) = monitor.query(
            "select endpoint, reason from results where outcome = 'aborted' and endpoint = 'hangs'"
        )
        assert aborted == ("hangs", "the monitor was stopped")
    who = "the whole group" if whole_group else "the parent"
    figure(f"{name} x {times} to {who} in mid-probe: ended after {took:.2f} s")
    assert took < 5


def test_a_signal_during_start_up_ends_it_too(tmp_path: Path, config: str, figure: Figure) -> None:
    longest = 0.0
    for number in (signal.SIGTERM, signal.SIGINT) * 3:
        monitor = spawn(tmp_path, config)
        try:
            prober(monitor)
            time.sleep(RANDOM.uniform(0, 1.5))
            os.killpg(monitor.process.pid, number)
            longest = max(longest, ends_well(monitor))
        finally:
            kill(monitor)
    figure(f"signals during start-up: ended after {longest:.2f} s at most")
    assert longest < 5


def test_a_signal_while_the_store_is_waited_for_ends_it(tmp_path: Path, config: str) -> None:
    with running(tmp_path, config) as first:
        first.stop()
    with contextlib.closing(sqlite3.connect(first.database, isolation_level=None)) as holder:
        holder.execute("pragma locking_mode = exclusive")
        holder.execute("begin exclusive")
        monitor = spawn(tmp_path, config)
        try:
            prober(monitor)
            time.sleep(4)
            os.kill(monitor.process.pid, signal.SIGTERM)
            assert ends_well(monitor) < 3
        finally:
            kill(monitor)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nobody_needs_to_read_what_the_monitor_says(
    tmp_path: Path, config: str, stream: str
) -> None:
    (tmp_path / "monitor.yaml").write_text(config)
    monitor = subprocess.Popen(
        [*START, str(tmp_path / "monitor.yaml"), "--listen", "127.0.0.1:0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stream == "stdout" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if stream == "stderr" else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    pipe = getattr(monitor, stream)
    pipe.close()
    seen = Monitored(monitor, "", tmp_path / "endpoint-monitor.db", tmp_path / "none")
    try:
        wait_for(lambda: seen.database.exists() and in_flight(seen), 20)
        assert monitor.poll() is None
        monitor.terminate()
        assert monitor.wait(10) == 0
    finally:
        kill(seen)


def test_a_closed_stdout_does_no_harm(tmp_path: Path, config: str) -> None:
    (tmp_path / "monitor.yaml").write_text(config)
    command = " ".join([*START, str(tmp_path / "monitor.yaml"), "--listen", "127.0.0.1:0"])
    log = tmp_path / "log"
    monitor = subprocess.Popen(
        f"exec {command} >&- 2>{log}", shell=True, text=True, start_new_session=True
    )
    seen = Monitored(monitor, "", tmp_path / "endpoint-monitor.db", log)
    try:
        wait_for(lambda: seen.database.exists() and in_flight(seen), 20)
        monitor.terminate()
        ends_well(seen)
    finally:
        kill(seen)
