"""Nothing the peer says, in head or body, raises, or makes a record that no store can hold."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import KINDS, Endpoint, Outcome, ProbeResult, Workload
from probes.endpoint import Inline
from probes.exchange import Exchange, result_of
from probes.meter import End, Meter
from probes.transport import Timeline
from tests.probes.raw_server import DONE, Peer, event, plain, probe, serve

STREAM = "text/event-stream"
GOOD = event("hi", "stop") + DONE
DEEP = 700  # JSON that Python's reader takes, and that what walks through it may not


def said(*headers: bytes, status: bytes = b"200 OK", body: bytes = GOOD) -> bytes:
    """A response that ends with the connection."""
    lines = [b"HTTP/1.1 " + status, b"Content-Type: text/event-stream", *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


def storable(result: ProbeResult) -> bool:
    """Whether the link and every database take the record."""
    words = (result.reason, result.error_excerpt, result.error_code, result.finish_reason)
    told = (*words, result.served_model, result.request_id)
    return bool(msgspec.msgpack.encode(result)) and not any("\0" in word for word in told if word)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (said(b"x-request-id: caf\xe9"), Outcome.OK),
        (said(b"x-request-id: 7", body=event("hi", "s\0p") + DONE), Outcome.OK),
        (said(body=GOOD.replace(b'"m"', b'"\\ud83d"')), Outcome.OK),
        (said(b"Content-Encoding: gzip", body=gzip.compress(GOOD)[:40]), Outcome.TRUNCATED),
        (said(b"Content-Encoding: identity, x", body=b"?"), Outcome.PROTOCOL_ERROR),
        (said(body=b'data: {"x":' + b"[" * 90_000 + b"\n\n"), Outcome.PROTOCOL_ERROR),
        (said(b"Retry-After: " + b"9" * 400, status=b"429 X"), Outcome.HTTP_RATE_LIMITED),
        (said(b"Retry-After: Mon, 99 Foo 0 99:99 +9999", status=b"503 X"), Outcome.HTTP_5XX),
        (said(b"x-ratelimit-remaining: 1e300", status=b"429 X"), Outcome.HTTP_RATE_LIMITED),
        (said(b"x-ratelimit-reset: " + b"9" * 400 + b"s"), Outcome.OK),
        (said(status=b"500 X", body=b"\xff\0"), Outcome.HTTP_5XX),
        (said(status=b"500 X", body=b'{"error":{"code":"\\udfff\\u0000"}}'), Outcome.HTTP_5XX),
        (said(status=b"500 X", body=b'{"detail":' * DEEP + b"1" + b"}" * DEEP), Outcome.HTTP_5XX),
        (said(b"Location: http://[bad", status=b"302 X"), Outcome.HTTP_REDIRECT),
        (said(status=b"101 X"), Outcome.PROTOCOL_ERROR),
        (said(status=b"600 X"), Outcome.PROTOCOL_ERROR),
        (said(b"Set-Cookie: =;\xff", b"Link: <\xff>;;"), Outcome.OK),
        (said(b"Content-Length: 5", b"Content-Length: 6"), Outcome.PROTOCOL_ERROR),
        (said(b"x: " + b"y" * 100_000), Outcome.PROTOCOL_ERROR),
    ],
)
async def test_no_answer_raises_or_spoils_the_record(answer: bytes, outcome: Outcome) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serve(script) as server:
        result = await probe(server.url, keep_content=True)
    assert result.outcome is outcome
    assert storable(result)


async def test_a_number_too_large_for_a_float_is_no_vector() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        body = b'{"data":[{"index":0,"embedding":[%s,1]}]}' % (b"9" * 400)
        await peer.send(plain("200 OK", body))

    async with serve(script) as server:
        result = await probe(server.url, Workload(kind="embeddings"))
    assert result.outcome is Outcome.VALIDATION_FAILED


_NAMES = st.sampled_from(
    "choices index delta message content text thinking reasoning reasoning_content summary type "
    "reasoning_details refusal tool_calls function_call function name arguments id finish_reason "
    "native_finish_reason usage prompt_tokens completion_tokens total_tokens reasoning_tokens "
    "cost completion_tokens_details error error_type error_code code status detail base_resp "
    "status_code object model system_fingerprint x_groq timings prompt_ms time_info perf_metrics "
    "response output item output_index incomplete_details reason data embedding results score "
    "relevance_score meta tokens duration innererror amazon-bedrock-guardrailAction part".split()
)
_TYPES = (
    "error response.created response.output_text.delta response.output_item.added "
    "response.completed response.failed transcript.text.delta transcript.text.done function_call"
).split()
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([10**30, 10**400, "\ud800", "<think>", "</think>", "<|channel|>", *_TYPES]),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)
_CHOICES = st.fixed_dictionaries(
    {"choices": st.lists(st.dictionaries(_NAMES, _VALUES, max_size=4), max_size=2)},
    optional={"usage": _VALUES, "error": _VALUES, "x_groq": _VALUES, "model": _VALUES},
)
_TYPED = st.fixed_dictionaries(
    {"type": st.sampled_from(_TYPES), "delta": _VALUES}, optional={"response": _VALUES}
)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    documents=st.lists(_VALUES | _CHOICES | _TYPED, min_size=1, max_size=3),
    inline=st.sampled_from([None, *Inline]),
    streamed=st.booleans(),
    status=st.sampled_from([200, 400]),
    cumulative=st.booleans(),
    end=st.sampled_from(End),
)
@settings(max_examples=300, deadline=None)
def test_no_shape_of_json_raises(
    *,
    kind: str,
    documents: list[Any],
    inline: Inline | None,
    streamed: bool,
    status: int,
    cumulative: bool,
    end: End,
) -> None:
    endpoint = Endpoint(
        name="e", url="http://h/v1", inline_reasoning=inline, cumulative_content=cumulative
    )
    workload = Workload(kind=kind)
    request = KINDS[kind].build(endpoint, workload, "salt")
    meter = Meter(
        endpoint, workload, KINDS[kind].reader(workload, request), KINDS[kind].rules(workload)
    )
    exchange = Exchange(
        kind=KINDS[kind],
        endpoint=endpoint,
        workload=workload,
        request=request,
        timeline=Timeline(),
        meter=meter,
        started_at=datetime.now(UTC).timestamp(),
        request_id="r",
    )
    meter.head(status, STREAM if streamed else "application/json", "")
    for document in documents if streamed else documents[:1]:
        data = json.dumps(document).encode()
        meter.feed(1.0, b"data: %s\n\n" % data if streamed else data)
    meter.close(2.0, end)
    assert storable(result_of(exchange, 0.0, keep_content=True))
