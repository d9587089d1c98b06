"""When the reference endpoint writes: one timer for all answers, precise where the system lets it.

Theory of operation: event loops count whole milliseconds, so with many streams a dozen events
would be written in one burst each millisecond, and a client's queueing behind that burst would be
read as its error. On Linux a timerfd gives microseconds instead. Waking up for each of ten
thousand events a second would cost more than writing them, so after one turn the next comes
`_TURN_NS` later at the earliest. Nothing is ever written before it is due.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Generator
from typing import Protocol

Play = Generator[int, None, None]
"""An answer being given: each step does what is due and yields when the next is, monotonic ns."""

_TURN_NS = 300_000
_NS = 1_000_000_000


class _Timer(Protocol):
    def arm(self, due_ns: int) -> None: ...
    def disarm(self) -> None: ...
    def close(self) -> None: ...


class _LoopTimer:
    """The event loop's own timer, rounded up so that it never fires too early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, due_ns: int) -> None:
        self.disarm()
        wait = math.ceil((due_ns - time.monotonic_ns()) / 1e6) / 1e3
        self._handle = self._loop.call_later(max(wait, 0.0), self._fire)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    close = disarm


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class _FdTimer:
    """Linux's timerfd on CLOCK_MONOTONIC, through ctypes: Python has it from 3.13 on only."""

    _ABSOLUTE = 1

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Itimerspec()
        self._pointer = ctypes.byref(self._spec)
        loop.add_reader(self._fd, fire)

    def arm(self, due_ns: int) -> None:
        # Also makes the descriptor unreadable again, so it need never be read.
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(due_ns, _NS)
        self._settime(self._fd, self._ABSOLUTE, self._pointer, None)

    def disarm(self) -> None:
        self.arm(0)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


def _timer(loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> _Timer:
    if sys.platform == "linux" and sys.maxsize > 2**32:
        return _FdTimer(loop, fire)
    return _LoopTimer(loop, fire)


class Pacer:
    """Continues each answer when it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = _timer(loop, self._turn)
        self._queue: list[tuple[int, int, Play]] = []
        self._order = itertools.count()
        self._armed_ns = 0
        self._turned_ns = 0

    def start(self, play: Play) -> None:
        """Run an answer's first step now and the others when they are due."""
        self._step(play, next(self._order))
        self._arm()

    def close(self) -> None:
        """Drop every answer."""
        self._queue.clear()
        self._timer.close()

    def _step(self, play: Play, order: int) -> None:
        due = next(play, None)
        if due is not None:
            heapq.heappush(self._queue, (due, order, play))

    def _turn(self) -> None:
        self._armed_ns = 0
        self._turned_ns = time.monotonic_ns()
        queue = self._queue
        try:
            while queue and queue[0][0] <= time.monotonic_ns():
                _, order, play = heapq.heappop(queue)
                self._step(play, order)
        finally:
            self._arm()

    def _arm(self) -> None:
        if not self._queue:
            self._timer.disarm()
            return
        due = max(self._queue[0][0], self._turned_ns + _TURN_NS)
        if not self._armed_ns or due < self._armed_ns:
            self._armed_ns = due
            self._timer.arm(due)
