from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monitor.history import History, slot_of
from monitor.link import Heartbeat, ProbePlan, Skip
from monitor.metrics import Metrics
from probes.endpoint import Endpoint
from probes.result import Excluded, Outcome
from probes.workload import Workload
from tests.monitor.rows import FULL, result_row, skip_row

BAD = Outcome.HTTP_5XX
Labels = dict[str, str]
A = {"endpoint": "a", "workload": "chat"}
PLAIN = {**FULL, "tainted": False, "ttfat_s": 0.2}


def plan(endpoint: str = "a", workload: str = "chat", kind: str = "chat") -> ProbePlan:
    return ProbePlan(
        id=f"{endpoint}/{workload}",
        endpoint=Endpoint(name=endpoint, url="http://x/v1", model="m"),
        workload=Workload(name=workload, kind=kind),
        interval=60.0,
    )


def beat(boot: str = "b", **numbers: Any) -> Heartbeat:
    zero = {"loop_lag": 0.0, "gc_pause": 0.0, "clock_offset": 0.0, "buffered": 0}
    zero |= {"dropped": 0, "in_flight": 0, "clock_steps": 0}
    return Heartbeat(seq=1, mono=1.0, boot=boot, **zero | numbers)


def series(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Samples of a name by their sorted labels."""
    families = text_string_to_metric_families(metrics.render().decode())
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sorted(sample.labels.items())): sample.value for sample in found}


def value(metrics: Metrics, name: str, labels: Labels) -> float | None:
    return series(metrics, name).get(tuple(sorted(labels.items())))


def names(metrics: Metrics) -> set[str]:
    return {f.name for f in text_string_to_metric_families(metrics.render().decode())}


def filled() -> Metrics:
    """Two probes with every kind of series."""
    metrics, history = Metrics(clock=lambda: 2000.0), History()
    metrics.watch(plan(), history, {"vendor": "acme", "owner": 'the "A" team\\n'})
    for seq in range(120):
        row = result_row(seq, 1000.0 + seq, **{**PLAIN, "ttfat_s": 0.3})
        history.add(slot_of(row))
        metrics.observe(row)
    metrics.observe(result_row(200, outcome=BAD, e2e_s=1.0))
    metrics.observe(result_row(201, tainted=True))
    metrics.observe(result_row(202, endpoint="b", workload="models", e2e_s=0.004))
    metrics.set_up(plan(), 1)
    metrics.skip(skip_row(reason=Skip.BUDGET))
    metrics.beat(beat(loop_lag=0.01))
    metrics.set_store(3, 0)
    return metrics


def test_the_text_is_what_the_library_would_have_written() -> None:
    """Our rendering is for speed only."""
    metrics = filled()
    ours = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    theirs = generate_latest(metrics._families.registry).decode()
    for family in text_string_to_metric_families(theirs):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert ours.pop(key) == sample.value
    left = {name for name, _ in ours}
    assert all(n.startswith(("endpoint_monitor_", "endpoint_info", "process_")) for n in left)


def test_a_family_is_one_block_with_one_header() -> None:
    """Prometheus refuses a family that comes twice, and loses the whole scrape."""
    lines = filled().render().decode().splitlines()
    headers = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))
    assert headers == [line.split()[2] for line in lines if line.startswith("# HELP")]
    family = ""
    for line in lines:
        if line.startswith("#"):
            family = line.split()[2]
        else:
            assert line.startswith(family)


def test_no_series_comes_twice() -> None:
    """Two samples of one series are an error for Prometheus."""
    lines = filled().render().decode().splitlines()
    heads = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(heads) == len(set(heads))


def test_promtool_finds_nothing_to_say() -> None:
    """The linter that users run, on names, types and help texts."""
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is not installed")
        pytest.skip("promtool is not installed")
    body = filled().render()
    done = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_results_are_counted_by_outcome() -> None:
    """Excluded ones too, and these also by why."""
    metrics = filled()
    assert value(metrics, "endpoint_probe_results_total", {**A, "outcome": "ok"}) == 121
    assert value(metrics, "endpoint_probe_results_total", {**A, "outcome": "http_5xx"}) == 1
    assert value(metrics, "endpoint_probe_excluded_total", {**A, "reason": "tainted"}) == 1


def test_only_outcomes_that_were_seen_have_a_series() -> None:
    """24 outcomes for each of 500 probes would be 12,000 lines of zeros."""
    assert len(series(filled(), "endpoint_probe_results_total")) == 3


@pytest.mark.parametrize(
    "row",
    [
        result_row(outcome=BAD, ttft_s=30.0, e2e_s=45.0, tpot_s=1.0),
        result_row(tainted=True, ttft_s=30.0, e2e_s=45.0, tpot_s=1.0),
    ],
)
def test_failures_and_tainted_results_are_no_latency(row: Any) -> None:
    """A timeout of 30 s is no TTFT of 30 s."""
    metrics = Metrics()
    metrics.observe(row)
    assert not [name for name in names(metrics) if name.startswith("endpoint_probe_t")]
    assert "endpoint_probe_e2e_seconds" not in names(metrics)


def test_an_exclusion_by_the_parent_overrides_the_result() -> None:
    """Only the parent knows that our own network was down."""
    metrics = Metrics()
    metrics.observe(result_row(outcome=Outcome.DNS), Excluded.UNKNOWN)
    assert value(metrics, "endpoint_probe_excluded_total", {**A, "reason": "unknown"}) == 1


def test_a_latency_moves_sum_count_and_its_bucket() -> None:
    """A delay of 0.3 s moves the sum by 0.3 s."""
    metrics = Metrics()
    metrics.observe(result_row(ttft_s=0.3))
    assert value(metrics, "endpoint_probe_ttft_seconds_sum", A) == 0.3
    assert value(metrics, "endpoint_probe_ttft_seconds_count", A) == 1
    assert value(metrics, "endpoint_probe_ttft_seconds_bucket", {**A, "le": "0.2"}) == 0
    assert value(metrics, "endpoint_probe_ttft_seconds_bucket", {**A, "le": "0.5"}) == 1


def test_an_slo_threshold_is_a_bound() -> None:
    """Between bounds Prometheus would guess."""
    metrics = Metrics(thresholds={"ttft": [0.75], "tpot": [0.033]})
    metrics.observe(result_row(ttft_s=0.3, tpot_s=0.02, output_tokens_source="usage"))
    assert value(metrics, "endpoint_probe_ttft_seconds_bucket", {**A, "le": "0.75"}) == 1
    tpot = {**A, "le": "0.033", "token_source": "usage"}
    assert value(metrics, "endpoint_probe_tpot_seconds_bucket", tpot) == 1


def test_every_histogram_has_at_most_twenty_bounds() -> None:
    """Lines are what a scrape costs."""
    buckets = series(filled(), "endpoint_probe_ttft_seconds_bucket")
    assert 10 < len(buckets) <= 20


def test_token_sources_are_never_mixed() -> None:
    """Tokens of a server and chunks of a stream are different units."""
    metrics = Metrics()
    for source, tpot in (("usage", 0.01), ("chunks", 0.5)):
        row = result_row(tpot_s=tpot, output_tokens=64, output_tokens_source=source)
        metrics.observe(row)
    for source, tpot in (("usage", 0.01), ("chunks", 0.5)):
        labels = {**A, "token_source": source}
        assert value(metrics, "endpoint_probe_tpot_seconds_sum", labels) == tpot
        assert value(metrics, "endpoint_probe_output_tokens_total", labels) == 64


def test_ttfat_is_a_figure_only_where_there_is_reasoning() -> None:
    """From the first difference on every answer counts, or the histogram were of slow ones."""
    metrics = Metrics()
    metrics.observe(result_row(ttft_s=0.2, ttfat_s=0.2))
    assert "endpoint_probe_ttfat_seconds" not in names(metrics)
    metrics.observe(result_row(ttft_s=0.2, ttfat_s=5.0))
    metrics.observe(result_row(ttft_s=0.2, ttfat_s=0.2))
    assert value(metrics, "endpoint_probe_ttfat_seconds_count", A) == 2


def test_a_reasoning_workload_has_ttfat_from_the_start() -> None:
    """Its kind says so."""
    metrics = Metrics()
    metrics.watch(plan(kind="reasoning"), None)
    metrics.observe(result_row(ttft_s=0.2, ttfat_s=0.2))
    assert value(metrics, "endpoint_probe_ttfat_seconds_count", A) == 1


def test_phases_cost_and_last_success() -> None:
    """What the result holds, as it holds it."""
    metrics = Metrics()
    metrics.observe(result_row(1, 500.0, **PLAIN))
    metrics.observe(result_row(2, 600.0, BAD))
    assert value(metrics, "endpoint_probe_phase_seconds_sum", {**A, "phase": "tls"}) == 0.003
    assert value(metrics, "endpoint_probe_phase_seconds_count", {**A, "phase": "wait"}) == 1
    assert value(metrics, "endpoint_probe_cost_total", A) == 0.00125
    assert value(metrics, "endpoint_probe_last_success_timestamp_seconds", A) == 500.01


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_cannot_be_is_not_added(cost: float) -> None:
    """It may come from the server's usage, and a counter never falls."""
    metrics = Metrics()
    metrics.observe(result_row(1, cost=0.5))
    metrics.observe(result_row(2, cost=cost))
    assert value(metrics, "endpoint_probe_cost_total", A) == 0.5


def test_endpoint_up_goes_when_nothing_is_known() -> None:
    """A gauge that nobody measures must not freeze."""
    metrics = Metrics()
    for up in (1, 0):
        metrics.set_up(plan(), up)
        assert value(metrics, "endpoint_up", A) == up
    metrics.set_up(plan(), None)
    assert "endpoint_up" not in names(metrics)


def test_window_quantiles_come_from_the_history_and_go_with_it() -> None:
    """Exact, with n behind them; after an hour of silence there are none."""
    now = 1100.0
    metrics, history = Metrics(clock=lambda: now), History()
    metrics.watch(plan(), history)
    for seq in range(1, 101):
        row = result_row(seq, 1000.0 + seq, ttft_s=seq / 100)
        history.add(slot_of(row))
        metrics.observe(row)
    where = {**A, "window": "1h"}
    for quantile, seconds in (("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)):
        labels = {**where, "quantile": quantile}
        got = value(metrics, "endpoint_ttft_quantile_seconds", labels)
        assert got == pytest.approx(seconds)
    now = 4690.0  # ten results are left in the hour: no p99
    metrics._probes["a", "chat"].refreshed = float("-inf")
    assert len(series(metrics, "endpoint_ttft_quantile_seconds")) == 2
    now = 9000.0
    metrics._probes["a", "chat"].refreshed = float("-inf")
    assert "endpoint_ttft_quantile_seconds" not in names(metrics)


def test_what_is_known_of_an_endpoint_is_an_info() -> None:
    """With every label of the contract, empty where nothing is known."""
    info = series(filled(), "endpoint_info")
    labels = dict.fromkeys("vendor model region release accelerator status owner".split(), "")
    labels |= {"endpoint": "a", "vendor": "acme", "model": "m", "owner": 'the "A" team\\n'}
    assert info == {tuple(sorted(labels.items())): 1.0}


def test_a_forgotten_probe_leaves_no_series() -> None:
    """And nobody else's counters break (uptime-kuma#7482)."""
    metrics = filled()
    before = series(metrics, "endpoint_probe_results_total")
    metrics.forget(plan())
    body = metrics.render().decode()
    assert 'endpoint="a"' not in body
    assert 'endpoint="b"' in body
    after = series(metrics, "endpoint_probe_results_total")
    assert after.items() <= before.items()
    assert 'endpoint="a"' not in generate_latest(metrics._families.registry).decode()


def test_an_endpoints_info_stays_while_a_probe_of_it_does() -> None:
    """One endpoint, several workloads."""
    metrics = Metrics()
    metrics.watch(plan("a", "chat"), None)
    metrics.watch(plan("a", "models"), None)
    metrics.forget(plan("a", "chat"))
    assert "endpoint_info" in names(metrics)
    metrics.forget(plan("a", "models"))
    assert "endpoint_info{" not in metrics.render().decode()


def test_slots_are_counted_by_how_they_ended() -> None:
    """Results and skips; the rest of the schedule is ours to explain."""
    slots = series(filled(), "endpoint_monitor_slots_total")
    assert slots == {(("status", "result"),): 123, (("status", "budget"),): 1}


def test_the_prober_s_totals_go_on_across_its_restarts() -> None:
    """Its own counts begin at 0 with every boot; a counter must not."""
    metrics = Metrics()
    for boot, dropped, steps in (("x", 2, 0), ("x", 5, 1), ("y", 0, 0), ("y", 3, 1)):
        metrics.beat(beat(boot, dropped=dropped, clock_steps=steps))
    metrics.set_store(7, 4)
    metrics.set_store(8, 4)
    metrics.set_restarts(1)
    metrics.set_restarts(1)
    assert value(metrics, "endpoint_monitor_rows_dropped_total", {"at": "link"}) == 8
    assert value(metrics, "endpoint_monitor_rows_dropped_total", {"at": "store"}) == 4
    assert value(metrics, "endpoint_monitor_clock_steps_total", {}) == 2
    assert value(metrics, "endpoint_monitor_store_queue_length", {}) == 8
    assert value(metrics, "endpoint_monitor_prober_restarts_total", {}) == 1


def test_loop_lag_is_the_worst_of_the_last_minute() -> None:
    """A scrape every 15 s must not miss a second."""
    metrics = Metrics()
    metrics.beat(beat(loop_lag=0.5, gc_pause=0.2))
    for _ in range(59):
        metrics.beat(beat(loop_lag=0.001))
    assert value(metrics, "endpoint_monitor_event_loop_lag_seconds", {}) == 0.5
    assert value(metrics, "endpoint_monitor_gc_pause_seconds", {}) == 0.2
    metrics.beat(beat())
    assert value(metrics, "endpoint_monitor_event_loop_lag_seconds", {}) == 0.001


def test_hostile_labels_stay_labels() -> None:
    """Names come from the configuration, but a quote must not end a label."""
    evil = 'a"} 1\n# TYPE x counter\\'
    metrics = Metrics()
    metrics.observe(result_row(endpoint=evil, ttft_s=0.1))
    labels = {"endpoint": evil, "workload": "chat", "outcome": "ok"}
    assert value(metrics, "endpoint_probe_results_total", labels) == 1


def test_probes_past_the_cap_are_left_out_and_counted() -> None:
    """A mistake in the configuration must not sink Prometheus."""
    metrics = Metrics(max_lines=100)
    for i in range(5):
        metrics.observe(result_row(endpoint=f"e{i}", ttft_s=0.1, e2e_s=0.2))
    whole = len(series(metrics, "endpoint_probe_results_total"))
    assert 0 < whole < 5
    assert value(metrics, "endpoint_monitor_probes_unexported", {}) == 5 - whole


def test_five_hundred_probes_stay_below_35_000_lines() -> None:
    """With TLS, a price and quantiles, which is as many series as a chat probe has."""
    metrics = Metrics(clock=lambda: 2000.0)
    for i in range(500):
        history, chat = History(), plan(f"e{i}")
        row = result_row(endpoint=f"e{i}", **PLAIN)
        history.add(slot_of(row))
        metrics.watch(chat, history)
        metrics.observe(row)
        metrics.set_up(chat, 1)
    assert metrics.render().count(b"\n") <= 35_000


def test_rendering_beside_observing_loses_nothing() -> None:
    """The last render shows every result, however the threads met."""
    metrics, stop = Metrics(), threading.Event()
    failures: list[BaseException] = []

    def render() -> None:
        try:
            while not stop.is_set():
                metrics.render()
        except BaseException as exc:  # noqa: BLE001 - carried over to the test's thread
            failures.append(exc)

    renderer = threading.Thread(target=render)
    renderer.start()
    for i in range(3000):
        metrics.observe(result_row(i, endpoint=f"e{i % 40}", ttft_s=0.1))
        metrics.set_up(plan(f"e{i % 40}"), (None, 0, 1)[i % 3])
    metrics.forget(plan("e0"))
    stop.set()
    renderer.join()
    assert not failures
    assert sum(series(metrics, "endpoint_probe_results_total").values()) == 3000 - 75
