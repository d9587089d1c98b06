import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.history import History, slot_of
from monitor.link import ProbePlan
from monitor.metrics import Metrics
from monitor.slo import Indicator, Slo, SloBook, Standing
from probes.endpoint import Endpoint
from probes.result import Outcome, Phases
from probes.workload import Workload
from tests.monitor.rows import result_row

AVAILABLE = Slo(name="available", objective=0.99)
FAST = Slo(name="fast", indicator=Indicator.LATENCY, metric="ttft", threshold=0.5)
NOW = 1_800_000_000.0


def plan(endpoint: str = "a") -> ProbePlan:
    return ProbePlan(
        id=f"{endpoint}/chat",
        endpoint=Endpoint(name=endpoint, url="http://127.0.0.1/v1", model="m"),
        workload=Workload(name="chat", kind="chat"),
        interval=60.0,
    )


def found(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    """Values by series name, SLO and window."""
    return {
        (sample.name, sample.labels["slo"], sample.labels.get("window", "")): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("endpoint_slo_")
    }


def filled(results: int = 10, bad: int = 1) -> tuple[Metrics, SloBook]:
    metrics, book = Metrics(), SloBook([AVAILABLE, FAST])
    for n in range(results):
        outcome = Outcome.HTTP_5XX if n < bad else Outcome.OK
        times = {"ttft": 0.1 * n}
        for name, good in book.take(NOW - 60.0 * n, outcome, None, times):
            metrics.count_slo(plan(), name, good=good)
    metrics.set_slos(plan(), book.standings(NOW))
    return metrics, book


def test_counters_count_good_and_valid_events_of_each_slo() -> None:
    values = found(filled()[0])
    assert values["endpoint_slo_valid_total", "available", ""] == 10
    assert values["endpoint_slo_good_total", "available", ""] == 9
    assert values["endpoint_slo_good_total", "fast", ""] == 5


def test_a_first_bad_event_makes_the_good_counter_too() -> None:
    """A counter that is born with its first good event would hide the bad ones before it."""
    assert found(filled(1, 1)[0])["endpoint_slo_good_total", "available", ""] == 0


def test_gauges_show_budget_and_burn_rates() -> None:
    values = found(filled()[0])
    assert values["endpoint_slo_error_budget_remaining_ratio", "available", ""] == pytest.approx(
        -9
    )
    assert values["endpoint_slo_burn_rate", "available", "1h"] == pytest.approx(10)
    windows = {w for name, slo, w in values if name.endswith("burn_rate") and slo == "available"}
    assert windows == {"1h", "6h", "1d", "3d"}


def test_a_window_without_events_has_no_burn_rate() -> None:
    metrics, book = filled()
    metrics.set_slos(plan(), book.standings(NOW + 7200))
    names = {w for name, slo, w in found(metrics) if name.endswith("rate") and slo == "fast"}
    assert names == {"6h", "1d", "3d"}


def test_gauges_go_with_what_they_are_about_and_counters_stay() -> None:
    metrics, _ = filled()
    metrics.set_slos(plan(), {"fast": Standing(remaining=None, rates={}, filling=True)})
    assert {name for name, _, _ in found(metrics)} == {
        "endpoint_slo_good_total",
        "endpoint_slo_valid_total",
    }
    metrics.forget(plan())
    assert found(metrics) == {}


def test_promtool_accepts_the_series() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    body = filled()[0].render()
    done = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_five_hundred_probes_with_an_slo_each_stay_below_35_000_lines() -> None:
    metrics = Metrics(clock=lambda: 2000.0, thresholds={"ttft": (0.7,)})
    phases = dict.fromkeys(("dns", "connect", "tls", "send", "wait"), 0.001)
    standing = Standing(
        remaining=0.5, rates=dict.fromkeys(("1h", "6h", "1d", "3d"), 1.0), filling=False
    )
    for i in range(500):
        chat, history = plan(f"e{i}"), History()
        row = result_row(
            endpoint=f"e{i}",
            phases=Phases(**phases),
            ttft_s=0.1,
            tpot_s=0.01,
            e2e_s=0.5,
            output_tokens=9,
            output_tokens_source="usage",
            cost=0.1,
        )
        history.add(slot_of(row))
        metrics.watch(chat, history)
        metrics.observe(row)
        metrics.set_up(chat, 1)
        metrics.count_slo(chat, "available", good=True)
        metrics.set_slos(chat, {"available": standing})
    assert metrics.render().count(b"\n") <= 35_000
