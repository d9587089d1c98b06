"""From conditions to notices: who is told what, and when not; pure, no clock, no I/O.

Theory of operation. `decide` takes the book so far and the facts of now, and returns the book to
keep and the notices to send; the same book and facts give the same answer, and the keys of
notices follow from what they are about. So whoever keeps book and notices in one transaction
neither repeats nor forgets: what was not committed is decided again, alike.

Two machines stand one on the other. An *alert* goes ok, pending, firing, resolving, ok, by what
its rule says and nothing else: no silence, no group and no maintenance touches it. An *incident*
is what people are told: it opens with one notice when an alert that fires may be told, holds one
alert or all of a vendor that fail together, and ends with one notice when all its alerts are well.
Silences, maintenance, inhibition and blindness only keep incidents from opening; an open one is
always told its end. An alert that begins and ends untold leaves no trace with people.

While the monitor is blind the alerts about targets stand still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2s

import msgspec
from msgspec.structs import replace

from monitor.conditions import (
    Alert,
    Condition,
    MonitorFact,
    ProbeFact,
    Rule,
    Signal,
    of_monitor,
    of_probe,
)

GROUP_S = 60.0
GROUP_MIN = 3
HOLD_S = 5.0
"""Longest wait of a notice for others of its group that already fail."""
FLAP_CHANGES = 4
FLAP_S = 3600.0
STEADY_S = 1800.0
REMIND_S = 4 * 3600.0


class Phase(StrEnum):
    """Where an alert stands."""

    OK = "ok"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVING = "resolving"


FIRES = frozenset({Phase.FIRING, Phase.RESOLVING})
"""Phases in which a person would say that it is broken."""


class AlertState(msgspec.Struct, frozen=True, kw_only=True):
    """One alert: its machine, and how it is worded. Times are wall clock, UTC.

    Attributes:
        since: When what it is about began.
        fired_at: When it last began to fire; None if never.
        resolved_at: When it last ended; None while it fires.
        labels: The endpoint's; the identity's own are added by `labels_of`.
        changes: When it fired or ended, within the last hour.
        flapping: Whether that was too often to go on telling.
        incident: In which it is told; None if it is not.
    """

    alert: Alert
    phase: Phase
    since: float
    fired_at: float | None = None
    resolved_at: float | None = None
    what: str = ""
    severity: str = "ticket"
    group: str = ""
    labels: Mapping[str, str] = {}
    runbook_url: str | None = None
    numbers: str = ""
    last_error: str = ""
    changes: tuple[float, ...] = ()
    flapping: bool = False
    incident: str | None = None


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """What people were told of, and are told the end of.

    Attributes:
        members: Keys of its alerts.
        opened_at: When the first notice was made.
        told_at: When the last one was.
        told: How many were made.
        grouped: Whether others of the group that fire within a minute belong to it.
        acked: Whether somebody has it in hand: no more reminders.
    """

    id: str
    rule: Rule
    group: str
    members: tuple[str, ...]
    since: float
    opened_at: float
    told_at: float
    told: int = 1
    grouped: bool = False
    acked: bool = False


class AlertBook(msgspec.Struct, frozen=True, kw_only=True):
    """All that must outlive a restart."""

    alerts: dict[str, AlertState] = {}
    incidents: dict[str, Incident] = {}


class Kind(StrEnum):
    """Why a notice is sent."""

    FIRING = "firing"
    RESOLVED = "resolved"
    REMINDER = "reminder"
    FLAPPING = "flapping"
    """Fires and ends again and again; nothing more is told until it is steady."""
    CHANGED = "changed"
    """An alert joined or left an open incident: for receivers that keep state, not for people."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell.

    Attributes:
        key: Deduplication key; the same notice always has the same one.
        incident: Id of the incident, the same from its first notice to its last.
        at: When it was decided.
        also_failing: Others of the group that are about to fire.
    """

    key: str
    kind: Kind
    incident: str
    at: float
    since: float
    alerts: tuple[AlertState, ...]
    group: str = ""
    also_failing: int = 0

    @property
    def severity(self) -> str:
        """The gravest of its alerts'."""
        found = {state.severity for state in self.alerts}
        return "page" if "page" in found else min(found, default="ticket")


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's wish not to be told, or (`ack`) to have an incident in hand.

    Attributes:
        matchers: Label to pattern (`*` is anything); all must fit. `incident` and `alert` match
            an incident's id and an alert's key.
        until_at: End; None never ends, as for an acknowledgement, which its incident ends.
    """

    id: str
    matchers: Mapping[str, str]
    at: float
    until_at: float | None = None
    ack: bool = False
    author: str = ""
    comment: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at one moment.

    Attributes:
        probes: All probes, or after a result only the one that it is about.
        complete: Whether `probes` are all: what is about another one is then gone.
        monitor: None leaves alerts about the monitor as they are.
        in_maintenance: Names of endpoints that are in a maintenance window.
        remind_s: Seconds between reminders.
        site: Part of every key, or two sites' notices of one endpoint were taken for one.
    """

    probes: tuple[ProbeFact, ...] = ()
    complete: bool = False
    monitor: MonitorFact | None = None
    in_maintenance: frozenset[str] = frozenset()
    silences: tuple[Silence, ...] = ()
    blind: bool = False
    remind_s: float = REMIND_S
    site: str = ""


def decide(book: AlertBook, facts: Facts, now: float) -> tuple[AlertBook, tuple[Notice, ...]]:
    """Return the book to keep from now on, and what is to be told, in this order."""
    found = _conditions(facts, now)
    if not found and not book.alerts and not book.incidents:
        return book, ()
    desk = _Desk(book, facts, found, now)
    for key in [*desk.alerts, *(key for key in found if key not in desk.alerts)]:
        desk.step(key)
    desk.acknowledge()
    desk.close()
    desk.open()
    desk.remind()
    desk.tidy()
    after = AlertBook(alerts=desk.alerts, incidents=desk.incidents)
    return (book if after == book else after), tuple(desk.notices)


def firing(book: AlertBook) -> list[AlertState]:
    """Return the alerts that fire, gravest and oldest first."""
    fires = [state for state in book.alerts.values() if state.phase in FIRES]
    return sorted(fires, key=lambda s: (s.severity != "page", s.since, s.alert.key))


def told(book: AlertBook) -> list[AlertState]:
    """Return the alerts that fire and were told: what a receiver should believe now."""
    return [
        state
        for state in book.alerts.values()
        if state.incident is not None and (state.phase in FIRES or state.flapping)
    ]


def labels_of(state: AlertState) -> dict[str, str]:
    """Return the labels of an alert, which do not change while it fires."""
    alert = state.alert
    own = {
        "alertname": alert.rule.value,
        "endpoint": alert.endpoint,
        "workload": alert.workload,
        "slo": alert.slo,
        "severity": state.severity,
    }
    return {**state.labels, **{name: value for name, value in own.items() if value}}


def _conditions(facts: Facts, now: float) -> dict[str, Condition]:
    found = list[Condition]()
    if not facts.blind:
        for probe in facts.probes:
            found += of_probe(probe, now)
    if facts.monitor is not None:
        found += of_monitor(facts.monitor, now)
    return {condition.alert.key: condition for condition in found}


class _Desk:
    """The book while it is being worked on."""

    def __init__(
        self, book: AlertBook, facts: Facts, found: Mapping[str, Condition], now: float
    ) -> None:
        self.alerts, self.incidents = dict(book.alerts), dict(book.incidents)
        self.notices: list[Notice] = []
        self._facts, self._found, self._now = facts, found, now
        self._known = {(probe.endpoint, probe.workload) for probe in facts.probes}
        self._silences = [s for s in facts.silences if s.until_at is None or s.until_at > now]

    # -- the alert's machine ---------------------------------------------------------------

    def step(self, key: str) -> None:
        """Move one alert on by what its rule says."""
        condition, before = self._found.get(key), self.alerts.get(key)
        if before is None:
            if condition is None or condition.signal in (Signal.HOLD, Signal.RESOLVING):
                return
            before = AlertState(alert=condition.alert, phase=Phase.OK, since=condition.since)
        elif condition is None and not self._judged(before.alert):
            self.alerts[key] = self._steadied(before)
            return
        phase = _next(before.phase, condition.signal if condition else None)
        after = before if phase is before.phase else self._moved(before, phase, condition)
        self.alerts[key] = self._steadied(after)

    def _judged(self, alert: Alert) -> bool:
        """Whether the facts say anything about an alert, so that their silence means well."""
        if not alert.endpoint:
            return self._facts.monitor is not None
        if self._facts.blind:
            return False
        return self._facts.complete or (alert.endpoint, alert.workload) in self._known

    def _moved(self, state: AlertState, phase: Phase, condition: Condition | None) -> AlertState:
        fired, fires = state.phase in FIRES, phase in FIRES
        if condition is not None and not fired:
            state = _worded(replace(state, since=condition.since), condition)
        state = replace(state, phase=phase)
        if fired == fires:
            return state
        recent = (*(at for at in state.changes if self._now - at < FLAP_S), self._now)
        state = replace(
            state,
            changes=recent,
            fired_at=self._now if fires else state.fired_at,
            resolved_at=None if fires else self._now,
        )
        if len(recent) > FLAP_CHANGES and not state.flapping:
            state = replace(state, flapping=True)
            if state.incident is not None:
                self._tell(self.incidents[state.incident], Kind.FLAPPING, (state,))
        elif state.incident is not None and not state.flapping:
            self._changed(self.incidents[state.incident], state)
        return state

    def _steadied(self, state: AlertState) -> AlertState:
        """End the flapping of an alert that has kept still for long enough."""
        if not state.flapping or self._now - state.changes[-1] < STEADY_S:
            return state
        state = replace(state, flapping=False, changes=())
        if state.incident is not None and state.phase in FIRES:
            self._tell(self.incidents[state.incident], Kind.FIRING, (state,))
        return state

    # -- incidents -------------------------------------------------------------------------

    def acknowledge(self) -> None:
        """Mark the incidents that somebody has in hand."""
        acks = [silence for silence in self._silences if silence.ack]
        for incident in list(self.incidents.values()) if acks else ():
            if incident.acked:
                continue
            states = [self.alerts[key] for key in incident.members]
            if any(a.at >= incident.opened_at and _fits(a, s) for a in acks for s in states):
                self.incidents[incident.id] = replace(incident, acked=True)

    def close(self) -> None:
        """End the incidents all of whose alerts are well."""
        for incident in list(self.incidents.values()):
            states = tuple(self.alerts[key] for key in incident.members)
            if any(state.phase in FIRES or state.flapping for state in states):
                continue
            self._tell(incident, Kind.RESOLVED, states)
            del self.incidents[incident.id]
            for state in states:
                self.alerts[state.alert.key] = replace(state, incident=None)

    def open(self) -> None:
        """Tell of the alerts that fire and may be told, alone or with those of their group."""
        by_group = defaultdict[tuple[Rule, str], list[AlertState]](list)
        for state in self.alerts.values():
            if state.phase is Phase.FIRING and state.incident is None and not self._mute(state):
                by_group[state.alert.rule, state.group or state.alert.key].append(state)
        for (rule, group), states in by_group.items():
            self._open_group(rule, group, states)

    def _open_group(self, rule: Rule, group: str, waiting: list[AlertState]) -> None:
        for incident in self.incidents.values():
            young = incident.grouped and self._now - incident.opened_at < GROUP_S
            if young and (incident.rule, incident.group) == (rule, group):
                for state in waiting:
                    self._join(incident.id, state)
                return
        kin = [
            state
            for state in self.alerts.values()
            if (state.alert.rule, state.group) == (rule, group)
        ]
        failing = sum(state.phase is Phase.PENDING for state in kin)
        fresh = sum(
            state.incident is not None and self._now - (state.fired_at or 0.0) < GROUP_S
            for state in kin
            if state.phase in FIRES
        )
        if failing and self._now - min(s.fired_at or 0.0 for s in waiting) < HOLD_S:
            return
        endpoints = {state.alert.endpoint for state in waiting}
        grouped = len(waiting) + failing + fresh >= GROUP_MIN
        if grouped or (len(waiting) > 1 and len(endpoints) == 1):
            self._open(rule, group, waiting, also_failing=failing, grouped=grouped)
        else:
            for state in waiting:
                self._open(rule, group, [state])

    def _open(
        self,
        rule: Rule,
        group: str,
        states: list[AlertState],
        *,
        also_failing: int = 0,
        grouped: bool = False,
    ) -> None:
        first = min(states, key=lambda state: (state.since, state.alert.key))
        incident = Incident(
            id=_digest(f"{self._facts.site} {first.alert.key} {first.since:.3f} {self._now:.3f}"),
            rule=rule,
            group=group,
            members=tuple(state.alert.key for state in states),
            since=first.since,
            opened_at=self._now,
            told_at=self._now,
            told=0,
            grouped=grouped,
        )
        members = tuple(replace(state, incident=incident.id) for state in states)
        self.alerts.update({state.alert.key: state for state in members})
        flapping = all(state.flapping for state in members)
        kind = Kind.FLAPPING if flapping else Kind.FIRING
        self._tell(incident, kind, members, also_failing)

    def _join(self, incident_id: str, state: AlertState) -> None:
        incident = self.incidents[incident_id]
        members = (*incident.members, state.alert.key)
        state = self.alerts[state.alert.key] = replace(state, incident=incident_id)
        self._changed(replace(incident, members=members), state)

    def remind(self) -> None:
        """Tell again what has been open for long, unless somebody has it in hand."""
        for incident in list(self.incidents.values()):
            if incident.acked or self._now - incident.told_at < self._facts.remind_s:
                continue
            states = [self.alerts[key] for key in incident.members]
            due = [s for s in states if s.phase in FIRES and not s.flapping and not self._mute(s)]
            if due:
                self._tell(incident, Kind.REMINDER, tuple(map(self._reworded, due)))

    def tidy(self) -> None:
        """Forget alerts that are well, told and no longer counted as flapping."""
        for key, state in list(self.alerts.items()):
            ended = state.phase is Phase.OK and state.incident is None and not state.flapping
            if ended and not any(self._now - at < FLAP_S for at in state.changes):
                del self.alerts[key]

    # -- what keeps an alert from being told -----------------------------------------------

    def _mute(self, state: AlertState) -> bool:
        alert = state.alert
        if alert.endpoint and (self._facts.blind or alert.endpoint in self._facts.in_maintenance):
            return True
        if alert.rule is Rule.SLO_BURN:  # why a probe that is down burns is known
            down = Alert(rule=Rule.DOWN, endpoint=alert.endpoint, workload=alert.workload)
            if (cause := self.alerts.get(down.key)) and cause.phase in FIRES:
                return True
        return any(not silence.ack and _fits(silence, state) for silence in self._silences)

    # -- notices ---------------------------------------------------------------------------

    def _tell(
        self,
        incident: Incident,
        kind: Kind,
        states: tuple[AlertState, ...],
        also_failing: int = 0,
    ) -> None:
        told_at = incident.told_at if kind is Kind.CHANGED else self._now
        incident = replace(incident, told=incident.told + 1, told_at=told_at)
        self.incidents[incident.id] = incident
        self.notices.append(
            Notice(
                key=f"{incident.id}-{incident.told}-{kind}",
                kind=kind,
                incident=incident.id,
                at=self._now,
                since=incident.since,
                alerts=states,
                group=incident.group,
                also_failing=also_failing,
            )
        )

    def _changed(self, incident: Incident, state: AlertState) -> None:
        """Note a change that only receivers with a memory of single alerts need."""
        if len(incident.members) > 1:
            self._tell(incident, Kind.CHANGED, (state,))

    def _reworded(self, state: AlertState) -> AlertState:
        condition = self._found.get(state.alert.key)
        return state if condition is None else _worded(state, condition)


def _next(phase: Phase, signal: Signal | None) -> Phase:
    """Return where an alert stands after one signal; None says that all is well."""
    if signal is Signal.HOLD:
        return phase
    if signal is Signal.FIRING:
        return Phase.FIRING
    if phase in FIRES:
        after = {Signal.PENDING: Phase.FIRING, Signal.RESOLVING: Phase.RESOLVING, None: Phase.OK}
        return after[signal]
    return Phase.PENDING if signal is Signal.PENDING else Phase.OK


def _worded(state: AlertState, condition: Condition) -> AlertState:
    return replace(
        state,
        what=condition.what,
        severity=condition.severity,
        group=condition.group,
        labels=dict(condition.labels),
        runbook_url=condition.runbook_url,
        numbers=condition.numbers,
        last_error=condition.last_error,
    )


def _fits(silence: Silence, state: AlertState) -> bool:
    known = {
        **labels_of(state),
        "alert": state.alert.key,
        "incident": state.incident or "",
    }
    return all(
        fnmatchcase(known.get(name, ""), pattern) for name, pattern in silence.matchers.items()
    )


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=8).hexdigest()


def matching(silences: Iterable[Silence], state: AlertState) -> Silence | None:
    """Return the first silence that keeps an alert from being told, for showing."""
    return next((s for s in silences if not s.ack and _fits(s, state)), None)
