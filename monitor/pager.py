"""The running side of alerting: facts in, the book kept, notices to the outbox.

Theory of operation. `result` and `tick` decide at once and in memory; nothing there waits. A task
then commits the book and the new letters together and hands the letters to the outbox only after
that, so what is sent is known to the next start. While the database does not answer for some
seconds paging goes on without it: a page matters more than its record, and the letters are
recorded, with the same keys, when the database is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from monitor.alerting import AlertBook, AlertState, Facts, Notice, Silence, decide, firing, told
from monitor.alerts import ProbeState
from monitor.conditions import NETWORK, Burn, MonitorFact, ProbeFact, Rule, blind
from monitor.config import Config, EndpointConfig
from monitor.link import ProbePlan, Skip
from monitor.maintenance import Window, active
from monitor.notify import About, Outbox, missing
from monitor.status import Last
from monitor.store import AlertStore, StoreError
from probes.result import Excluded, Outcome

TICK_S = 1.0
SILENCES_S = 2.0
WITHOUT_STORE_S = 5.0
_ASK_S = 5.0
_ASK_TIMEOUT_S = 3.0
_PRUNE_S = 3600.0

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Seen:
    """What alerting remembers of a probe beside its state.

    Attributes:
        last: Outcome of the newest result, excluded or not.
        over_budget: Whether its newest slot was left out because the budget is spent.
    """

    plan: ProbePlan
    endpoint: EndpointConfig
    host: str
    last: Outcome | None = None
    last_at: float | None = None
    over_budget: bool = False
    certificate_at: float | None = None
    off: frozenset[Rule] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How a probe looks now, as the monitor tells the pager.

    Attributes:
        day: Valid and good results of the last day; asked only when something is wrong.
        burns: Burn-rate alerts that burn now.
    """

    state: ProbeState
    day: Callable[[], tuple[int, int]]
    last_error: Last | None = None
    burns: tuple[Burn, ...] = ()


class Pager:
    """Alerting of one monitor. Belongs to one event loop.

    Attributes:
        book: What stands now.
        outbox: What waits for delivery.
        reload_error: Why the last reload of the configuration failed; None if it did not.
        restarted_at: When the prober was replaced last; None if never.
        restored: Whether the probes' states hold what was before this process; until then
            nothing is decided about them.
    """

    def __init__(
        self,
        config: Config,
        store: AlertStore,
        page: str,
        on_event: Callable[[float, str, Mapping[str, Any]], None] = lambda *_: None,
    ) -> None:
        """Create it; `run` does the work.

        Args:
            config: Probes, rules, channels and windows.
            store: Where book and letters are kept.
            page: Base URL of the page, for links; empty if unknown.
            on_event: Called with time, kind and detail for every notice.
        """
        self._config, self._store, self._on_event = config, store, on_event
        self._seen = {plan.id: _seen(config, plan) for plan in config.probes}
        self._silences: tuple[Silence, ...] = ()
        self._references: dict[str, bool] = {}
        self._maintenance = frozenset[str]()
        self._blind: str | None = None
        self._blind_since = 0.0
        self._unsaved: list[Notice] = []
        self._changed = asyncio.Event()
        self._off = frozenset(Rule(name) for name in config.alert_rules.off)
        self.book = AlertBook()
        self.reload_error: str | None = None
        self.reload_at = 0.0
        self.restarted_at: float | None = None
        self.restored = False
        about = About(site=config.site, page=(config.alert_rules.page_url or page).rstrip("/"))
        # With `alerting: prometheus` another sends: two senders would page twice.
        sends = config.channels if config.alerting == "internal" else ()
        self.outbox = Outbox(sends, store, about, standing=lambda: told(self.book))

    @staticmethod
    def problem(config: Config) -> str | None:
        """Return what is missing for a channel, as one line; None if nothing is."""
        return next(filter(None, map(missing, config.channels)), None)

    async def load(self) -> None:
        """Go on where the last process ended.

        Raises:
            StoreError: The store does not answer.
        """
        self.book = await self._store.load()
        self.outbox.put(await self._store.waiting())
        self._silences = await self._store.silences(time.time())

    # -- what happens ----------------------------------------------------------------------

    def excluded(self, outcome: Outcome) -> Excluded | None:
        """Return why a result of now does not count: we cannot tell whose fault it is."""
        return Excluded.UNKNOWN if self._blind and outcome in NETWORK else None

    def in_maintenance(self, endpoint: str, at: float) -> Window | None:
        """Return the maintenance window in which an endpoint is, or None."""
        return active(self._config.windows, endpoint, at)

    def heard(self, probe: str, outcome: Outcome, at: float) -> None:
        """Note a result before it is judged; it may show that we are blind, or not any more."""
        seen = self._seen[probe]
        seen.last, seen.last_at, seen.over_budget = outcome, at, False
        if outcome in NETWORK or self._blind:
            self._look_around(time.time())

    def result(self, probe: str, looks: Looks) -> None:
        """Decide after a result."""
        if not self.restored:
            return
        fact = self._fact(self._seen[probe], looks)
        self._decide(Facts(probes=(fact,)))

    def skipped(self, probe: str, reason: Skip) -> None:
        """Note a slot without a result."""
        if reason is Skip.BUDGET:
            self._seen[probe].over_budget = True

    def tick(self, looks: Iterable[tuple[str, Looks]]) -> None:
        """Decide what time alone changes; `looks` are all probes."""
        now = time.time()
        names = {plan.endpoint.name for plan in self._config.probes}
        self._maintenance = frozenset(n for n in names if self.in_maintenance(n, now))
        self._look_around(now)
        monitor = MonitorFact(
            blind=self._blind,
            blind_since=self._blind_since,
            reload_error=self.reload_error,
            reload_at=self.reload_at,
            outbox_oldest_s=self.outbox.oldest_s(now),
            outbox_error=self.outbox.error,
            restarted_at=self.restarted_at,
            off=self._off,
        )
        if not self.restored:
            self._decide(Facts(monitor=monitor))
            return
        probes = tuple(self._fact(self._seen[probe], look) for probe, look in looks)
        self._decide(Facts(probes=probes, complete=True, monitor=monitor))

    def firing(self) -> list[AlertState]:
        """Return the alerts that fire, gravest first."""
        return firing(self.book)

    def _decide(self, facts: Facts) -> None:
        facts = Facts(
            probes=facts.probes,
            complete=facts.complete,
            monitor=facts.monitor,
            in_maintenance=self._maintenance,
            silences=self._silences,
            blind=self._blind is not None,
            remind_s=self._config.alert_rules.remind,
            site=self._config.site,
        )
        book, notices = decide(self.book, facts, time.time())
        if book is not self.book or notices:
            self.book = book
            self._unsaved += notices
            self._changed.set()
        for notice in notices:
            keys = [state.alert.key for state in notice.alerts]
            detail = {"incident": notice.incident, "since": notice.since, "alerts": keys}
            self._on_event(notice.at, f"alert_{notice.kind}", detail)
            log.warning(
                "alert=%s kind=%s incident=%s alerts=%d",
                notice.alerts[0].alert.key, notice.kind, notice.incident, len(notice.alerts),
            )  # fmt: skip

    def _look_around(self, now: float) -> None:
        facts = (_network_fact(seen) for seen in self._seen.values())
        why = blind(facts, self._references, now)
        if why and not self._blind:
            self._blind_since = now
            log.error("event=monitor_blind reason=%r", why)
        if self._blind and not why:
            log.warning("event=monitor_sees_again after_s=%.0f", now - self._blind_since)
        self._blind = why and (self._blind or why)  # its first words: the count changes all along

    def _fact(self, seen: Seen, looks: Looks) -> ProbeFact:
        state, config = looks.state, seen.endpoint
        rules = config.alert_rules
        wrong = not state.last_good or state.good_streak < rules.up_after or looks.burns
        n, good = looks.day() if wrong and state.valid_at is not None else (None, None)
        return ProbeFact(
            endpoint=seen.plan.endpoint.name,
            workload=seen.plan.workload.name,
            interval=seen.plan.interval,
            state=state,
            last=seen.last,
            last_at=seen.last_at,
            last_error=_said(looks.last_error) if wrong else None,
            n=n,
            good=good,
            host=seen.host,
            vendor=config.labels.get("vendor", ""),
            severity=config.severity,
            labels=config.labels,
            runbook_url=config.runbook_url,
            certificate_at=seen.certificate_at,
            over_budget=seen.over_budget,
            burns=looks.burns,
            down_after=rules.down_after,
            up_after=rules.up_after,
            certificate_s=rules.certificate,
            off=seen.off,
        )

    # -- background ------------------------------------------------------------------------

    async def run(self, looks: Callable[[], Iterable[tuple[str, Looks]]]) -> None:
        """Tick, save and deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick_forever(looks))
            tasks.create_task(self._save_forever())
            tasks.create_task(self._read_silences_forever())
            tasks.create_task(self._ask_references_forever())
            tasks.create_task(self.outbox.run())

    async def _tick_forever(self, looks: Callable[[], Iterable[tuple[str, Looks]]]) -> None:
        while True:
            self.tick(looks())
            await asyncio.sleep(TICK_S)

    async def _save_forever(self) -> None:
        pruned = time.monotonic()
        while True:
            await self._changed.wait()
            self._changed.clear()
            notices, self._unsaved = self._unsaved, []
            await self._save(notices)
            if time.monotonic() - pruned > _PRUNE_S:
                pruned = time.monotonic()
                await self._prune()

    async def _save(self, notices: list[Notice]) -> None:
        """Commit the book with these notices, however long it takes; then have them sent."""
        letters, began, early = self.outbox.letters(notices), time.monotonic(), False
        while True:
            try:
                await self._store.save(self.book, letters)
                break
            except StoreError as exc:
                log.warning("event=alerts_not_saved reason=%r", str(exc))
            if time.monotonic() - began > WITHOUT_STORE_S:
                more, self._unsaved = self._unsaved, []
                letters += self.outbox.letters(more)
                self.outbox.put(letters)
                early = True
            await asyncio.sleep(min(2.0, 0.2 + (time.monotonic() - began) / 10))
        if not early:
            self.outbox.put(letters)

    async def _prune(self) -> None:
        try:
            await self._store.prune(time.time())
        except StoreError as exc:
            log.warning("event=prune_failed reason=%r", str(exc))

    async def _read_silences_forever(self) -> None:
        while True:
            await asyncio.sleep(SILENCES_S)
            try:
                self._silences = await self._store.silences(time.time())
            except StoreError as exc:
                log.warning("event=silences_not_read reason=%r", str(exc))

    async def _ask_references_forever(self) -> None:
        """While a probe fails before its connection stands, ask what can be reached at all."""
        targets = self._config.reference_targets
        while targets:
            await asyncio.sleep(0.5)
            if not self._fails_on_the_way():
                self._references = {}
                continue
            found = await asyncio.gather(*(_reachable(host, port) for host, port in targets))
            names = (f"{host}:{port}" for host, port in targets)
            self._references = dict(zip(names, found, strict=True))
            self._look_around(time.time())
            await asyncio.sleep(_ASK_S if any(found) else 1.0)

    def _fails_on_the_way(self) -> bool:
        now = time.time()
        return any(
            seen.last in NETWORK and now - (seen.last_at or 0.0) <= 1.5 * seen.plan.interval
            for seen in self._seen.values()
        )


def _network_fact(seen: Seen) -> ProbeFact:
    return ProbeFact(
        endpoint=seen.plan.endpoint.name,
        workload=seen.plan.workload.name,
        interval=seen.plan.interval,
        state=_NONE,
        last=seen.last,
        last_at=seen.last_at,
        host=seen.host,
    )


_NONE = ProbeState(since=0.0)


def _seen(config: Config, plan: ProbePlan) -> Seen:
    endpoint = config.endpoints[plan.endpoint.name]
    return Seen(
        plan=plan,
        endpoint=endpoint,
        host=urlsplit(plan.endpoint.url).hostname or "",
        off=frozenset(Rule(name) for name in endpoint.alert_rules.off),
    )


def _said(last: Last | None) -> str | None:
    return None if last is None else f"{last.outcome.value}: {last.reason or 'no reason given'}"


async def _reachable(host: str, port: int) -> bool:
    """Whether anything answers there: a refusal shows as well that the network works."""
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def firing_counts(book: AlertBook) -> Mapping[tuple[str, str], int]:
    """Return the number of alerts that fire by rule and severity."""
    found: dict[tuple[str, str], int] = {}
    for state in firing(book):
        key = state.alert.rule.value, state.severity
        found[key] = found.get(key, 0) + 1
    return found
