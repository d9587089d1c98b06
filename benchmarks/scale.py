"""500 probes at 60 s on one reference endpoint: CPU, lag, memory, lines, render time, start.

python -m benchmarks.scale [--probes 500] [--interval 60] [--seconds 120] [--json]

Figures to hold (2 cores): < 10 % of a core, p99 schedule lag < 20 ms, <= 35,000 metric lines, one
render < 150 ms with a quarter of the probes changed, /metrics served < 100 ms, parent and prober
< 200 MB, first result < 2 s after the start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from monitor.demo import Child
from monitor.history import History, slot_of
from monitor.link import ProbePlan, ResultRow
from monitor.metrics import Metrics
from probes import Endpoint, Outcome, ProbeResult, Workload
from probes.result import Phases

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def pss_mb(pid: int) -> float:
    """Memory of a process with shared pages split among their users."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def children(pid: int) -> list[int]:
    """Process ids of direct children."""
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def config(url: str, probes: int, interval: float) -> str:
    """A configuration of so many chat probes on one endpoint's URL."""
    lines = ["concurrency: 256", "endpoints:"]
    lines += [f"  e{n:04d}: {{url: '{url}', model: reference}}" for n in range(probes)]
    lines += ["workloads:", f"  chat: {{kind: chat, interval: {interval:g}s, max_tokens: 8}}"]
    return "\n".join(lines) + "\n"


@contextmanager
def monitor(folder: Path, text: str) -> Iterator[tuple[int, str, float]]:
    """Run the monitor; yield its pid, base URL and the moment it was started."""
    path = folder / "scale.yaml"
    path.write_text(text)
    began = time.monotonic()
    command = [sys.executable, "-m", "monitor.cli", "run", str(path), "--listen", "127.0.0.1:0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("READY"), (folder / "log").read_text()[-2000:]
        yield process.pid, line.split("page=")[1].split()[0].rstrip("/"), began
    finally:
        process.terminate()
        process.wait(20)


def wait_for_first(database: Path, began: float) -> float:
    """Seconds from the start until the first result was stored."""
    while time.monotonic() - began < 30:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            try:
                row = connection.execute(
                    "select min(started_at + coalesce(e2e_s, 0)) from results"
                ).fetchone()
            except sqlite3.OperationalError:
                row = (None,)
        if row[0] is not None:
            return float(row[0]) - (time.time() - (time.monotonic() - began))
        time.sleep(0.05)
    raise TimeoutError("no result within 30 s")


def rank(values: list[float], percentile: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percentile // 100) - 1)]


def measure(probes: int, interval: float, seconds: float) -> dict[str, Any]:
    """Run it and return the figures."""
    reference = Child("probes.reference", "--port", "0", "--ttft", "0.05", "--gap", "0.01")
    try:
        url = reference.ready()[0]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with monitor(folder, config(url, probes, interval)) as (pid, base, began):
                database = folder / "endpoint-monitor.db"
                first = wait_for_first(database, began)
                time.sleep(1.5 * interval)  # the extra first slots are over, the grid is full
                return {"first_result_s": first} | observe(pid, base, database, seconds)
    finally:
        reference.end()


def observe(pid: int, base: str, database: Path, seconds: float) -> dict[str, Any]:
    """Watch a running monitor for a while."""
    pids = [pid, *children(pid)]
    cpu, began, since = [cpu_seconds(p) for p in pids], time.monotonic(), time.time()
    scrapes, text = [], ""
    while time.monotonic() - began < seconds:
        at = time.monotonic()
        with urllib.request.urlopen(  # noqa: S310 - our own monitor
            base + "/metrics", timeout=10
        ) as answer:
            text = answer.read().decode()
        scrapes.append(time.monotonic() - at)
        time.sleep(max(0.0, 5 - scrapes[-1]))
    took = time.monotonic() - began
    shares = [(cpu_seconds(p) - c) / took for p, c in zip(pids, cpu, strict=True)]
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "select schedule_lag_s, tainted from results where started_at > ?", (since,)
        ).fetchall()
        skips = connection.execute(
            "select count(*) from skips where slot_at > ?", (since,)
        ).fetchone()[0]
    lags = [lag for lag, _ in rows]
    return {
        "results": len(rows),
        "skipped": skips,
        "tainted": sum(bool(t) for _, t in rows),
        "cpu_core_share": {"parent": shares[0], "prober": sum(shares[1:])},
        "pss_mb": {"parent": pss_mb(pids[0]), "prober": sum(map(pss_mb, pids[1:]))},
        "schedule_lag_s": {p: rank(lags, p) for p in (50, 99, 100)},
        "metric_lines": text.count("\n"),
        "metric_bytes": len(text),
        "scrape_s": {p: rank(scrapes, p) for p in (50, 100)},
    }


def render_seconds(probes: int) -> dict[str, float]:
    """Time one render with every probe new, and with a quarter of them changed."""
    metrics, rng = Metrics(), random.Random(1)  # noqa: S311 - made-up latencies
    plans = []
    for n in range(probes):
        endpoint = Endpoint(name=f"e{n:04d}", url="http://127.0.0.1/v1", model="m")
        plan = ProbePlan(
            id=f"{endpoint.name}/chat", endpoint=endpoint, workload=Workload(), interval=60.0
        )
        history = History()
        metrics.watch(plan, history, {})
        plans.append((plan, history))

    def observe_all(chosen: list[tuple[ProbePlan, History]]) -> None:
        for plan, history in chosen:
            row = ResultRow(1, 0.0, plan.id, time.time(), _result(plan, rng), 1)
            history.add(slot_of(row))
            metrics.observe(row)

    found = {}
    for name, chosen in (("all", plans), ("quarter", plans[: probes // 4])):
        for _ in range(3):
            observe_all(chosen)
            began = time.perf_counter()
            metrics.render()
            found[name] = time.perf_counter() - began
    return found


def _result(plan: ProbePlan, rng: random.Random) -> ProbeResult:
    ttft = rng.lognormvariate(-1, 0.5)
    return ProbeResult(
        endpoint=plan.endpoint.name,
        workload="chat",
        kind="chat",
        model="m",
        started_at=time.time(),
        outcome=Outcome.OK,
        phases=Phases(connect=0.001, send=0.0001, wait=ttft / 2),
        ttft_s=ttft,
        ttfat_s=ttft,
        tpot_s=0.01,
        e2e_s=ttft + 0.6,
        output_tokens=64,
        output_tokens_source="usage",
        schedule_lag_s=0.001,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--probes", type=int, default=500)
    parser.add_argument("--interval", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.probes, args.interval, args.seconds)
    found["render_s"] = render_seconds(args.probes)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:18} {json.dumps(value)}")


if __name__ == "__main__":
    main()
