"""Letters that wait for delivery: one queue a channel, tried until taken.

Theory of operation. A letter is in the database before it is here, and is marked there once its
receiver has taken it; a crash between the two sends it again with the same key: at least once.
Each channel has a task and a queue of its own, so one that hangs for half a minute keeps back
nothing else, and never more than one request is under way to a receiver. Within a channel the
order is kept: the head is tried until it is taken, with growing pauses. Only what a receiver has
heard and refused by itself, several times, is given up, for it would block all others for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from monitor.alerting import AlertState, Notice
from monitor.config import Channel
from monitor.notify.senders import RESEND_S, SendError, refresh, send, wants
from monitor.notify.words import About
from monitor.store import Letter, StoreError

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
REFUSALS = 3
_MARK_S = 0.5
_NOTED_S = 1.0

log = logging.getLogger(__name__)


class Marks(Protocol):
    """Where deliveries are noted; `monitor.store.AlertStore` is one."""

    async def done(self, uid: str, at: float, attempts: int, refused: str | None = None) -> bool:
        """Note a delivery or a refusal; return whether the letter is known."""

    async def tried(self, uid: str, attempts: int, error: str) -> None:
        """Note a failed attempt."""


@dataclass(slots=True, kw_only=True)
class _Mark:
    """What is to be noted of a letter that is dealt with."""

    at: float
    attempts: int
    refused: str | None
    noted: asyncio.Event = field(default_factory=asyncio.Event)


class _Queue:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.letters: deque[Letter] = deque()
        self.filled = asyncio.Event()
        self.attempts = 0
        self.error = ""


class Outbox:
    """All channels and what waits for them. Belongs to one event loop.

    Attributes:
        delivered: Letters taken by their receivers since the start.
        failures: Attempts that failed.
        refused: Letters given up.
    """

    def __init__(
        self,
        channels: Iterable[Channel],
        marks: Marks,
        about: About,
        *,
        standing: Callable[[], Sequence[AlertState]] = lambda: (),
        first_pause: float = FIRST_PAUSE_S,
    ) -> None:
        """Create it; nothing is sent before `run`.

        Args:
            channels: Who is told.
            marks: Where deliveries are noted.
            about: Who speaks.
            standing: What fires and was told, for receivers that forget.
            first_pause: Seconds after the first failure; it doubles up to five minutes.
        """
        self._queues = {channel.name: _Queue(channel) for channel in channels}
        self._marks, self._about, self._standing = marks, about, standing
        self._first_pause = first_pause
        self._unmarked: dict[str, _Mark] = {}
        self._unmarked_now = asyncio.Event()
        self._known: set[str] = set()
        self.delivered = self.failures = self.refused = 0

    @property
    def waiting(self) -> int:
        """Letters not delivered."""
        return sum(len(queue.letters) for queue in self._queues.values())

    @property
    def error(self) -> str:
        """What keeps letters from being delivered, by channel; empty if nothing does."""
        stuck = (q for q in self._queues.values() if q.letters and q.error)
        return "; ".join(f"{queue.channel.name}: {queue.error}" for queue in stuck)

    def oldest_s(self, now: float) -> float:
        """Return the age of the oldest letter that waits, seconds; 0 if none does."""
        heads = [queue.letters[0].notice.at for queue in self._queues.values() if queue.letters]
        return max(0.0, now - min(heads)) if heads else 0.0

    def letters(self, notices: Iterable[Notice]) -> list[Letter]:
        """Return a letter for each notice and each channel that is told of it."""
        return [
            Letter(uid=f"{self._about.site}/{name}:{notice.key}", channel=name, notice=notice)
            for notice in notices
            for name, queue in self._queues.items()
            if wants(queue.channel, notice)
        ]

    def put(self, letters: Iterable[Letter]) -> None:
        """Queue letters for delivery; one that was queued before is left alone. Never blocks."""
        for letter in letters:
            queue = self._queues.get(letter.channel)
            if letter.uid in self._known:
                continue
            self._known.add(letter.uid)
            if queue is None:  # a channel that is no longer configured
                self._mark(letter.uid, letter.attempts, "no such channel")
                continue
            queue.letters.append(letter)
            queue.filled.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mark_forever())
            for queue in self._queues.values():
                tasks.create_task(self._serve(session, queue))
                if queue.channel.type == "alertmanager":
                    tasks.create_task(self._refresh_forever(session, queue))

    async def _serve(self, session: aiohttp.ClientSession, queue: _Queue) -> None:
        while True:
            await queue.filled.wait()
            while queue.letters:
                await self._deliver(session, queue)
            queue.filled.clear()

    async def _deliver(self, session: aiohttp.ClientSession, queue: _Queue) -> None:
        letter = queue.letters[0]
        queue.attempts += 1
        attempts = letter.attempts + queue.attempts
        try:
            await send(session, queue.channel, letter.notice, self._about)
        except SendError as exc:
            queue.error = str(exc)
            self.failures += 1
            log.warning(
                "notify channel=%s key=%s attempt=%d: %s",
                queue.channel.name, letter.notice.key, attempts, exc,
            )  # fmt: skip
            if not exc.refused or queue.attempts < REFUSALS:
                await self._note_try(letter.uid, attempts, queue.error)
                await asyncio.sleep(self._pause(queue.attempts))
                return
            self.refused += 1
            log.error("notify channel=%s key=%s given up", queue.channel.name, letter.notice.key)  # noqa: TRY400
            mark = self._mark(letter.uid, attempts, queue.error)
        else:
            queue.error = ""
            self.delivered += 1
            log.info("notify channel=%s key=%s delivered", queue.channel.name, letter.notice.key)
            mark = self._mark(letter.uid, attempts)
        queue.attempts = 0
        queue.letters.popleft()
        # A crash then sends one letter again and not several; but no page waits for the database.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(mark.noted.wait(), _NOTED_S)

    def _pause(self, attempts: int) -> float:
        """Return seconds: doubling, capped, spread so that many monitors do not come together."""
        grown = self._first_pause * 2.0 ** min(attempts - 1, 30)
        return min(grown, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311

    async def _note_try(self, uid: str, attempts: int, error: str) -> None:
        try:
            await self._marks.tried(uid, attempts, error)
        except StoreError as exc:
            log.warning("notify cannot note an attempt: %s", exc)

    def _mark(self, uid: str, attempts: int, refused: str | None = None) -> _Mark:
        mark = self._unmarked[uid] = _Mark(at=time.time(), attempts=attempts, refused=refused)
        self._unmarked_now.set()
        return mark

    async def _mark_forever(self) -> None:
        """Note deliveries in the database, again until it takes them."""
        while True:
            await self._unmarked_now.wait()
            self._unmarked_now.clear()
            for uid, mark in list(self._unmarked.items()):
                try:
                    known = await self._marks.done(uid, mark.at, mark.attempts, mark.refused)
                except StoreError as exc:
                    log.warning("notify cannot note a delivery: %s", exc)
                    break
                if known:  # else it was sent while the database was away, and is yet to come
                    mark.noted.set()
                    del self._unmarked[uid]
                    self._known.discard(uid)
            if self._unmarked:
                await asyncio.sleep(_MARK_S)
                self._unmarked_now.set()

    async def _refresh_forever(self, session: aiohttp.ClientSession, queue: _Queue) -> None:
        while True:
            await asyncio.sleep(RESEND_S)
            standing = list(self._standing())
            if standing and not queue.letters:  # what waits comes first, or order were lost
                try:
                    await refresh(session, queue.channel, standing, self._about)
                except SendError as exc:
                    log.warning("notify channel=%s refresh: %s", queue.channel.name, exc)
