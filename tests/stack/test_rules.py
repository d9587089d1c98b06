"""Prometheus' and Alertmanager's configuration by their own tools."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from grafana import promql
from probes.result import Outcome, Verdict, verdict
from tests.stack.tools import DEPLOY, PROMETHEUS, debian, run, yaml_of

NHCB = re.compile(r"^( +)#((?:convert_classic|always_scrape_classic)_\w+: true)$", re.MULTILINE)


@pytest.fixture
def promtool() -> str:
    return debian("promtool")


def test_prometheus_accepts_configuration_and_rules(promtool: str) -> None:
    said = run(promtool, "check", "config", PROMETHEUS / "prometheus.yml")
    assert "rules.yml" in said
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", PROMETHEUS / "rules.yml")


def test_the_rules_pass_their_own_tests(promtool: str) -> None:
    run(promtool, "test", "rules", PROMETHEUS / "rules.test.yml")


def test_every_rule_has_a_test() -> None:
    rules = {rule["alert"] for group in yaml_of(PROMETHEUS / "rules.yml")["groups"]
             for rule in group["rules"]}  # fmt: skip
    tested = {case["alertname"] for test in yaml_of(PROMETHEUS / "rules.test.yml")["tests"]
              for case in test["alert_rule_test"] if case["exp_alerts"]}  # fmt: skip
    assert tested == rules


def test_the_outcomes_in_the_rules_are_those_of_the_verdicts() -> None:
    text = (PROMETHEUS / "rules.yml").read_text()
    found = [set(names.split("|")) for names in re.findall(r'outcome=~"([^"]+)"', text)]
    by = {v: {str(o) for o in Outcome if verdict(o) is v} for v in Verdict}
    refusals = by[Verdict.MISCONFIGURED]
    assert found == [by[Verdict.BAD], refusals, refusals | by[Verdict.RATE_LIMITED]]


def test_native_histograms_are_an_option_of_prometheus_3_only(
    promtool: str, tmp_path: Path
) -> None:
    text = (PROMETHEUS / "prometheus.yml").read_text()
    assert len(NHCB.findall(text)) == 2
    (tmp_path / "rules.yml").write_text((PROMETHEUS / "rules.yml").read_text())
    (tmp_path / "prometheus.yml").write_text(NHCB.sub(r"\1\2", text))
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "version 2." in run(promtool, "--version"):
        assert "convert_classic_histograms_to_nhcb" in done.stderr
    assert (done.returncode == 0) == ("version 3." in run(promtool, "--version")), done.stderr


def test_alertmanager_accepts_its_configuration() -> None:
    run(debian("amtool"), "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("_x5 1x54", 1),  # born with its one event
        ("_x5 1x20 2x33", 2),
        ("_x5 1x9 2x9 _x2 1x9 2x23", 4),  # the monitor restarted in between
        ("7x120", 0),  # old, and nothing happened
        ("7x100 8x19", 1),
        ("_x5 500x20 501x33", 1),  # found by a new Prometheus, not born there
    ],
)
def test_the_dashboard_counts_a_counters_first_event(
    promtool: str, tmp_path: Path, values: str, expected: int
) -> None:
    samples = sum(int(n) + (not part.startswith("_"))
                  for part in values.split() for n in [part.partition("x")[2]])  # fmt: skip
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": 'c{a="b"}', "values": values}],
                "promql_expr_test": [
                    {
                        "expr": f"round({promql.total('c', '1h', 'a')})",
                        "eval_time": f"{samples - 1}m",
                        "exp_samples": [{"labels": '{a="b"}', "value": expected}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    run(promtool, "test", "rules", tmp_path / "test.yml")
