"""The scenarios that the table names are not only there: our own client gets each right."""

from __future__ import annotations

import contextlib
import pathlib
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cases.test_table import NAMED_SCENARIOS, ROOT, scenario_file

CONFORMANCE = ROOT / "tests/conformance"
TOLERANCE = "100"  # ms; what of this is our own error, calibrate and benchmarks measure
ATTEMPTS = 3  # a busy machine may be late once


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


@pytest.fixture
def scenarios(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    for name in NAMED_SCENARIOS:
        found = scenario_file(name)
        assert found is not None, name
        shutil.copy(found, folder)
    return folder


@pytest.fixture
def info(scenarios: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[str]:
    """The line that a running scenario server printed."""
    program, log = str(CONFORMANCE / "scenario_server.py"), str(tmp_path / "truth.jsonl")
    command = [sys.executable, program, "--port", str(base_port())]
    command += ["--scenarios", str(scenarios), "--log", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline()
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_named_scenarios_agree_with_their_judge(
    scenarios: pathlib.Path, info: str, tmp_path: pathlib.Path
) -> None:
    results = tmp_path / "results.jsonl"
    given = ["--scenarios", str(scenarios), "--results", str(results)]
    truth = ["--truth", str(tmp_path / "truth.jsonl"), "--tol", TOLERANCE]
    said, rows = "", ""
    for _ in range(ATTEMPTS):
        adapter = [sys.executable, "-m", "tests.conformance", "--info", info, *given]
        subprocess.run(adapter, cwd=ROOT, check=True, timeout=120)
        rows += results.read_text("utf-8")
        results.write_text(rows, "utf-8")
        judge = [sys.executable, str(CONFORMANCE / "judge.py"), *given, *truth]
        judged = subprocess.run(judge, capture_output=True, text=True, check=False)
        if judged.returncode == 0:
            return
        said = judged.stdout
    pytest.fail(said)
