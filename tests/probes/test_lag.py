from __future__ import annotations

import asyncio
import time

import pytest

from probes import lag as lag_module
from probes.lag import PERIOD, LoopLag


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lag_module, "clock", clock)
    return clock


async def test_a_stall_is_seen_all_but_one_period(clock: Clock) -> None:
    lag = LoopLag()
    lag.start()
    clock.now += PERIOD + 0.5
    lag._tick()
    assert lag.worst(100.0) == pytest.approx(0.5)
    lag.stop()


async def test_a_stall_that_is_not_over_counts_already(clock: Clock) -> None:
    """Whoever asks inside the delayed round must not be told that all is well."""
    lag = LoopLag()
    lag.start()
    clock.now += PERIOD + 0.3
    assert lag.worst(100.0) == pytest.approx(0.3)
    lag.stop()


async def test_only_what_ended_since_counts(clock: Clock) -> None:
    lag = LoopLag()
    lag.start()
    clock.now += PERIOD + 0.5
    lag._tick()
    clock.now += PERIOD + 0.1
    lag._tick()
    assert lag.worst(100.0) == pytest.approx(0.5)
    assert lag.worst(100.0 + 2 * PERIOD + 0.55) == pytest.approx(0.1)
    assert lag.worst(clock.now + 1) == 0.0
    lag.stop()


async def test_an_undisturbed_loop_has_next_to_no_lag(clock: Clock) -> None:
    lag = LoopLag()
    lag.start()
    for _ in range(100):
        clock.now += PERIOD + 0.0005
        lag._tick()
    assert lag.worst(100.0) == 0.0
    lag.stop()


async def test_memory_is_bounded(clock: Clock) -> None:
    lag = LoopLag()
    lag.start()
    for _ in range(10_000):
        clock.now += PERIOD + 0.01
        lag._tick()
    assert len(lag._delays) < 5000
    lag.stop()


async def test_starting_twice_is_one_watch_and_stopping_ends_it() -> None:
    lag = LoopLag()
    lag.start()
    handle = lag._handle
    lag.start()
    assert lag._handle is handle
    lag.stop()
    lag.stop()
    time.sleep(3 * PERIOD)  # noqa: ASYNC251 - a stall that nobody watches
    await asyncio.sleep(0)
    assert lag.worst(0.0) == 0.0
