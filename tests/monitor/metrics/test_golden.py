"""The whole text of /metrics for three results, as reviewed. UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

from monitor.history import History, slot_of
from monitor.link import Heartbeat, ProbePlan, ResultRow, Skip, SkipRow
from monitor.metrics import Metrics
from probes import Endpoint, Outcome, ProbeResult, Workload
from probes.result import Phases

GOLDEN = Path(__file__).parents[2] / "data" / "metrics.txt"
NOW = 1_790_000_000.0
OF_THIS_MACHINE = ("process_", "endpoint_monitor_runtime_info")

ENDPOINT = Endpoint(name="llama", url="http://127.0.0.1:8000/v1", model="llama-3.1-8b")
PLAN = ProbePlan(id="llama/chat", endpoint=ENDPOINT, workload=Workload(), interval=60.0)


def result(outcome: Outcome, ttft: float | None = None) -> ProbeResult:
    return ProbeResult(
        endpoint="llama",
        workload="chat",
        kind="chat",
        model="llama-3.1-8b",
        started_at=NOW,
        outcome=outcome,
        phases=Phases(dns=0.002, connect=0.001, send=0.0001, wait=0.05),
        ttft_s=ttft,
        ttfat_s=ttft,
        tpot_s=None if ttft is None else 0.0125,
        e2e_s=None if ttft is None else ttft + 0.8,
        output_tokens=None if ttft is None else 64,
        output_tokens_source=None if ttft is None else "usage",
        cost=None if ttft is None else 0.00025,
        schedule_lag_s=0.004,
    )


def exposition() -> str:
    metrics, history = Metrics(version="1.2.3", clock=lambda: NOW + 1), History()
    metrics.watch(PLAN, history, {"vendor": "acme", "region": "eu-1", "owner": "team-a"})
    results = [result(Outcome.OK, 0.25), result(Outcome.OK, 0.5), result(Outcome.TRUNCATED)]
    for number, one in enumerate(results):
        row = ResultRow(number, 0.0, PLAN.id, NOW - 60 * number, one, number)
        history.add(slot_of(row))
        metrics.observe(row)
    metrics.skip(SkipRow(9, 0.0, PLAN.id, NOW, Skip.OVERLAP, 9))
    metrics.beat(Heartbeat(10, 0.0, "boot", 0.003, 0.0005, 1.0, 0, 0, 1, 0))
    metrics.set_up(PLAN, 0)
    metrics.set_store(2, 0)
    metrics.set_restarts(1)
    lines = metrics.render().decode().splitlines()
    ours = [line for line in lines if not line.removeprefix("# HELP ").removeprefix(
        "# TYPE ").startswith(OF_THIS_MACHINE)]  # fmt: skip
    return "\n".join(ours) + "\n"


def test_the_text_is_as_reviewed() -> None:
    text = exposition()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
