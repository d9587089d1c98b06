"""Objectives in the running monitor: from rows to metrics and burn alerts, and over a restart."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.app import Monitor
from monitor.conditions import Burn
from monitor.config import Config, load
from monitor.pager import Pager
from monitor.slo import Counts
from monitor.store import Store
from monitor.supervise import Child
from probes.result import Excluded, Outcome
from tests.monitor.rows import result_row

CONFIG = """
endpoints:
  a: {url: "http://127.0.0.1:9/v1", model: m}
slos:
  available: {objective: 99.9, window: 7d}
  fast: {objective: 99, window: 7d, ttft: 700ms}
workloads: {chat: {}, models: {}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "monitor.yaml"
    path.write_text(CONFIG)
    return load(path, {})


@asynccontextmanager
async def monitored(config: Config) -> AsyncIterator[Monitor]:
    store = await Store.open(config.store_url)
    pager = Pager(config, store.alerting(config.site), "http://page")
    child = cast("Child", SimpleNamespace(started=time.monotonic()))
    try:
        yield Monitor(config, store, child, pager)
    finally:
        await store.close()


def feed(monitor: Monitor, bad: int = 6, results: int = 60) -> None:
    """An hour of results, the newest of them bad."""
    now = time.time()
    for n in reversed(range(results)):
        outcome = Outcome.HTTP_5XX if n < bad else Outcome.OK
        times: dict[str, Any] = {"ttft_s": 0.1 if n % 2 else 0.9} if outcome is Outcome.OK else {}
        monitor.record("boot", result_row(1000 - n, now - 60.0 * n, outcome, **times))


def series(monitor: Monitor, name: str) -> dict[str, float]:
    monitor._update_gauges()
    lines = monitor._metrics.render().decode().splitlines()
    found = [line.rsplit(" ", 1) for line in lines if line.startswith(name)]
    return {head: float(value) for head, value in found}


def burns(monitor: Monitor) -> dict[str, tuple[Burn, ...]]:
    return {name: looks.burns for name, looks in monitor.looks()}


async def test_rows_become_counters_budgets_and_burn_rates(config: Config) -> None:
    async with monitored(config) as monitor:
        feed(monitor)
        labels = 'endpoint="a",workload="chat",slo="available"'
        assert (
            series(monitor, "endpoint_slo_valid_total")[f"endpoint_slo_valid_total{{{labels}}}"]
            == 60
        )
        assert (
            series(monitor, "endpoint_slo_good_total")[f"endpoint_slo_good_total{{{labels}}}"]
            == 54
        )
        rates = series(monitor, "endpoint_slo_burn_rate")
        assert rates[f'endpoint_slo_burn_rate{{{labels},window="1h"}}'] == pytest.approx(100)
        [left] = [
            v for k, v in series(monitor, "endpoint_slo_error_budget").items() if "available" in k
        ]
        assert left == pytest.approx(-99)


async def test_a_burning_slo_is_told_to_the_pager_with_its_numbers(config: Config) -> None:
    async with monitored(config) as monitor:
        feed(monitor)
        found = burns(monitor)["a/chat"]
        assert {(burn.slo, burn.window, burn.severity) for burn in found} >= {
            ("available", "1h", "page"),
            ("fast", "1h", "page"),
        }
        assert "6 of 60 bad in 1h" in found[0].numbers
        assert burns(monitor)["a/models"] == ()


async def test_what_is_excluded_burns_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with monitored(config) as monitor:
        monkeypatch.setattr(monitor.pager, "excluded", lambda _: Excluded.UNKNOWN)
        feed(monitor)
        assert burns(monitor)["a/chat"] == ()
        assert series(monitor, "endpoint_slo_valid_total") == {}


async def test_a_threshold_is_a_bound_of_the_histogram(config: Config) -> None:
    async with monitored(config) as monitor:
        feed(monitor)
        buckets = series(monitor, "endpoint_probe_ttft_seconds_bucket")
        assert any('le="0.7"' in head for head in buckets)


async def test_a_restart_forgets_neither_budget_nor_burn(config: Config) -> None:
    async with monitored(config) as before:
        feed(before)
        await before._store.flush()
    async with monitored(config) as after:
        assert burns(after)["a/chat"] == ()
        after._probing_since = time.time() + 1
        await after.refill()
        assert {burn.slo for burn in burns(after)["a/chat"]} == {"available", "fast"}
        window = after._probes["a/chat"].slos.windows["available"]
        assert window.total(time.time()) == Counts(54, 60)
        assert after.pager.restored
