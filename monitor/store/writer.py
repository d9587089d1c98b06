"""The only writer: takes rows at once, writes them in batches, and never gives up on a database.

Theory of operation. `put` appends to a bounded queue and returns; one task writes. A batch stays
at the head of the queue until its transaction has committed, so a failure of any kind loses
nothing: after a pause the same rows are written again, and a row that did get through before the
connection broke is ignored by its unique id. Only a row that is itself at fault (a value the
database refuses) is dropped, logged and counted, as it would block all others for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from sqlalchemy.exc import DataError, IntegrityError

from monitor.store.engine import explain
from monitor.store.rows import Record

Make = Callable[[], Record]
Write = Callable[[Sequence[Record]], Awaitable[None]]

_BATCH = 1000
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

log = logging.getLogger(__name__)


class Writer:
    """A bounded queue and the task that empties it.

    Attributes:
        dropped: Rows lost because the queue was full or the database refused them.
    """

    def __init__(self, write: Write, *, bound: int, every: float) -> None:
        self._write = write
        self._bound = bound
        self._every = every
        self._queue: deque[Make] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._hurry = asyncio.Event()
        self._failing_since: float | None = None
        self._failure = ""
        self.dropped = 0
        self._task = asyncio.create_task(self._run(), name="store-writer")

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def problem(self) -> str | None:
        """What keeps rows from being written, as a sentence; None when nothing does."""
        if self._failing_since is None:
            return None
        seconds = time.monotonic() - self._failing_since
        return f"the database has refused rows for {seconds:.0f} s: {self._failure}"

    def put(self, make: Make) -> None:
        """Queue a row, made when it is written; drops it when the queue is full. Never blocks."""
        if len(self._queue) >= self._bound:
            self.dropped += 1
            return
        self._queue.append(make)
        self._empty.clear()
        self._filled.set()

    async def flush(self) -> None:
        """Wait until the queue is empty; for as long as the database refuses, if need be."""
        self._hurry.set()
        try:
            await self._empty.wait()
        finally:
            self._hurry.clear()

    async def close(self, within: float) -> int:
        """Write what is queued, for at most `within` seconds; return the rows left unwritten."""
        try:
            async with asyncio.timeout(within):
                await self.flush()
        except TimeoutError:
            reason = self._failure or f"not done in {within:g} s"
            log.error("store closed, lost rows=%d: %s", len(self), reason)  # noqa: TRY400 - no news
        self._bound = 0  # what is put from now on is counted as dropped
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return len(self)

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            await self._rest(self._every)
            await self._drain()

    async def _rest(self, seconds: float) -> None:
        """Sleep, but not while somebody waits in `flush`."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _drain(self) -> None:
        pause = _FIRST_PAUSE_S
        while self._queue:
            batch = list(islice(self._queue, _BATCH))
            if await self._written(batch):
                pause = _FIRST_PAUSE_S
                for _ in batch:
                    self._queue.popleft()
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._filled.clear()
        self._empty.set()

    async def _written(self, batch: Sequence[Make]) -> bool:
        """Write a batch; False says try again, True that its rows are dealt with."""
        try:
            await self._write([make() for make in batch])
        except Exception as exc:  # the border: no fault of any kind may end the only writer
            if not _is_rows_fault(exc):
                self._note_failure(exc)
                return False
            if len(batch) > 1:
                return await self._written_singly(batch)
            log.exception("the database refuses a row, which is dropped")
            self.dropped += 1
        self._note_success()
        return True

    async def _written_singly(self, batch: Sequence[Make]) -> bool:
        for make in batch:
            if not await self._written([make]):
                return False
        return True

    def _note_failure(self, exc: Exception) -> None:
        self._failure = explain(exc)
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            log.warning("store cannot write, keeping rows=%d: %s", len(self), self._failure)

    def _note_success(self) -> None:
        if self._failing_since is not None:
            seconds = time.monotonic() - self._failing_since
            log.warning("store writes again after seconds=%.1f rows=%d", seconds, len(self))
            self._failing_since = None


def _is_rows_fault(exc: Exception) -> bool:
    """Whether a value was refused, so that trying again cannot help.

    Drivers do not agree on a class: SQLSTATE 22 and 23 are data and integrity, and a value that
    a driver cannot even encode is one of Python's own errors, bare or as the cause.
    """
    if isinstance(exc, IntegrityError | DataError):
        return True
    original = getattr(exc, "orig", None) or exc
    if str(getattr(original, "sqlstate", None) or "")[:2] in ("22", "23"):
        return True
    python = (ValueError, TypeError, OverflowError, AttributeError, KeyError)
    return isinstance(original, python) or isinstance(original.__cause__, python)
