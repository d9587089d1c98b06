"""A real PostgreSQL for tests: TEST_DATABASE_URL, or a server of our own in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_INSTALLED = Path("/usr/lib/postgresql")
_START_S = 60.0


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a running server; ours is ended by its process id afterwards."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield url
        return
    binaries = _binaries()
    # Not tmp_path: the server's user must be able to enter it, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="epm-pg-"))
    try:
        _as_owner(folder, [binaries / "initdb", "--auth=trust", "-U", "epm", "-D", folder / "d"])
        with _running(binaries, folder) as port:
            yield f"postgresql://epm@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    found = sorted(_INSTALLED.glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    if os.environ.get("CI") == "true":
        pytest.fail("PostgreSQL is not installed; the store must be tested on it")
    pytest.skip("PostgreSQL is not installed; set TEST_DATABASE_URL or install it")


def _owner() -> list[str]:
    """Return the prefix that drops root, as which PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


def _as_owner(folder: Path, command: list[str | Path]) -> None:
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    done = subprocess.run(
        [*_owner(), *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def _running(binaries: Path, folder: Path) -> Iterator[int]:
    port = _free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "fsync": "off",
        "shared_buffers": "16MB",
    }
    options = [f"-c{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*_owner(), binaries / "postgres", "-D", folder / "d", *options],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(binaries, process, port, folder / "log")
        yield port
    finally:
        process.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(
    binaries: Path, process: subprocess.Popen[bytes], port: int, log: Path
) -> None:
    deadline = time.monotonic() + _START_S
    ready: list[str | Path] = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"PostgreSQL did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
