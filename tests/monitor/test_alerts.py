from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.alerts import ProbeState, advance, current, silent_after, up
from monitor.status import State
from probes.result import Excluded, Outcome, Verdict, verdict

GOOD, BAD = Outcome.OK, Outcome.HTTP_5XX
LIMITED, REFUSED = Outcome.HTTP_RATE_LIMITED, Outcome.HTTP_AUTH
NEUTRAL = Outcome.CONTENT_FILTER

Step = tuple[Outcome, Excluded | None]
steps = st.lists(
    st.tuples(st.sampled_from(list(Outcome)), st.sampled_from([None, None, *Excluded]))
)


def walk(*outcomes: Outcome | Step) -> ProbeState:
    """Feed outcomes ten seconds apart, the first at 10."""
    state = ProbeState(since=0.0)
    for i, step in enumerate(outcomes, start=1):
        outcome, excluded = step if isinstance(step, tuple) else (step, None)
        state = advance(state, outcome, excluded, 10.0 * i)
    return state


def word(*outcomes: Outcome | Step) -> State:
    return walk(*outcomes).state


def test_a_new_probe_is_starting() -> None:
    """No result, no claim."""
    assert walk().state is State.STARTING


def test_one_good_result_is_up() -> None:
    """The threshold of two is for coming back, not for starting."""
    assert word(GOOD) is State.UP


def test_one_and_two_bad_results_are_failing_and_three_are_down() -> None:
    """Three in a row decide."""
    assert word(GOOD, BAD) is State.FAILING
    assert word(GOOD, BAD, BAD) is State.FAILING
    assert word(GOOD, BAD, BAD, BAD) is State.DOWN
    assert word(BAD, BAD, BAD) is State.DOWN


def test_a_good_result_between_resets_the_count() -> None:
    """In a row means in a row."""
    assert word(BAD, BAD, GOOD) is State.UP
    assert word(BAD, BAD, GOOD, BAD, BAD) is State.FAILING


def test_down_ends_after_two_good_results_in_a_row() -> None:
    """One lucky answer during an outage is no recovery."""
    assert word(BAD, BAD, BAD, GOOD) is State.DOWN
    assert word(BAD, BAD, BAD, GOOD, BAD, GOOD) is State.DOWN
    assert word(BAD, BAD, BAD, GOOD, GOOD) is State.UP


@pytest.mark.parametrize(
    "noise",
    [
        (BAD, Excluded.UNKNOWN),
        (GOOD, Excluded.TAINTED),
        (NEUTRAL, None),
        (Outcome.ABORTED, None),
        (LIMITED, None),
        (REFUSED, None),
    ],
)
def test_what_is_not_valid_neither_advances_nor_resets_the_machine(noise: Step) -> None:
    """Between two bad results and the third anything else may come."""
    assert word(BAD, BAD, noise, BAD) is State.DOWN
    assert word(BAD, BAD, noise, noise, noise) is not State.DOWN
    assert word(BAD, BAD, BAD, GOOD, noise, GOOD) is State.UP


def test_excluded_and_neutral_results_leave_the_state_as_it_was() -> None:
    """They are kept and shown elsewhere."""
    before = walk(GOOD, BAD)
    assert advance(before, BAD, Excluded.UNKNOWN, 99.0) == before
    assert advance(before, NEUTRAL, None, 99.0) == before
    assert advance(before, REFUSED, Excluded.TAINTED, 99.0) == before


def test_refusals_are_the_state_while_they_are_the_latest_word() -> None:
    """A missing key is no outage, and hides none."""
    assert word(GOOD, REFUSED) is State.MISCONFIGURED
    assert word(GOOD, REFUSED, LIMITED) is State.RATE_LIMITED
    assert word(GOOD, REFUSED, GOOD) is State.UP
    assert word(BAD, BAD, BAD, LIMITED) is State.RATE_LIMITED
    assert word(BAD, BAD, BAD, LIMITED, BAD) is State.DOWN
    assert word(BAD, BAD, BAD, LIMITED, GOOD) is State.DOWN


def test_down_since_the_first_bad_result_and_up_since_the_first_good() -> None:
    """The outage began with the first failure, not with our certainty."""
    assert walk(GOOD, BAD, BAD, BAD, BAD).since == 20.0
    assert walk(BAD, BAD, BAD, GOOD, GOOD).since == 40.0
    assert walk(GOOD, GOOD, GOOD).since == 10.0


def test_a_refusal_in_an_outage_does_not_restart_its_clock() -> None:
    """Down, refused, down again is one outage; the refusal has a time of its own."""
    assert walk(BAD, BAD, BAD, REFUSED, REFUSED).since == 40.0
    assert walk(BAD, BAD, BAD, REFUSED, BAD).since == 10.0


@given(steps)
def test_down_needs_three_bad_and_ends_with_two_good(path: list[Step]) -> None:
    """The machine agrees with a search through the valid results: it never flaps by itself."""
    state, valid, down = ProbeState(since=0.0), list[bool](), False
    for i, (outcome, excluded) in enumerate(path):
        state = advance(state, outcome, excluded, float(i))
        if excluded is None and verdict(outcome) in (Verdict.GOOD, Verdict.BAD):
            valid.append(verdict(outcome) is Verdict.GOOD)
            if not any(valid[-3:]) and len(valid) >= 3:
                down = True
            elif all(valid[-2:]) and len(valid) >= 2:
                down = False
        assert (state.health is State.DOWN) == down
        assert not (state.bad_streak and state.good_streak)


def test_silence_turns_unknown_after_three_intervals_but_not_before_five_minutes() -> None:
    """No data is not good news, and a short interval does not make us nervous."""
    state = walk(GOOD)
    assert silent_after(60.0) == 300.0
    assert silent_after(3600.0) == 10800.0
    assert current(state, 310.0, 60.0, skipped_on_purpose=False).state is State.UP
    assert current(state, 311.0, 60.0, skipped_on_purpose=False).state is State.UNKNOWN
    assert current(state, 311.0, 3600.0, skipped_on_purpose=False).state is State.UP
    assert current(state, 10811.0, 3600.0, skipped_on_purpose=False).state is State.UNKNOWN


def test_unknown_since_the_limit_and_the_stored_state_is_kept() -> None:
    """An endpoint that was down before the silence is still down after it."""
    state = walk(BAD, BAD, BAD)
    shown = current(state, 1000.0, 60.0, skipped_on_purpose=False)
    assert (shown.state, shown.since) == (State.UNKNOWN, 330.0)
    assert advance(state, BAD, None, 1000.0).state is State.DOWN
    assert advance(state, BAD, None, 1000.0).since == 10.0


def test_a_skip_on_purpose_explains_silence() -> None:
    """Maintenance is no NoData alert; the gauge still goes, as nothing new is known."""
    shown = current(walk(GOOD), 5000.0, 60.0, skipped_on_purpose=True)
    assert shown.state is State.UP
    assert up(shown) is None


def test_a_stream_of_refusals_is_no_silence() -> None:
    """429 and 401 have alerts of their own, never NoData."""
    state = walk(GOOD, *[LIMITED] * 200)
    shown = current(state, 2010.0, 60.0, skipped_on_purpose=False)
    assert shown.state is State.RATE_LIMITED
    assert up(shown) is None
    assert current(state, 2400.0, 60.0, skipped_on_purpose=False).state is State.UNKNOWN


def test_a_probe_that_never_answers_at_all_turns_unknown() -> None:
    """Starting does not last for ever."""
    state = ProbeState(since=100.0)
    assert current(state, 400.0, 60.0, skipped_on_purpose=False).state is State.STARTING
    assert current(state, 401.0, 60.0, skipped_on_purpose=False).state is State.UNKNOWN


def test_excluded_results_do_not_break_a_silence() -> None:
    """A monitor without a network knows nothing, however often it tries."""
    state = walk(GOOD, *[(BAD, Excluded.UNKNOWN)] * 100)
    assert current(state, 1010.0, 60.0, skipped_on_purpose=False).state is State.UNKNOWN


def test_a_clock_set_back_is_no_silence() -> None:
    """Now may lie before the last result."""
    assert current(walk(GOOD), -3600.0, 60.0, skipped_on_purpose=False).state is State.UP


@pytest.mark.parametrize(
    ("outcomes", "value"),
    [
        ((), None),
        ((GOOD,), 1),
        ((BAD,), 0),
        ((GOOD, BAD, BAD, BAD), 0),
        ((BAD, BAD, BAD, GOOD), 1),
        ((GOOD, LIMITED), 1),
        ((BAD, LIMITED), 0),
        ((LIMITED,), None),
        ((GOOD, REFUSED), None),
        ((GOOD, REFUSED, BAD), 0),
        ((GOOD, NEUTRAL), 1),
    ],
)
def test_endpoint_up_follows_the_last_valid_result(
    outcomes: tuple[Outcome, ...], value: int | None
) -> None:
    """Thresholds are for alerts; the gauge is absent where nothing is known."""
    assert up(walk(*outcomes)) == value


def test_endpoint_up_is_absent_while_unknown() -> None:
    """A gauge that nobody measures any more must not stay."""
    assert up(current(walk(GOOD), 9999.0, 60.0, skipped_on_purpose=False)) is None
    assert up(replace(walk(GOOD), last_good=None)) is None
