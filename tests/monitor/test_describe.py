import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.config import Config, load
from monitor.describe import (
    Forecast,
    describe,
    effective,
    forecast,
    span,
    starter,
    third_bad,
    warnings,
)

LOCAL = "endpoints:\n  llama:\n    url: http://127.0.0.1:8000\n    model: llama-3.1-8b\n"

Load = Callable[[str], Config]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    def write_and_load(content: str) -> Config:
        path = tmp_path / "monitor.yaml"
        path.write_text(content, encoding="utf-8")
        return load(path, {"PATH": os.environ["PATH"]})

    return write_and_load


def forecasts(config: Config) -> dict[str, Forecast]:
    return {probe.id: forecast(probe) for probe in config.probes}


# --- what it costs -------------------------------------------------------------------------------


def test_a_chat_probe_costs_at_most_its_prompt_and_its_limit(read: Load) -> None:
    price = "    price: {input_per_million: 2.5, output_per_million: 10}\n"
    found = forecasts(read(LOCAL + price))["llama/chat"]
    assert found.requests == 288  # a priced endpoint is asked every 300 s
    assert found.tokens == 288 * (100 + 64)
    assert found.money == pytest.approx(288 * (100 * 2.5 + 64 * 10) / 1e6)


def test_a_models_probe_costs_nothing(read: Load) -> None:
    priced = forecasts(read(LOCAL + "    price: {input_per_million: 2.5}\n"))["llama/models"]
    assert (priced.requests, priced.tokens, priced.money) == (1440, 0, 0)


def test_without_a_price_the_money_is_unknown(read: Load) -> None:
    assert {f.money for f in forecasts(read(LOCAL)).values()} == {None}
    half = forecasts(read(LOCAL + "    price: {input_per_million: 2.5}\n"))["llama/chat"]
    assert half.money is None


@pytest.mark.parametrize(
    ("workload", "per_request"),
    [
        ("kind: chat, max_tokens: null", None),
        ("kind: transcription", None),
        ("kind: embeddings", 100),
        ("kind: rerank, input_tokens: 7", 7),
        ("kind: completions, max_tokens: 1", 101),
        ("kind: chat, prompt: 'äöü 123456'", 5 + 64),  # 13 bytes
        ("kind: chat, system: be brief", 100 + 3 + 64),
    ],
)
def test_tokens_of_a_request(workload: str, per_request: int | None, read: Load) -> None:
    config = read(LOCAL + f"workloads: {{w: {{interval: 1d, {workload}}}}}\n")
    assert forecasts(config)["llama/w"].tokens == per_request


@pytest.mark.parametrize(
    ("interval", "limits", "best", "worst", "hanging"),
    [
        ("60s", "", 120, 180, 60 + 120 + 20),  # the limit ends within the interval
        ("15s", "", 30, 45, 15 + 60 + 20),  # every second slot falls into the limit
        ("20s", "", 40, 60, 20 + 80 + 20),  # a limit as long as the interval costs a slot too
        ("60s", "connect: 30s, ttft: 5s", 120, 180, 60 + 120 + 30),
        ("60s", "ttft: 50s, total: 7s, connect: 1s", 120, 180, 60 + 120 + 7),
    ],
)
def test_time_to_page_is_three_bad_results(
    interval: str, limits: str, best: float, worst: float, hanging: float, read: Load
) -> None:
    config = read(LOCAL + f"workloads: {{chat: {{interval: {interval}, limits: {{{limits}}}}}}}\n")
    found = forecasts(config)["llama/chat"]
    assert (found.page_best, found.page_worst, found.page_hanging) == (best, worst, hanging)


@pytest.mark.parametrize(
    ("interval", "takes", "confirm", "seconds"),
    [
        (60.0, 0.0, 10.0, 20.0),  # refused: two confirmations
        (15.0, 0.0, 10.0, 15.0),  # a confirmation at 10, a slot at 15
        (5.0, 0.0, 10.0, 10.0),  # slots come sooner than confirmations
        (60.0, 20.0, 10.0, 80.0),  # hangs: 0 to 20, 30 to 50, 60 to 80
        (3600.0, 20.0, 10.0, 80.0),
        (60.0, 20.0, None, 140.0),
    ],
)
def test_confirmations_bring_the_third_bad_result_forward(
    interval: float, takes: float, confirm: float | None, seconds: float
) -> None:
    assert third_bad(interval, takes, confirm) == seconds


# --- warnings ------------------------------------------------------------------------------------


def test_the_defaults_stay_within_the_budget(read: Load) -> None:
    assert warnings(read(LOCAL)) == ()


def test_more_tokens_than_the_budget_are_a_warning(read: Load) -> None:
    content = LOCAL + "workloads: {chat: {interval: 30s}, b: {kind: chat, interval: 1h}}\n"
    assert warnings(read(content)) == (
        "llama: up to 476,256 tokens a day, over its budget of 250,000",
    )
    assert "\nwarning: llama: up to 476,256 tokens" in describe(read(content))


def test_more_money_than_the_budget_is_a_warning(read: Load) -> None:
    content = LOCAL + (
        "    price: {input_per_million: 1000, output_per_million: 1000, currency: EUR}\n"
        "    budget: {money: 5}\n"
    )
    assert warnings(read(content)) == ("llama: up to 47.23 EUR a day, over its budget of 5.00",)


def test_an_endpoint_that_nothing_runs_on_is_a_warning(read: Load) -> None:
    content = LOCAL + "  other: {url: http://127.0.0.1}\nworkloads: {chat: {endpoints: [llama]}}\n"
    assert [text.partition(",")[0] for text in warnings(read(content))] == [
        "other: no workload runs on this endpoint"
    ]


# --- the text of check ---------------------------------------------------------------------------


def test_check_shows_each_probe_and_a_total(read: Load) -> None:
    table = describe(read(LOCAL)).splitlines()[-4:]
    assert [line.split() for line in table[1:]] == [
        ["llama/chat", "1m", "1,440", "236,160", "7,084,800", "-", "-", "2m", "3m", "200s"],
        ["llama/models", "15s", "5,760", "0", "0", "-", "-", "30s", "45s", "95s"],
        ["total", "7,200", "236,160", "7,084,800", "-", "-"],
    ]
    assert table[0].split()[:4] == ["probe", "every", "requests/day", "tokens/day"]


def test_totals_of_two_currencies_stay_apart_and_mark_what_is_unknown(read: Load) -> None:
    price = "price: {input_per_million: 100, output_per_million: 100"
    content = (
        "endpoints:\n"
        f"  a: {{url: http://a, {price}}}}}\n"
        f"  b: {{url: http://b, {price}, currency: EUR}}}}\n"
        "workloads: {chat: {}, long: {kind: chat, max_tokens: null, endpoints: [a]}}\n"
    )
    totals = [line.split() for line in describe(read(content)).splitlines()[-2:]]
    assert totals == [
        ["total", "576", "47,232+", "1,416,960+", "4.72", "USD+", "141.70", "USD+"],
        ["total", "288", "47,232", "1,416,960", "4.72", "EUR", "141.70", "EUR"],
    ]


def test_no_secret_is_in_the_text(read: Load) -> None:
    content = (
        "store: postgresql://me:sk-PLANTED@db/m\n"
        "notify: {ops: {type: webhook, url: https://hooks/sk-PLANTED/x, secret: sk-PLANTED}}\n"
        "alerts: {page_url: https://hooks/sk-PLANTED/y}\n"
        + LOCAL.replace("127.0.0.1:8000", "127.0.0.1:8000/sk-PLANTED/v1")
        + "    api_key: sk-PLANTED\n"
        "    headers: {X-A: 'b sk-PLANTED', X-B: c}\n"
        "    proxy: http://u:sk-PLANTED@proxy\n"
        "    labels: {note: was sk-PLANTED once}\n"
        "  by-command: {url: http://b, api_key_command: echo sk-PLANTED-2}\n"
        "workloads: {chat: {prompt: my sk-PLANTED, extra: {user: sk-PLANTED, sk-PLANTED: 1}}}\n"
    )
    config = read(content)
    assert "PLANTED" not in describe(config) + effective(config)
    assert 'X-A: "***"' in effective(config)
    assert 'note: "was *** once"' in effective(config)


def test_a_short_secret_does_not_blot_out_other_words(read: Load) -> None:
    store = "store: postgresql://me:pw@db/m\n"
    text = effective(read(store + LOCAL + "    headers: {X-Team: chat, X-N: a}\n"))
    assert '\nstore: "postgresql://me:***@db/m"\n' in text
    assert "  chat:\n" in text
    assert "url: http://127.0.0.1:8000/v1\n" in text


def test_own_prompts_are_not_printed(read: Load) -> None:
    content = LOCAL + "workloads: {chat: {prompt: who am I, system: a secret order}}\n"
    text = describe(read(content))
    assert 'prompt: "(8 characters of your own)"' in text
    assert "secret order" not in text


def test_the_effective_configuration_loads_as_itself(read: Load, tmp_path: Path) -> None:
    content = (
        "site: fra-1\nlisten: '[::1]:0'\nretention: {results: 36h}\n"
        "slos: {a: {objective: 99.9, window: 7d},"
        " m: {window: month, zone: Europe/Berlin, count_429: bad},"
        " t: {ttft: 1500ms, slices: {every: 5m, target: 95}, endpoints: ['*'], workloads: [chat]},"
        " r: {indicator: rate_limited}, d: {consistency: 3.5, metric: e2e},"
        " p: {preset: limits-llama-3.1-8b-server}}\n"
        "maintenance: [{at: '02:00', for: 90m, every: [saturday, sunday]}]\n"
        + LOCAL
        + "    token_param: null\n    release: '1.10'\n"
        "    labels: {a: '$${x}', b: 'null', c: 'a: b'}\n"
        "    system: {accelerators: 8, memory: 'ü 🙂'}\n    load: {allow: yes, duration: 90s}\n"
        "    price: {input_per_million: 2.5}\n    id: other\n    expected_model: '*-8b'\n"
        "workloads:\n"
        "  chat: {interval: 5m, max_tokens: null, limits: {ttft: 1500ms}, check: {equals: '42'},\n"
        "         extra: {stop: ['1', 2, {a: 'no'}], x: '5', t: 0.1, n: [null]}}\n"
    )  # fmt: skip
    first = read(content)
    second = read(effective(first).replace("kind: chat\n", "kind: chat\n    interval: 5m\n"))
    assert second == first
    assert effective(second) == effective(first)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500ms"),
        (1, "1s"),
        (90, "90s"),
        (60, "1m"),
        (3600, "1h"),
        (86400, "1d"),
        (1.5, "1.5s"),
    ],
)
def test_a_duration_is_written_as_the_configuration_reads_it(seconds: float, text: str) -> None:
    assert span(seconds) == text


# --- the first file ------------------------------------------------------------------------------


def meaningful(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")
    ]


def test_the_first_file_is_short_and_valid_without_arguments(read: Load) -> None:
    assert len(meaningful(starter())) <= 8
    assert [probe.id for probe in read(starter()).probes] == [
        "llama-3.1-8b/chat",
        "llama-3.1-8b/models",
    ]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(min_size=1, max_size=200).filter(str.isprintable))
def test_the_first_file_is_valid_for_any_model(read: Load, model: str) -> None:
    text = starter("http://h:8000/v1", model)
    assert len(meaningful(text)) <= 8
    [config] = read(text).endpoints.values()
    assert (config.endpoint.model, config.endpoint.url) == (model, "http://h:8000/v1")
