from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monitor.report.evaluate import (
    AVAILABLE,
    WhatIf,
    backtest,
    judge_slots,
    report_probe,
    spans,
    words,
)
from monitor.slo import BURN_ALERTS, Indicator, Month, Slices, Slo, SloWindow, classify
from probes.result import Excluded, Outcome
from tests.monitor.report.stored import T0, slots

OK, BAD, LIMITED = Outcome.OK, Outcome.HTTP_5XX, Outcome.HTTP_RATE_LIMITED
NAMES = ("a/chat", "a", "chat")
DAY_S = 86_400.0
BERLIN = ZoneInfo("Europe/Berlin")


@settings(deadline=None)
@given(
    st.sampled_from(Indicator),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(Outcome),
            st.sampled_from([None, *Excluded]),
            st.sampled_from([np.nan, 0.1, 0.5, 0.6]),
        ),
        max_size=40,
    ),
)
def test_arrays_are_judged_as_single_results_are(
    indicator: Indicator,
    strict: bool,
    rows: list[tuple[Outcome, Excluded | None, float]],
) -> None:
    slo = Slo(name="x", indicator=indicator, metric="ttft", threshold=0.5, count_429=strict)
    stored = slots(
        [o for o, _, _ in rows],
        excluded=[e for _, e, _ in rows],
        times={"ttft": [v for *_, v in rows]},
    )
    valid, good = judge_slots(slo, stored)
    for row, is_valid, is_good in zip(rows, valid.tolist(), good.tolist(), strict=True):
        outcome, excluded, value = row
        times = {"ttft": None if np.isnan(value) else value}
        expected = classify(slo, outcome, excluded, times)
        assert (is_valid, is_good) == (expected is not None, bool(expected))


def test_a_probe_is_told_with_coverage_outages_and_what_was_left_out() -> None:
    outcomes = [OK] * 10 + [BAD] * 3 + [LIMITED] + [OK] * 6
    stored = slots(outcomes, skips=["overlap", "overlap", "budget"])
    found = report_probe(NAMES, 60.0, stored, [AVAILABLE], (T0, T0 + 1200))
    assert (found.scheduled, found.valid, found.good) == (23, 19, 16)
    assert found.coverage == pytest.approx(19 / 23)
    assert found.strict == pytest.approx(16 / 20)
    assert (found.outage_count, found.longest_s) == (1, 240.0)
    assert found.excluded == {"http_rate_limited": 1}
    assert found.skipped == {"budget": 1, "overlap": 2}
    assert [(d.date, d.good, d.valid) for d in found.worst_days] == [("2026-12-01", 16, 19)]


def test_an_outage_that_lasts_ends_with_the_period() -> None:
    found = report_probe(NAMES, 60.0, slots([OK, BAD]), [], (T0, T0 + 600))
    assert found.longest_s == 540.0
    assert found.outages[0].end is None


def test_a_probe_without_slots_is_told_without_figures() -> None:
    found = report_probe(NAMES, 60.0, slots([]), [AVAILABLE], (T0, T0 + 600))
    assert (found.coverage, found.strict, found.own, found.long_run) == (None, None, None, None)
    [slo] = found.slos
    assert (slo.attainment, slo.met, slo.budget_remaining) == (None, None, None)


def test_an_objective_is_met_when_exactly_reached() -> None:
    stored = slots([BAD] + [OK] * 999)
    slo = Slo(name="a", objective=0.999)
    [found] = report_probe(NAMES, 60.0, stored, [slo], (T0, T0 + 60_000)).slos
    assert (found.met, found.good, found.valid) == (True, 999, 1000)
    assert found.budget_remaining == pytest.approx(0.0)


def test_slices_count_time_and_not_results() -> None:
    outcomes = [OK] * 5 + [BAD] + [OK] * 4
    slo = Slo(name="s", slices=Slices(seconds=300, target=0.9))
    [found] = report_probe(NAMES, 60.0, slots(outcomes), [slo], (T0, T0 + 600)).slos
    assert (found.good, found.valid) == (1, 2)


def test_what_if_changes_objectives_and_thresholds() -> None:
    fast = Slo(name="f", indicator=Indicator.LATENCY, metric="ttft", threshold=1.0)
    steady = Slo(name="s", indicator=Indicator.CONSISTENCY, metric="ttft", threshold=3.0)
    what_if = WhatIf(objective=0.95, threshold=0.5)
    assert (what_if.applied(fast).objective, what_if.applied(fast).threshold) == (0.95, 0.5)
    assert what_if.applied(steady) == steady
    assert what_if.applied(AVAILABLE).threshold is None


@settings(deadline=None)
@given(st.floats(0.05, 3.0), st.floats(0.05, 3.0))
def test_a_wider_threshold_never_attains_less(one: float, other: float) -> None:
    values = np.random.default_rng(1).exponential(0.6, 200).tolist()
    stored = slots([OK] * 200, times={"ttft": values})
    found = []
    for threshold in sorted((one, other)):
        slo = Slo(name="f", indicator=Indicator.LATENCY, metric="ttft", threshold=threshold)
        found.append(report_probe(NAMES, 60.0, stored, [slo], (T0, T0 + 12_000)).slos[0].good)
    assert found[0] <= found[1]


def test_consistency_is_p99_over_p50_and_needs_a_hundred_results() -> None:
    slo = Slo(name="c", indicator=Indicator.CONSISTENCY, metric="ttft", threshold=3.0)
    values = [0.1] * 98 + [0.4] * 2
    stored = slots([OK] * 100, times={"ttft": values})
    [found] = report_probe(NAMES, 60.0, stored, [slo], (T0, T0 + 6000)).slos
    assert found.attainment == pytest.approx(4.0)
    assert found.met is False
    few = slots([OK] * 99, times={"ttft": values[:99]})
    [found] = report_probe(NAMES, 60.0, few, [slo], (T0, T0 + 6000)).slos
    assert (found.attainment, found.met) == (None, None)


def test_the_spread_over_hours_is_of_their_medians() -> None:
    slo = Slo(name="c", indicator=Indicator.CONSISTENCY, metric="ttft", threshold=3.0)
    stored = slots([OK] * 120, times={"ttft": [0.1] * 60 + [0.25] * 60})
    [found] = report_probe(NAMES, 60.0, stored, [slo], (T0, T0 + 7200)).slos
    assert found.hour_spread == pytest.approx(2.5)


def test_a_months_slo_is_judged_by_the_months_of_its_zone() -> None:
    slo = Slo(name="m", window=Month(zone="Europe/Berlin"))
    since, until = (
        datetime(2026, month, 15, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        for month in (9, 11)
    )
    found = spans(slo, since, until)
    assert [begin for begin, _ in found][1:] == [
        datetime(2026, month, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        for month in (10, 11)
    ]
    assert found[1][1] - found[1][0] == 31 * DAY_S + 3600
    assert (found[0][0], found[-1][1]) == (since, until)
    assert spans(AVAILABLE, since, until) == [(since, until)]


def minutes(n: int) -> NDArray[np.float64]:
    return np.array([T0 + 60.0 * k for k in range(n)], np.float64)


# --- back-testing --------------------------------------------------------------------------------


def test_an_outage_would_have_fired_once_and_a_quiet_month_never() -> None:
    at = minutes(10 * 1440)
    quiet = np.ones(len(at), bool)
    assert sum(backtest(at, quiet, 0.99).values()) == 0
    outage = quiet.copy()
    outage[5000:5060] = False
    found = backtest(at, outage, 0.99)
    assert (found["1h/5m"], found["6h/30m"]) == (1, 1)


def test_what_can_never_fire_is_not_tested() -> None:
    found = backtest(minutes(100), np.zeros(100, bool), 0.9)
    assert set(found) == {"6h/30m", "1d/2h", "3d/6h"}
    assert backtest(np.array([]), np.array([], bool), 1.0) == {}


def test_the_back_test_fires_when_the_running_monitor_would() -> None:
    """The monitor's windows reach up to a bucket further, so edges may differ by a minute."""
    rng = np.random.default_rng(11)
    at = minutes(2000)
    good = rng.random(2000) > 0.002
    good[900:925] = False
    slo, window = Slo(name="a", objective=0.99), None
    window = SloWindow(slo)
    seen: dict[str, int] = {f"{a.long}/{a.short}": 0 for a in BURN_ALERTS}
    burning: set[str] = set()
    for moment, is_good in zip(at.tolist(), good.tolist(), strict=True):
        window.add(moment, good=is_good)
        now = {f"{f.alert.long}/{f.alert.short}" for f in window.burning(moment)}
        for pair in now - burning:
            seen[pair] += 1
        burning = now
    tested = backtest(at, good, 0.99)
    assert tested["1h/5m"] == seen["1h/5m"] == 1
    assert all(abs(tested[pair] - seen[pair]) <= 1 for pair in seen)


def test_objectives_are_told_in_words() -> None:
    assert words(Slo(name="a", objective=0.999, count_429=True)) == "99.9 % available, 429 is bad"
    fast = Slo(name="f", indicator=Indicator.LATENCY, metric="tpot", threshold=0.05)
    assert words(fast) == "99 % ok with tpot <= 0.05 s"
