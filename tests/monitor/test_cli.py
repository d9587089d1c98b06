"""The command line as a program sees it: exit codes, JSON lines, pipes, and one line a mistake."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import Server, free_port, reference_server

KEY = "planted-key-8Zq4vT"
COMMAND = (sys.executable, "-m", "monitor.cli")

# DESIGN.md section 7: none may be missing, further ones may come.
FIELDS = {
    "endpoint", "kind", "model", "started_at", "outcome", "reason", "http_status", "phases",
    "ttfb_s", "ttft_s", "ttfat_s", "tpot_s", "e2e_s", "itl", "prompt_tokens", "cached_tokens",
    "output_tokens", "reasoning_tokens", "visible_tokens", "output_tokens_source", "flags",
    "finish_reason", "served_model", "fingerprint", "request_id", "error_code", "retry_after_s",
    "loop_lag_s", "merged", "late_s", "stamp_source", "tainted", "cost", "text_sha256", "steps",
}  # fmt: skip


def call(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def refused(*arguments: str, **env: str) -> str:
    """The one line with which a call ends with code 2."""
    done = call(*arguments, **env)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("endpoint-monitor: ")
    return line.removeprefix("endpoint-monitor: ")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with reference_server("--pause", "30") as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with reference_server(key=KEY) as running:
        yield running


# -- probe ---------------------------------------------------------------------------------------


def test_probe_prints_one_json_object_a_line_with_every_field(server: Server) -> None:
    done = call("probe", server.url, "--model", "reference", "-n", "3", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    for row in rows:
        assert set(row) >= FIELDS
        assert row["outcome"] == "ok"
        assert set(row["phases"]) == {"dns", "connect", "tls", "send", "wait"}
        assert set(row["itl"]) == {"n", "p50_s", "p99_s", "max_s"}
        assert 0.05 <= row["ttft_s"] <= row["e2e_s"]
        assert row["output_tokens"] == 64
        assert row["started_at"].endswith("+00:00")


def test_a_result_that_failed_has_every_field_too_and_code_1() -> None:
    done = call("probe", f"http://127.0.0.1:{free_port()}", "--model", "m", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    row = json.loads(done.stdout)
    assert set(row) >= FIELDS
    assert row["outcome"] == "connect"
    assert (row["itl"], row["ttft_s"]) == (None, None)


def test_one_failure_among_many_is_code_1(server: Server) -> None:
    done = call("probe", server.url, "--model", "reference-error500", "-n", "2", "--json")
    assert done.returncode == 1
    assert {json.loads(line)["outcome"] for line in done.stdout.splitlines()} == {"http_5xx"}


def test_without_a_terminal_the_table_is_plain(server: Server) -> None:
    done = call("probe", server.url, "--model", "reference", "-n", "2", "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second, summary = done.stdout.splitlines()
    assert head.split() == ["#", "outcome", "TTFT", "TPOT", "E2E", "connect", "tokens", "notes"]
    assert first.split()[:2] == ["1", "ok"]
    assert second.split()[:2] == ["2", "ok"]
    assert summary.startswith("2 of 2 probes: 2 ok, TTFT p50 ")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout


def test_the_key_comes_from_the_variable_and_is_never_shown(locked: Server) -> None:
    with_key = ("probe", locked.url, "--model", "reference", "--api-key-env", "K")
    good = call(*with_key, K=KEY)
    wrong = call(*with_key, K=KEY + "x")
    assert (good.returncode, wrong.returncode) == (0, 1)
    assert "http_auth" in wrong.stdout
    for done in (good, wrong):
        assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "URL: "),
        (["http://user:secret@h/"], "URL: "),
        (["http://h:99999"], "URL: "),
        (["http://h", "--kind", "chatt"], "--kind: unknown 'chatt', expected one of chat, "),
        (["http://h", "--api-key-env", "NO_SUCH_VARIABLE"],
         "--api-key-env: NO_SUCH_VARIABLE is not set, expected a variable with the key"),
    ],
)  # fmt: skip
def test_bad_usage_of_probe_is_one_line_and_code_2(arguments: list[str], line: str) -> None:
    said = refused("probe", *arguments, "--model", "m")
    assert said.startswith(line)
    assert "secret" not in said


@pytest.mark.parametrize("key", ["pla\nnted", "pla nted", "pla\x7fnted"])
def test_a_key_that_no_header_can_carry_is_one_line(server: Server, key: str) -> None:
    said = refused("probe", server.url, "--model", "m", "--api-key-env", "K", K=key)
    assert said.startswith("--api-key-env: ")
    assert "pla" not in said


@pytest.mark.parametrize(
    "arguments", [[], ["what"], ["http://h"], ["http://h", "--model", "m", "-n", "0"]]
)
def test_usage_that_the_parser_refuses_is_code_2(arguments: list[str]) -> None:
    done = call("probe", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_probe_without_a_word(server: Server) -> None:
    many = ("probe", server.url, "--model", "reference", "-n", "50", "--max-tokens", "1", "--json")
    process = subprocess.Popen([*COMMAND, *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@contextlib.contextmanager
def asked() -> Iterator[tuple[str, Callable[[], None]]]:
    """URL of an endpoint that never answers, and a call that waits until it was asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        listener.settimeout(30)

        def wait() -> None:
            connection = stack.enter_context(listener.accept()[0])
            connection.settimeout(30)
            assert connection.recv(100)

        yield f"http://127.0.0.1:{listener.getsockname()[1]}", wait


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_ends_probe_at_once_and_without_a_traceback(*, as_json: bool) -> None:
    with asked() as (url, wait):
        process = subprocess.Popen(
            [*COMMAND, "probe", url, "--model", "m", *["--json"] * as_json],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_ctrl_c_on_a_terminal_leaves_the_cursor_visible() -> None:
    ours, theirs = pty.openpty()
    with asked() as (url, wait):
        process = subprocess.Popen(
            [*COMMAND, "probe", url, "--model", "m", "-n", "2"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        wait()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    said = b""
    with contextlib.suppress(OSError):  # what a closed terminal reads like
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    assert said.rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l") > -1
    assert b"Traceback" not in said


# -- init, check, help ---------------------------------------------------------------------------


def test_init_writes_a_configuration_that_check_takes_and_never_overwrites(
    tmp_path: Path, server: Server
) -> None:
    path = str(tmp_path / "m.yaml")
    done = call("init", server.url, "--model", "reference", "--out", path)
    assert (done.returncode, done.stderr) == (0, "")
    text = Path(path).read_text()
    meaningful = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(meaningful) <= 8
    assert call("check", path).returncode == 0
    line = refused("init", "--out", path)
    assert line == f"{path}: exists, expected a new file (init never overwrites)"
    assert Path(path).read_text() == text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere", "--model", "m"], "URL: "),
        (["http://h"], "--model: missing, expected the model to ask for beside the URL"),
        (["--out", "/no/such/place.yaml"], "/no/such/place.yaml: No such file or directory"),
    ],
)
def test_bad_usage_of_init_is_one_line(arguments: list[str], line: str) -> None:
    assert refused("init", *arguments).startswith(line)


def test_check_of_a_bad_configuration_is_one_line_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("endpoints:\n  a: {url: nowhere, model: m}\nextra: 1\n")
    done = call("check", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{path}:") for line in lines)


@pytest.mark.parametrize("command", ["probe", "run"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert f"Example: endpoint-monitor {command}" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    """What makes help quick; the time itself is printed by tests/faults/test_start.py."""
    heavy = "numpy aiohttp sqlalchemy pydantic yaml prometheus_client jinja2 uvloop apscheduler"
    code = (
        "import sys, monitor.cli\n"
        "try: monitor.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([m for m in '{heavy}'.split() if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr.strip() == "[]"
