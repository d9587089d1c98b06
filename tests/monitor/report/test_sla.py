from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.config import ConfigError, SlaRule, load_sla
from monitor.report.sla import SlaReport, credit, judge
from probes.result import Outcome
from tests.monitor.report.stored import T0, slots

SHIPPED = sorted((Path(__file__).parents[3] / "sla").glob("*.yaml"))
DAY_S = 86_400.0
NOVEMBER = (T0 - 30 * DAY_S, T0)
OK, BAD, LIMITED = Outcome.OK, Outcome.HTTP_5XX, Outcome.HTTP_RATE_LIMITED

HEAD = "vendor: V\nproduct: P\nsource: s\nread_at: '2026-11'\n"

Read = Callable[[str], SlaRule]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_load(terms: str) -> SlaRule:
        path = tmp_path / "rule.yaml"
        path.write_text(HEAD + terms)
        return load_sla(path)

    return write_and_load


def one(rule: SlaRule, outcomes: list[Outcome], **more: object) -> SlaReport:
    at = [NOVEMBER[0] + 60.0 * n for n in range(len(outcomes))]
    [found] = judge(rule, slots(outcomes, at=at, **more), NOVEMBER)  # type: ignore[arg-type]
    return found


# --- what is shipped -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_rule_loads_and_says_source_date_and_that_it_is_to_be_re_checked(
    path: Path,
) -> None:
    rule = load_sla(path)
    assert rule.source
    assert rule.read_at == "2026-11"
    assert rule.recheck
    assert rule.incomplete
    assert "re-check before use" in path.read_text().lower() or not rule.terms


def test_of_anthropic_no_figure_was_read_and_none_is_asserted() -> None:
    rule = load_sla(next(path for path in SHIPPED if path.stem == "anthropic"))
    assert rule.terms == ()


def test_the_ladder_of_bedrock() -> None:
    rule = load_sla(next(path for path in SHIPPED if path.stem == "amazon-bedrock"))
    ladder = rule.terms[0].credits
    assert [credit(ladder, a) for a in (1.0, 0.999, 0.9989, 0.99, 0.98, 0.94)] == [
        0.0, 0.0, 0.1, 0.1, 0.25, 1.0,
    ]  # fmt: skip


# --- rules ---------------------------------------------------------------------------------------


def test_the_vendors_rule_stands_beside_ours(read: Read) -> None:
    rule = read("terms: {up: {objective: 99, bad: [http_5xx]}}\n")
    found = one(rule, [OK] * 96 + [BAD] + [Outcome.TIMEOUT_TTFT] * 3)
    assert found.vendor is not None
    assert found.ours is not None
    assert found.n == 97
    assert found.vendor.value == pytest.approx(96 / 97)
    assert found.ours.value == pytest.approx(0.96)
    assert found.met is False


def test_what_is_neither_good_nor_bad_for_the_vendor_does_not_count(read: Read) -> None:
    rule = read("terms: {up: {objective: 99, bad: [http_rate_limited]}}\n")
    assert one(rule, [OK] * 8 + [LIMITED] * 2 + [BAD] * 5).n == 10


def test_a_minute_is_bad_when_any_of_it_is(read: Read) -> None:
    rule = read("terms: {up: {objective: 99, unit: 5m, bad: [http_5xx]}}\n")
    found = one(rule, [OK] * 9 + [BAD] + [OK] * 5)
    assert found.vendor is not None
    assert found.n == 3
    assert found.vendor.value == pytest.approx(2 / 3)


def test_a_slice_with_too_few_requests_is_none(read: Read) -> None:
    terms = "terms: {up: {objective: 99, unit: 5m, slices: {least: 3}, bad: [http_5xx]}}\n"
    assert one(read(terms), [OK] * 7).n == 1


def test_a_slice_may_be_judged_by_its_mean(read: Read) -> None:
    terms = "terms: {fast: {objective: 99, unit: 5m, statistic: mean, ttft: 1s}}\n"
    times = {"ttft": [0.1] * 4 + [2.0] + [1.2] * 5}
    found = one(read(terms), [OK] * 10, times=times)
    assert found.vendor is not None
    assert (found.n, found.vendor.value) == (2, 0.5)
    assert found.ours is not None
    assert found.ours.value == pytest.approx(0.4)


def test_long_context_is_left_out_under_the_vendors_rule_only(read: Read) -> None:
    rule = read("context_cap: 128000\nterms: {up: {objective: 99, bad: [http_5xx]}}\n")
    found = one(rule, [OK, BAD], prompt_tokens=200_000)
    assert (found.n, found.vendor, found.met) == (0, None, None)
    assert found.ours is not None
    assert found.ours.value == 0.5


def test_tokens_a_second_are_seconds_a_token(read: Read) -> None:
    rule = read("terms: {fast: {objective: 99, tokens_per_second: 50}}\n")
    assert (rule.terms[0].metric, rule.terms[0].threshold) == ("tpot", 0.02)
    found = one(rule, [OK, OK], times={"tpot": [0.02, 0.021]})
    assert found.vendor is not None
    assert found.vendor.value == 0.5


LADDER = (
    "claim_within: 30d\nterms: {up: {objective: 99.9, bad: [http_5xx],"
    " credits: [{below: 95, percent: 100}, {below: 99.9, percent: 10}]}}\n"
)


def test_credit_is_claimable_only_where_the_whole_interval_agrees(read: Read) -> None:
    clear = one(read(LADDER), [OK] * 9700 + [BAD] * 300)
    assert clear.credits == (0.1, 0.1, 0.1)
    assert clear.claimable
    assert clear.claim_until == T0 + 30 * DAY_S
    near = one(read(LADDER), ([OK] * 998 + [BAD]) * 10 + [BAD])
    assert near.credits is not None
    assert near.credits[0] != near.credits[2]
    assert not near.claimable


def test_a_month_not_seen_whole_is_not_claimable(read: Read) -> None:
    stored = slots([BAD] * 100, at=[NOVEMBER[0] + 60.0 * n for n in range(100)])
    found = list(judge(read(LADDER), stored, (NOVEMBER[0] - 60.0, T0 + 3600)))
    assert [(r.since, r.until, r.whole) for r in found] == [
        (NOVEMBER[0] - 60.0, NOVEMBER[0], False),
        (*NOVEMBER, True),
        (T0, T0 + 3600, False),
    ]
    assert [r.claimable for r in found] == [False, True, False]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("", "terms: empty, expected a promise, or what is not known of it"),
        ("terms: {a: {}}\n", "rule.yaml:5 terms.a.objective: missing, expected a value"),
        (
            "terms: {a: {objective: 99, bda: [ok]}}\n",
            "rule.yaml:5 terms.a.bda: unknown key, expected a known one (did you mean bad?)",
        ),
        (
            "terms: {a: {objective: 99, bad: [ok]}}\n",
            "rule.yaml:5 terms.a: ok is both good and bad, expected one of the two",
        ),
        (
            "terms: {a: {objective: 99, ttft: 1s, e2e: 2s}}\n",
            "rule.yaml:5 terms.a: two thresholds, expected one threshold or none",
        ),
        (
            "terms: {a: {objective: 99, statistic: mean}}\n",
            "rule.yaml:5 terms.a: a mean of nothing, expected a unit of time and a threshold",
        ),
        (
            "terms: {a: {objective: 99, credits: [{below: 99, precent: 5, percent: 1}]}}\n",
            "rule.yaml:5 terms.a.credits[0].precent: unknown key, expected a known one",
        ),
    ],
)
def test_a_wrong_rule_is_one_line_a_problem(terms: str, message: str, read: Read) -> None:
    with pytest.raises(ConfigError) as caught:
        read(terms)
    [problem] = caught.value.problems
    assert message in str(problem)
