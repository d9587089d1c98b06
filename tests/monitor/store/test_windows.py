from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.link import Skip
from monitor.store import Keep, Store
from monitor.store.rollup import BLOCK_S, DAY_S, HOUR_S
from monitor.store.windows import Asked, WindowSummary
from probes.result import Excluded, Outcome, Verdict, verdict
from tests.monitor.rows import FULL, result_row, skip_row
from tests.monitor.store import synthetic

FIRST = 640 * BLOCK_S - DAY_S  # a day before a block begins
DAYS = 4
NOW = FIRST + DAYS * DAY_S
EVERY = 300.0
PROBES = ("a", "b")
P = (0.0, 50.0, 90.0, 99.0)

Slot = tuple[float, Outcome | None, bool, float]
"""When, how, whether excluded, TTFT."""


def slots_of(endpoint: str) -> list[Slot]:
    rng = np.random.default_rng(PROBES.index(endpoint))
    kinds = [*[Outcome.OK] * 20, Outcome.HTTP_5XX, Outcome.HTTP_RATE_LIMITED, None]
    count = int(DAYS * DAY_S / EVERY)
    return [
        (
            FIRST + EVERY * n + PROBES.index(endpoint),
            kinds[rng.integers(len(kinds))],
            bool(rng.random() < 0.05),
            float(rng.lognormal(-1, 0.5)),
        )
        for n in range(count)
        if not FIRST + DAY_S < FIRST + EVERY * n < FIRST + 1.3 * DAY_S  # not probed for a while
    ]


def put(store: Store, endpoint: str) -> None:
    names = {"boot": endpoint, "site": "here"}
    for seq, (at, outcome, excluded, ttft) in enumerate(slots_of(endpoint)):
        if outcome is None:
            row = skip_row(seq, at, Skip.OVERLAP)
            store.put_skip(row, **names, endpoint=endpoint, workload="chat")
        else:
            result = result_row(seq, at, outcome, endpoint=endpoint, ttft_s=ttft)
            why = Excluded.TAINTED if excluded else None
            store.put_result(result, **names, excluded=why)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """Four days of two probes, all closed but for the last two hours."""
    opened = await Store.open(store_url)
    for endpoint in PROBES:
        put(opened, endpoint)
    await opened.flush()
    assert await opened.roll_up(NOW - 2 * HOUR_S + 120, 60.0)
    yield opened
    await opened.close()


def check(summary: WindowSummary, start: float, end: float) -> None:
    """Compare with a plain count over the slots in [start, end)."""
    inside = [slot for slot in slots_of(summary.endpoint) if start <= slot[0] < end]
    counted = [slot for slot in inside if slot[1] is not None and not slot[2]]
    verdicts = Counter(verdict(outcome) for _, outcome, *_ in counted if outcome)
    assert (summary.scheduled, summary.good) == (len(inside), verdicts[Verdict.GOOD])
    assert summary.n == verdicts[Verdict.GOOD] + verdicts[Verdict.BAD]
    assert summary.rate_limited == verdicts[Verdict.RATE_LIMITED]
    assert sum(summary.skips.values()) == sum(slot[1] is None for slot in inside)
    assert sum(summary.excluded.values()) == sum(
        slot[1] is not None and slot[2] for slot in inside
    )
    outcomes = Counter(slot[1] for slot in counted if slot[1] is not Outcome.OK)
    assert summary.outcomes == outcomes
    values = sorted(slot[3] for slot in counted if slot[1] is Outcome.OK)
    times = summary.times["ttft"]
    assert times.n == len(values)
    assert times.at_or_below[0.5] == pytest.approx(sum(v <= 0.5 for v in values), abs=2)
    for p, seconds in times.percentiles.items():
        exact = values[max(math.ceil(p / 100 * len(values)) - 1, 0)]
        assert exact - 1e-6 <= seconds <= exact * 1.001 + 1e-6
    assert (99.0 in times.percentiles) == (len(values) >= 100)


ASKED = Asked(percentiles=P, at_or_below={"ttft": [0.5]})


async def test_any_window_says_what_a_plain_count_of_its_slots_says(store: Store) -> None:
    """Whole days, hours and parts of them; over the end of a block; with hours not closed yet."""
    rng = np.random.default_rng(7)
    spans = [sorted(rng.uniform(FIRST, NOW, 2).tolist()) for _ in range(25)]
    spans += [[FIRST, NOW], [FIRST + DAY_S, NOW], [FIRST + 1.5 * DAY_S, FIRST + 3 * DAY_S]]
    spans += [[NOW - 3 * HOUR_S, NOW], [FIRST + 600, FIRST + 3000], [NOW - 900, NOW + 1e6]]
    for start, end in spans:
        found = await store.windows(start, end, ASKED)
        for summary in found:
            check(summary, start, end)
            one = await store.window((summary.endpoint, "chat", "here"), start, end, ASKED)
            assert one == summary
        seen = [e for e in PROBES if any(start <= s[0] < end for s in slots_of(e))]
        assert [summary.endpoint for summary in found] == seen


async def test_without_raw_rows_whole_closed_hours_are_read(store: Store) -> None:
    """For a page that shows a month it does not matter, and costs a hundredth."""
    asked = Asked(percentiles=P, at_or_below={"ttft": [0.5]}, raw=False)
    for summary in await store.windows(FIRST + 1800, NOW + 5, asked):
        check(summary, FIRST, NOW - 2 * HOUR_S)
        assert (summary.start_at, summary.end_at) == (FIRST, NOW - 2 * HOUR_S)


async def test_an_edge_without_raw_results_is_taken_whole(store: Store) -> None:
    """And the window says so; half an hour of a month is no matter, half of its failures is."""
    await store.roll_up(NOW + DAY_S)
    assert await store.maintain(NOW + 30 * DAY_S, Keep(results=DAY_S)) > 0
    start, end = FIRST + 1.5 * DAY_S + 1000, FIRST + 3 * DAY_S - 1000
    for summary in await store.windows(start, end, ASKED):
        assert (summary.start_at, summary.end_at) == (start - 1000, end + 1000)
        check(summary, start - 1000, end + 1000)


async def test_a_day_whose_hours_are_gone_is_taken_whole(store: Store) -> None:
    """Years are counted in days."""
    await store.roll_up(NOW + DAY_S)
    keep = Keep(results=DAY_S, hours=2 * DAY_S, failures=DAY_S, minutes=DAY_S)
    await store.maintain(NOW, keep)
    for summary in await store.windows(FIRST + 1000, FIRST + 3.6 * DAY_S, ASKED):
        assert summary.start_at == FIRST
        check(summary, FIRST, FIRST + 3.6 * DAY_S)
    assert len(await store.daily(FIRST, NOW)) == DAYS * len(PROBES)


async def test_minutes_and_days_are_counted_too(store: Store) -> None:
    """One row where there was a slot; five minutes are the sum of five."""
    end = FIRST + DAY_S
    probe = ("a", "chat", "here")
    ones = await store.by_minutes(probe, FIRST, end)
    fives = await store.by_minutes(probe, FIRST, end, 5)
    assert len(ones) == len(fives) == 288
    (day,) = await store.daily(FIRST, end, probe)
    for spans in (ones, fives):
        for name in ("good", "valid", "rate_limited", "scheduled"):
            assert sum(getattr(span, name) for span in spans) == getattr(day, name)
    assert [span.start_at for span in ones[:2]] == [FIRST, FIRST + EVERY]


async def test_a_window_of_nothing_is_nothing(store: Store) -> None:
    """Neither an error nor a row of zeros."""
    assert await store.windows(0.0, 1e6) == []
    assert await store.window(("x", "y", "z"), FIRST, NOW) is None


# -- size and time; docs/storage.md states the same figures --------------------------------------

PER_RESULT = 620
PER_HOUR, PER_HOUR_HISTOGRAM = 310, 150
PER_MINUTES = 120
PER_DAY, PER_DAY_HISTOGRAM = 400, 2700


@pytest.mark.slow
async def test_a_long_history_keeps_to_its_size_and_answers_at_once(
    sqlite_url: str, tmp_path: Path, record_property: Any
) -> None:
    """uptime-kuma#4041: 8 GB there, and minutes for a page; 90 days of 100 probes, rolled up."""
    days, probes, per_hour = 90, 100, 60
    store = await Store.open(sqlite_url)
    values = synthetic.values(per_hour)
    await synthetic.fill(store, days, probes, values)
    end = synthetic.START + days * DAY_S
    asked = Asked(times=("ttft",), percentiles=(99.0,), raw=False)
    month, found = await timed(store, end - 30 * DAY_S, end, asked)
    quarter, _ = await timed(store, synthetic.START, end, asked)
    record_property("p99_30d_100_probes_s", month)
    record_property("overview_90d_100_probes_s", quarter)
    assert month < 0.25, "some 50 ms on an idle core"
    assert quarter < 0.3
    exact = exact_p99(values, days - 30, days)
    assert len(found) == probes
    for summary in found:
        assert exact <= summary.times["ttft"].percentiles[99.0] <= exact * 1.001
        assert summary.times["ttft"].n == 30 * 24 * per_hour
    await store.close()
    hours, histograms = days * 24 * probes, len(synthetic.STREAMED)
    stated = hours * (PER_HOUR + PER_MINUTES + histograms * PER_HOUR_HISTOGRAM)
    stated += days * probes * (PER_DAY + histograms * PER_DAY_HISTOGRAM)
    size = (tmp_path / "store.db").stat().st_size
    record_property("bytes", size)
    assert 0.7 * stated < size < stated


async def timed(
    store: Store, start: float, end: float, asked: Asked
) -> tuple[float, list[WindowSummary]]:
    """Return the best of several times, and the answer."""
    best, found = math.inf, []
    for _ in range(9):
        began = time.perf_counter()
        found = await store.windows(start, end, asked)
        best = min(best, time.perf_counter() - began)
    return best, found


def exact_p99(values: synthetic.Values, first: int, last: int) -> float:
    hours = np.arange(first * 24, last * 24) % synthetic.BLOCK_HOURS
    every = np.sort(values["ttft"][hours].ravel())
    return float(every[math.ceil(0.99 * len(every)) - 1])


async def test_a_raw_result_takes_the_space_stated(sqlite_url: str, tmp_path: Path) -> None:
    """With every field filled, as a chat probe's is, but for those of a failure."""
    of_failures = ("reason", "error_code", "error_excerpt", "steps", "retry_after_s")
    details = {name: value for name, value in FULL.items() if name not in of_failures}
    details |= {"request_id": "chatcmpl-" + "0" * 24, "text_sha256": "0" * 64}
    store = await Store.open(sqlite_url)
    count = 5000
    for seq in range(count):
        row = result_row(seq, FIRST + 60 * seq, endpoint="endpoint-01", **details)
        store.put_result(row, boot="0" * 16, site="local")
    await store.close()
    size = (tmp_path / "store.db").stat().st_size
    assert 0.7 * PER_RESULT < size / count < PER_RESULT
