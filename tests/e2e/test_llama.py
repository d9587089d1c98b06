"""End to end on llama.cpp's own server with a real model: page, /metrics and database agree."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.monitored import Monitored, monitored, wait_for
from tests.servers import LLAMA_MODEL, Server, free_port, llama_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KEY = "planted-key-8Zq4vT"
SECONDS = float(os.environ.get("E2E_SECONDS", "120"))
INTERVAL = 5

CONFIG = """
endpoints:
  right: {{url: "{url}", model: {model}, api_key: "${{PLANTED_KEY}}"}}
  wrongkey: {{url: "{url}", model: {model}, api_key: wrong-key-1234}}
  wrongmodel: {{url: "{url}", model: {model}, api_key: "${{PLANTED_KEY}}",
                expected_model: "qwen*"}}
  dead: {{url: "http://127.0.0.1:{dead}/v1", model: {model}}}
workloads:
  chat: {{kind: chat, interval: 5s, max_tokens: 16, input_tokens: 40}}
  completions: {{kind: completions, interval: 5s, max_tokens: 8, input_tokens: 40,
                 extra: {{ignore_eos: true}}, endpoints: [right]}}
  models: {{kind: models, interval: 5s, endpoints: [right, wrongkey, dead]}}
  long: {{kind: chat, interval: 10s, max_tokens: 400, input_tokens: 40, endpoints: [right],
          limits: {{ttft: 20s, stall: 10s, total: 60s}}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with llama_server(key=KEY, slots=4) as running:
        yield running


@pytest.fixture(scope="module")
def monitor(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    text = CONFIG.format(url=server.url, model=LLAMA_MODEL, dead=free_port())
    folder = tmp_path_factory.mktemp("monitor")
    with monitored(folder, text, {"PLANTED_KEY": KEY}) as running:
        yield running


def agree(monitor: Monitored) -> dict[str, Any] | None:
    """The status, once the queue is empty and nothing came while the three were read."""
    before = monitor.metric_counts()
    stored, status = monitor.stored_counts(), monitor.status()
    queued = sum(monitor.samples("endpoint_monitor_store_queue_length").values())
    if queued or before != monitor.metric_counts() or stored != before:
        return None
    by_probe: Counter[str] = Counter()
    for (endpoint, workload, _), n in stored.items():
        by_probe[f"{endpoint}/{workload}"] += n
    shown = {probe: row["n"] + sum(row["excluded"].values()) for probe, row in status.items()}
    return status if shown == {probe: by_probe[probe] for probe in shown} else None


def test_counts_on_page_in_metrics_and_in_the_database_agree(monitor: Monitored) -> None:
    time.sleep(SECONDS)
    status = wait_for(lambda: agree(monitor), 60)
    for workload in ("chat", "completions", "models"):
        row = status[f"right/{workload}"]
        # One extra first slot, and one either way for where the grid begins.
        assert abs(row["n"] + sum(row["excluded"].values()) + sum(row["skipped"].values())
                   - SECONDS / INTERVAL) <= 3 + 60 / INTERVAL  # fmt: skip
        assert row["state"] == "up", row
        assert row["last"]["outcome"] == "ok"
    assert status["right/chat"]["ttft"]["n"] > 0
    assert status["right/chat"]["ttft"]["p50"] > 0


def test_each_fault_has_its_own_outcome(monitor: Monitored) -> None:
    outcomes: dict[tuple[str, str], set[str]] = {}
    for endpoint, workload, outcome in monitor.stored_counts():
        outcomes.setdefault((endpoint, workload), set()).add(outcome)
    assert outcomes["wrongkey", "chat"] == {"http_auth"}
    assert outcomes["wrongkey", "models"] == {"http_auth"}
    assert outcomes["wrongmodel", "chat"] == {"wrong_model"}
    assert outcomes["dead", "chat"] == {"connect"}
    assert outcomes["dead", "models"] == {"connect"}
    assert monitor.up("wrongkey/chat") is None, "our key is wrong: that says nothing of them"
    assert monitor.up("wrongmodel/chat") == 0
    assert monitor.up("dead/chat") == 0
    assert monitor.status()["wrongkey/chat"]["state"] == "misconfigured"


def test_availability_is_what_the_stored_rows_give_by_hand(monitor: Monitored) -> None:
    status = wait_for(lambda: agree(monitor), 60)
    outside = {
        "http_auth", "http_quota", "http_bad_request", "http_not_found", "http_redirect",
        "http_rate_limited", "content_filter", "aborted",
    }  # fmt: skip
    for probe, row in status.items():
        endpoint, workload = probe.split("/")
        rows = monitor.query(
            "select outcome, excluded from results where endpoint = ? and workload = ?",
            endpoint, workload,
        )  # fmt: skip
        valid = [o for o, excluded in rows if excluded is None and o not in outside]
        assert row["n"] == len(valid)
        good = sum(o == "ok" for o in valid)
        assert row["availability"] == (pytest.approx(good / len(valid)) if valid else None)


def decoding(server: Server, tokens: int) -> bool:
    """Whether the server is in the middle of an answer, so many tokens in."""
    request = urllib.request.Request(
        server.url.removesuffix("/v1") + "/slots", headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        slots = json.load(answer)
    counts = [s["next_token"] for s in slots if s["is_processing"]]
    flat = [n for entry in counts for n in (entry if isinstance(entry, list) else [entry])]
    return any(n.get("n_decoded", 0) > tokens for n in flat)


def test_a_server_killed_in_mid_stream_is_seen_within_an_interval(
    monitor: Monitored, server: Server
) -> None:
    # Only the long answer has so many tokens.
    wait_for(lambda: decoding(server, 30), 60, every=0.05)
    killed_at = time.time()
    server.kill()
    wait_for(lambda: monitor.up("right/chat") == 0, INTERVAL + 3)
    wait_for(lambda: monitor.up("right/models") == 0, INTERVAL + 3)
    cut = "select outcome from results where workload = 'long' and outcome = 'truncated'"
    wait_for(lambda: monitor.query(cut), 10)
    since = "select distinct outcome from results where endpoint = 'right' and started_at > ?"
    outcomes = {outcome for (outcome,) in monitor.query(since, killed_at)}
    assert outcomes == {"connect"}
    server.start()
    wait_for(lambda: monitor.up("right/chat") == 1, 2 * INTERVAL + 10)
    wait_for(lambda: monitor.up("right/models") == 1, INTERVAL + 3)


def test_the_key_is_on_no_surface(monitor: Monitored) -> None:
    surfaces = [monitor.get(p) for p in ("/", "/metrics", "/api/v1/status", "/healthz")]
    surfaces.append(monitor.log.read_text())
    surfaces += [
        path.read_bytes().decode("latin-1")
        for path in monitor.database.parent.glob("endpoint-monitor.db*")
    ]
    for secret in (KEY, "wrong-key-1234"):
        assert all(secret not in surface for surface in surfaces)
    assert KEY not in Path(f"/proc/{monitor.process.pid}/cmdline").read_text()


def test_sigterm_ends_within_five_seconds_and_keeps_what_was_in_flight(
    monitor: Monitored, server: Server
) -> None:
    assert monitor.health()[0] == 200
    wait_for(lambda: decoding(server, 10), 60, every=0.05)
    assert monitor.stop() < 5
    assert monitor.process.returncode == 0
    assert monitor.query("select 1 from results where outcome = 'aborted' and workload = 'long'")
    assert "Traceback" not in monitor.log.read_text()
