"""`endpoint-monitor report` on a database that the store has written."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monitor.cli import app
from monitor.store import Store
from probes.result import Outcome
from tests.monitor.rows import result_row

CONFIG = """
endpoints:
  a: {url: "http://127.0.0.1:9/v1", model: m}
slos: {fast: {objective: 99, ttft: 500ms}}
"""


@pytest.fixture
async def config(tmp_path: Path) -> Path:
    path = tmp_path / "monitor.yaml"
    path.write_text(CONFIG)
    store = await Store.open(f"sqlite:///{tmp_path}/endpoint-monitor.db")
    now = time.time()
    for n in range(200):
        outcome = Outcome.OK if n else Outcome.CONNECT
        row = result_row(n, now - 60.0 * n - 5, outcome, ttft_s=0.4 if n < 150 else 0.6)
        store.put_result(row, boot="b", site="local")
    await store.flush()
    await store.close()
    return path


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def good_and_valid(*arguments: str) -> tuple[int, int]:
    done = report(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    [slo] = json.loads(done.stdout)["probes"][0]["slos"]
    return slo["good"], slo["valid"]


async def test_history_is_judged_and_what_if_judges_it_anew(config: Path) -> None:
    path = str(config)
    asked = [(path,), (path, "--threshold", "700ms"), (path, "--last", "1h")]
    found = [await asyncio.to_thread(good_and_valid, *arguments) for arguments in asked]
    assert found == [(149, 200), (199, 200), (59, 60)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--last", "month"], "--last: 'month', expected a duration such as 500ms"),
        (["--format", "pdf"], "--format: 'pdf', expected one of table, json, csv, html"),
        (["--objective", "0.99"], "--objective: '0.99', expected a percentage from 50 to 100"),
        (["--threshold", "-1"], "--threshold: '-1', expected a duration"),
        (["--sla", "nowhere.yaml"], "nowhere.yaml: file not found"),
        ([], "endpoint-monitor.db: no such file, expected what `run` has written"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "monitor.yaml"
    path.write_text(CONFIG)
    done = report(str(path), *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
