"""From results to a probe's state: a pure decision, no clock and no I/O.

Theory of operation. Two things are kept apart. The *down machine* looks at valid results only
(good or bad, not excluded): up, failing, down after three bad in a row, up again after two good.
What *covers* it is the latest word of an endpoint that refuses us: misconfigured or rate limited
is the state while that is the newest result and says nothing about the machine below, which
goes on where it stood when the next valid result comes. Excluded and neutral results change
nothing. Time alone changes one thing, and only in the eye of the reader: `current` calls a probe
unknown that has not been heard for too long; the stored state is kept for when it speaks again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.link import Skip
from monitor.status import State
from probes.result import Excluded, Outcome, Verdict, verdict

BAD_IN_A_ROW = 3
GOOD_IN_A_ROW = 2
SILENT_INTERVALS = 3
SILENT_S = 300.0

ON_PURPOSE = frozenset({Skip.BUDGET, Skip.RETRY_AFTER, Skip.MAINTENANCE, Skip.PAUSED})
"""Skips that somebody wanted: they explain silence. The rest are our own shortcomings."""

_COVERS = {
    Verdict.MISCONFIGURED: State.MISCONFIGURED,
    Verdict.RATE_LIMITED: State.RATE_LIMITED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """Where a probe stands. Times are wall clock, seconds since the epoch, UTC.

    Attributes:
        since: Start of `state`: of the run of results that led to it, so a probe is down since
            its first bad result and not its third. For a new probe the time it was created.
        state: What a person is shown.
        health: The down machine's own state: starting, up, failing or down.
        health_since: Start of `health`, by the same rule; means nothing while starting.
        bad_streak: Bad valid results in a row.
        good_streak: Good valid results in a row.
        streak_since: First result of the running streak; means nothing while starting.
        last_good: Whether the last valid result was good; None without one.
        valid_at: Last valid result.
        heard_at: Last result that was valid, rate limited or misconfigured.
    """

    since: float
    state: State = State.STARTING
    health: State = State.STARTING
    health_since: float = 0.0
    bad_streak: int = 0
    good_streak: int = 0
    streak_since: float = 0.0
    last_good: bool | None = None
    valid_at: float | None = None
    heard_at: float | None = None


def advance(
    state: ProbeState, outcome: Outcome, excluded: Excluded | None, at: float
) -> ProbeState:
    """Return the state after one more result, in order of arrival.

    Args:
        state: The state so far; a new probe starts with `ProbeState(since=now)`.
        outcome: How the attempt ended.
        excluded: Why the result does not count; None when it does.
        at: When, for instance the slot's time.
    """
    meaning = verdict(outcome)
    if excluded is not None or meaning is Verdict.NEUTRAL:
        return state
    if cover := _COVERS.get(meaning):
        since = state.since if state.state is cover else at
        return replace(state, state=cover, since=since, heard_at=at)
    return _advance_health(state, good=meaning is Verdict.GOOD, at=at)


def _advance_health(state: ProbeState, *, good: bool, at: float) -> ProbeState:
    streak_since = state.streak_since if state.last_good is good else at
    bad_streak = 0 if good else state.bad_streak + 1
    good_streak = state.good_streak + 1 if good else 0
    health = _health(state.health, bad_streak, good_streak)
    health_since = state.health_since if health is state.health else streak_since
    return replace(
        state,
        state=health,
        since=health_since,
        health=health,
        health_since=health_since,
        bad_streak=bad_streak,
        good_streak=good_streak,
        streak_since=streak_since,
        last_good=good,
        valid_at=at,
        heard_at=at,
    )


def _health(before: State, bad_streak: int, good_streak: int) -> State:
    if before is State.DOWN:
        return State.UP if good_streak >= GOOD_IN_A_ROW else State.DOWN
    if bad_streak >= BAD_IN_A_ROW:
        return State.DOWN
    return State.FAILING if bad_streak else State.UP


def silent_after(interval: float) -> float:
    """Return the seconds without a result after which a probe of this interval is unknown."""
    return max(SILENT_INTERVALS * interval, SILENT_S)


def current(
    state: ProbeState, now: float, interval: float, *, skipped_on_purpose: bool
) -> ProbeState:
    """Return the state as it looks at `now`: unknown after too long a silence.

    Silence is no valid, rate limited or misconfigured result for max(3 intervals, 5 minutes)
    while no skip on purpose explains it. However it came about,
    after that long the last valid result says nothing about now: `last_good` is forgotten.

    Args:
        state: As `advance` returned it; keep it, the returned one is for showing.
        now: Wall clock.
        interval: Seconds between the probe's slots.
        skipped_on_purpose: Whether a slot of the last `silent_after(interval)` seconds was
            skipped for a reason in `ON_PURPOSE`.
    """
    limit = silent_after(interval)
    heard = state.since if state.heard_at is None else state.heard_at
    if state.valid_at is None or now - state.valid_at > limit:
        state = replace(state, last_good=None)
    if now - heard > limit and not skipped_on_purpose:
        return replace(state, state=State.UNKNOWN, since=heard + limit)
    return state


def up(state: ProbeState) -> int | None:
    """Return the value of `endpoint_up`: 1 or 0 by the last valid result; None is no series.

    None without a (recent) valid result, and while unknown or misconfigured. The thresholds of
    the down machine play no part: they are for alerts. Pass what `current` returned.
    """
    if state.state in (State.UNKNOWN, State.MISCONFIGURED) or state.last_good is None:
        return None
    return int(state.last_good)
