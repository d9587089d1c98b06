"""What `endpoint-monitor demo` watches: a real model, and reference endpoints that tell a story.

Run as a program, it is the child process that holds the reference endpoints, so that they do not
share an event loop with the prober.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from monitor import llama
from probes.reference import Behavior, Fault, Reference

_START_S = 30.0
_STOP_S = 3.0
_REAL = "smollm2"
REAL_MODULE = "monitor.llama"

REFERENCES: Mapping[str, Behavior] = {
    "healthy": Behavior(ttft=0.12, gap=0.015, tokens=48, jitter=0.3, seed=1),
    "slow": Behavior(ttft=0.9, gap=0.03, tokens=16, jitter=0.25, seed=2),
    "flaky": Behavior(
        ttft=0.2,
        gap=0.015,
        tokens=48,
        jitter=0.5,
        seed=32,  # the third and the fifth answer fail, each in its own way
        pause=3.0,
        faults={
            Fault.ERROR500: 0.07,
            Fault.STALL: 0.06,
            Fault.ERROR_EVENT: 0.06,
            Fault.RESET: 0.06,
            Fault.EMPTY: 0.05,
        },
    ),
}
"""Each answer and each fault ends within the two seconds between probes."""


class ChildError(Exception):
    """A child process ended, or said nothing in time, in place of getting ready."""


class Child:
    """A module of ours, run as a program that prints READY; ends when told, or with us.

    Attributes:
        process: Its standard input stays open as long as we live.
    """

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,  # Ctrl-C is for us: children end after the monitor has
        )

    def ready(self) -> list[str]:
        """Wait for the child and return the words after its READY.

        Raises:
            ChildError: It ended or took too long; the message holds its last words.
        """
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        out = self.process.stdout.fileno()
        end, said = time.monotonic() + _START_S, b""
        while select.select([out], [], [], max(end - time.monotonic(), 0.0))[0]:
            piece = os.read(out, 4096)
            said += piece
            for line in said.splitlines(keepends=True):
                if line.startswith(b"READY ") and line.endswith(b"\n"):
                    return line.decode().split()[1:]
            if not piece:
                raise ChildError(f"{self._module} ended with {self.process.wait()}: {self._why()}")
        raise ChildError(f"{self._module} was not ready after {_START_S:.0f} s")

    def _why(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "nothing said"

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it: asked first, then at once."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@dataclass(frozen=True, slots=True)
class Demo:
    """The running endpoints.

    Attributes:
        urls: Base URL by endpoint name.
        missing: One line about what could not be started; None when all runs.
    """

    urls: Mapping[str, str]
    missing: str | None


def real_model_available() -> bool:
    """Say whether llama.cpp's server and its model are installed."""
    return llama.missing() is None


@contextmanager
def demo_servers() -> Iterator[Demo]:
    """Start the endpoints as child processes; they end with the block, or with this process.

    Raises:
        ChildError: The reference endpoints did not start. A real model that does not is only
            noted in `Demo.missing`.
    """
    missing = llama.missing()
    with ExitStack() as children:
        references = Child("monitor.demo")
        children.callback(references.end)
        urls: dict[str, str] = {}
        if missing is None:
            real = Child(REAL_MODULE, "--with-stdin", "--nice", "5")
            children.callback(real.end)
            try:
                urls[_REAL] = real.ready()[0]
            except ChildError as exc:
                missing = str(exc)
        urls |= dict(word.split("=", 1) for word in references.ready())
        yield Demo(urls, missing and f"without a real model: {missing}")


@contextmanager
def demo_directory() -> Iterator[Path]:
    """Start the endpoints and yield a configuration file in a directory of its own.

    What could not be started is said in one line on stderr. The directory is removed at the end.
    """
    with demo_servers() as demo, tempfile.TemporaryDirectory(prefix="endpoint-monitor-") as folder:
        if demo.missing is not None:
            sys.stderr.write(f"{demo.missing}\n")
        path = Path(folder) / "demo.yaml"
        path.write_text(demo_config(demo.urls), encoding="utf-8")
        yield path


_HEAD = """\
# What `endpoint-monitor demo` watches. Everything is on this machine.
endpoints:
"""
_REFERENCE_WORKLOADS = """\
workloads:
  quick-chat:
    kind: chat
    interval: 2s
    max_tokens: 64
    limits: {connect: 1s, ttft: 1900ms, stall: 800ms, total: 1900ms}
    endpoints: [healthy, slow, flaky]
  models:
    kind: models
    interval: 5s
"""
_REAL_WORKLOADS = """\
  chat:
    kind: chat
    interval: 5s
    input_tokens: 32
    max_tokens: 32
    limits: {connect: 1s, ttft: 10s, stall: 5s, total: 20s}
    endpoints: [smollm2]
  completions:
    kind: completions
    interval: 5s
    input_tokens: 32
    max_tokens: 16
    extra: {ignore_eos: true}  # so small a model often has nothing to add
    limits: {connect: 1s, ttft: 10s, stall: 5s, total: 20s}
    endpoints: [smollm2]
"""


def demo_config(urls: Mapping[str, str]) -> str:
    """Return the YAML text of a configuration that watches `urls`, as `Demo` has them."""
    endpoints = []
    for name, url in urls.items():
        real = name == _REAL
        model, vendor = (llama.MODEL, "llama.cpp") if real else ("reference", "built in")
        endpoints.append(
            f"  {name}:\n    url: {url}\n    model: {model}\n    labels: {{vendor: {vendor}}}\n"
            "    budget: 1000000000\n"
        )
    return _HEAD + "".join(endpoints) + _REFERENCE_WORKLOADS + _REAL_WORKLOADS * (_REAL in urls)


async def _serve() -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    parent = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
    gone = asyncio.ensure_future(parent.read())
    gone.add_done_callback(lambda _: stop.set())
    async with AsyncExitStack() as running:
        urls = {}
        for name, behavior in REFERENCES.items():
            reference = await running.enter_async_context(Reference(behavior))
            urls[name] = reference.url
        sys.stdout.write(f"READY {' '.join(f'{name}={url}' for name, url in urls.items())}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> int:
    """Hold the reference endpoints until stdin ends, SIGTERM or SIGINT."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
