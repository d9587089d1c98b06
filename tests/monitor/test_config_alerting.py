"""`notify`, `alerts`, `maintenance` and `references` of a configuration."""

from __future__ import annotations

from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from monitor.conditions import Rule
from monitor.config import RULES, AlertRules, ConfigError, load
from monitor.maintenance import span

TWO = "endpoints:\n  a: {url: http://a, model: m}\n  b: {url: http://b, model: m}\n"


def problems(tmp_path: Path, text: str) -> list[str]:
    """One line each, without the file's name and the line's number."""
    path = tmp_path / "m.yaml"
    path.write_text(TWO + text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return [str(problem).partition(" ")[2] for problem in caught.value.problems]


def test_the_names_of_rules_are_those_of_the_rules() -> None:
    assert list(RULES) == [rule.value for rule in (Rule(name) for name in RULES)]
    assert set(RULES) == {rule.value for rule in Rule}


def test_a_configuration_says_whom_to_tell_of_what_and_when_not_to(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        TWO.replace("b, model: m", "b, model: m, alerts: {down_after: 5, off: [NoData]}")
        + "notify:\n"
        "  am: {type: alertmanager, url: http://am:9093}\n"
        "  ops: {type: webhook, url: 'https://h', secret: pw, timeout: 30s, severities: [page]}\n"
        "  chat: {type: apprise, url: 'slack://a/b/c'}\n"
        "alerts: {down_after: 2, certificate: 30d, remind: 1h, off: [ProberRestarted]}\n"
        "maintenance:\n"
        "  nightly: {every: weekday, at: '02:30', for: 2h, zone: Europe/Berlin, endpoints: [b]}\n"
        "  move: {from: 2026-12-01T10:00, until: 2026-12-01T12:00, zone: Asia/Kolkata}\n"
        "references: ['1.1.1.1:443', 'https://[::1]:8443']\n"
    )
    config = load(path, {})
    am, ops, chat = config.channels
    assert (am.type, am.url, am.timeout, am.severities) == (
        "alertmanager", "http://am:9093", 10.0, frozenset(),
    )  # fmt: skip
    assert (ops.secret, ops.timeout, set(ops.severities)) == ("pw", 30.0, {"page"})
    assert chat.url == "slack://a/b/c"
    assert config.alert_rules == AlertRules(
        down_after=2, certificate=30 * 86400.0, remind=3600.0, off=frozenset({"ProberRestarted"})
    )
    own = config.endpoints["b"].alert_rules
    assert (own.down_after, set(own.off)) == (5, {"ProberRestarted", "NoData"})
    nightly, move = config.windows
    assert (nightly.at, nightly.length, nightly.zone) == (time(2, 30), 7200.0, "Europe/Berlin")
    assert (set(nightly.endpoints), set(nightly.days)) == ({"b"}, set(range(5)))
    begin = datetime(2026, 12, 1, 4, 30, tzinfo=UTC).timestamp()
    assert span(move, begin) == (begin, begin + 7200)
    assert config.reference_targets == (("1.1.1.1", 443), ("::1", 8443))


def test_urls_and_secrets_of_channels_are_known_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        TWO + "notify: {ops: {type: webhook, url: 'https://h/PLANTED', secret: sh0rt}}\n"
    )
    config = load(path, {})
    assert {"https://h/PLANTED", "sh0rt"} <= config.secrets()
    assert "PLANTED" not in repr(config)
    assert "sh0rt" not in repr(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "notify: {x: {type: slack, url: 'https://PLANTED'}}",
            "notify.x.type: this value, expected one of webhook, alertmanager, apprise",
        ),
        (
            "notify: {x: {type: webhook, url: PLANTED}}",
            "notify.x.url: not a URL, expected the URL of a receiver",
        ),
        (
            "notify: {x: {type: webhook, url: 'slack://PLANTED'}}",
            "notify.x.url: another kind of URL, expected http:// or https://",
        ),
        ("alerts: {down_after: 0}", "alerts.down_after: this value, expected at least 1"),
        (
            "alerts: {offf: [Down]}",
            "alerts.offf: unknown key, expected a known one (did you mean off?)",
        ),
        (
            "maintenance: {n: {at: '25:00', for: 1h}}",
            "maintenance.n.at: '25:00', expected a time of day such as 02:30",
        ),
        (
            "maintenance: {n: {at: '02:00', for: 1h, zone: Mars/Olympus}}",
            "maintenance.n.zone: 'Mars/Olympus', expected an IANA zone such as Europe/Berlin",
        ),
        (
            "maintenance: {n: {at: '02:00'}}",
            "maintenance.n: not a window, expected every, at and for, or from and until",
        ),
        (
            "maintenance: {n: {from: 2026-12-02T00:00, until: 2026-12-01T00:00}}",
            "maintenance.n: a window of this length, expected up to 31 days",
        ),
        (
            "maintenance: {n: {at: '02:00', for: 1h, endpoints: [c]}}",
            "maintenance.n.endpoints[0]: matches no endpoint, expected one of a, b",
        ),
        (
            "references: [example.com]",
            "references[0]: 'example.com', expected host:port such as one.one.one.one:443",
        ),
    ],
)
def test_each_problem_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(tmp_path, text + "\n")
    assert found == [expected]
    assert "PLANTED" not in str(found)
