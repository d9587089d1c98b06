"""What response headers tell: request ids, limits, waits, server-side times; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from probes.wire import to_seconds

_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-generation-id",
    "x-amzn-requestid",
)
_REMAINING = (
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining",
    "ratelimit-remaining",
    "anthropic-ratelimit-requests-remaining",
)
_RESET = (
    "x-ratelimit-reset-requests",
    "anthropic-ratelimit-requests-reset",
    "ratelimit-reset",
    "x-ratelimit-reset",
)
# Header, our name, unit in seconds. TGI and OpenAI state milliseconds, Fireworks seconds.
_TIMES = (
    ("fireworks-server-time-to-first-token", "ttft", 1.0),
    ("fireworks-server-processing-time", "processing", 1.0),
    ("openai-processing-ms", "processing", 1e-3),
    ("x-queue-time", "queue", 1e-3),
    ("x-inference-time", "inference", 1e-3),
    ("x-time-per-token", "tpot", 1e-3),
    ("x-total-time", "total", 1e-3),
)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LARGEST = float(1 << 53)  # the most that every reader of JSON keeps exact
_EPOCH_MS = 1e11  # a reset this large can only be a date in milliseconds


def request_id(headers: Mapping[str, str], in_body: str | None = None) -> str | None:
    """Return the server's id of this request; None when it gives none.

    An id in the body (Groq) comes before that of a CDN, which names only its own part.
    """
    named = next((value for name in _REQUEST_IDS if (value := headers.get(name))), None)
    return named or in_body or headers.get("cf-ray")


def fallback(headers: Mapping[str, str]) -> bool:
    """Whether a gateway says that another backend answered than the one asked for (LiteLLM)."""
    count = headers.get("x-litellm-attempted-fallbacks", "")
    return bool(to_seconds(count, 1.0))


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the wait the server asks for in seconds; None when absent or no sensible time.

    `retry-after-ms` wins over `retry-after`, which is seconds or an HTTP date (RFC 9110, 10.2.3).
    A date in the past is 0; a negative number means "unknown", not a wait.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("x-ms-retry-after-ms", 1e-3)):
        if (wait := _sane(to_seconds(headers.get(name), unit))) is not None:
            return wait
    value = headers.get("retry-after")
    if value is None:
        return None
    wait = duration(value)
    return _sane(_until(value, now) if wait is None else wait)


def _sane(wait: float | None) -> float | None:
    """Return a wait; None for what is none, were it endless."""
    return wait if wait is not None and wait < _LARGEST else None


def _until(value: str, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        try:
            date = datetime.fromisoformat(value)
        except ValueError:
            return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def duration(value: str) -> float | None:
    """Read `12ms`, `6m0s`, `2m59.56s` or plain seconds; None for anything else."""
    value = value.strip().lower()
    if _DURATION.fullmatch(value):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    return to_seconds(value, 1.0)


def remaining_requests(headers: Mapping[str, str]) -> int | None:
    """Return the requests left in the current limit; None when absent or the sentinel -1."""
    for name in _REMAINING:
        left = to_seconds(headers.get(name), 1.0)
        if left is not None and left < _LARGEST:
            return int(left)
    return None


def reset_requests(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds until the request limit resets; None when absent or unknown."""
    for name in _RESET:
        value = headers.get(name)
        if value is None:
            continue
        wait = duration(value)
        if wait is None:
            wait = _until(value, now)
        elif wait > _EPOCH_MS:
            wait = max(0.0, wait / 1e3 - now.timestamp())
        if _sane(wait) is not None:
            return wait
    return None


def server_times(headers: Mapping[str, str]) -> dict[str, float]:
    """Return the times that the server states in headers, seconds by name."""
    return {
        ours: seconds
        for name, ours, unit in _TIMES
        if (seconds := to_seconds(headers.get(name), unit)) is not None
    }
