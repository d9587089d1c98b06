"""Real servers as child processes for tests, and what to do where a real part is missing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from monitor import llama
from monitor.demo import Child

LLAMA_MODEL = llama.MODEL


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def missing(part: str) -> NoReturn:
    """Fail in CI, skip elsewhere, because `part` of the real world is not there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing: {part}")
    pytest.skip(f"missing: {part}")


def require(found: object, part: str) -> None:
    """Go on only if `found` is true, or what `which` and the like found."""
    if not found:
        missing(part)


class Server:
    """A server in a child process: `start` as often as wanted, always on the same port."""

    def __init__(self, module: str, *arguments: str, key: str | None = None) -> None:
        self._command = (module, *arguments)
        self._env = {"TEST_SERVER_KEY": key} if key else {}
        self._port = 0
        self._child: Child | None = None
        self.url = ""

    def start(self) -> None:
        module, *arguments = self._command
        if self._env:
            arguments += ["--api-key-env", "TEST_SERVER_KEY"]
        self._child = Child(module, *arguments, "--port", str(self._port), env=self._env)
        self.url = self._child.ready()[0]
        self._port = int(self.url.removesuffix("/v1").rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.process.pid

    def kill(self) -> None:
        """End it as a crash would, connections and all."""
        assert self._child is not None
        self._child.kill()
        self.stop()

    def stop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


@contextmanager
def llama_server(*, key: str | None = None, slots: int = 2) -> Iterator[Server]:
    """llama.cpp's own server with SmolLM2 on one thread; its model is `LLAMA_MODEL`."""
    if (part := llama.missing()) is not None:
        missing(part)
    arguments = ("--with-stdin", "--slots", str(slots))
    with _running(Server("monitor.llama", *arguments, key=key)) as server:
        yield server


@contextmanager
def reference_server(*arguments: str, key: str | None = None) -> Iterator[Server]:
    """`python -m probes.reference` with `arguments`."""
    with _running(Server("probes.reference", *arguments, key=key)) as server:
        yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.stop()
