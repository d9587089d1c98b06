"""Scenario server, adapter and judge as child processes, until they agree or have tried enough."""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
_ATTEMPTS = 3  # a busy machine may be late; the judge forgives times, and nothing else
_PATIENCE = 300  # s


def base_port() -> int:
    """The first of five free ports, below those that the system hands out for connections."""
    for base in random.sample(range(20_000, 32_000, 5), 100):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + 5):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return base
    pytest.fail("no five free ports")


@contextlib.contextmanager
def scenario_server(folders: Sequence[pathlib.Path], log: pathlib.Path) -> Iterator[str]:
    """Run the server; yield the line that it prints."""
    program = [sys.executable, str(HERE / "scenario_server.py"), "--port", str(base_port())]
    command = [*program, *_folders(folders), "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline()
        finally:
            server.terminate()


def disagreements(
    folders: Sequence[pathlib.Path], work: pathlib.Path, *, tolerance_ms: int = 25
) -> str:
    """Measure every scenario and have the results judged.

    What was wrong is measured again, one at a time: a disagreement in a time counts only if every
    attempt has one, any other at once.

    Returns:
        What the judge says in the end; empty when it agrees on everything.
    """
    log, results, latest = work / "truth.jsonl", work / "results.jsonl", work / "latest.jsonl"
    names = {path.stem for folder in folders for path in folder.rglob("*.yaml")}
    judge = [sys.executable, str(HERE / "judge.py"), *_folders(folders), "--truth", str(log)]
    judge += ["--results", str(results), "--tol", str(tolerance_ms)]
    said = ""
    with scenario_server(folders, log) as info, results.open("a", encoding="utf-8") as rows:
        adapter = [sys.executable, "-m", "tests.conformance", "--info", info, *_folders(folders)]
        adapter += ["--results", str(latest)]
        only: list[list[str]] = [[]]
        for _ in range(_ATTEMPTS):
            for choice in only:
                subprocess.run([*adapter, *choice], cwd=ROOT, check=True, timeout=_PATIENCE)
                rows.write(latest.read_text("utf-8"))
            rows.flush()
            judged = subprocess.run(judge, capture_output=True, text=True, check=False)
            if judged.returncode == 0:
                return ""
            said = judged.stdout + judged.stderr
            wrong = {line.split()[0] for line in said.splitlines() if line[:1].strip()} & names
            only = [["--only", name] for name in sorted(wrong)]
    return said


def _folders(folders: Sequence[pathlib.Path]) -> list[str]:
    return [word for folder in folders for word in ("--scenarios", str(folder))]
