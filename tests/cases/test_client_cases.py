"""CASES.md, "As a measuring client": what happened to others, as facts about us.

README.md beside this file says which test, scenario or recording proves which row.
"""

from __future__ import annotations

import ast
import asyncio
import json
import pathlib
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import probes
from monitor.grid import Grid
from monitor.link import ResultRow
from monitor.metrics import Metrics
from monitor.prober import GridTrigger, Prober
from monitor.show import to_json
from probes import KINDS, Endpoint, Limits, Outcome, ProbeResult, Workload
from probes.histogram import Histogram
from probes.meter import End
from probes.result import Verdict, verdict
from probes.workload import Cache
from tests.cases.answers import (
    DONE,
    ROLE,
    STOP,
    chat,
    delta,
    every,
    once,
    sse,
    text,
    usage,
    whole,
)
from tests.probes.raw_server import ANSWER, HEAD, Peer, plain, probe, serve
from tests.recorded.recording import load, measure

ENDPOINT = Endpoint(name="e", url="http://nowhere/v1", model="m")
WORDS = [text(f"w{number} ") for number in range(100)]


def exported(result: ProbeResult) -> dict[str, float]:
    """Values of /metrics after one result, by name and without labels; buckets left out."""
    metrics = Metrics()
    metrics.observe(ResultRow(1, 1.0, "e/chat", 1000.0, result))
    families = text_string_to_metric_families(metrics.render().decode())
    return {s.name: s.value for f in families for s in f.samples if "le" not in s.labels}


# -- first token ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_the_first_token_and_content_the_first_answer(field: str) -> None:
    result = chat(
        (20, ROLE), (50, delta(**{field: "Okay"})), (550, text("Hi")), (560, STOP), (561, DONE)
    )
    assert (result.ttft_s, result.ttfat_s) == (0.05, 0.55)


def test_hidden_reasoning_is_waiting_and_not_pace() -> None:
    details: dict[str, Any] = {"completion_tokens_details": {"reasoning_tokens": 500}}
    result = chat(
        (10, ROLE), *every(10, WORDS, first=5000), (6000, STOP), (6001, usage(600, **details))
    )
    assert result.ttft_s == result.ttfat_s == 5.0
    assert (result.output_tokens, result.reasoning_tokens, result.visible_tokens) == (
        600,
        500,
        100,
    )
    assert result.tpot_s == pytest.approx(0.990 / 99)
    assert result.reasoning_chars == 0  # with reasoning_tokens: it was there, but hidden


def test_a_first_token_that_nobody_knows_is_unknown_and_never_zero() -> None:
    result = once(ROLE, delta(speech="Hello"), delta(speech=" there"), STOP, DONE)
    assert result.ttft_s is None
    assert to_json(result)["ttft_s"] is None
    assert result.outcome is Outcome.EMPTY_OUTPUT


def test_a_result_without_a_first_token_adds_no_zero_to_a_histogram() -> None:
    document = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    result = whole(200, json.dumps(document).encode())
    assert result.outcome is Outcome.OK
    found = exported(result)
    assert found["endpoint_probe_e2e_seconds_count"] == 1
    assert not found.get("endpoint_probe_ttft_seconds_count")


@pytest.mark.parametrize("silence", ["", None])
def test_empty_and_null_content_beside_thinking_give_one_ttft(silence: str | None) -> None:
    thinking = [delta(content=silence, reasoning_content=part) for part in ("Let", " me", " see")]
    result = chat(
        (1, delta(role="assistant", content=silence)),
        *every(100, thinking, first=1000),
        (183_000, text("Yes")),
        (183_010, STOP),
    )
    assert (result.ttfb_s, result.ttft_s, result.ttfat_s) == (0.001, 1.0, 183.0)


def test_a_role_chunk_is_the_first_byte_and_no_token() -> None:
    result = chat((900, ROLE), (2200, text("Hi")), (2250, text(".")), (2260, STOP), (2261, DONE))
    assert (result.ttfb_s, result.ttft_s) == (0.9, 2.2)
    assert result.itl is not None
    assert result.itl.max == pytest.approx(0.05)


def test_a_success_without_a_token_is_no_success() -> None:
    result = once(ROLE, STOP, DONE)
    assert result.outcome is Outcome.EMPTY_OUTPUT
    assert verdict(result.outcome) is Verdict.BAD
    assert "endpoint_probe_ttft_seconds_count" not in exported(result)


def test_what_is_not_streamed_has_no_ttft_instead_of_its_whole_length() -> None:
    document = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    result = whole(200, json.dumps(document).encode())
    assert (result.ttft_s, result.e2e_s) == (None, 0.5)
    assert "not_streamed" in result.flags


def test_filter_results_before_the_answer_are_no_token() -> None:
    filtered = sse({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    result = chat((100, filtered), (150, ROLE), (300, text("Hi")), (310, STOP), (311, DONE))
    assert result.outcome is Outcome.OK
    assert (result.ttfb_s, result.ttft_s) == (0.1, 0.3)


# -- ends -----------------------------------------------------------------------------------------


def test_tokens_without_text_are_counted_but_nothing_was_said() -> None:
    result = once(ROLE, STOP, usage(7), DONE)
    assert result.outcome is Outcome.EMPTY_OUTPUT
    assert (result.ttft_s, result.tpot_s, result.output_tokens) == (None, None, 7)


def test_an_error_between_tokens_and_done_is_a_failure_with_its_part_kept_apart() -> None:
    error = sse({"error": {"message": "engine died", "code": 500}})
    result = once(ROLE, text("a"), text("b"), error, DONE)
    assert result.outcome is Outcome.STREAM_ERROR
    assert verdict(result.outcome) is Verdict.BAD
    assert (result.chunks, result.error_code) == (2, "500")
    assert result.ttft_s == 0.02
    assert "endpoint_probe_ttft_seconds_count" not in exported(result)


def test_first_and_last_kib_of_an_error_body_are_kept() -> None:
    body = b"<html>" + b"x" * 10_000 + b"upstream gone</html>"
    kept = whole(502, body, "text/html").error_excerpt
    assert kept is not None
    assert kept.startswith("<html>")
    assert kept.endswith("upstream gone</html>")
    assert 2048 <= len(kept) <= 2100


def test_the_error_that_ends_a_stream_is_kept() -> None:
    error = {"error": {"message": "CUDA out of memory", "type": "server_error"}}
    result = once(text("a"), sse(error))
    assert result.error_excerpt == json.dumps(error)


def test_a_finish_reason_and_the_end_of_the_body_are_complete() -> None:
    result = once(ROLE, text("Hi"), STOP)
    assert result.outcome is Outcome.OK
    assert result.flags == ("missing_done", "usage_missing")


@pytest.mark.parametrize("end", [End.EOF, End.BROKEN])
def test_a_stream_cut_in_the_middle_of_json_is_truncated_and_its_bytes_counted(end: End) -> None:
    cut = text("never whole")[:-20]
    result = chat((10, ROLE), (20, text("Hi")), (30, cut), end=end)
    assert result.outcome is Outcome.TRUNCATED
    assert result.body_bytes == len(ROLE) + len(text("Hi")) + len(cut)
    assert result.chunks == 1


def test_an_error_event_is_no_short_success() -> None:
    error = b'event: error\ndata: {"message": "overloaded"}\n\n'
    assert once(text("a"), text("b"), error).outcome is Outcome.STREAM_ERROR


def test_a_late_usage_chunk_moves_neither_the_last_token_nor_the_pace() -> None:
    words = every(100, WORDS[:11], first=100)
    result = chat(*words, (1110, STOP), (1900, usage(11)), (1901, DONE))
    assert (result.last_s, result.e2e_s) == (1.1, 1.901)
    assert result.tpot_s == pytest.approx(0.1)


async def test_headers_at_once_and_then_no_byte_are_a_hang() -> None:
    async def hang(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await peer.closed()

    async with serve(hang) as server:
        result = await probe(server.url, Workload(limits=Limits(ttft=0.2)))
    assert (result.outcome, result.http_status) == (Outcome.TIMEOUT_TTFT, 200)


async def test_a_busy_endpoint_is_not_down() -> None:
    async def busy(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain("429 Too Many Requests", b"{}", "Retry-After: 7"))

    async with serve(busy) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.HTTP_RATE_LIMITED
    assert verdict(result.outcome) is Verdict.RATE_LIMITED
    assert result.retry_after_s == 7


# -- counting -------------------------------------------------------------------------------------


def test_an_early_stop_without_usage_counts_what_came_and_not_what_was_asked_for() -> None:
    result = chat(*every(10, [*WORDS[:51], STOP, DONE]), workload=Workload(max_tokens=100))
    assert (result.output_tokens, result.output_tokens_source) == (51, "chunks")
    assert result.tpot_s == pytest.approx(0.01)


def test_fifteen_blanks_are_fifteen_chunks() -> None:
    result = once(*[text(" ")] * 15, STOP, DONE)
    assert (result.output_tokens, result.output_tokens_source) == (15, "chunks")
    assert result.text_chars == 15


def test_coalesced_tokens_do_not_confuse_gaps_with_pace() -> None:
    result = measure(load("vllm__chat_stream_tools"))
    assert result.itl is not None
    assert (result.itl.n, result.visible_tokens) == (39, 64)
    span = 0.409908 - 0.077930
    assert result.tpot_s == pytest.approx(span / 63)  # the mean gap is span / 39


def test_chunks_of_several_tokens_show_in_what_is_put_out() -> None:
    result = chat(*every(40, WORDS[:25]), (1020, STOP), (1021, usage(100)), (1022, DONE))
    row = to_json(result)
    assert (row["chunks"], row["output_tokens"], row["itl"]["n"]) == (25, 100, 24)
    assert row["tpot_s"] == pytest.approx(0.96 / 99)
    assert row["itl"]["p50_s"] == pytest.approx(0.04)


def test_pace_divides_by_tokens_of_the_unit_that_was_streamed() -> None:
    hidden: dict[str, Any] = {"completion_tokens_details": {"reasoning_tokens": 30}}
    shown = [delta(reasoning="hm ") for _ in range(30)]
    without = chat(*every(10, WORDS[:10]), (200, STOP), (201, usage(40, **hidden)))
    within = chat(*every(10, [*shown, *WORDS[:10]]), (500, STOP), (501, usage(40, **hidden)))
    assert (without.visible_tokens, within.visible_tokens) == (10, 40)
    assert without.tpot_s == pytest.approx(0.01)
    assert within.tpot_s == pytest.approx(0.01)


def test_reasoning_left_out_of_the_completion_is_added() -> None:
    counts = usage(0, 21, total_tokens=81, completion_tokens_details={"reasoning_tokens": 60})
    thoughts = [delta(reasoning_content="hm ") for _ in range(60)]
    result = once(*thoughts, delta("length"), counts, DONE)
    assert (result.output_tokens, result.output_tokens_source) == (60, "usage")
    assert result.flags == ()


def test_usage_of_nothing_beside_text_is_flagged_and_not_believed() -> None:
    result = once(*WORDS[:5], STOP, usage(0), DONE)
    assert (result.output_tokens, result.output_tokens_source) == (5, "chunks")
    assert result.flags == ("usage_implausible",)


@pytest.mark.parametrize("choices", [{"choices": None}, {"choices": []}, {}])
def test_a_usage_chunk_may_have_no_choices_in_any_spelling(choices: dict[str, Any]) -> None:
    last = sse({"model": "m", **choices, "usage": {"prompt_tokens": 11, "completion_tokens": 2}})
    endpoint = replace(ENDPOINT, send_stream_options=False)
    result = chat(*every(10, [text("a"), text("b"), STOP, last, DONE]), endpoint=endpoint)
    assert (result.outcome, result.output_tokens_source) == (Outcome.OK, "usage")


# -- bytes ----------------------------------------------------------------------------------------


def test_a_character_split_across_reads_is_whole() -> None:
    event = text("世界")
    for cut in range(1, len(event)):
        result = chat((10, event[:cut]), (20, event[cut:]), (30, STOP), (31, DONE))
        assert result.content is not None
        assert result.content.text == "世界"
        assert result.ttft_s == 0.02


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("space", [b" ", b""])
def test_line_ends_and_a_missing_blank_lose_no_event(line_end: bytes, space: bytes) -> None:
    events = [
        data.replace(b"data: ", b"data:" + space).replace(b"\n", line_end)
        for data in (ROLE, text("a"), text("b"), STOP, DONE)
    ]
    result = once(*events)
    assert (result.outcome, result.chunks) == (Outcome.OK, 2)


def test_a_comment_wrapped_into_data_is_tolerated() -> None:
    ping = b"data: : OPENROUTER PROCESSING\n\n"
    result = chat(
        (100, ping), (200, ping), (300, text("Hi")), (310, ping), (320, STOP), (321, DONE)
    )
    assert (result.outcome, result.ttft_s, result.chunks) == (Outcome.OK, 0.3, 1)


def test_a_line_of_200_kb_is_read() -> None:
    event = text("x" * 200_000)
    parts = [event[i : i + 16_384] for i in range(0, len(event), 16_384)]
    result = once(*parts, STOP, DONE)
    assert (result.outcome, result.text_chars) == (Outcome.OK, 200_000)
    assert result.ttft_s == pytest.approx(len(parts) * 0.01)


def test_a_line_past_our_own_limit_is_an_error_with_a_name() -> None:
    small = Workload(limits=Limits(event_bytes=100_000))
    result = chat(*every(10, [text("a"), text("x" * 200_000), STOP, DONE]), workload=small)
    assert result.outcome is Outcome.PROTOCOL_ERROR
    assert result.reason == "event longer than 100000 bytes"


def test_clumps_of_a_buffering_proxy_are_flagged() -> None:
    clumps = [(100 * (n // 4) + 100 + 0.1 * (n % 4), word) for n, word in enumerate(WORDS[:40])]
    result = chat(*clumps, (1100, STOP), (1101, usage(40)), (1102, DONE))
    assert "coarse" in result.flags
    assert "coarse" not in once(*WORDS[:40], STOP, usage(40), DONE).flags


# -- how we measure -------------------------------------------------------------------------------


def test_no_tokenizer_is_loaded_where_streams_are_read() -> None:
    code = "import sys, probes, monitor.prober; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "aiohttp" in loaded
    assert not loaded & {"tokenizers", "transformers", "tiktoken", "sentencepiece", "torch"}


def test_the_schedule_s_delay_is_a_series_of_its_own() -> None:
    base = once(text("a"), text("b"), STOP, usage(2), DONE)
    prompt, late = exported(base), exported(replace(base, schedule_lag_s=3.0))
    assert late["endpoint_monitor_schedule_lag_seconds_sum"] == 3.0
    assert late["endpoint_probe_ttft_seconds_sum"] == prompt["endpoint_probe_ttft_seconds_sum"]


@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "embeddings"])
def test_the_salt_is_the_head_of_the_user_s_text(kind: str) -> None:
    workload = Workload(kind=kind, system="You are terse.", seed=1)
    first, second = (KINDS[kind].build(ENDPOINT, workload, salt) for salt in ("s1", "s2"))
    assert asked(first.document).startswith("[s1] ")
    # One seed, one text: only the head tells a cache that it has not seen this.
    assert asked(first.document).removeprefix("[s1] ") == asked(second.document)[5:]
    warm = KINDS[kind].build(ENDPOINT, replace(workload, cache=Cache.WARM), "s1")
    assert asked(warm.document) == asked(first.document)[5:]


def asked(document: Any) -> str:
    """The user's text in a request."""
    if messages := document.get("messages"):
        assert [message["role"] for message in messages] == ["system", "user"]
        return str(messages[-1]["content"])
    found = document.get("prompt") or document["input"]
    return str(found[0] if isinstance(found, list) else found)


def test_cached_prompt_tokens_are_put_out() -> None:
    result = once(text("a"), STOP, usage(1, prompt_tokens_details={"cached_tokens": 9}), DONE)
    assert to_json(result)["cached_tokens"] == 9


def test_half_an_hour_is_inside_the_histogram_and_more_than_an_hour_is_counted() -> None:
    histogram = Histogram([1800.0])
    assert histogram.percentile(99) == pytest.approx(1800, rel=0.001)
    assert histogram.overflow == 0
    assert Histogram([4000.0]).overflow == 1


@pytest.mark.parametrize(
    "change",
    [
        datetime(2026, 3, 8, 7, tzinfo=UTC),  # New York, an hour is missing
        datetime(2026, 11, 1, 6, tzinfo=UTC),  # an hour comes twice
        datetime(2026, 3, 29, 1, tzinfo=UTC),  # Berlin
        datetime(2026, 10, 25, 1, tzinfo=UTC),
    ],
)
async def test_slots_go_on_through_a_change_of_daylight_saving(
    change: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = "Europe/Berlin" if change.hour == 1 else "America/New_York"
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        prober = Prober("boot")
        prober._pauses.close()
        scheduler_zone = prober._scheduler.timezone
        monkeypatch.setattr("monitor.prober.clock", lambda: 1000.0)
        trigger = GridTrigger(Grid(interval=60.0, phase=0.0, opening=0))
        for minute in range(-90, 90):
            now = (change + timedelta(minutes=minute)).astimezone(scheduler_zone)
            due = trigger.get_next_fire_time(now, now)
            assert due.timestamp() - now.timestamp() == pytest.approx(20)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_no_path_but_the_one_that_is_probed_is_asked_for() -> None:
    async def only_chat(peer: Peer) -> None:
        request = await peer.request()
        chatting = request is not None and request.startswith(b"POST /v1/chat/completions ")
        await peer.send(ANSWER if chatting else plain("404 Not Found", b"{}"))

    async with serve(only_chat) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.OK
    assert len(server.requests) == 1


def test_the_kind_of_probe_decides_path_and_body() -> None:
    built = {name: kind.build(ENDPOINT, Workload(kind=name), "s") for name, kind in KINDS.items()}
    assert (built["responses"].path, built["chat"].path) == ("/responses", "/chat/completions")
    fields = {name: {*(request.document or {})} for name, request in built.items()}
    assert {"input", "max_output_tokens"} <= fields["responses"]
    assert not {"messages", "max_tokens", "stream_options"} & fields["responses"]
    assert {"messages", "max_tokens"} <= fields["chat"]
    assert "input" not in fields["chat"]


def test_the_output_limit_has_the_endpoint_s_own_name_and_no_temperature_is_sent() -> None:
    build = KINDS["chat"].build
    for name in ("max_tokens", "max_completion_tokens"):
        document = build(replace(ENDPOINT, token_param=name), Workload(max_tokens=5), "s").document
        assert document is not None
        limits = {key: value for key, value in document.items() if key.startswith("max_")}
        assert limits == {name: 5}
        assert not {"temperature", "top_p", "seed"} & {*document}
    unlimited = build(replace(ENDPOINT, token_param=None), Workload(max_tokens=5), "s").document
    assert unlimited is not None
    assert not [key for key in unlimited if key.startswith("max_")]


async def test_a_refusal_is_a_result_and_is_not_asked_again() -> None:
    async def limited(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        first = len(peer.server.requests) == 1
        await peer.send(
            plain("429 Too Many Requests", b"{}", "Retry-After: 0") if first else ANSWER
        )

    async with serve(limited) as server:
        refused, served = await probe(server.url), await probe(server.url)
    assert (refused.outcome, served.outcome) == (Outcome.HTTP_RATE_LIMITED, Outcome.OK)
    assert len(server.requests) == 2
    # Each from its own request: a clock that began with the refusal would give twice as much.
    assert refused.e2e_s is not None
    assert refused.e2e_s >= 0.05
    assert served.started_at >= refused.started_at + refused.e2e_s - 0.01


def test_the_wall_clock_is_read_for_dates_only() -> None:
    allowed = {("client.py", "time.time"), ("exchange.py", "datetime.now")}
    folder = pathlib.Path(probes.__path__[0])
    found = {
        (path.name, ast.unparse(node.func))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCKS
    }
    assert found == allowed


WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}


async def test_a_clock_set_back_during_a_stream_bends_no_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, back = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() - back)

    async def set_back(peer: Peer) -> None:
        nonlocal back
        await peer.request()
        await peer.send(ANSWER[: len(HEAD) + 40])
        back = 2.0
        await peer.send(ANSWER[len(HEAD) + 40 :])

    async with serve(set_back) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.OK
    assert result.ttft_s is not None
    assert result.e2e_s is not None
    assert 0 < result.ttft_s <= result.e2e_s < 1
