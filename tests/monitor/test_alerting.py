from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.alerting import (
    AlertBook,
    Facts,
    Kind,
    Notice,
    Phase,
    Silence,
    decide,
    firing,
    labels_of,
)
from monitor.alerts import ProbeState, advance
from monitor.conditions import Alert, Burn, MonitorFact, ProbeFact, Rule, blind
from monitor.status import State
from probes.result import Excluded, Outcome

GOOD, BAD, DNS = Outcome.OK, Outcome.HTTP_5XX, Outcome.DNS
STEP = 15.0


@dataclass
class Run:
    """A monitor's alerting over made-up results, `STEP` seconds apart."""

    now: float = 1_000_000.0
    book: AlertBook = field(default_factory=AlertBook)
    notices: list[Notice] = field(default_factory=list)
    states: dict[str, ProbeState] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    restarts: bool = False
    phases: list[Phase] = field(default_factory=list)

    def probe(self, name: str, **known: Any) -> ProbeFact:
        self.known.setdefault(name, {}).update(known)
        state = self.states.setdefault(name, ProbeState(since=self.now))
        details = {"host": name, **self.known[name]}
        return ProbeFact(endpoint=name, workload="chat", interval=STEP, state=state, **details)

    def see(self, name: str, outcome: Outcome, excluded: Excluded | None = None) -> None:
        state = self.probe(name, last=outcome, last_at=self.now).state
        self.states[name] = advance(state, outcome, excluded, self.now)
        self.decide(probes=(self.probe(name),))

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.decide(
            probes=tuple(self.probe(name) for name in self.states),
            complete=True,
            monitor=self.facts.get("monitor", MonitorFact()),
        )

    def decide(self, **facts: Any) -> None:
        if self.restarts:  # what is kept is what a new process knows
            self.book = msgspec.json.decode(msgspec.json.encode(self.book), type=AlertBook)
        self.book, notices = decide(self.book, Facts(**{**self.facts, **facts}), self.now)
        self.notices += notices

    def walk(self, name: str, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            self.see(name, outcome)
            self.tick(STEP)

    def told(self) -> list[str]:
        people = [n for n in self.notices if n.kind is not Kind.CHANGED]
        return [f"{n.kind} {n.alerts[0].alert.key}" for n in people]


def down(run: Run, *names: str) -> None:
    for _ in range(3):
        for name in names:
            run.see(name, BAD)
        run.tick(STEP)


def test_three_bad_results_in_a_row_fire_and_two_good_ones_resolve() -> None:
    run = Run()
    run.walk("a", GOOD, BAD, BAD)
    assert run.told() == []
    run.walk("a", BAD)
    assert run.told() == ["firing Down/a/chat"]
    run.walk("a", GOOD)
    assert len(run.told()) == 1
    run.walk("a", GOOD)
    assert run.told() == ["firing Down/a/chat", "resolved Down/a/chat"]


def test_an_alert_begins_with_the_first_bad_result_and_says_how_bad() -> None:
    run = Run()
    run.walk("a", GOOD)
    began = run.now
    run.probe("a", last_error="the server answered 503", n=100, good=97, runbook_url="http://r")
    run.walk("a", BAD, BAD, BAD)
    (state,) = run.notices[0].alerts
    assert state.since == began
    assert state.numbers == "3 bad results in a row. 97 of 100 valid results of the day were good."
    assert (state.last_error, state.runbook_url) == ("the server answered 503", "http://r")
    assert labels_of(state) == {
        "alertname": "Down",
        "endpoint": "a",
        "workload": "chat",
        "severity": "page",
    }


def test_thresholds_may_be_set() -> None:
    run = Run()
    run.probe("a", down_after=1, up_after=1)
    run.walk("a", GOOD, BAD, GOOD)
    assert run.told() == ["firing Down/a/chat", "resolved Down/a/chat"]


@given(st.lists(st.sampled_from([*Outcome, *[GOOD, BAD] * 8]), max_size=50), st.booleans())
def test_never_flaps_without_a_threshold_crossing(outcomes: list[Outcome], restarts: bool) -> None:
    """A plain count of the definition says when it may fire and may end; nothing else does."""
    run, is_down, bad, good, crossings = Run(restarts=restarts), False, 0, 0, 0
    for outcome in outcomes:
        run.see("a", outcome)
        valid = advance(ProbeState(since=0), outcome, None, 0.0).valid_at is not None
        if valid and outcome is GOOD:
            bad, good = 0, good + 1
        elif valid:
            bad, good = bad + 1, 0
        crossed = good >= 2 if is_down else bad >= 3
        is_down, crossings = is_down ^ crossed, crossings + crossed
        assert (
            Alert(rule=Rule.DOWN, endpoint="a", workload="chat").key
            in (state.alert.key for state in firing(run.book))
        ) is is_down
        run.tick(STEP)
    about = [n for n in run.notices if n.alerts[0].alert.rule is Rule.DOWN]
    assert len(about) <= crossings


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([GOOD, BAD, DNS])), max_size=50))
def test_a_restart_at_every_step_gives_the_same_notices(steps: list[tuple[str, Outcome]]) -> None:
    """CASES M25: the book is all that it needs."""
    through, restarted = Run(), Run(restarts=True)
    for run in (through, restarted):
        for name, outcome in steps:
            run.probe(name, vendor="v")
            run.see(name, outcome)
            run.tick(STEP / 3)
    assert restarted.notices == through.notices
    assert len({notice.key for notice in through.notices}) == len(through.notices)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([GOOD, BAD])), max_size=50))
def test_every_incident_is_told_once_and_ended_once(steps: list[tuple[str, Outcome]]) -> None:
    """However alerts come and go, a receiver that counts both sides ends at what is true."""
    run = Run()
    for name, outcome in steps:
        run.probe(name, vendor="v")
        run.see(name, outcome)
        run.tick(STEP / 4)
    for name in list(run.states):
        run.walk(name, GOOD, GOOD)
    for _ in range(5):
        run.tick(1000)
    assert firing(run.book) == []
    assert run.book.incidents == {}
    opened = [n.incident for n in run.notices if n.kind in (Kind.FIRING, Kind.FLAPPING)]
    ended = [n.incident for n in run.notices if n.kind is Kind.RESOLVED]
    assert sorted(set(opened)) == sorted(ended)


def test_many_targets_of_one_vendor_are_one_notice() -> None:
    """Five fail within a minute, at their own pace; each is told the end of once, together."""
    run = Run()
    names = [f"e{n}" for n in range(5)]
    for name in names:
        run.probe(name, vendor="acme")
    for _ in range(3):
        for name in names:
            run.see(name, BAD)
            run.tick(3)
    run.tick(10)
    assert run.told() == ["firing Down/e0/chat"]
    assert run.notices[0].group == "acme"
    assert len(run.notices[0].alerts) + run.notices[0].also_failing == 5
    assert len(firing(run.book)) == 5
    for name in names:
        run.walk(name, GOOD, GOOD)
    assert run.told() == ["firing Down/e0/chat", "resolved Down/e0/chat"]
    assert len(run.notices[-1].alerts) == 5


def test_two_targets_of_one_vendor_are_two_notices() -> None:
    run = Run()
    run.probe("a", vendor="v")
    run.probe("b", vendor="v")
    down(run, "a", "b")
    assert run.told() == ["firing Down/a/chat", "firing Down/b/chat"]


def test_flapping_is_told_once_and_muted_until_steady() -> None:
    """Up and down for an hour: at the fifth change one notice, then silence, then the end."""
    run = Run()
    for _ in range(6):
        run.walk("a", BAD, BAD, BAD, GOOD, GOOD)
    kinds = [n.kind for n in run.notices]
    assert kinds == ["firing", "resolved", "firing", "resolved", "flapping"]
    for _ in range(31):
        run.tick(60)
    assert run.notices[-1].kind is Kind.RESOLVED
    assert len(run.notices) == 6


def test_flapping_that_ends_down_says_so() -> None:
    run = Run()
    for _ in range(4):
        run.walk("a", BAD, BAD, BAD, GOOD, GOOD)
    run.walk("a", BAD, BAD, BAD)
    before = len(run.notices)
    for _ in range(31):
        run.tick(60)
    assert [n.kind for n in run.notices[before:]] == ["firing"]
    assert len({n.incident for n in run.notices[-2:]}) == 1


def test_a_reminder_comes_every_four_hours_until_somebody_has_it_in_hand() -> None:
    run = Run()
    down(run, "a")
    for _ in range(9):
        run.tick(3600)
    assert [n.kind for n in run.notices] == ["firing", "reminder", "reminder"]
    ack = Silence(id="1", matchers={"endpoint": "a"}, at=run.now, ack=True)
    run.facts["silences"] = (ack,)
    for _ in range(9):
        run.tick(3600)
    assert len(run.notices) == 3
    run.walk("a", GOOD, GOOD)
    down(run, "a")
    run.tick(4 * 3600)
    assert run.notices[-1].kind is Kind.REMINDER  # an old acknowledgement is for the old incident


def test_a_silence_keeps_quiet_until_it_ends_and_forgets_nothing() -> None:
    run = Run()
    silence = Silence(id="1", matchers={"endpoint": "a*"}, at=run.now, until_at=run.now + 600)
    run.facts["silences"] = (silence,)
    down(run, "a1", "b")
    assert run.told() == ["firing Down/b/chat"]
    run.tick(600)
    assert run.told() == ["firing Down/b/chat", "firing Down/a1/chat"]


def test_what_began_and_ended_in_silence_is_never_told() -> None:
    run = Run()
    run.facts["silences"] = (Silence(id="1", matchers={"alertname": "Down"}, at=0.0),)
    run.walk("a", BAD, BAD, BAD, GOOD, GOOD)
    assert run.notices == []


def test_the_end_of_what_was_told_is_told_in_silence_too() -> None:
    """Or a receiver would keep an incident open for ever."""
    run = Run()
    down(run, "a")
    run.facts["silences"] = (Silence(id="1", matchers={}, at=0.0),)
    run.walk("a", GOOD, GOOD)
    assert run.told() == ["firing Down/a/chat", "resolved Down/a/chat"]


def test_maintenance_keeps_quiet_and_what_is_still_down_afterwards_is_told() -> None:
    run = Run()
    run.facts["in_maintenance"] = frozenset({"a"})
    down(run, "a", "b")
    assert run.told() == ["firing Down/b/chat"]
    run.facts["in_maintenance"] = frozenset()
    run.tick()
    assert run.told()[1:] == ["firing Down/a/chat"]


def test_down_inhibits_the_burn_alerts_of_its_probe_only() -> None:
    run = Run()
    burn = Burn(slo="availability", window="1h", severity="page", numbers="9 of 60 bad")
    run.walk("a", BAD, BAD, BAD)
    run.probe("a", burns=(burn,))
    run.probe("b", burns=(burn,))
    run.tick()
    assert run.told() == ["firing Down/a/chat", "firing SLOBurn/b/chat/availability/1h"]
    run.walk("a", GOOD, GOOD)
    assert run.told()[2:] == ["resolved Down/a/chat", "firing SLOBurn/a/chat/availability/1h"]


def test_two_hundred_targets_behind_a_dead_network_are_one_notice() -> None:
    """CASES M27: MonitorBlind and no target down, and all is quiet when the network is back."""
    run = Run()
    names = [f"e{n}" for n in range(200)]
    for name in names:
        run.see(name, GOOD)
    for _ in range(4):
        run.now += STEP
        for name in names:
            probes = [run.probe(n) for n in names]
            why = blind(probes, {}, run.now)
            excluded = Excluded.UNKNOWN if why else None
            run.facts |= {"blind": why is not None, "monitor": MonitorFact(blind=why)}
            run.see(name, DNS, excluded)
    assert run.told() == ["firing MonitorBlind"]
    run.facts |= {"blind": False, "monitor": MonitorFact()}
    for _ in range(3):
        run.now += STEP
        for name in names:
            run.see(name, GOOD)
    run.tick()
    assert run.told() == ["firing MonitorBlind", "resolved MonitorBlind"]


def test_states_of_targets_stand_still_while_blind() -> None:
    run = Run()
    down(run, "a")
    run.facts["blind"] = True
    run.walk("a", GOOD, GOOD, GOOD)
    assert [s.phase for s in firing(run.book)] == [Phase.FIRING]
    run.facts["blind"] = False
    run.tick()
    assert run.told() == ["firing Down/a/chat", "resolved Down/a/chat"]


def test_blindness_needs_silent_references_or_three_hosts() -> None:
    def fact(name: str, outcome: Outcome) -> ProbeFact:
        state = ProbeState(since=0.0)
        return ProbeFact(
            endpoint=name, workload="chat", interval=60, state=state, host=name,
            last=outcome, last_at=100.0,
        )  # fmt: skip

    dead = [fact(name, DNS) for name in "abcd"]
    assert blind(dead[:2], {}, 100.0) is None
    assert blind(dead[:1], {"x": False, "y": False}, 100.0) is not None
    assert blind(dead[:1], {"x": False, "y": True}, 100.0) is None
    assert blind(dead[:1], {"x": False}, 100.0) is None
    assert blind([*dead, fact("e", GOOD)], {}, 100.0) is not None  # 80 % of five
    assert blind([*dead[:3], fact("e", GOOD)], {}, 100.0) is None  # 75 % of four
    assert blind(dead, {}, 200.0) is None  # long ago
    assert blind([fact("a", BAD)], {"x": False, "y": False}, 100.0) is None


def test_two_failures_of_the_resolver_page_nobody() -> None:
    """CASES M9: EAI_AGAIN twice."""
    run = Run()
    run.walk("a", GOOD, DNS, DNS, GOOD, DNS, DNS, GOOD)
    assert run.notices == []


@pytest.mark.parametrize(
    ("outcome", "rule", "state"),
    [
        (Outcome.HTTP_AUTH, Rule.MISCONFIGURED, State.MISCONFIGURED),
        (Outcome.HTTP_RATE_LIMITED, Rule.RATE_LIMITED, State.RATE_LIMITED),
    ],
)
def test_refusals_have_their_own_alerts_and_are_never_down(
    outcome: Outcome, rule: Rule, state: State
) -> None:
    run = Run()
    run.walk("a", GOOD, outcome)
    assert run.notices == []  # one is a hiccup
    run.walk("a", *[outcome] * 30)
    assert run.told() == [f"firing {rule}/a/chat"]
    run.walk("a", GOOD, GOOD)
    assert run.told() == [f"firing {rule}/a/chat", f"resolved {rule}/a/chat"]


def test_each_further_rule_fires_and_resolves() -> None:
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("NoData/a/chat", {"state": ProbeState(since=0.0, state=State.UNKNOWN)}, {}),
        ("CertificateExpiry/a/chat", {"certificate_at": 1_000_000.0 + 86_400}, {}),
        ("BudgetExhausted/a/chat", {"over_budget": True}, {}),
        ("MonitorBlind", {}, {"blind": "nothing answers", "blind_since": 1.0}),
        ("ConfigReloadFailed", {}, {"reload_error": "line 3"}),
        ("OutboxStuck", {}, {"outbox_oldest_s": 700.0}),
        ("ProberRestarted", {}, {"restarted_at": 1_000_000.0 - 1}),
    ]
    for key, about_probe, about_monitor in cases:
        up = ProbeState(since=0.0, state=State.UP)
        well = ProbeFact(endpoint="a", workload="chat", interval=60, state=up)
        ill = msgspec.structs.replace(well, **about_probe)
        monitor = MonitorFact(**about_monitor)
        at, told = 1_000_000.0, list[str]()
        facts = Facts(probes=(ill,), complete=True, monitor=monitor)
        book, first = decide(AlertBook(), facts, at)
        book, second = decide(book, facts, at + 1)
        fine = Facts(probes=(well,), complete=True, monitor=MonitorFact())
        book, third = decide(book, fine, at + 2)
        told += [f"{n.kind} {n.alerts[0].alert.key}" for n in (*first, *second, *third)]
        assert told == [f"firing {key}", f"resolved {key}"]


def test_a_rule_may_be_switched_off() -> None:
    run = Run()
    run.probe("a", off=frozenset({Rule.DOWN}))
    down(run, "a")
    assert run.notices == []


def test_a_probe_that_is_gone_from_the_configuration_ends_its_alerts() -> None:
    run = Run()
    down(run, "a", "b")
    del run.states["a"]
    run.tick()
    assert run.told()[2:] == ["resolved Down/a/chat"]


def test_after_a_restart_without_any_result_an_alert_stands() -> None:
    """CASES M25: what the new process has not seen says nothing."""
    run = Run(restarts=True)
    down(run, "a")
    run.states["a"] = ProbeState(since=run.now)
    run.tick(60)
    assert run.told() == ["firing Down/a/chat"]
    assert firing(run.book) != []
    run.walk("a", GOOD, GOOD)
    assert run.told() == ["firing Down/a/chat", "resolved Down/a/chat"]


def test_an_alert_that_is_long_over_is_forgotten() -> None:
    run = Run()
    run.walk("a", BAD, BAD, BAD, GOOD, GOOD)
    run.tick(3700)
    assert run.book == AlertBook()
