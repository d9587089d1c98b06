from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import headers as read

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "2s"}, 2.0),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Tue, 01 Dec 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "2026-12-01T12:01:00Z"}, 60.0),
        ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "junk"}, 9.0),
    ],
)
def test_retry_after(headers: dict[str, str], expected: float | None) -> None:
    assert read.retry_after(headers, NOW) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("1h", 3600.0),
        ("1d2h", 93_600.0),
        (" 3 ", 3.0),
        ("1e3", 1000.0),
        ("ms", None),
        ("5 apples", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert read.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "left", "reset"),
    [
        (
            {"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"},
            59,
            1.0,
        ),
        ({"ratelimit-remaining": "3", "ratelimit-reset": "20"}, 3, 20.0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "4",
                "anthropic-ratelimit-requests-reset": "2026-12-01T12:00:09Z",
            },
            4,
            9.0,
        ),
        ({"x-ratelimit-reset": str(int((NOW.timestamp() + 5) * 1000))}, None, 5.0),
        ({"x-ratelimit-remaining": "-1"}, None, None),
        ({"x-ratelimit-remaining": "many"}, None, None),
    ],
)
def test_rate_limits(headers: dict[str, str], left: int | None, reset: float | None) -> None:
    assert read.remaining_requests(headers) == left
    assert read.reset_requests(headers, NOW) == pytest.approx(reset)


def test_server_side_times_are_seconds_by_name() -> None:
    """Fireworks states seconds where OpenAI and TGI state milliseconds."""
    got = read.server_times(
        {
            "openai-processing-ms": "250",
            "fireworks-server-time-to-first-token": "0.12",
            "x-queue-time": "3",
            "x-time-per-token": "x",
        }
    )
    assert got == pytest.approx({"processing": 0.25, "ttft": 0.12, "queue": 0.003})


def test_the_first_request_id_that_is_set_wins() -> None:
    assert read.request_id({"cf-ray": "c", "x-request-id": "a"}) == "a"
    assert read.request_id({"x-request-id": "", "cf-ray": "c"}) == "c"
    assert read.request_id({}) is None


@pytest.mark.parametrize(("count", "fell"), [("1", True), ("0", False), ("", False), ("x", False)])
def test_a_gateway_says_whether_another_backend_answered(count: str, *, fell: bool) -> None:
    assert read.fallback({"x-litellm-attempted-fallbacks": count}) is fell


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_header_raises_or_makes_a_negative_wait(value: str) -> None:
    names = ("retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-remaining")
    headers = dict.fromkeys(
        [*names, "openai-processing-ms", "x-litellm-attempted-fallbacks"], value
    )
    waits = [read.retry_after(headers, NOW), read.reset_requests(headers, NOW)]
    waits += [read.remaining_requests(headers), *read.server_times(headers).values()]
    assert all(wait is None or wait >= 0 for wait in waits)
    read.fallback(headers)


@given(st.timedeltas(timedelta(days=-400), timedelta(days=300)))
@settings(max_examples=100, deadline=None)
def test_a_date_and_the_seconds_until_it_mean_the_same(ahead: timedelta) -> None:
    ahead = timedelta(seconds=int(ahead.total_seconds()))
    date = (NOW + ahead).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert read.retry_after({"retry-after": date}, NOW) == max(0.0, ahead.total_seconds())
