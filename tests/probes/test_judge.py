from __future__ import annotations

import json
from typing import Any

import pytest

from probes import KINDS, Endpoint, Outcome, Workload
from probes.judge import failed_check, judge
from probes.meter import End, Meter
from probes.workload import Check

HTML = b"<html>busy</html>"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def choice(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def judged(
    body: bytes,
    status: int = 200,
    end: End = End.EOF,
    check: Check | None = None,
    expected: str | None = None,
) -> Outcome:
    endpoint = Endpoint(name="e", url="http://host/v1", model="m", expected_model=expected)
    workload = Workload(check=check)
    kind = KINDS["chat"]
    request = kind.build(endpoint, workload, "salt")
    meter = Meter(endpoint, workload, kind.reader(workload, request), kind.rules(workload))
    meter.head(status, "text/event-stream" if status == 200 else "application/json", "")
    meter.feed(1.0, body)
    meter.close(2.0, end)
    outcome, reason = judge(meter, endpoint, workload)
    assert (reason is None) == (outcome is Outcome.OK)
    assert reason is None or "\n" not in reason
    return outcome


SAID, DONE = event(**choice("a")), b"data: [DONE]\n\n"
STOPPED = event(**choice("a", "stop"), model="m-1")
FAILED = event(error={"message": "x", "code": 500})
FILTERED = event(**choice("", "content_filter"))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (204, Outcome.PROTOCOL_ERROR),
        (301, Outcome.HTTP_REDIRECT),
        (307, Outcome.HTTP_REDIRECT),
        (400, Outcome.HTTP_BAD_REQUEST),
        (401, Outcome.HTTP_AUTH),
        (402, Outcome.HTTP_QUOTA),
        (403, Outcome.HTTP_AUTH),
        (404, Outcome.HTTP_NOT_FOUND),
        (405, Outcome.HTTP_BAD_REQUEST),
        (422, Outcome.HTTP_BAD_REQUEST),
        (429, Outcome.HTTP_RATE_LIMITED),
        (499, Outcome.HTTP_BAD_REQUEST),
        (500, Outcome.HTTP_5XX),
        (529, Outcome.HTTP_5XX),
        (599, Outcome.HTTP_5XX),
        (600, Outcome.PROTOCOL_ERROR),
    ],
)
def test_a_status_decides(status: int, outcome: Outcome) -> None:
    assert judged(HTML, status) is outcome


@pytest.mark.parametrize("status", [400, 403, 429, 500])
def test_a_code_in_the_body_says_more_than_a_status(status: int) -> None:
    quota = json.dumps({"error": {"code": "insufficient_quota"}}).encode()
    filtered = json.dumps({"error": {"code": "content_filter"}}).encode()
    assert judged(quota, status) is Outcome.HTTP_QUOTA
    assert judged(filtered, status) is Outcome.CONTENT_FILTER


@pytest.mark.parametrize(
    ("body", "end", "outcome"),
    [
        (STOPPED + DONE, End.EOF, Outcome.OK),
        (STOPPED, End.EOF, Outcome.OK),
        (STOPPED, End.BROKEN, Outcome.OK),
        (SAID + DONE, End.EOF, Outcome.OK),
        (SAID, End.EOF, Outcome.TRUNCATED),
        (SAID, End.BROKEN, Outcome.TRUNCATED),
        (SAID, End.GARBLED, Outcome.PROTOCOL_ERROR),
        (SAID + b"data: {oops\n\n" + DONE, End.EOF, Outcome.PROTOCOL_ERROR),
        (HTML, End.EOF, Outcome.PROTOCOL_ERROR),
        (SAID + FAILED + DONE, End.EOF, Outcome.STREAM_ERROR),
        (FAILED, End.EOF, Outcome.STREAM_ERROR),
        (SAID + FILTERED + DONE, End.EOF, Outcome.CONTENT_FILTER),
        (DONE, End.EOF, Outcome.EMPTY_OUTPUT),
        (event(**choice("", "stop")) + DONE, End.EOF, Outcome.EMPTY_OUTPUT),
        (b"", End.EOF, Outcome.TRUNCATED),
    ],
)
def test_what_a_200_says_decides(body: bytes, end: End, outcome: Outcome) -> None:
    assert judged(body, end=end) is outcome


def test_what_is_worse_comes_first() -> None:
    """Each fault hides those that follow it in the order of the conformance README."""
    wrong = {"check": Check(equals="b"), "expected": "other"}
    assert judged(SAID + FAILED, 503, **wrong) is Outcome.HTTP_5XX  # type: ignore[arg-type]
    broken = SAID + b"data: {oops\n\n"
    assert judged(broken, **wrong) is Outcome.PROTOCOL_ERROR  # type: ignore[arg-type]
    assert judged(SAID + FAILED, **wrong) is Outcome.STREAM_ERROR  # type: ignore[arg-type]
    assert judged(SAID + FILTERED, **wrong) is Outcome.CONTENT_FILTER  # type: ignore[arg-type]
    assert judged(SAID, **wrong) is Outcome.TRUNCATED  # type: ignore[arg-type]
    assert judged(DONE, **wrong) is Outcome.EMPTY_OUTPUT  # type: ignore[arg-type]
    assert judged(STOPPED, **wrong) is Outcome.WRONG_MODEL  # type: ignore[arg-type]
    assert judged(STOPPED, check=Check(equals="b")) is Outcome.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [("m-1", Outcome.OK), ("m*", Outcome.OK), ("M*", Outcome.WRONG_MODEL), (None, Outcome.OK)],
)
def test_the_served_model_must_match_the_glob(expected: str | None, outcome: Outcome) -> None:
    assert judged(STOPPED + DONE, expected=expected) is outcome


@pytest.mark.parametrize(
    ("check", "text", "passes"),
    [
        (None, "", True),
        (Check(), "anything", True),
        (Check(contains="is 4"), "it is 4.", True),
        (Check(contains="is 4"), "it is 5.", False),
        (Check(equals="4"), " 4\n", True),
        (Check(equals="4"), "4.", False),
        (Check(json=True), '{"a": 1}', True),
        (Check(json=True), "{'a': 1}", False),
        (Check(json=True), "", False),
        (Check(json=True, contains="b"), '{"a": 1}', False),
    ],
)
def test_checks(check: Check | None, text: str, *, passes: bool) -> None:
    assert (failed_check(check, text) is None) is passes
