"""A real Prometheus scrapes a real monitor on real endpoints, and every panel has an answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, monitored, wait_for
from tests.servers import free_port, reference_server
from tests.stack.servers import Prometheus, alertmanager, fetch, prometheus
from tests.stack.tools import DASHBOARD, DOCKERFILE, debian, filled, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KEY = "planted-key-4Kx9"
# What each panel needs: a price for the cost, tokens, phases and a hundred results for the p99
# (good); bad outcomes (cut, dead); 429 (limited); a wrong key (locked), which has no verdict.
CONFIG = """
endpoints:
  good: {{url: "{url}", model: reference, api_key: "{key}",
          price: {{input_per_million: 2, output_per_million: 6}}, labels: {{owner: team-a}}}}
  cut: {{url: "{url}", model: reference-truncate, api_key: "{key}"}}
  limited: {{url: "{url}", model: reference-error429, api_key: "{key}"}}
  locked: {{url: "{url}", model: reference, api_key: wrong}}
  dead: {{url: "http://127.0.0.1:{dead}/v1", model: reference}}
workloads:
  chat: {{kind: chat, interval: 120ms, max_tokens: 8, endpoints: [good]}}
  spare: {{kind: chat, interval: 1s, max_tokens: 8, endpoints: [cut, limited, locked, dead]}}
  models: {{kind: models, interval: 1s, endpoints: [good, dead]}}
"""


@dataclass
class Stack:
    """The three of them."""

    monitor: Monitored
    prometheus: Prometheus
    alerts: str


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    times = ("--ttft", "0.03", "--gap", "0.004", "--tokens", "8")
    with contextlib.ExitStack() as running:
        endpoint = running.enter_context(reference_server(*times, key=KEY))
        text = CONFIG.format(url=endpoint.url, key=KEY, dead=free_port())
        monitor = running.enter_context(monitored(folder, text))
        alerts = running.enter_context(alertmanager(folder))
        made = Stack(
            monitor, running.enter_context(prometheus(folder, monitor.base, alerts)), alerts
        )
        taint(monitor)
        yield made


def taint(monitor: Monitored) -> None:
    """Stop the prober for moments: what is in flight then is tainted, and so excluded."""
    children = Path(f"/proc/{monitor.process.pid}/task/{monitor.process.pid}/children")
    (prober,) = map(int, children.read_text().split())

    def excluded() -> bool:
        for number in 5 * (signal.SIGSTOP, signal.SIGCONT):
            os.kill(prober, number)
            time.sleep(0.1)
        return bool(monitor.samples("endpoint_probe_excluded_total"))

    wait_for(excluded, 30)


def panels() -> dict[str, str]:
    """Every query of the dashboard by panel and letter, as Grafana would send it."""
    return {
        f"{panel['title']} {target['refId']}": filled(target["expr"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", [])
    }


def test_every_query_of_the_dashboard_has_an_answer(stack: Stack) -> None:
    queries = panels()
    assert len(queries) > 30
    left = set(queries)

    def all_answered() -> bool:
        left.difference_update([name for name in left if stack.prometheus.series(queries[name])])
        return not left

    # The slowest is a p99, which needs a hundred results that are not tainted.
    with contextlib.suppress(AssertionError):
        wait_for(all_answered, 120, every=1)
    assert not left
    # Once more and all at once: none was a passing moment.
    assert [name for name, query in queries.items() if not stack.prometheus.series(query)] == []


def test_the_dashboard_says_what_happened(stack: Stack) -> None:
    ask, queries = stack.prometheus, panels()
    wait_for(lambda: (ask.value(f"sum({queries['Availability B']})") or 0) > 20, 60)
    availability = {
        one["metric"]["endpoint"]: float(one["values"][-1][1])
        for one in ask.series(queries["Availability A"])
        if one["metric"]["workload"] != "models"
    }
    assert availability == {"good": 1, "cut": 0, "dead": 0}
    outcomes = {
        (one["metric"]["endpoint"], one["metric"]["outcome"])
        for one in ask.series(queries["Results by outcome A"])
    }
    assert outcomes == {
        ("good", "ok"),
        ("cut", "truncated"),
        ("limited", "http_rate_limited"),
        ("locked", "http_auth"),
        ("dead", "connect"),
    }


def test_the_variables_of_the_dashboard_find_endpoints_and_workloads(stack: Stack) -> None:
    everyone = ["cut", "dead", "good", "limited", "locked"]
    wait_for(lambda: stack.prometheus.label_values("endpoint", "endpoint_info") == everyone, 30)
    of_good = 'endpoint_probe_results_total{endpoint=~"good"}'
    wait_for(lambda: stack.prometheus.label_values("workload", of_good) == ["chat", "models"], 30)


def test_promtool_has_nothing_to_say_about_the_live_metrics(stack: Stack) -> None:
    wait_for(lambda: stack.monitor.samples("endpoint_probe_tpot_seconds_count"), 30)
    text = stack.monitor.get("/metrics")
    assert run(debian("promtool"), "check", "metrics", feed=text) == ""


def test_the_health_check_of_the_image_tells_a_live_monitor_from_none(stack: Stack) -> None:
    check = re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert check
    _, *arguments = json.loads(check[1])
    here, nowhere = stack.monitor.base.rpartition(":")[2], free_port()
    for port, code in ((here, 0), (nowhere, 1)):
        words = [word.replace("8844", str(port)) for word in arguments]
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
        assert done.returncode == code, done.stderr


def test_alerts_reach_alertmanager_and_only_the_right_ones(stack: Stack) -> None:
    def firing() -> set[tuple[str, str, str]]:
        labels = [alert["labels"] for alert in fetch(f"{stack.alerts}/api/v2/alerts")]
        return {(of["alertname"], of.get("endpoint", ""), of["severity"]) for of in labels}

    expected = {
        ("EndpointDown", "cut", "page"),
        ("EndpointDown", "dead", "page"),
        ("EndpointMisconfigured", "locked", "ticket"),
        ("EndpointRateLimited", "limited", "ticket"),
    }
    wait_for(lambda: expected <= firing(), 60)
    about = {alert for alert in firing() if alert[1]}
    hasty = {("EndpointStillDown", "cut", "ticket"), ("EndpointStillDown", "dead", "ticket")}
    # Nothing is known of locked and limited at first, until their counters have moved.
    hasty |= {("EndpointNoData", "locked", "ticket"), ("EndpointNoData", "limited", "ticket")}
    assert about <= expected | hasty
