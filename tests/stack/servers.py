"""A real Prometheus and a real Alertmanager on free loopback ports, on the files of deploy/.

Debian's programs, started here and ended by their process; nothing is installed or enabled.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.monitored import wait_for
from tests.servers import free_port
from tests.stack.tools import DEPLOY, PROMETHEUS, debian, yaml_of


def fetch(url: str, **query: str) -> Any:
    """The JSON at an address; Prometheus' word for what is wrong with a query, as an error."""
    full = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    try:
        with urllib.request.urlopen(full, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as exc:
        raise AssertionError(f"{exc.read().decode()}: {query}") from exc


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str

    def series(self, query: str) -> list[dict[str, Any]]:
        """What a panel would draw of the last half minute, without NaN."""
        now = time.time()
        answer = fetch(
            f"{self.url}/api/v1/query_range",
            query=query, start=str(now - 30), end=str(now), step="1",
        )  # fmt: skip
        found: list[dict[str, Any]] = answer["data"]["result"]
        return [one for one in found if any(value != "NaN" for _, value in one["values"])]

    def value(self, query: str) -> float | None:
        result = fetch(f"{self.url}/api/v1/query", query=query)["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def label_values(self, label: str, selector: str) -> list[str]:
        """What Grafana's label_values(selector, label) asks."""
        answer = fetch(f"{self.url}/api/v1/label/{label}/values", **{"match[]": selector})
        values: list[str] = answer["data"]
        return values


@contextlib.contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """The URL of an Alertmanager on deploy/alertmanager."""
    program, port = debian("prometheus-alertmanager"), free_port()
    options = {
        "config.file": DEPLOY / "alertmanager" / "alertmanager.yml",
        "storage.path": folder / "alertmanager",
        "web.listen-address": f"127.0.0.1:{port}",
        "cluster.listen-address": "",
    }
    with _running(program, options, folder / "alertmanager.log", port) as url:
        yield url


@contextlib.contextmanager
def prometheus(folder: Path, monitor: str, alerts: str) -> Iterator[Prometheus]:
    """A Prometheus on deploy/prometheus that scrapes `monitor` every second.

    Args:
        folder: For its files.
        monitor: URL of the monitor.
        alerts: URL of the Alertmanager.
    """
    program, port = debian("prometheus"), free_port()
    (folder / "rules.yml").write_text(yaml.safe_dump(_hasty(yaml_of(PROMETHEUS / "rules.yml"))))
    config = yaml_of(PROMETHEUS / "prometheus.yml")
    config["global"] = dict.fromkeys(config["global"], "1s")
    (job,) = config["scrape_configs"]
    (peer,) = config["alerting"]["alertmanagers"]
    for holder, url in ((job, monitor), (peer, alerts)):
        holder["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "tsdb",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with _running(program, options, folder / "prometheus.log", port) as url:
        yield Prometheus(url)


def _hasty(rules: Any) -> Any:
    """The rules with nothing to wait for: promtool tests the waiting."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            rule.pop("keep_firing_for", None)
    return rules


@contextlib.contextmanager
def _running(program: str, options: dict[str, Any], log: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with log.open("w") as err:
        process = subprocess.Popen(command, stdout=err, stderr=subprocess.STDOUT)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):
            return True
        return False

    try:
        wait_for(ready, 30)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
