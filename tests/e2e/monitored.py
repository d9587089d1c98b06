"""A running monitor as a child process, and what it says on page, /metrics and in its database."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Counts = Counter[tuple[str, str, str]]


@dataclass
class Monitored:
    """A monitor started by `monitored`."""

    process: subprocess.Popen[str]
    base: str
    database: Path
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.base + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def health(self) -> tuple[int, str]:
        try:
            return 200, self.get("/healthz")
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()

    def status(self) -> dict[str, dict[str, Any]]:
        rows = json.loads(self.get("/api/v1/status"))
        return {f"{row['endpoint']}/{row['workload']}": row for row in rows}

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values of one series by its sorted labels."""
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name
        }

    def up(self, probe: str) -> float | None:
        endpoint, _, workload = probe.partition("/")
        key = (("endpoint", endpoint), ("workload", workload))
        return self.samples("endpoint_up").get(key)

    def metric_counts(self) -> Counts:
        """Results by endpoint, workload and outcome, as /metrics counts them."""
        counts: Counts = Counter()
        for labels, value in self.samples("endpoint_probe_results_total").items():
            by = dict(labels)
            counts[by["endpoint"], by["workload"], by["outcome"]] += int(value)
        return counts

    def stored_counts(self) -> Counts:
        """The same from the database."""
        counts: Counts = Counter()
        for endpoint, workload, outcome, n in self.query(
            "select endpoint, workload, outcome, count(*) from results group by 1, 2, 3"
        ):
            counts[endpoint, workload, outcome] = n
        return counts

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        uri = f"file:{self.database}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            return connection.execute(sql, values).fetchall()

    def stop(self) -> float:
        """End it with SIGTERM; return how long that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(15)
        return time.monotonic() - began


def wait_for(what: Any, seconds: float, every: float = 0.2) -> Any:
    """Call `what` until it returns something true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(every)


@contextlib.contextmanager
def monitored(folder: Path, config: str, env: dict[str, str] | None = None) -> Iterator[Monitored]:
    """Run `endpoint-monitor run` on a configuration text in an empty folder, on a free port."""
    path, log = folder / "monitor.yaml", folder / "monitor.log"
    path.write_text(config)
    command = [sys.executable, "-m", "monitor.cli", "run", str(path), "--listen", "127.0.0.1:0"]
    with log.open("w") as err:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={**os.environ, **(env or {})},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("READY "), log.read_text()
        base = line.split("page=")[1].split()[0].rstrip("/")
        yield Monitored(process, base, folder / "endpoint-monitor.db", log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()
