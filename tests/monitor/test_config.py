import os
import random
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probes
from monitor import link
from monitor.config import DEFAULTS, KINDS, Config, ConfigError, is_public, keyring, load, schema
from monitor.config.source import MAX_BYTES, plain, text
from monitor.slo import Slo
from probes.endpoint import Auth, Inline
from probes.workload import Cache, Check, Connection, Limits

DATA = Path(__file__).parent.parent / "data" / "config"
BAD_FILES = sorted(path.stem for path in DATA.glob("*.yaml"))
ENVIRON = {
    "HERE": "here",
    "SECRET": "sk-PLANTED-in-environment",
    "PATH": os.environ["PATH"],
}
LLAMA = "endpoints:\n  llama:\n    url: http://127.0.0.1:8000\n    model: llama-3.1-8b\n"

Load = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    """Write a file and load it, with `environ` as the whole environment."""

    def write_and_load(content: str | bytes, environ: Mapping[str, str] | None = None) -> Config:
        path = tmp_path / "monitor.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, ENVIRON if environ is None else environ)

    return write_and_load


def problems(read: Load, content: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(content, environ)
    return [re.sub(r"^\S*/(?=monitor\.yaml)", "", str(p)) for p in caught.value.problems]


def intervals(config: Config) -> dict[str, float]:
    return {probe.id: probe.interval for probe in config.probes}


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_gives_exactly_its_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)
    expected = Path(f"{name}.error").read_text(encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(f"{name}.yaml", ENVIRON)
    assert f"{caught.value}\n" == expected
    shown = "".join(traceback.format_exception(caught.value))
    assert "PLANTED" not in shown
    assert expected.count("\n") == len(caught.value.problems)


def test_every_bad_file_has_a_message_and_every_message_a_file() -> None:
    assert sorted(path.stem for path in DATA.glob("*.error")) == BAD_FILES


def test_every_line_says_what_was_expected() -> None:
    for name in BAD_FILES:
        for line in (DATA / f"{name}.error").read_text(encoding="utf-8").splitlines():
            where, _, rest = line.partition(": ")
            assert where.startswith(f"{name}.yaml:"), line
            assert "expect" in rest, line


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "file not found, expected a configuration file"),
        (Path.mkdir, "is a directory, expected a configuration file"),
        (
            lambda path: path.symlink_to("/proc/self/mem"),
            "cannot be read (Input/output error), expected a configuration file",
        ),
        (
            lambda path: path.symlink_to(path),
            "cannot be read (Too many levels of symbolic links), expected a configuration file",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    make: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.touch(mode=0)
    with pytest.raises(
        ConfigError, match=r"x\.yaml: permission denied, expected a readable file$"
    ):
        load(path, {})


def test_a_path_that_no_file_can_have_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^a\\x00b: cannot be read \(bad path\)"):
        load("a\0b", {})


def test_ten_megabytes_are_refused_before_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(LLAMA.encode() + b"#" * (10 << 20))

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(yaml, "parse", never)
    with pytest.raises(ConfigError, match=r"x\.yaml: larger than 1 MiB, expected a configuration"):
        load(path, {})


def test_a_file_of_just_the_limit_is_read(read: Load) -> None:
    assert read(LLAMA + "#" * (MAX_BYTES - len(LLAMA))).endpoints


def test_a_megabyte_of_brackets_or_values_takes_no_time(read: Load) -> None:
    for content in ("[" * MAX_BYTES, "[" + "1," * (MAX_BYTES // 2 - 2) + "]", "- " * 500_000):
        began = time.monotonic()
        assert len(problems(read, content)) == 1
        assert time.monotonic() - began < 5


def test_all_problems_of_file_and_environment_are_reported_together(read: Load) -> None:
    content = LLAMA + "    auth: x\nworkloads:\n  chat: {interval: 1}\n  b: {}\nsite: a b\n"
    environ = {"ENDPOINT_MONITOR__SEED": "x", "ENDPOINT_MONITOR__ENDPOINT": "x"}
    found = problems(read, content, environ)
    assert [line.partition(" ")[0].rstrip(":") for line in found] == [
        "monitor.yaml:5",
        "monitor.yaml:7",
        "monitor.yaml:8",
        "monitor.yaml:9",
        "ENDPOINT_MONITOR__ENDPOINT",
        "ENDPOINT_MONITOR__SEED",
    ]


_SECTIONS: list[type[schema.Section]] = [
    *schema.NAMED.values(),
    schema.RootSection,
    schema.Limits,
    schema.Check,
    schema.Price,
    schema.System,
    schema.Budget,
    schema.LoadCaps,
]
_KNOWN = {key for section in _SECTIONS for key in schema.keys(section)} | {"llama", "chat", "<<"}
_KEYS = st.sampled_from(sorted(_KNOWN - {"api_key_command"}))  # it would be run
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["60s", "http://[::1]", "${HERE}", "$$", "${", "chat", "*", "1:2", "allow"]),
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)
_QUICK = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def outcome(read: Load, content: str | bytes, environ: Mapping[str, str] | None = None) -> str:
    """Return the lines of the problems, empty without any; nothing else may be raised."""
    try:
        read(content, environ)
    except ConfigError as exc:
        return "".join(f"{problem}\n" for problem in exc.problems) or "no problem?"
    return ""


def loads_or_explains(
    read: Load, content: bytes, environ: Mapping[str, str] | None = None
) -> None:
    told = outcome(read, content, environ)
    assert not told or all(line.isprintable() and line for line in told[:-1].split("\n"))


@_QUICK
@given(st.binary())
def test_any_bytes_load_or_are_explained(read: Load, content: bytes) -> None:
    loads_or_explains(read, content)


@_QUICK
@given(st.text(), st.integers(0, len(LLAMA)), st.integers(0, 5))
def test_any_edit_of_a_good_file_loads_or_is_explained(
    read: Load, edit: str, at: int, cut: int
) -> None:
    loads_or_explains(read, (LLAMA[:at] + edit + LLAMA[at + cut :]).encode(errors="replace"))


@_QUICK
@given(st.dictionaries(_KEYS, _TREES), st.dictionaries(_KEYS, _TREES), _TREES)
def test_any_values_of_known_keys_load_or_are_explained(
    read: Load, root: dict[str, Any], endpoint: dict[str, Any], workload: Any
) -> None:
    good = {"url": "http://127.0.0.1"}
    tree = root | {"endpoints": {"a": good | endpoint, "b": good}, "workloads": {"chat": workload}}
    loads_or_explains(read, yaml.safe_dump(tree).encode())


@_QUICK
@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_environment_loads_or_is_explained(read: Load, found: dict[str, str]) -> None:
    environ = {f"ENDPOINT_MONITOR__{key}": value for key, value in found.items()}
    environ |= {f"ENDPOINT_MONITOR__ENDPOINTS__LLAMA__{k}": v for k, v in found.items()}
    environ.pop("ENDPOINT_MONITOR__ENDPOINTS__LLAMA__API_KEY_COMMAND", None)
    loads_or_explains(read, LLAMA.encode(), environ)


# --- secrets -------------------------------------------------------------------------------------

PLANTED = "sk-PLANTED-0123456789"


@pytest.mark.parametrize(
    "where",
    [
        "api_key: sk-PLANTED-0123456789",
        "api_key: ${SECRET}",
        "api_key_command: echo sk-PLANTED-0123456789",
        "api_key_command: printf 'sk-PLANTED-0123456789\\n'",
        "headers: {X-Key: sk-PLANTED-0123456789}",
        "proxy: http://user:sk-PLANTED-0123456789@proxy:3128",
    ],
)
def test_a_secret_is_kept_and_never_shown(where: str, read: Load) -> None:
    config = read(f"{LLAMA}    {where}\n", ENVIRON | {"SECRET": PLANTED})
    assert PLANTED in config.secrets()
    assert any(PLANTED in secret for secret in config.endpoints["llama"].endpoint.secrets())
    for shown in (repr(config), str(config.endpoints), repr(config.plan()), repr(config.probes)):
        assert "PLANTED" not in shown


def test_secrets_of_store_and_notifications_are_known_and_not_shown(read: Load) -> None:
    store = f"store: postgresql://me:{PLANTED}%40@db/m\n"
    notify = f"notify: {{ops: {{url: 'https://hooks/{PLANTED}', type: webhook}}}}\n"
    config = read(LLAMA + store + notify)
    assert {f"{PLANTED}@", f"{PLANTED}%40", f"https://hooks/{PLANTED}"} == config.secrets()
    assert "PLANTED" not in repr(config)


@pytest.mark.parametrize(
    "bad", [PLANTED + " x", f"[{PLANTED}]", f"{{{PLANTED}: 1}}", f'"{PLANTED}\\n\\n{PLANTED}"']
)
@pytest.mark.parametrize("key", ["api_key", "auth", "proxy", "api_key_command", "headers", "url"])
def test_a_bad_value_of_a_secret_key_is_not_repeated(key: str, bad: str, read: Load) -> None:
    head = LLAMA.replace("    url: http://127.0.0.1:8000\n", "") if key == "url" else LLAMA
    told = outcome(read, f"{head}    {key}: {bad}\n")
    assert PLANTED not in told.replace(f"headers.{PLANTED}", "")  # a header's name is no secret


def test_an_override_is_not_repeated(read: Load) -> None:
    names = "CONCURRENCY SITE ENDPOINTS__LLAMA__AUTH ENDPOINTS__LLAMA__ID ENDPOINTS__LLAMA__URL"
    for name in names.split():
        found = problems(read, LLAMA, {f"ENDPOINT_MONITOR__{name}": f"{PLANTED} x"})
        assert len(found) == 1
        assert found[0].startswith(f"ENDPOINT_MONITOR__{name} ")
        assert "PLANTED" not in found[0]


# --- keys ----------------------------------------------------------------------------------------


def test_the_line_end_of_a_key_file_is_no_part_of_the_key(read: Load, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    config = read(LLAMA + "    api_key_file: key\n")
    assert config.endpoints["llama"].endpoint.api_key == "sk-1"


def test_a_command_of_two_endpoints_runs_once(read: Load, tmp_path: Path) -> None:
    line = "    api_key_command: sh -c 'echo x >> ran; echo sk-1'\n"
    config = read(f"{LLAMA}{line}  other:\n    url: http://127.0.0.1\n{line}")
    assert [e.endpoint.api_key for e in config.endpoints.values()] == ["sk-1", "sk-1"]
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_command_has_no_shell(read: Load) -> None:
    config = read(LLAMA + "    api_key_command: echo $HOME;id\n")
    assert config.endpoints["llama"].endpoint.api_key == "$HOME;id"


def test_a_command_that_hangs_is_ended_with_its_children(
    read: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "COMMAND_SECONDS", 0.2)
    began = time.monotonic()
    found = problems(read, LLAMA + "    api_key_command: sh -c 'sleep 60 & sleep 60; echo x'\n")
    assert time.monotonic() - began < 5
    assert "no end within 0.2 s, expected a command that prints the key" in found[0]


def test_complaints_of_a_command_are_not_shown(
    read: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    problems(read, LLAMA + "    api_key_command: sh -c 'echo PLANTED >&2; exit 1'\n")
    assert capfd.readouterr() == ("", "")


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("https://host/openai/deployments/a/", "https://host/openai/deployments/a"),
    ],
)
def test_the_base_url_is_normalised(given: str, url: str, read: Load) -> None:
    config = read(f"endpoints: {{a: {{url: '{given}'}}}}")
    assert config.endpoints["a"].endpoint.url == url


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1.10", 1.1),
        ("1e-1", 0.1),
        ("-3", -3),
        ("007", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-10-21", "2024-10-21"),
        ("1_000", "1_000"),
        ("null", "null"),
        ("", ""),
    ],
)
def test_free_values_follow_the_core_schema_of_yaml_1_2(written: str, value: object) -> None:
    found = plain([text(written, bare=True)])[0]
    assert (found, type(found)) == (value, type(value))
    assert plain(text(written)) == written


def test_texts_keep_their_spelling(read: Load) -> None:
    content = LLAMA.replace("llama-3.1-8b", "1.10")
    config = read(
        content + "    release: 1.10\n    api_version: 2024-10-21\n    labels: {a: no}\n"
    )
    llama = config.endpoints["llama"]
    assert (llama.release, llama.endpoint.api_version) == ("1.10", "2024-10-21")
    assert (llama.endpoint.model, llama.labels) == ("1.10", {"a": "no"})


def test_names_keep_their_spelling(read: Load) -> None:
    content = "endpoints:\n" + "".join(f"  {n}: {{url: http://h}}\n" for n in ("no", "70", "null"))
    assert list(read(content).endpoints) == ["no", "70", "null"]


def test_variables_are_expanded_in_values_only(read: Load) -> None:
    content = "    labels: {HERE: '${HERE}', b: '$HERE $${HERE} a$$b $', c: 'x-${HERE}-${HERE}'}\n"
    labels = read(LLAMA + content).endpoints["llama"].labels
    assert labels == {"HERE": "here", "b": "$HERE ${HERE} a$b $", "c": "x-here-here"}


def test_a_variable_can_hold_a_number(read: Load) -> None:
    content = LLAMA + "concurrency: ${N}\nworkloads: {chat: {max_tokens: '${N}', stream: '${B}'}}"
    config = read(content, {"N": "7", "B": "false"})
    workload = config.probes[0].workload
    assert (config.concurrency, workload.max_tokens, workload.stream) == (7, 7, False)


def test_a_variable_is_not_expanded_twice_and_makes_no_structure(read: Load) -> None:
    config = read(LLAMA + "    release: ${A}\n", {"A": "${B}: {x: 1} # $$"})
    assert config.endpoints["llama"].release == "${B}: {x: 1} # $$"


def test_bytes_of_the_environment_that_are_no_text_are_named(read: Load) -> None:
    environ = {"A": "\udcff", "ENDPOINT_MONITOR__SITE": "\udcff"}
    assert problems(read, LLAMA + "    release: ${A}\n", environ) == [
        "monitor.yaml:5 endpoints.llama.release: variable A is not UTF-8, expected UTF-8 text",
        "ENDPOINT_MONITOR__SITE: not UTF-8, expected UTF-8 text",
    ]


def test_anchors_and_merges_work_and_own_keys_win(read: Load) -> None:
    content = (
        "endpoints:\n"
        "  a: &a {url: http://127.0.0.1, release: x, labels: &l {owner: me}}\n"
        "  b: {<<: *a, release: y}\n"
        "  c: {<<: [{release: z}, *a], labels: *l}\n"
    )
    found = read(content).endpoints
    assert [found[n].release for n in "abc"] == ["x", "y", "z"]
    assert [found[n].owner for n in "abc"] == ["me"] * 3


def test_a_merged_mistake_is_shown_where_it_is_written(read: Load) -> None:
    content = "endpoints:\n  a: &a\n    url: http://127.0.0.1\n    relase: x\n  b:\n    <<: *a\n"
    assert [line.partition(":")[2][:24] for line in problems(read, content)] == [
        "4 endpoints.a.relase: un",
        "4 endpoints.b.relase: un",
    ]


def test_a_byte_order_mark_and_windows_lines_are_read(read: Load) -> None:
    assert read(b"\xef\xbb\xbf" + LLAMA.replace("\n", "\r\n").encode()).endpoints


def test_a_configuration_cannot_be_changed(read: Load) -> None:
    config = read(LLAMA)
    with pytest.raises(FrozenInstanceError):
        config.site = "x"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        config.endpoints["llama"].price.currency = "EUR"


# --- defaults and plan ---------------------------------------------------------------------------


def test_four_lines_give_two_probes_and_every_default(read: Load, tmp_path: Path) -> None:
    config = read(LLAMA)
    assert intervals(config) == {"llama/chat": 60.0, "llama/models": 15.0}
    chat, models = (probe.workload for probe in config.probes)
    assert (chat.kind, chat.input_tokens, chat.max_tokens, chat.limits) == (
        "chat",
        100,
        64,
        Limits(connect=10.0, ttft=20.0, stall=10.0, total=45.0),
    )
    assert (models.kind, models.max_tokens) == ("models", None)
    assert config.store_url == f"sqlite:///{tmp_path}/endpoint-monitor.db"
    assert config.listen == ("127.0.0.1", 8844)
    assert config.plan() == link.Plan(probes=config.probes, seed=0, site="local", concurrency=64)
    assert config.endpoints["llama"].budget.tokens == 250_000
    assert config.source == tmp_path / "monitor.yaml"
    assert config.secrets() == frozenset()


def test_the_plan_survives_the_wire(read: Load) -> None:
    content = LLAMA + "    headers: {a: b}\n    labels: {x: y}\n    auth: query\nworkloads:\n"
    content += "  chat: {extra: {a: [1, 2.5, true, null, {b: c}]}, check: {json: true}, seed: 7}\n"
    plan = read(content).plan()
    frame = link.encode(plan)
    assert link.decode_plan(frame[4:]) == plan


def test_a_priced_or_public_endpoint_is_asked_less_often(read: Load) -> None:
    content = (
        "endpoints:\n"
        "  public: {url: https://api.example.com}\n"
        "  priced: {url: http://10.0.0.1, price: {output_per_million: 1}}\n"
        "  owned: {url: http://10.0.0.1, price: {accelerator_hour: 2}}\n"
        "  free: {url: http://10.0.0.1, price: {input_per_million: 0}}\n"
    )
    assert intervals(read(content)) == {
        "public/chat": 300.0,
        "public/models": 60.0,
        "priced/chat": 300.0,
        "priced/models": 60.0,
        "owned/chat": 60.0,
        "owned/models": 15.0,
        "free/chat": 60.0,
        "free/models": 15.0,
    }


def test_a_given_interval_holds_everywhere_but_wakes_no_sleeper(read: Load) -> None:
    content = (
        "endpoints:\n"
        "  public: {url: https://api.example.com}\n"
        "  asleep: {url: http://10.0.0.1, scale_to_zero: true}\n"
        "workloads: {chat: {interval: 5s}, models: {}, slow: {kind: chat, interval: 1d}}\n"
    )
    assert intervals(read(content)) == {
        "public/chat": 5.0,
        "public/models": 60.0,
        "public/slow": 86400.0,
        "asleep/chat": 3600.0,
        "asleep/models": 3600.0,
        "asleep/slow": 86400.0,
    }


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("api.openai.com", True),
        ("8.8.8.8", True),
        ("[2606:4700::1]", True),
        ("[::ffff:8.8.8.8]", True),
        ("my.svcs.example.com", True),
        ("localhost", False),
        ("LOCALHOST.", False),
        ("vllm", False),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("169.254.1.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("[::1]", False),
        ("[fe80::1]", False),
        ("[fd00::1]", False),
        ("[::ffff:10.0.0.1]", False),
        ("gpu.local", False),
        ("gpu.corp.internal", False),
        ("vllm.models.svc", False),
        ("vllm.models.svc.cluster.local", False),
        ("vllm.models.svc.mine.example", False),
        ("nas.home.arpa", False),
    ],
)
def test_a_public_host_is_told_by_its_spelling(host: str, public: bool) -> None:
    assert is_public(f"http://{host}:8000/v1") is public


def test_workloads_run_on_the_endpoints_that_their_globs_name(read: Load) -> None:
    content = (
        "endpoints:\n"
        + "".join(f"  {n}: {{url: http://10.0.0.1}}\n" for n in ("a-1", "a-2", "b"))
        + "workloads:\n  chat: {endpoints: ['a-*']}\n  models:\n"
        + "  deep: {kind: chat, endpoints: [b, 'a-1']}\n"
    )
    assert list(intervals(read(content))) == [
        "a-1/chat",
        "a-1/models",
        "a-1/deep",
        "a-2/chat",
        "a-2/models",
        "b/models",
        "b/deep",
    ]


def test_an_id_outlives_a_new_name(read: Load) -> None:
    content = LLAMA + "    id: e1\nworkloads: {fast: {kind: chat, id: w1}}\n"
    assert [probe.id for probe in read(content).probes] == ["e1/w1"]


def test_an_id_cannot_be_the_name_of_another(read: Load) -> None:
    content = LLAMA + "  other: {url: http://10.0.0.1, id: llama}\n"
    assert "taken by llama, expected an id of its own" in problems(read, content)[0]


def test_a_workload_says_all_that_a_workload_can(read: Load) -> None:
    content = LLAMA + (
        "workloads:\n"
        "  w:\n"
        "    kind: responses\n"
        "    interval: 90s\n"
        "    input_tokens: 32000\n"
        "    max_tokens:\n"
        "    limits: {connect: 500ms, ttft: 1m, stall: 2s, total: 1h,\n"
        "             body_bytes: 4096, event_bytes: 2048}\n"
        "    cache: warm\n"
        "    connection: reuse\n"
        "    stream: no\n"
        "    prompt: |\n      two\n      lines\n"
        "    system: be brief\n"
        "    seed: 7\n"
        "    check: {contains: a, equals: 42, json: true}\n"
        "    extra: {temperature: 0, stop: ['1'], seed: null}\n"
    )
    probe = read(content).probes[0]
    w = probe.workload
    assert (probe.interval, w.name, w.kind, w.input_tokens) == (90.0, "w", "responses", 32000)
    assert w.max_tokens is None
    assert w.limits == Limits(
        connect=0.5, ttft=60.0, stall=2.0, total=3600.0, body_bytes=4096, event_bytes=2048
    )
    assert (w.cache, w.connection, w.stream) == (Cache.WARM, Connection.REUSE, False)
    assert (w.prompt, w.system, w.seed) == ("two\nlines\n", "be brief", 7)
    assert w.check == Check(contains="a", equals="42", json=True)
    assert w.extra == {"temperature": 0, "stop": ["1"], "seed": None}


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ("total: 5s", Limits(ttft=5.0, stall=5.0, total=5.0)),
        ("ttft: 2m", Limits(ttft=120.0, total=145.0)),
        ("ttft: 5s", Limits(ttft=5.0)),
        ("ttft: 2m, total: 1m", Limits(ttft=120.0, total=60.0)),
    ],
)
def test_a_default_limit_never_undercuts_a_given_one(
    given: str, limits: Limits, read: Load
) -> None:
    assert (
        read(f"{LLAMA}workloads: {{chat: {{limits: {{{given}}}}}}}").probes[0].workload.limits
        == limits
    )


def test_an_endpoint_says_all_that_an_endpoint_can(read: Load, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    content = LLAMA + (
        "    id: x\n"
        "    api_key: k\n"
        "    auth: api-key\n"
        "    auth_name: x-api-key\n"
        "    token_param: null\n"
        "    send_stream_options: false\n"
        "    api_version: 2024-10-21\n"
        "    headers: {X-A: b, X-N: 5}\n"
        "    proxy: http://u:p@proxy:3128\n"
        "    ca_file: ca.pem\n"
        "    expected_model: llama*\n"
        "    inline_reasoning: think\n"
        "    cumulative_content: true\n"
        "    labels: {vendor: v, region: r, owner: o}\n"
        "    severity: page\n"
        "    runbook_url: https://wiki/runbook\n"
        "    release: v1\n"
        "    budget: {tokens: 1000, money: 0.5}\n"
        "    scale_to_zero: yes\n"
        "    system: {accelerator: H100, accelerators: 8, racks: 0.5, memory: 640 GB,\n"
        "             precision: fp8, parallelism: tp8, power_kw: 10.2, software: vLLM 1.0,\n"
        "             status: available}\n"
        "    price: {input_per_million: 2.5, output_per_million: 10, accelerator_hour: 3,\n"
        "            currency: EUR}\n"
        "    load: {allow: true, concurrency: 8, rate: 2, tokens: 1000, money: 1, duration: 5m}\n"
        "    references: [1.1.1.1:53]\n"
        "    slos: {avail: {objective: 99.9}}\n"
        "    alerts: {down_after: 2, off: [NoData]}\n"
        "    maintenance: [{at: '02:00', for: 1h, zone: Europe/Berlin}]\n"
    )
    config = read(content).endpoints["llama"]
    e = config.endpoint
    assert (e.api_key, e.auth, e.auth_name, e.token_param) == (
        "k",
        Auth.API_KEY,
        "x-api-key",
        None,
    )
    assert (e.send_stream_options, e.api_version) == (False, "2024-10-21")
    assert (e.headers, e.proxy) == ({"X-A": "b", "X-N": "5"}, "http://u:p@proxy:3128")
    assert (e.ca_file, e.expected_model) == (str(tmp_path / "ca.pem"), "llama*")
    assert (e.inline_reasoning, e.cumulative_content) == (Inline.THINK, True)
    assert (e.price_input, e.price_output) == (2.5e-6, 10e-6)
    assert (config.id, config.owner, config.severity) == ("x", "o", "page")
    assert (config.runbook_url, config.release) == ("https://wiki/runbook", "v1")
    assert (config.budget.tokens, config.budget.money) == (1000, 0.5)
    assert (config.scale_to_zero, config.public, config.priced) == (True, False, True)
    assert (config.system.accelerators, config.system.power_kw) == (8, 10.2)
    assert (config.price.accelerator_hour, config.price.currency) == (3.0, "EUR")
    assert (config.load.allow, config.load.duration) == (True, 300.0)
    assert config.references == ["1.1.1.1:53"]
    assert config.slos == {"avail": Slo(name="avail", objective=0.999)}
    assert (config.alert_rules.down_after, set(config.alert_rules.off)) == (2, {"NoData"})
    assert config.maintenance == [{"at": "02:00", "for": "1h", "zone": "Europe/Berlin"}]


def test_short_forms_of_budget_and_load(read: Load) -> None:
    llama = read(LLAMA + "    budget: 5000\n    load: allow\n").endpoints["llama"]
    assert (llama.budget.tokens, llama.load.allow, llama.load.concurrency) == (5000, True, None)
    assert read(LLAMA + "    load: deny\n").endpoints["llama"].load.allow is False


def test_the_root_says_all_that_a_root_can(read: Load, tmp_path: Path) -> None:
    config = read(
        LLAMA + "site: fra-1\nseed: 9\nconcurrency: 5\nlisten: '[::]:0'\nstore: data/m.db\n"
        "retention: {results: 7d, days: 730d}\nalerting: prometheus\nreferences: {dns: 1.1.1.1}\n"
        "slos: {a: {}}\nalerts: {}\nmaintenance: []\nnotify: {ops: {type: webhook, url: https://h}}\n"
    )
    assert (config.site, config.seed, config.concurrency) == ("fra-1", 9, 5)
    assert config.listen == ("::", 0)
    assert config.store_url == f"sqlite:///{tmp_path}/data/m.db"
    assert (config.retention.results, config.retention.hours) == (7 * 86400.0, 400 * 86400.0)
    assert (config.alerting, config.references) == ("prometheus", {"dns": "1.1.1.1"})
    assert (config.slos, config.notify) == (
        {"a": Slo(name="a")},
        {"ops": {"type": "webhook", "url": "https://h"}},
    )
    assert {probe.workload.seed for probe in config.probes} == {9}


@pytest.mark.parametrize(
    "url", ["postgresql://db/m", "postgresql+asyncpg://u@db/m", "sqlite:////var/lib/m.db"]
)
def test_a_database_url_is_kept(url: str, read: Load) -> None:
    assert read(f"{LLAMA}store: {url}\n").store_url == url


def test_a_plan_too_large_for_the_wire_is_a_problem(read: Load) -> None:
    prompt = "x" * 700_000
    endpoints = "".join(f"  e{n}: {{url: http://10.0.0.1}}\n" for n in range(30))
    content = f"endpoints:\n{endpoints}workloads:\n  chat: {{prompt: {prompt}}}\n"
    [line] = problems(read, content)
    assert line.startswith(
        "monitor.yaml:1 endpoints: 20 MiB of probes, expected at most 16 MiB (a long prompt"
    )


def test_five_hundred_endpoints_load_in_a_moment(read: Load) -> None:
    lines = "    labels: {owner: me}\n    price: {input_per_million: 1, output_per_million: 2}\n"
    names = list(range(500))
    random.Random(1).shuffle(names)
    content = "endpoints:\n" + "".join(
        f"  e-{n}:\n    url: http://10.0.0.1:{n + 1000}\n{lines}" for n in names
    )
    began = time.monotonic()
    assert len(read(content).probes) == 1000
    assert time.monotonic() - began < 3


# --- overrides -----------------------------------------------------------------------------------


def test_a_variable_replaces_a_value_whatever_case_and_punctuation(read: Load) -> None:
    content = "endpoints:\n  gpt-4.1_mini:\n    url: http://a\n    labels: {cost-center: '1'}\n"
    config = read(
        content,
        {
            "ENDPOINT_MONITOR__ENDPOINTS__GPT_4_1_MINI__URL": "http://b",
            "endpoint_monitor__endpoints__gpt_4_1_mini__api_key": "sk-1",
            "ENDPOINT_MONITOR__ENDPOINTS__GPT_4_1_MINI__LABELS__COST_CENTER": "2",
            "ENDPOINT_MONITOR__ENDPOINTS__GPT_4_1_MINI__PRICE__OUTPUT_PER_MILLION": "3",
            "ENDPOINT_MONITOR__SITE": "here",
            "ENDPOINT_MONITOR": "of no meaning",
        },
    )
    found = config.endpoints["gpt-4.1_mini"]
    assert (found.endpoint.url, found.endpoint.api_key) == ("http://b/v1", "sk-1")
    assert (found.labels, found.price.output_per_million) == ({"cost-center": "2"}, 3.0)
    assert config.site == "here"


def test_a_variable_replaces_what_is_wrong_in_the_file(read: Load) -> None:
    content = LLAMA + "    release: ''\nworkloads: {chat: {interval: 5}}\n"
    environ = {
        "ENDPOINT_MONITOR__ENDPOINTS__LLAMA__RELEASE": "${x}",
        "ENDPOINT_MONITOR__WORKLOADS__CHAT__INTERVAL": "7s",
    }
    config = read(content, environ)
    assert (config.endpoints["llama"].release, config.probes[0].interval) == ("${x}", 7.0)


def test_the_longer_of_two_names_is_meant(read: Load) -> None:
    content = "endpoints:\n  a: {url: http://a}\n  a__url: {url: http://b}\n"
    config = read(content, {"ENDPOINT_MONITOR__ENDPOINTS__A__URL__URL": "http://c"})
    assert [e.endpoint.url for e in config.endpoints.values()] == ["http://a/v1", "http://c/v1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ENDPOINTS__LAMA__URL", "expected a known one (did you mean llama?)"),
        ("ENDPOINTS__GPT__URL", "'GPT' in endpoints, expected one of llama, a-b, a.b"),
        ("ENDPOINTS__LLAMA__LINK", "'LINK' in endpoints.llama, expected one of url, "),
        ("ENDPOINTS__A_B__URL", "fits a-b and a.b in endpoints, expected one name"),
        ("ENDPOINTS__LLAMA__URL__X", "goes beyond endpoints.llama.url, expected the name of a"),
        ("WORKLOADS__CHAT__INTERVAL", "in workloads, expected a name that is in the file"),
        ("", "nothing is named '', expected one of endpoints, "),
        ("ENDPOINTS__LLAMA", "this value, expected a mapping"),
        ("ENDPOINTS", "this value, expected a mapping"),
    ],
)  # fmt: skip
def test_a_variable_that_fits_nowhere_is_named(name: str, message: str, read: Load) -> None:
    content = LLAMA + "  a-b: {url: http://a}\n  a.b: {url: http://a}\n"
    found = problems(read, content, {f"ENDPOINT_MONITOR__{name}": "http://x"})
    assert len(found) == 1
    assert found[0].startswith(f"ENDPOINT_MONITOR__{name}")
    assert message in found[0]


# --- the package ---------------------------------------------------------------------------------


def test_kinds_are_those_that_probes_can_run() -> None:
    assert set(KINDS) == set(probes.KINDS)
    assert tuple(DEFAULTS) == KINDS


def test_importing_the_configuration_loads_no_heavy_library() -> None:
    # Beyond what `probes` itself loads: the library decides that.
    code = (
        "import sys, probes.workload; before = set(sys.modules); import monitor.config;"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pydantic" in loaded
    assert not {"aiohttp", "sqlalchemy", "apscheduler", "jinja2", "rich"} & set(loaded)
