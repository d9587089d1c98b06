"""A database that is locked, read-only, damaged or not there, and a port that is taken."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.monitored import wait_for
from tests.faults.rig import SECONDS, doubled, missing, refused, running, slots
from tests.figures import Figure
from tests.servers import Server, reference_server, require

INTERVALS = {"a/chat": 0.3, "a/models": 0.2}
CONFIG = """
endpoints:
  a: {{url: "{url}", model: reference}}
workloads:
  chat: {{kind: chat, interval: 300ms, max_tokens: 4}}
  models: {{kind: models, interval: 200ms}}
"""
# Root may write everywhere, unless it gives that up.
MORTAL = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with reference_server() as running:
        yield running


@pytest.fixture
def config(server: Server) -> str:
    return CONFIG.format(url=server.url)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    connection = sqlite3.connect(database, isolation_level=None, timeout=10)
    connection.execute("begin exclusive")
    try:
        yield
    finally:
        connection.execute("rollback")
        connection.close()


@pytest.mark.slow
def test_probes_and_metrics_go_on_while_the_database_is_locked(
    tmp_path: Path, config: str, figure: Figure
) -> None:
    with running(tmp_path, config) as monitor:
        wait_for(monitor.stored_counts, 10)
        slowest, longest = 0.0, 0.0
        with locked(monitor.database):
            end = time.monotonic() + SECONDS
            before = sum(monitor.metric_counts().values())
            while time.monotonic() < end:
                began = time.monotonic()
                queued = monitor.samples("endpoint_monitor_store_queue_length")
                slowest = max(slowest, time.monotonic() - began)
                longest = max(longest, *queued.values())
                time.sleep(0.2)
            probed = sum(monitor.metric_counts().values()) - before
            status, words = monitor.health()
        assert probed > SECONDS * 5
        assert longest > SECONDS * 5
        assert status == 503
        assert "database is locked" in words
        wait_for(lambda: monitor.stored_counts() == monitor.metric_counts(), 15)
        figure(
            f"database locked {SECONDS:g} s: {probed} probes went on, {longest:.0f} rows queued, "
            f"0 lost; slowest /metrics {slowest * 1000:.0f} ms"
        )
        assert monitor.health()[0] == 200
        assert slowest < 1
        for counts in slots(monitor, INTERVALS, until=time.time() - 2).values():
            assert not missing(counts)
            assert not doubled(counts)
        assert sum(monitor.samples("endpoint_monitor_rows_dropped_total").values()) == 0


def test_a_read_only_directory_is_one_line(tmp_path: Path, config: str) -> None:
    require(not MORTAL or shutil.which("setpriv"), "setpriv")
    folder = tmp_path / "folder"
    folder.mkdir()
    text = config + f"store: sqlite:///{folder}/x.db\n"
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    line = refused(tmp_path, text, prefix=MORTAL)
    assert line == f"endpoint-monitor: store {folder}/x.db: unable to open database file"


@pytest.mark.slow
def test_a_database_that_became_read_only_is_one_line(tmp_path: Path, config: str) -> None:
    require(not MORTAL or shutil.which("setpriv"), "setpriv")
    folder = tmp_path / "folder"
    folder.mkdir()
    text = config + f"store: sqlite:///{folder}/x.db\n"
    with running(tmp_path, text):
        pass
    (tmp_path / "monitor.log").unlink()
    (folder / "x.db").chmod(stat.S_IRUSR)
    line = refused(tmp_path, text, prefix=MORTAL)
    assert line.startswith(f"endpoint-monitor: store {folder}/x.db: ")
    assert "readonly" in line
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    (tmp_path / "monitor.log").unlink()
    line = refused(tmp_path, text, prefix=MORTAL)
    assert line.startswith(f"endpoint-monitor: store {folder}/x.db: ")


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path, config: str) -> None:
    (tmp_path / "endpoint-monitor.db").write_bytes(b"not a database at all " * 1000)
    line = refused(tmp_path, config)
    where = tmp_path / "endpoint-monitor.db"
    assert line == f"endpoint-monitor: store {where}: file is not a database"


@pytest.mark.slow
def test_a_damaged_database_is_one_line(tmp_path: Path, config: str) -> None:
    with running(tmp_path, config) as monitor:
        wait_for(lambda: sum(monitor.stored_counts().values()) > 10, 10)
        monitor.stop()
    monitor.log.unlink()
    with monitor.database.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(monitor.database.stat().st_size - 4096))
    line = refused(tmp_path, config)
    assert line.startswith(f"endpoint-monitor: store {monitor.database}: ")
    assert "malformed" in line


def test_a_taken_port_is_one_line(tmp_path: Path, config: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(tmp_path, config, listen=address)
    expected = "address already in use, expected a free port (--listen HOST:PORT)"
    assert line == f"endpoint-monitor: listen {address}: {expected}"
