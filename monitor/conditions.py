"""What is wrong: from facts to the conditions that alerts are about; pure, no clock, no I/O.

A rule looks at one probe, or at the monitor itself, and yields a condition only where something is
not as it should be. What it does not yield is well: the machine in `alerting` resolves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from monitor.alerts import BAD_IN_A_ROW, GOOD_IN_A_ROW, ProbeState, silent_after
from monitor.status import State
from probes.result import Outcome

NETWORK = frozenset({Outcome.DNS, Outcome.CONNECT, Outcome.TIMEOUT_CONNECT})
"""Failures before a connection stood: all that our own network can cause by being away."""

DAY_S = 86_400.0
BLIND_SHARE = 0.8
BLIND_HOSTS = 3
STUCK_S = 600.0
RESTART_SHOWN_S = 600.0


class Rule(StrEnum):
    """What an alert is about; the value is the label `alertname`."""

    DOWN = "Down"
    SLO_BURN = "SLOBurn"
    NO_DATA = "NoData"
    MISCONFIGURED = "Misconfigured"
    RATE_LIMITED = "RateLimited"
    CERTIFICATE_EXPIRY = "CertificateExpiry"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    MONITOR_BLIND = "MonitorBlind"
    CONFIG_RELOAD_FAILED = "ConfigReloadFailed"
    OUTBOX_STUCK = "OutboxStuck"
    PROBER_RESTARTED = "ProberRestarted"


PAGES = frozenset({Rule.DOWN, Rule.NO_DATA, Rule.MONITOR_BLIND, Rule.OUTBOX_STUCK})
"""Rules of severity `page` where the configuration says nothing; the others are `ticket`."""


class Signal(StrEnum):
    """What a rule says of its alert; a rule that is content says nothing."""

    PENDING = "pending"
    """Wrong, but not yet often or long enough."""
    FIRING = "firing"
    """Wrong."""
    RESOLVING = "resolving"
    """Well again, but not yet often enough."""
    HOLD = "hold"
    """Nobody can tell now: the alert stays where it is."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Which alert: it keeps its identity over restarts and changes of wording.

    Attributes:
        endpoint: Name; empty for an alert about the monitor itself.
        slo: For burn alerts the SLO and the pair of windows, `available/1h`; else empty.
    """

    rule: Rule
    endpoint: str = ""
    workload: str = ""
    slo: str = ""

    @property
    def key(self) -> str:
        """One text for the whole, `Down/llama/chat`."""
        parts = (self.rule, self.endpoint, self.workload, self.slo)
        return "/".join(part for part in parts if part)


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """A burn-rate alert that is burning now.

    Attributes:
        slo: Name of the SLO.
        window: Name of the pair of windows that fired, by its long one: `1h`.
        numbers: One sentence with counts: how fast, over what, with n.
    """

    slo: str
    window: str
    severity: str
    numbers: str


class ProbeFact(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one probe now.

    Attributes:
        state: As it looks now, with its streaks of valid results.
        last: Outcome of the newest result, excluded or not; None before one.
        last_at: When that was.
        last_error: One sentence about the newest result that was not ok.
        n: Valid results of the last day, counted only while something is wrong; None otherwise.
        good: Good ones among them.
        host: Of the endpoint's URL.
        vendor: The endpoint's label; targets of one vendor are told together.
        severity: Of its page-worthy alerts; None is `page`.
        certificate_at: When its certificate expires; None is unknown, or no TLS.
        over_budget: Whether its last slot was skipped because the budget of the day is spent.
        burns: Its burn-rate alerts that burn now.
        down_after: Bad valid results in a row that are down.
        up_after: Good valid results in a row that end it.
        certificate_s: Seconds before expiry from which on it is worth an alert.
        off: Rules that the configuration switches off for this endpoint.
    """

    endpoint: str
    workload: str
    interval: float
    state: ProbeState
    last: Outcome | None = None
    last_at: float | None = None
    last_error: str | None = None
    n: int | None = None
    good: int | None = None
    host: str = ""
    vendor: str = ""
    severity: str | None = None
    labels: Mapping[str, str] = {}
    runbook_url: str | None = None
    certificate_at: float | None = None
    over_budget: bool = False
    burns: tuple[Burn, ...] = ()
    down_after: int = BAD_IN_A_ROW
    up_after: int = GOOD_IN_A_ROW
    certificate_s: float = 14 * DAY_S
    off: frozenset[Rule] = frozenset()


class MonitorFact(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the monitor itself.

    Attributes:
        blind: Why nothing can be said about any target, a sentence; None if something can.
        blind_since: When that began.
        reload_error: Why the configuration on disk is not the one that runs; None if it is.
        outbox_oldest_s: Age of the oldest notice not delivered.
        outbox_error: What keeps it, without its URL.
        restarted_at: When the prober was replaced last.
        off: Rules that the configuration switches off.
    """

    blind: str | None = None
    blind_since: float = 0.0
    reload_error: str | None = None
    reload_at: float = 0.0
    outbox_oldest_s: float = 0.0
    outbox_error: str = ""
    restarted_at: float | None = None
    off: frozenset[Rule] = frozenset()


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be.

    Attributes:
        since: When it began: the first bad result and not the third.
        group: What it is told together with: vendor or host; empty for none.
        what: One sentence for a person who was asleep.
        numbers: How bad, with n.
    """

    alert: Alert
    signal: Signal
    since: float
    what: str
    severity: str = "ticket"
    group: str = ""
    labels: Mapping[str, str] = {}
    runbook_url: str | None = None
    numbers: str = ""
    last_error: str = ""


def of_probe(fact: ProbeFact, now: float) -> Iterator[Condition]:
    """Yield what is wrong with one probe. Not to be asked while the monitor is blind."""
    for rule, look in _LOOKS.items():
        if rule not in fact.off:
            yield from look(fact, now)
    if fact.state.state is State.STARTING:  # after a restart: what was wrong may still be
        for rule in {Rule.NO_DATA, Rule.MISCONFIGURED, Rule.RATE_LIMITED} - fact.off:
            yield _condition(fact, rule, Signal.HOLD, fact.state.since, "Nothing heard yet.")


def of_monitor(fact: MonitorFact, now: float) -> Iterator[Condition]:
    """Yield what is wrong with the monitor itself."""
    found: list[tuple[Rule, float, str, str]] = []
    if fact.blind is not None:
        what = "The monitor cannot see: its own network or resolver is at fault, not the targets."
        found.append((Rule.MONITOR_BLIND, fact.blind_since, what, fact.blind))
    if fact.reload_error is not None:
        what = "The new configuration was refused; the old one goes on."
        found.append((Rule.CONFIG_RELOAD_FAILED, fact.reload_at, what, fact.reload_error))
    if fact.outbox_oldest_s > STUCK_S:
        what = f"A notice has waited for delivery for {fact.outbox_oldest_s:.0f} s."
        since = now - fact.outbox_oldest_s
        found.append((Rule.OUTBOX_STUCK, since, what, fact.outbox_error))
    if fact.restarted_at is not None and now - fact.restarted_at < RESTART_SHOWN_S:
        what = "The prober died or hung and was replaced."
        found.append((Rule.PROBER_RESTARTED, fact.restarted_at, what, ""))
    for rule, since, what, numbers in found:
        if rule not in fact.off:
            severity = "page" if rule in PAGES else "ticket"
            yield Condition(
                alert=Alert(rule=rule),
                signal=Signal.FIRING,
                since=since,
                what=what,
                severity=severity,
                numbers=numbers,
            )


def blind(probes: Iterable[ProbeFact], references: Mapping[str, bool], now: float) -> str | None:
    """Return why the monitor is blind, as a sentence; None if it is not.

    Either no reference target out of two or more can be reached while a probe fails before its
    connection stands; or at least 80 % of the probes heard within one interval of theirs fail so,
    over three hosts or more.

    Args:
        probes: All of them.
        references: Whether each reference target answered just now; empty when not asked.
        now: Wall clock.
    """
    heard = [p for p in probes if p.last_at is not None and now - p.last_at <= 1.5 * p.interval]
    failing = [p for p in heard if p.last in NETWORK]
    if not failing:
        return None
    share = f"{len(failing)} of {len(heard)} probes fail before a connection stands"
    if len(references) > 1 and not any(references.values()):
        return f"None of {len(references)} reference targets can be reached; {share}."
    hosts = {p.host for p in failing}
    if len(hosts) >= BLIND_HOSTS and len(failing) >= BLIND_SHARE * len(heard):
        return f"{share}, over {len(hosts)} hosts."
    return None


# --- the rules ----------------------------------------------------------------------------------


def _down(fact: ProbeFact, _now: float) -> Iterator[Condition]:
    state = fact.state
    if state.valid_at is None:
        yield _condition(fact, Rule.DOWN, Signal.HOLD, state.since, "No valid result yet.")
        return
    if state.bad_streak >= fact.down_after:
        signal = Signal.FIRING
    elif state.bad_streak:
        signal = Signal.PENDING
    elif state.good_streak < fact.up_after:
        signal = Signal.RESOLVING
    else:
        return
    what = f"{fact.endpoint} does not answer as it should ({fact.workload})."
    numbers = f"{_count(state.bad_streak, 'bad result')} in a row."
    yield _condition(fact, Rule.DOWN, signal, state.streak_since, what, numbers)


def _no_data(fact: ProbeFact, now: float) -> Iterator[Condition]:
    state = fact.state
    if state.state is State.UNKNOWN:
        what = f"Nothing is known of {fact.endpoint} ({fact.workload}): no valid result."
        heard = "never" if state.heard_at is None else f"{_duration(now - state.heard_at)} ago"
        numbers = f"Last heard {heard}, expected every {_duration(fact.interval)}."
        yield _condition(fact, Rule.NO_DATA, Signal.FIRING, state.since, what, numbers)


def _misconfigured(fact: ProbeFact, now: float) -> Iterator[Condition]:
    """One refusal may be a hiccup: it must still be the latest word an interval later."""
    state = fact.state
    if state.state is State.MISCONFIGURED:
        again = (state.heard_at or now) - state.since >= 0.5 * fact.interval
        what = f"{fact.endpoint} refuses our key, account or request ({fact.workload})."
        signal = Signal.FIRING if again else Signal.PENDING
        yield _condition(fact, Rule.MISCONFIGURED, signal, state.since, what)


def _rate_limited(fact: ProbeFact, now: float) -> Iterator[Condition]:
    """Only a whole window of nothing but 429 is worth a word; a few are everyday."""
    state = fact.state
    if state.state is State.RATE_LIMITED:
        lasted = now - state.since >= silent_after(fact.interval)
        what = f"{fact.endpoint} answers nothing but 429 ({fact.workload})."
        signal = Signal.FIRING if lasted else Signal.PENDING
        yield _condition(fact, Rule.RATE_LIMITED, signal, state.since, what)


def _certificate(fact: ProbeFact, now: float) -> Iterator[Condition]:
    if fact.certificate_at is None or fact.certificate_at - now > fact.certificate_s:
        return
    days = (fact.certificate_at - now) / DAY_S
    when = f"expires in {days:.1f} days" if days > 0 else "has expired"
    since = fact.certificate_at - fact.certificate_s
    what = f"The certificate of {fact.endpoint} {when}."
    yield _condition(fact, Rule.CERTIFICATE_EXPIRY, Signal.FIRING, since, what)


def _budget(fact: ProbeFact, now: float) -> Iterator[Condition]:
    if fact.over_budget:
        what = f"The budget of the day for {fact.endpoint} is spent: probes are left out."
        since = fact.last_at or now
        yield _condition(fact, Rule.BUDGET_EXHAUSTED, Signal.FIRING, since, what)


def _burning(fact: ProbeFact, now: float) -> Iterator[Condition]:
    for burn in fact.burns:
        what = f"{fact.endpoint} spends the error budget of {burn.slo} too fast ({fact.workload})."
        condition = _condition(fact, Rule.SLO_BURN, Signal.FIRING, now, what, burn.numbers)
        alert = msgspec.structs.replace(condition.alert, slo=f"{burn.slo}/{burn.window}")
        yield msgspec.structs.replace(condition, alert=alert, severity=burn.severity)


_Look = Callable[[ProbeFact, float], Iterator[Condition]]
_LOOKS: dict[Rule, _Look] = {
    Rule.DOWN: _down,
    Rule.NO_DATA: _no_data,
    Rule.MISCONFIGURED: _misconfigured,
    Rule.RATE_LIMITED: _rate_limited,
    Rule.CERTIFICATE_EXPIRY: _certificate,
    Rule.BUDGET_EXHAUSTED: _budget,
    Rule.SLO_BURN: _burning,
}


def _condition(
    fact: ProbeFact, rule: Rule, signal: Signal, since: float, what: str, numbers: str = ""
) -> Condition:
    if fact.n:
        numbers = f"{numbers} {fact.good:,} of {fact.n:,} valid results of the day were good."
    severity = (fact.severity or "page") if rule in PAGES else "ticket"
    return Condition(
        alert=Alert(rule=rule, endpoint=fact.endpoint, workload=fact.workload),
        signal=signal,
        since=since,
        what=what,
        severity=severity,
        group=fact.vendor or fact.host,
        labels=fact.labels,
        runbook_url=fact.runbook_url,
        numbers=numbers.strip(),
        last_error=fact.last_error or "",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
