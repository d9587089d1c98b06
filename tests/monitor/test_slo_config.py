from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from monitor.config import Config, load
from monitor.config.slos import slo_doubts
from monitor.slo import Indicator, Month, Slices, Slo

LLAMA = "endpoints:\n  llama:\n    url: http://127.0.0.1:8000\n    model: llama-3.1-8b\n"
DAY_S = 86_400.0

Load = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    def write_and_load(content: str, environ: Mapping[str, str] | None = None) -> Config:
        path = tmp_path / "monitor.yaml"
        path.write_text(content, encoding="utf-8")
        return load(path, environ or {})

    return write_and_load


def slos(read: Load, text: str) -> Mapping[str, Slo]:
    return read(f"{LLAMA}slos:\n  a: {{{text}}}\n").slos


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("", Slo(name="a", objective=0.99, window=30 * DAY_S)),
        ("objective: 99.95, window: 7d", Slo(name="a", objective=0.9995, window=7 * DAY_S)),
        ("window: month", Slo(name="a", window=Month(zone="UTC"))),
        (
            "window: month, zone: Europe/Berlin",
            Slo(name="a", window=Month(zone="Europe/Berlin")),
        ),
        (
            "ttfat: 3s, count_429: bad",
            Slo(
                name="a",
                indicator=Indicator.LATENCY,
                metric="ttfat",
                threshold=3.0,
                count_429=True,
            ),
        ),
        ("indicator: correctness", Slo(name="a", indicator=Indicator.CORRECTNESS)),
        (
            "consistency: 3",
            Slo(name="a", indicator=Indicator.CONSISTENCY, metric="ttft", threshold=3.0),
        ),
        (
            "slices: {every: 5m, target: 95}",
            Slo(name="a", slices=Slices(seconds=300, target=0.95)),
        ),
        (
            "endpoints: [ll*], workloads: [chat]",
            Slo(name="a", endpoints=("ll*",), workloads=("chat",)),
        ),
    ],
)
def test_an_slo_is_what_the_file_says(text: str, slo: Slo, read: Load) -> None:
    assert slos(read, text) == {"a": slo}


def test_a_preset_makes_one_slo_a_metric_and_takes_objective_and_window(read: Load) -> None:
    found = slos(read, "preset: limits-llama-3.1-8b-interactive, objective: 95, window: 1d")
    assert [(s.name, s.metric, s.threshold) for s in found.values()] == [
        ("a-ttft", "ttft", 0.5),
        ("a-tpot", "tpot", 0.03),
    ]
    assert {(s.objective, s.window) for s in found.values()} == {(0.95, DAY_S)}


def test_an_endpoints_own_slo_takes_the_place_of_the_common_one(read: Load) -> None:
    config = read(LLAMA + "    slos: {a: {objective: 95}, b: {}}\nslos: {a: {}, c: {}}\n")
    chat = next(probe for probe in config.probes if probe.workload.name == "chat")
    assert [(slo.name, slo.objective) for slo in config.slos_of(chat)] == [
        ("a", 0.95),
        ("c", 0.99),
        ("b", 0.99),
    ]


def test_without_slos_there_are_none_and_listing_models_has_none(read: Load) -> None:
    assert [read(LLAMA).slos_of(probe) for probe in read(LLAMA).probes] == [(), ()]
    config = read(LLAMA + "slos: {a: {}}\n")
    assert {p.workload.name: len(config.slos_of(p)) for p in config.probes} == {
        "chat": 1,
        "models": 0,
    }


def test_thresholds_are_gathered_for_the_histograms(read: Load) -> None:
    content = LLAMA + "    slos: {a: {ttft: 3s}}\nslos: {b: {ttft: 700ms}, c: {tpot: 50ms}}\n"
    assert read(content).thresholds() == {"ttft": (0.7, 3.0), "tpot": (0.05,)}


def test_the_environment_overrides_an_objective(read: Load) -> None:
    content = LLAMA + "    slos: {own: {}}\nslos: {a: {}}\n"
    environ = {
        "ENDPOINT_MONITOR__SLOS__A__OBJECTIVE": "99.5",
        "ENDPOINT_MONITOR__ENDPOINTS__LLAMA__SLOS__OWN__OBJECTIVE": "98",
    }
    config = read(content, environ)
    assert config.slos["a"].objective == 0.995
    assert config.endpoints["llama"].slos["own"].objective == 0.98


# --- doubts --------------------------------------------------------------------------------------


def doubts(read: Load, slo: str, more: str = "") -> list[str]:
    config = read(f"{LLAMA}slos: {{a: {{window: 7d, {slo}}}}}\n{more}")
    return [text.removeprefix("llama/chat: SLO a: ") for text in slo_doubts(config)]


def test_a_usual_slo_raises_no_doubt(read: Load) -> None:
    assert doubts(read, "objective: 99.9") == []


def test_an_alert_that_can_never_fire_is_told(read: Load) -> None:
    assert doubts(read, "objective: 90") == [
        "its alert over 1h/5m can never fire or hardly: it asks for more than 144% bad results"
    ]
    [text] = doubts(read, "objective: 100")
    assert text.startswith("its alert over 1h/5m, 6h/30m, 1d/2h, 3d/6h can never fire or hardly: ")
    assert text.endswith("an objective of 100 % has no error budget")


def test_a_schedule_too_thin_is_told(read: Load) -> None:
    budget, *alerts = doubts(read, "objective: 99.9", "workloads: {chat: {interval: 30m}}\n")
    assert budget == "its budget is 0.34 of one bad result in its window"
    assert alerts == [
        "its alert over 1h/5m can never fire or hardly: 5m holds fewer than two results",
        "its alert over 6h/30m can never fire or hardly: 30m holds fewer than two results",
    ]


def test_a_threshold_above_the_limit_is_told(read: Load) -> None:
    [text] = doubts(read, "ttft: 30s")
    assert text.startswith("its threshold of 30 s is not below the limit of 20 s")


def test_a_window_longer_than_what_is_kept_is_told(read: Load) -> None:
    config = read(LLAMA + "slos: {a: {}}\n")
    assert list(slo_doubts(config)) == [
        "llama/chat: SLO a: a restart finds only the 14 days of results that retention keeps"
    ]


def test_too_few_results_for_a_p99_are_told(read: Load) -> None:
    [text] = doubts(read, "consistency: 3", "workloads: {chat: {interval: 6h}}\n")
    assert text == "28 results in its window are too few for a p99"


def test_an_slo_that_no_probe_has_is_told(read: Load) -> None:
    found = doubts(read, "workloads: [models]", "workloads: {models: {}, chat: {}}\n")
    assert found == []
    content = LLAMA + "slos: {a: {}}\nworkloads: {models: {}}\n"
    assert list(slo_doubts(read(content))) == ["SLO a: no probe has it"]


def test_a_time_that_a_workload_does_not_have_is_told(read: Load) -> None:
    config = read(LLAMA + "slos: {a: {window: 7d, ttft: 1s}}\nworkloads: {embeddings: {}}\n")
    assert list(slo_doubts(config)) == [
        "llama/embeddings: SLO a: a embeddings workload has no ttft, so only failures count"
    ]
