from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.slo import PRESETS, Indicator, Slo, applies, classify, meaning
from probes.result import Excluded, Outcome, Verdict, verdict

AVAILABLE = Slo(name="a")
FAST = Slo(name="f", indicator=Indicator.LATENCY, metric="ttft", threshold=2.0)
NONE: Mapping[str, float | None] = {}

EVERY = pytest.mark.parametrize("outcome", Outcome)


@EVERY
def test_availability_is_ok_out_of_ok_and_failed(outcome: Outcome) -> None:
    expected = {Verdict.GOOD: True, Verdict.BAD: False}.get(verdict(outcome))
    assert classify(AVAILABLE, outcome, None, NONE) is expected


@EVERY
@pytest.mark.parametrize("indicator", Indicator)
@pytest.mark.parametrize("excluded", Excluded)
def test_what_is_excluded_counts_nowhere(
    outcome: Outcome, indicator: Indicator, excluded: Excluded
) -> None:
    slo = Slo(name="x", indicator=indicator, metric="ttft", threshold=9.0, count_429=True)
    assert classify(slo, outcome, excluded, {"ttft": 1.0}) is None


def test_429_is_bad_only_where_one_says_so() -> None:
    limited = Outcome.HTTP_RATE_LIMITED
    assert classify(AVAILABLE, limited, None, NONE) is None
    assert classify(Slo(name="own", count_429=True), limited, None, NONE) is False


@pytest.mark.parametrize(("ttft", "good"), [(1.9, True), (2.0, True), (2.001, False)])
def test_an_ok_result_is_good_up_to_its_threshold(ttft: float, good: bool) -> None:
    assert classify(FAST, Outcome.OK, None, {"ttft": ttft}) is good


def test_a_failed_valid_result_is_bad_for_latency_too() -> None:
    assert classify(FAST, Outcome.TIMEOUT_TTFT, None, NONE) is False
    assert classify(FAST, Outcome.TRUNCATED, None, {"ttft": 0.1}) is False


def test_an_ok_result_without_a_value_says_nothing_about_latency() -> None:
    assert classify(FAST, Outcome.OK, None, {"ttft": None}) is None


def test_a_refusal_of_our_account_is_not_valid_for_latency() -> None:
    assert classify(FAST, Outcome.HTTP_AUTH, None, NONE) is None


def test_the_share_of_429_is_an_indicator_of_its_own() -> None:
    slo = Slo(name="r", indicator=Indicator.RATE_LIMITED)
    assert classify(slo, Outcome.HTTP_RATE_LIMITED, None, NONE) is False
    assert classify(slo, Outcome.HTTP_5XX, None, NONE) is True
    assert classify(slo, Outcome.HTTP_AUTH, None, NONE) is None


def test_correctness_looks_only_at_what_answered_in_full() -> None:
    slo = Slo(name="c", indicator=Indicator.CORRECTNESS)
    found = {o: classify(slo, o, None, NONE) for o in Outcome}
    assert {o for o, good in found.items() if good is False} == {
        Outcome.WRONG_MODEL,
        Outcome.VALIDATION_FAILED,
    }
    assert {o for o, good in found.items() if good} == {Outcome.OK}


@settings(deadline=None)
@given(st.sampled_from(Outcome), st.sampled_from(Indicator), st.floats(0, 100) | st.none())
def test_a_latency_never_turns_bad_into_good(
    outcome: Outcome, indicator: Indicator, value: float | None
) -> None:
    slo = Slo(name="x", indicator=indicator, metric="e2e", threshold=5.0)
    if classify(slo, outcome, None, {"e2e": value}):
        assert meaning(slo, outcome, None)


def test_by_default_an_slo_is_about_generation_and_not_about_listing_models() -> None:
    assert applies(AVAILABLE, "llama", "chat", "chat")
    assert not applies(AVAILABLE, "llama", "models", "models")
    assert applies(Slo(name="m", workloads=("mod*",)), "llama", "models", "models")


def test_globs_choose_endpoints() -> None:
    slo = Slo(name="a", endpoints=("eu-*", "us-1"))
    found = [name for name in ("eu-1", "us-1", "us-2") if applies(slo, name, "chat", "chat")]
    assert found == ["eu-1", "us-1"]


def test_presets_carry_mlperfs_limits_and_the_words_that_belong_to_them() -> None:
    ttft, tpot = PRESETS["limits-llama-3.1-8b-interactive"]
    assert (ttft.metric, ttft.threshold, tpot.metric, tpot.threshold) == (
        "ttft",
        0.5,
        "tpot",
        0.03,
    )
    assert all(
        "limit of a p99 under load; one stream passing it proves nothing" in str(slo.source)
        for slos in PRESETS.values()
        for slo in slos
    )
    assert len(PRESETS) == 12
