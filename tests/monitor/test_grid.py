"""The grid: every slot is accounted for exactly once, whenever somebody wakes up."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.grid import FIRST_SPREAD, Grid, grids, phase, resumed, starting

moments = st.floats(0, 1e7)
intervals = st.floats(0.1, 21_600)
names = st.text(min_size=1, max_size=20)
EARLY = 0.002


@st.composite
def started(draw: st.DrawFn) -> Grid:
    return starting(draw(names), draw(intervals), draw(moments))


@given(started(), st.data())
def test_every_slot_is_accounted_for_once_however_late_or_early_the_wake_ups(
    grid: Grid, data: st.DataObject
) -> None:
    """What `Runner.fire` does, with wake-ups from a little early to many intervals late."""
    now, last, ended = grid.due(grid.opening), None, list[int]()
    for _ in range(data.draw(st.integers(1, 8))):
        latest = grid.latest(now + EARLY)
        if latest is not None and latest != last:
            ended += [*grid.between(last, latest), latest]
            last = latest
        late = data.draw(st.floats(-EARLY / 2, 5)) * grid.interval
        now = max(now, grid.after(now + EARLY) + max(late, -EARLY / 2))
    assert ended == list(range(grid.opening, ended[-1] + 1))


@given(started(), moments)
def test_the_next_slot_is_later_than_now_and_no_slot_lies_between(grid: Grid, now: float) -> None:
    after = grid.after(now)
    assert after > now
    latest = grid.latest(now)
    following = grid.opening if latest is None else latest + 1
    slack = 1e-9 * max(now, grid.interval)
    assert grid.due(following) <= after + slack
    assert latest is None or grid.due(latest) <= now + slack


@given(started(), st.integers(0, 10**6))
def test_the_grid_does_not_drift(grid: Grid, slots: int) -> None:
    slot = grid.opening + 1 + slots
    assert grid.due(slot) == pytest.approx(grid.phase + slot * grid.interval, rel=1e-12)


@given(started())
def test_the_second_slot_never_overlaps_the_first(grid: Grid) -> None:
    assert grid.first is not None
    gap = grid.due(grid.opening + 1) - grid.first
    assert grid.interval * (1 - 1e-6) <= gap <= 2 * grid.interval * (1 + 1e-6)


@given(names, intervals, st.integers(0, 10**6))
def test_a_grid_that_is_resumed_goes_on_with_the_next_slot(
    probe: str, interval: float, last: int
) -> None:
    grid = resumed(probe, interval, last)
    assert grid.latest(grid.due(last + 1) - interval / 2) is None
    assert grid.latest(grid.due(last + 1) + interval / 2) == last + 1
    assert list(grid.between(None, last + 3)) == [last + 1, last + 2]


@given(names, intervals, moments, moments)
def test_two_starts_share_one_grid(probe: str, interval: float, one: float, other: float) -> None:
    first, second = starting(probe, interval, one), starting(probe, interval, other)
    slot = max(first.opening, second.opening) + 1
    assert first.due(slot) == second.due(slot)


def test_the_phase_of_a_probe_never_changes() -> None:
    """Pinned: another value would shift every probe of every installation at an upgrade."""
    assert phase("llama/chat", 60.0) == pytest.approx(36.80550324268429)
    assert phase("llama/models", 15.0) == pytest.approx(1.7450749040300435)


@given(st.lists(names, min_size=1, max_size=50, unique=True), intervals)
def test_phases_lie_within_the_interval(probes: list[str], interval: float) -> None:
    assert all(0 <= phase(probe, interval) < interval for probe in probes)


def test_many_probes_spread_over_the_interval() -> None:
    phases = sorted(phase(f"endpoint-{n}/chat", 60.0) for n in range(500))
    gaps = [b - a for a, b in pairwise([*phases, phases[0] + 60])]
    assert max(gaps) < 2  # 0.12 s on average; a lock-step start would leave one of 60 s


@given(st.lists(st.tuples(names, intervals), min_size=1, max_size=30), moments)
def test_first_slots_are_spread_and_the_first_is_at_once(
    probes: list[tuple[str, float]], now: float
) -> None:
    firsts = [grid.due(grid.opening) for grid in grids(probes, now, {})]
    assert firsts[0] == now
    for (_, interval), at in zip(probes, firsts, strict=True):
        assert now <= at < now + min(interval, FIRST_SPREAD)
    for i, (_, interval) in enumerate(probes):
        assert math.isclose(firsts[i] - now, min(interval, FIRST_SPREAD) * i / len(probes),
                            rel_tol=1e-6, abs_tol=1e-6)  # fmt: skip


def test_only_new_probes_start_where_others_go_on() -> None:
    going_on, new = grids([("a", 60.0), ("b", 60.0)], 1000.0, {"a": 41})
    assert (going_on.first, going_on.opening) == (None, 42)
    assert new.first == 1015.0
