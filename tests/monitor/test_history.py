from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.history import History, Slot, slot_of
from monitor.link import ResultRow, Skip, SkipRow
from monitor.status import Block, Last, Outages, Spread
from probes.result import Excluded, Outcome, ProbeResult, Verdict, verdict

GOOD, BAD = Outcome.OK, Outcome.HTTP_5XX
MINUTE = 60.0


def result(
    at: float, outcome: Outcome, excluded: Excluded | None = None, ttft: float | None = None
) -> Slot:
    return Slot(at=at, outcome=outcome, excluded=excluded, ttft=ttft)


def skipped(at: float, reason: Skip) -> Slot:
    return Slot(at=at, skip=reason)


def of(*outcomes: Outcome | Skip | tuple[Outcome, Excluded], ttft: float | None = None) -> History:
    """Slots a minute apart, the first at 0."""
    history = History()
    for i, what in enumerate(outcomes):
        if isinstance(what, Skip):
            history.add(skipped(i * MINUTE, what))
        else:
            outcome, excluded = what if isinstance(what, tuple) else (what, None)
            history.add(result(i * MINUTE, outcome, excluded, ttft))
    return history


def test_a_row_of_the_prober_becomes_a_slot() -> None:
    """The slot's time counts, not the start's."""
    seen = ProbeResult(
        endpoint="a",
        workload="chat",
        kind="chat",
        model="m",
        started_at=61.0,
        outcome=BAD,
        reason="why",
        ttft_s=0.1,
        tpot_s=0.2,
        e2e_s=0.3,
        tainted=True,
    )
    row = ResultRow(1, 0.0, "a/chat", 60.0, seen)
    assert slot_of(row) == Slot(
        at=60.0,
        outcome=BAD,
        excluded=Excluded.TAINTED,
        ttft=0.1,
        tpot=0.2,
        e2e=0.3,
        reason="why",
    )
    assert slot_of(row, Excluded.UNKNOWN).excluded is Excluded.UNKNOWN
    assert slot_of(SkipRow(2, 0.0, "a/chat", 120.0, Skip.LATE)) == skipped(120.0, Skip.LATE)


def test_an_empty_window_claims_nothing() -> None:
    """No slot: no ratio, no percentile, no block."""
    summary = History().summary(0.0)
    assert (summary.availability, summary.coverage) == (None, None)
    assert (summary.n, summary.good, summary.scheduled) == (0, 0, 0)
    assert summary.outages == Outages()
    assert summary.ttft == summary.tpot == summary.e2e == Spread()
    assert History().blocks() == ()
    assert History().quantiles(0.0, 60.0) == {}


def test_availability_is_good_over_valid_and_coverage_valid_over_scheduled() -> None:
    """The rest is counted beside the ratio, never in it."""
    history = of(
        GOOD,
        GOOD,
        GOOD,
        BAD,
        Outcome.HTTP_RATE_LIMITED,
        Outcome.HTTP_AUTH,
        Outcome.CONTENT_FILTER,
        (GOOD, Excluded.TAINTED),
        (BAD, Excluded.UNKNOWN),
        Skip.OVERLAP,
    )
    summary = history.summary(9 * MINUTE)
    assert (summary.good, summary.n, summary.scheduled) == (3, 4, 10)
    assert summary.availability == 0.75
    assert summary.coverage == 0.4
    assert summary.skipped == {"overlap": 1}
    assert summary.excluded == {
        "tainted": 1,
        "unknown": 1,
        "http_rate_limited": 1,
        "http_auth": 1,
        "content_filter": 1,
    }


def test_an_outage_runs_from_the_first_bad_slot_to_the_next_good_one() -> None:
    """Two outages: one of two slots, one of a single slot."""
    summary = of(GOOD, BAD, BAD, GOOD, GOOD, BAD, GOOD).summary(6 * MINUTE)
    assert summary.outages == Outages(count=2, longest_s=2 * MINUTE)


def test_an_open_outage_lasts_until_now() -> None:
    """It is not over because nobody looked."""
    history = of(GOOD, BAD)
    assert history.summary(10 * MINUTE).outages == Outages(count=1, longest_s=9 * MINUTE)
    assert of(BAD).summary(0.0).outages == Outages(count=1, longest_s=0.0)


def test_what_is_not_valid_neither_ends_nor_splits_an_outage() -> None:
    """A skip or a 429 in the middle says nothing about the endpoint."""
    history = of(BAD, Skip.PAUSED, Outcome.HTTP_RATE_LIMITED, (GOOD, Excluded.TAINTED), BAD, GOOD)
    assert history.summary(5 * MINUTE).outages == Outages(count=1, longest_s=5 * MINUTE)


def test_latency_is_of_ok_results_that_count() -> None:
    """A timeout of 30 s is no latency of 30 s; a tainted figure is none either."""
    history = History()
    for i in range(10):
        history.add(Slot(at=float(i), outcome=GOOD, ttft=0.1 * (i + 1), tpot=0.01, e2e=1.0))
    history.add(Slot(at=10.0, outcome=Outcome.TIMEOUT_TOTAL, ttft=30.0, e2e=45.0))
    history.add(result(11.0, GOOD, Excluded.TAINTED, ttft=30.0))
    history.add(result(12.0, GOOD))  # ok without a stream: no TTFT, not a TTFT of 0
    summary = history.summary(12.0)
    assert (summary.ttft.n, summary.tpot.n, summary.e2e.n) == (10, 10, 10)
    assert summary.ttft.p50 == pytest.approx(0.5)
    assert summary.ttft.p90 == pytest.approx(0.9)
    assert summary.availability == 11 / 12


def test_the_window_ends_at_now_and_begins_after_its_length() -> None:
    """Half open, so that windows side by side count every slot once."""
    history = of(GOOD, BAD, GOOD)
    assert history.summary(2 * MINUTE, window_s=2 * MINUTE).n == 2
    assert history.summary(2 * MINUTE, window_s=MINUTE).n == 1
    assert history.summary(MINUTE).n == 2


def test_a_slot_in_the_future_waits_for_its_time() -> None:
    """A clock that ran ahead must not count, nor push the day out of memory."""
    history = of(*[GOOD] * 200)
    history.add(result(1e9, BAD))
    for i in range(200, 400):
        history.add(result(i * MINUTE, GOOD))
    assert history.summary(399 * MINUTE).n == 400
    assert history.summary(399 * MINUTE).availability == 1.0
    assert history.blocks(1, now=399 * MINUTE)[0].outcome is GOOD
    assert history.summary(1e9, window_s=1.0).n == 1


def test_slots_out_of_order_are_put_in_their_place() -> None:
    """The outage is the same, whatever the order of arrival."""
    history = History()
    for minute, outcome in ((3, GOOD), (1, BAD), (0, GOOD), (2, BAD)):
        history.add(result(minute * MINUTE, outcome))
    assert history.summary(3 * MINUTE).outages == Outages(count=1, longest_s=2 * MINUTE)
    assert [block.at for block in history.blocks()] == [0.0, 60.0, 120.0, 180.0]


def test_memory_holds_a_day_and_at_most_as_much_again() -> None:
    """A month of slots does not stay."""
    history = History()
    for i in range(30 * 1440):
        history.add(result(i * MINUTE, GOOD))
    now = (30 * 1440 - 1) * MINUTE
    assert 1440 <= len(history) <= 2 * 1440 + 64
    assert history.summary(now).n == 1440


def test_a_reader_keeps_what_it_has_seen() -> None:
    """Another thread may summarise while slots arrive, also late ones."""
    history = of(*[GOOD] * 64)
    seen = history._between(-math.inf, math.inf)
    before = seen.copy()
    history.add(result(30.0, BAD))
    for i in range(64, 200):
        history.add(result(i * MINUTE, BAD))
    assert (seen["at"] == before["at"]).all()
    assert (seen["ending"] == before["ending"]).all()


def test_blocks_are_the_last_slots_oldest_first() -> None:
    """What the page draws."""
    history = of(GOOD, Skip.BUDGET, ttft=0.5)
    history.add(result(120.0, GOOD, Excluded.TAINTED))
    assert history.blocks() == (
        Block(at=0.0, outcome=GOOD, ttft_s=0.5),
        Block(at=60.0, skip=Skip.BUDGET),
        Block(at=120.0, outcome=GOOD, excluded="tainted"),
    )
    assert [block.at for block in history.blocks(2)] == [60.0, 120.0]


def test_last_and_last_error_are_the_newest_to_arrive() -> None:
    """With the sentence for a person."""
    history = History()
    assert history.last is None
    history.add(Slot(at=1.0, outcome=BAD, reason="503 Service Unavailable"))
    history.add(result(2.0, GOOD))
    assert history.last == Last(outcome=GOOD, at=2.0)
    assert history.last_error == Last(outcome=BAD, at=1.0, reason="503 Service Unavailable")


def test_a_p99_needs_a_hundred_results() -> None:
    """No quantile that the count cannot carry."""
    history = History()
    for i in range(99):
        history.add(result(float(i), GOOD, ttft=(i + 1) / 100))
    few = history.quantiles(98.0, 3600.0)
    assert set(few) == {"ttft"}
    assert few["ttft"].n == 99
    assert set(few["ttft"].values) == {0.5, 0.9}
    history.add(result(99.0, GOOD, ttft=1.0))
    enough = history.quantiles(99.0, 3600.0)["ttft"].values
    assert enough == {0.5: pytest.approx(0.5), 0.9: pytest.approx(0.9), 0.99: pytest.approx(0.99)}


def test_quantiles_leave_out_skips_failures_and_what_is_tainted() -> None:
    """As everywhere: latency is of ok results that count."""
    history = of(GOOD, ttft=0.1)
    history.add(skipped(1.0, Skip.LATE))
    history.add(result(2.0, BAD, ttft=9.0))
    history.add(result(3.0, GOOD, Excluded.TAINTED, ttft=9.0))
    assert history.quantiles(3.0, 60.0)["ttft"].n == 1


def test_only_wanted_skips_explain_a_silence() -> None:
    """Budget and maintenance do; an overlap or a dead prober does not."""
    history = of(Skip.OVERLAP, Skip.MAINTENANCE, Skip.PROBER_DOWN)
    assert history.skipped_on_purpose(-1.0, 2 * MINUTE)
    assert not history.skipped_on_purpose(-1.0, 30.0)
    assert not history.skipped_on_purpose(MINUTE, 2 * MINUTE)


@dataclass(frozen=True)
class Reference:
    """The summary by a plain loop."""

    good: int = 0
    n: int = 0
    outages: int = 0
    longest: float | None = None


def plainly(path: list[Outcome | Skip], now: float) -> Reference:
    lengths, began, good, n = list[float](), None, 0, 0
    for i, what in enumerate(path):
        if isinstance(what, Skip) or verdict(what) not in (Verdict.GOOD, Verdict.BAD):
            continue
        n += 1
        if what is GOOD:
            good += 1
            if began is not None:
                lengths.append(i * MINUTE - began)
            began = None
        elif began is None:
            began = i * MINUTE
    if began is not None:
        lengths.append(now - began)
    return Reference(good, n, len(lengths), max(lengths, default=None))


@given(st.lists(st.sampled_from([GOOD, BAD, BAD, *Outcome, *Skip]), max_size=40), st.randoms())
def test_the_summary_agrees_with_a_plain_loop_in_any_order_of_arrival(
    path: list[Outcome | Skip], random: np.random.Generator
) -> None:
    """NumPy is for speed only; the ratio stays within 0 and 1."""
    arrivals = list(enumerate(path))
    random.shuffle(arrivals)
    history = History()
    for i, what in arrivals:
        if isinstance(what, Skip):
            history.add(skipped(i * MINUTE, what))
        else:
            history.add(result(i * MINUTE, what))
    now = len(path) * MINUTE
    summary = history.summary(now)
    got = Reference(summary.good, summary.n, summary.outages.count, summary.outages.longest_s)
    assert got == plainly(path, now)
    assert 0 <= (summary.availability or 0) <= 1
    assert summary.scheduled == len(path)
    outside = sum(summary.excluded.values()) + sum(summary.skipped.values())
    assert summary.scheduled == summary.n + outside
