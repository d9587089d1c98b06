from __future__ import annotations

import asyncio
import base64
import io
import json
import signal
import struct
import time
import wave
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from probes import KINDS, Endpoint, Limits, Outcome, Workload, run
from probes.reference import Behavior, Fault, Reference, pacer
from probes.reference.__main__ import main
from probes.reference.behavior import cut
from tests.servers import free_port, reference_server

MESSAGES = [{"role": "user", "content": "three words here"}]
BROKEN = (aiohttp.ClientPayloadError, aiohttp.ClientOSError)
QUICK = Behavior(ttft=0.03, gap=0.004, tokens=8, pause=0.2)


@pytest.fixture
async def reference() -> AsyncIterator[Reference]:
    async with Reference(QUICK) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nothing there to set an event
            await asyncio.sleep(0.005)


async def ask(
    http: aiohttp.ClientSession, reference: Reference, path: str = "/chat/completions", **body: Any
) -> tuple[int, Any]:
    async with http.post(reference.url + path, json=body) as response:
        return response.status, await response.json()


async def stream(
    http: aiohttp.ClientSession, reference: Reference, path: str = "/chat/completions", **body: Any
) -> list[dict[str, Any]]:
    """The stream's JSON events in order, `[DONE]` as an event of its own."""
    return [event async for event in events(http, reference, path, **body)]


async def events(
    http: aiohttp.ClientSession, reference: Reference, path: str = "/chat/completions", **body: Any
) -> AsyncIterator[dict[str, Any]]:
    body.setdefault("messages", MESSAGES)
    async with http.post(reference.url + path, json={**body, "stream": True}) as response:
        assert response.status == 200
        async for line in response.content:
            text = line.decode().strip()
            if text == "data: [DONE]":
                yield {"done": True}
            elif text.startswith("data: "):
                yield json.loads(text[6:])


def texts(chunks: list[dict[str, Any]]) -> list[str]:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    return [delta["content"] for delta in deltas if delta.get("content")]


def tokens(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk for chunk in chunks if texts([chunk])]


async def test_every_event_is_stamped_between_its_due_time_and_its_arrival(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    before = time.monotonic_ns()
    got = [(time.monotonic_ns(), event) async for event in events(http, reference)]
    words = [(at, event) for at, event in got if texts([event])]
    assert len(words) == 8
    read = words[0][1]["read_ns"]
    assert before < read
    for index, (at, event) in enumerate(words):
        assert event["read_ns"] == read
        due = read + round((0.03 + index * 0.004) * 1e9)
        assert due <= event["sent_ns"] < at


async def test_an_answer_is_role_tokens_finish_usage_and_done(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got = await stream(http, reference, stream_options={"include_usage": True})
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(texts(got[1:9])) == 8
    assert got[9]["choices"][0]["finish_reason"] == "stop"
    assert got[10]["choices"] == []
    assert got[10]["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert got[11:] == [{"done": True}]


async def test_usage_comes_only_when_asked_for(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    assert not any("usage" in event for event in await stream(http, reference))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_limit_of_the_request_cuts_the_answer(
    http: aiohttp.ClientSession, reference: Reference, name: str
) -> None:
    limit: dict[str, Any] = {name: 3}
    got = await stream(http, reference, **limit)
    assert len(texts(got)) == 3
    assert got[-2]["choices"][0]["finish_reason"] == "length"


async def test_a_whole_answer_comes_when_its_last_token_is_due(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    status, body = await ask(http, reference, messages=MESSAGES)
    assert status == 200
    assert body["choices"][0]["message"]["content"].split()[:2] == ["the", "clock"]
    assert body["usage"]["completion_tokens"] == 8
    assert body["sent_ns"] - body["read_ns"] >= (0.03 + 7 * 0.004) * 1e9


async def test_completions_stream_text(http: aiohttp.ClientSession, reference: Reference) -> None:
    got = await stream(http, reference, "/completions", prompt="one two", max_tokens=2)
    assert [e["choices"][0]["text"] for e in got[:-1]] == [" the", " clock", ""]
    status, body = await ask(http, reference, "/completions", prompt="one two", max_tokens=2)
    assert (status, body["choices"][0]["text"]) == (200, " the clock")


async def test_responses_stream_typed_events(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got = await stream(http, reference, "/responses", input="one two", max_output_tokens=2)
    assert [e["type"].removeprefix("response.") for e in got] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert got[-1]["response"]["usage"]["output_tokens"] == 2
    status, body = await ask(http, reference, "/responses", input="one two")
    assert (status, body["status"]) == (200, "completed")


async def test_embeddings_are_unit_vectors_and_the_same_for_the_same_text(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    status, body = await ask(http, reference, "/embeddings", input=["a", "b", "a"], dimensions=8)
    first, second, third = (row["embedding"] for row in body["data"])
    assert (status, len(first)) == (200, 8)
    assert first == third != second
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-4)
    _, packed = await ask(
        http, reference, "/embeddings", input="a", dimensions=8, encoding_format="base64"
    )
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<8f", raw) == pytest.approx(first)


async def test_rerank_puts_the_document_with_the_query_first(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    documents = ["nothing", "a blue kettle", {"text": "blue"}]
    _, body = await ask(http, reference, "/rerank", query="blue kettle", documents=documents)
    assert [row["index"] for row in body["results"]] == [1, 2, 0]


def silence(seconds: float) -> bytes:
    raw = io.BytesIO()
    with wave.open(raw, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(round(2 * 8000 * seconds)))
    return raw.getvalue()


@pytest.mark.parametrize("chunked", [False, True])
async def test_transcriptions_read_a_form_and_know_the_length_of_the_audio(
    http: aiohttp.ClientSession, reference: Reference, chunked: bool
) -> None:
    audio = silence(1.5)
    form = aiohttp.FormData({"model": "reference", "response_format": "verbose_json"})
    form.add_field("file", io.BytesIO(audio) if chunked else audio, filename="a.wav")
    url = f"{reference.url}/audio/transcriptions"
    async with http.post(url, data=form, chunked=True if chunked else None) as response:
        body = await response.json()
    assert (response.status, body["duration"], body["task"]) == (200, 1.5, "transcribe")


async def test_transcriptions_stream_text(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    form = aiohttp.FormData({"model": "reference", "stream": "true"})
    form.add_field("file", silence(0.1), filename="a.wav")
    async with http.post(f"{reference.url}/audio/transcriptions", data=form) as response:
        lines = (await response.read()).decode().split("\n\n")
    got = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [event["type"] for event in got] == [
        *["transcript.text.delta"] * 8,
        "transcript.text.done",
    ]
    assert got[-1]["text"] == "".join(event["delta"] for event in got[:-1])


async def test_models_and_health_answer(http: aiohttp.ClientSession, reference: Reference) -> None:
    async with http.get(f"{reference.url}/models") as response:
        names = [row["id"] for row in (await response.json())["data"]]
    assert names[:2] == ["reference", "reference-error500"]
    async with http.get(reference.url.removesuffix("/v1") + "/health") as response:
        assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/chat/completions", {"messages": MESSAGES, "model": "gpt"}, 404, "model_not_found"),
        ("/chat/completions", {"messages": []}, 400, 400),
        ("/chat/completions", {"messages": MESSAGES, "max_tokens": 0}, 400, 400),
        ("/embeddings", {}, 400, 400),
        ("/nothing", {}, 404, 404),
        ("/audio/transcriptions", {}, 400, 400),
    ],
)
async def test_a_wrong_request_is_refused_in_the_shape_of_openai(
    http: aiohttp.ClientSession,
    reference: Reference,
    path: str,
    body: dict[str, Any],
    status: int,
    code: str | int,
) -> None:
    got, answer = await ask(http, reference, path, **body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({"Authorization": "Bearer right"}, "", 200),
        ({"api-key": "right"}, "", 200),
        ({}, "?key=right", 200),
        ({"Authorization": "Bearer wrong"}, "", 401),
        ({}, "", 401),
    ],
)
async def test_a_key_is_asked_for(
    http: aiohttp.ClientSession, headers: dict[str, str], query: str, status: int
) -> None:
    async with (
        Reference(Behavior(api_key="right")) as reference,
        http.get(f"{reference.url}/models{query}", headers=headers) as response,
    ):
        assert response.status == status
        body = await response.json()
    assert status == 200 or body["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("fault", "status"), [("error500", 500), ("error503", 503), ("error429", 429)]
)
async def test_an_http_fault_names_when_to_come_back(
    http: aiohttp.ClientSession, reference: Reference, fault: str, status: int
) -> None:
    body = {"model": f"reference-{fault}", "messages": MESSAGES}
    async with http.post(f"{reference.url}/chat/completions", json=body) as response:
        assert (response.status, response.headers["retry-after"]) == (status, "1")
        assert (await response.json())["error"]["message"]


async def test_a_reset_breaks_the_stream_after_half(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got: list[dict[str, Any]] = []

    async def follow() -> None:
        async for event in events(http, reference, model="reference-reset"):
            got.append(event)  # noqa: PERF401 - a comprehension would lose them at the reset

    with pytest.raises(BROKEN):
        await follow()
    assert len(texts(got)) == 4
    assert reference.counts == {Fault.RESET: 1}


async def test_a_truncated_stream_ends_in_order_but_without_an_end(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got = await stream(http, reference, model="reference-truncate")
    assert len(texts(got)) == 4
    assert got == [event for event in got if not event.get("done")]
    assert not any(choice["finish_reason"] for event in got for choice in event["choices"])


async def test_an_error_event_comes_inside_the_stream(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got = await stream(http, reference, model="reference-error-event")
    assert len(texts(got)) == 4
    assert got[-2]["error"]["code"] == 500
    assert got[-1] == {"done": True}


async def test_an_empty_answer_ends_well_without_a_token(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    options = {"include_usage": True}
    got = await stream(http, reference, model="reference-empty", stream_options=options)
    assert texts(got) == []
    assert got[-3]["choices"][0]["finish_reason"] == "stop"
    assert got[-2]["usage"]["completion_tokens"] == 0


async def test_a_wrong_model_answers(http: aiohttp.ClientSession, reference: Reference) -> None:
    got = await stream(http, reference, model="reference-wrong-model")
    assert {event["model"] for event in got[:-1]} == {"another-model"}


@pytest.mark.parametrize(("fault", "at"), [("hang", 0), ("stall", 4)])
async def test_silence_lasts_the_pause_and_then_the_answer_goes_on(
    http: aiohttp.ClientSession, reference: Reference, fault: str, at: int
) -> None:
    got = tokens(await stream(http, reference, model=f"reference-{fault}"))
    sent = [got[0]["read_ns"], *(event["sent_ns"] for event in got)]
    gaps = [(b - a) / 1e9 for a, b in pairwise(sent)]
    assert len(got) == 8
    assert gaps.index(max(gaps)) == at
    assert got[at]["sent_ns"] - got[at]["read_ns"] >= round((0.03 + at * 0.004 + 0.2) * 1e9)


async def test_slow_is_the_same_answer_with_a_late_first_token(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    got = tokens(await stream(http, reference, model="reference-slow"))
    assert len(got) == 8
    assert got[0]["sent_ns"] - got[0]["read_ns"] >= 8 * 0.03 * 1e9


@pytest.mark.parametrize(
    ("fault", "path", "field"),
    [("empty", "/embeddings", "data"), ("error-event", "/embeddings", "error")],
)
async def test_faults_reach_answers_that_are_no_stream(
    http: aiohttp.ClientSession, reference: Reference, fault: str, path: str, field: str
) -> None:
    status, body = await ask(http, reference, path, model=f"reference-{fault}", input="a")
    assert status == 200
    assert body[field] == [] or body[field]["code"] == 500


@pytest.mark.parametrize("fault", ["truncate", "reset"])
async def test_a_broken_answer_that_is_no_stream_breaks_the_connection(
    http: aiohttp.ClientSession, reference: Reference, fault: str
) -> None:
    with pytest.raises(aiohttp.ClientError):
        await ask(http, reference, model=f"reference-{fault}", messages=MESSAGES)


def test_faults_come_in_their_shares_in_every_stretch_and_in_the_same_order() -> None:
    behavior = Behavior(faults={Fault.RESET: 0.2, Fault.EMPTY: 0.1}, seed=7)
    order = [behavior.fault(number, "reference") for number in range(1000)]
    assert order == [behavior.fault(number, "reference") for number in range(1000)]
    for start in range(0, 1000, 50):
        stretch = order[start : start + 50]
        assert 8 <= stretch.count(Fault.RESET) <= 12
        assert 3 <= stretch.count(Fault.EMPTY) <= 7
    other = Behavior(faults=behavior.faults, seed=8)
    assert order != [other.fault(number, "reference") for number in range(1000)]


def test_jitter_is_repeatable_one_sided_and_does_not_add_up() -> None:
    behavior = Behavior(ttft=0.1, gap=0.01, jitter=0.5, seed=3)
    times = behavior.token_times(5, 200, None)
    assert times == behavior.token_times(5, 200, None) != behavior.token_times(6, 200, None)
    assert 0.1e9 <= times[0] <= 0.15e9
    for index, due in enumerate(times):
        assert 0 <= due - times[0] - index * 10_000_000 <= 5_000_000


@pytest.mark.parametrize(("length", "after"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_a_fault_in_mid_stream_leaves_at_least_one_token(length: int, after: int) -> None:
    assert cut(length) == after


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttft": -1.0},
        {"jitter": 2.0},
        {"faults": {Fault.RESET: 0.6, Fault.EMPTY: 0.6}},
        {"faults": {Fault.RESET: -0.1}},
    ],
)
def test_a_behavior_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Behavior(**wrong)


def test_the_key_is_not_shown() -> None:
    assert "planted" not in repr(Behavior(api_key="planted"))


async def control(
    http: aiohttp.ClientSession, reference: Reference, **changes: Any
) -> tuple[int, Any]:
    url = reference.url.removesuffix("/v1") + "/control"
    async with http.post(url, json=changes) as response:
        return response.status, await response.json()


async def test_control_changes_the_behavior_and_shows_no_key(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    status, body = await control(
        http, reference, ttft=0.0, faults={"error500": 1.0}, api_key="planted"
    )
    assert (status, body["behavior"]["ttft"]) == (200, 0.0)
    assert "planted" not in json.dumps(body)
    assert reference.behavior.faults == {Fault.ERROR500: 1.0}
    assert reference.behavior.api_key == "planted"


@pytest.mark.parametrize("wrong", [{"tfft": 1}, {"ttft": "soon"}, {"faults": {"boom": 1}}])
async def test_control_refuses_what_it_does_not_know(
    http: aiohttp.ClientSession, reference: Reference, wrong: dict[str, Any]
) -> None:
    status, _ = await control(http, reference, **wrong)
    assert status == 400
    assert reference.behavior == QUICK


async def test_control_takes_no_form_that_a_foreign_page_could_send(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    url = reference.url.removesuffix("/v1") + "/control"
    async with http.post(url, data='{"ttft": 0}', headers={"content-type": "text/plain"}) as r:
        assert r.status == 415
    async with http.options(url) as r:
        assert r.status == 405
    assert reference.behavior == QUICK


async def test_refuse_closes_the_port_for_a_while_and_opens_the_same_again(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    port = reference.port
    await control(http, reference, refuse=0.5)
    await until(lambda: reference._server is None)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: reference._server is not None)
    assert (await ask(http, reference, messages=MESSAGES))[0] == 200
    assert reference.port == port


async def test_refuse_breaks_the_stream_under_way(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    async def follow() -> None:
        async for event in events(http, reference):
            if texts([event]):
                reference.refuse()

    with pytest.raises(BROKEN):
        await follow()


async def test_many_streams_at_once_stay_apart(
    http: aiohttp.ClientSession, reference: Reference
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = await asyncio.gather(*(stream(session, reference) for _ in range(40)))
    assert {len(texts(answer)) for answer in answers} == {8}
    assert len({answer[0]["id"] for answer in answers}) == 40


async def test_requests_on_one_connection_are_answered_in_order(reference: Reference) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", reference.port)
    first = json.dumps({"messages": MESSAGES}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(first)
    writer.write(head + first)
    writer.write(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n" * 2)
    answer = await reader.read()
    writer.close()
    assert answer.count(b"HTTP/1.1 200 OK") == 2  # after the first `close` nothing is answered
    assert answer.index(b"chat.completion") < answer.index(b'"status":"ok"')


async def test_a_request_may_come_in_pieces_and_ask_before_it_sends(reference: Reference) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", reference.port)
    for byte in head:
        writer.write(bytes([byte]))
        await writer.drain()
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    for byte in body:
        writer.write(bytes([byte]))
        await writer.drain()
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"x" * 70_000, 413),
    ],
)
async def test_what_is_not_a_request_is_refused_and_the_connection_closed(
    reference: Reference, raw: bytes, status: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", reference.port)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_a_client_that_leaves_ends_its_answer(reference: Reference) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", reference.port)
    body = json.dumps({"messages": MESSAGES, "stream": True, "model": "reference-hang"}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await until(lambda: any(reference._plays.values()))
    writer.close()
    await until(lambda: not reference._plays)


def test_the_program_says_where_it_is_and_ends_on_sigterm() -> None:
    with reference_server("--ttft", "0.01", "--fault", "empty=0.5", key="right") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.url.endswith("/v1")
        child = server._child
        assert child is not None
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(5) == 0


def test_the_program_says_in_one_line_that_the_port_is_taken(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with reference_server() as server:
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        assert main(["--port", port]) == 2
    assert capfd.readouterr().err.startswith(f"cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    "wrong",
    [["--fault", "boom"], ["--fault", "empty=x"], ["--ttft", "-1"], ["--api-key-env", "N"]],
)
def test_the_program_refuses_wrong_arguments(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(wrong)
    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err


async def test_a_port_that_is_asked_for_is_taken() -> None:
    port = free_port()
    async with Reference(port=port) as reference:
        assert reference.url == f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault.ERROR500, Outcome.HTTP_5XX),
        (Fault.ERROR503, Outcome.HTTP_5XX),
        (Fault.ERROR429, Outcome.HTTP_RATE_LIMITED),
        (Fault.HANG, Outcome.TIMEOUT_TTFT),
        (Fault.STALL, Outcome.TIMEOUT_STALL),
        (Fault.RESET, Outcome.TRUNCATED),
        (Fault.TRUNCATE, Outcome.TRUNCATED),
        (Fault.ERROR_EVENT, Outcome.STREAM_ERROR),
        (Fault.EMPTY, Outcome.EMPTY_OUTPUT),
        (Fault.WRONG_MODEL, Outcome.WRONG_MODEL),
        (Fault.SLOW, Outcome.OK),
    ],
)
@pytest.mark.parametrize("kind", ["chat", "completions", "responses"])
async def test_our_own_client_sees_each_fault_as_its_outcome(
    reference: Reference, fault: Fault, outcome: Outcome, kind: str
) -> None:
    reference.behavior = replace(QUICK, ttft=0.01, pause=10.0)
    endpoint = Endpoint(
        name="reference",
        url=reference.url,
        model=f"reference-{fault}",
        expected_model="reference*",
    )
    limits = Limits(connect=9.0, ttft=0.8, stall=0.6, total=9.0)
    async with asyncio.timeout(7.0):  # each limit is kept by itself, not only the longest
        result = await run(endpoint, Workload(kind=kind, limits=limits))
    assert result.outcome is outcome, result.reason


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_our_own_client_speaks_to_it_in_every_kind(reference: Reference, kind: str) -> None:
    endpoint = Endpoint(name="reference", url=reference.url, model="reference")
    result = await run(endpoint, Workload(kind=kind))
    assert result.outcome is Outcome.OK, result.reason


async def test_without_the_precise_timer_nothing_is_written_too_early_either(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacer, "_timer", pacer._LoopTimer)
    async with Reference(QUICK) as reference:
        got = tokens(await stream(http, reference))
    for index, event in enumerate(got):
        assert event["sent_ns"] - event["read_ns"] >= round((0.03 + index * 0.004) * 1e9)
