"""What one attempt saw: an immutable record, and the closed list of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an attempt ended; the full value set of the metric label `outcome`."""

    OK = "ok"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    CONNECTION_LOST = "connection_lost"
    TIMEOUT_TTFT = "timeout_ttft"
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    HTTP_AUTH = "http_auth"
    HTTP_QUOTA = "http_quota"
    HTTP_RATE_LIMITED = "http_rate_limited"
    HTTP_BAD_REQUEST = "http_bad_request"
    HTTP_NOT_FOUND = "http_not_found"
    HTTP_REDIRECT = "http_redirect"
    HTTP_5XX = "http_5xx"
    PROTOCOL_ERROR = "protocol_error"
    TRUNCATED = "truncated"
    STREAM_ERROR = "stream_error"
    EMPTY_OUTPUT = "empty_output"
    CONTENT_FILTER = "content_filter"
    WRONG_MODEL = "wrong_model"
    VALIDATION_FAILED = "validation_failed"
    ABORTED = "aborted"


class Verdict(StrEnum):
    """What an outcome means for availability (DESIGN of the ratio: good / (good + bad))."""

    GOOD = "good"
    BAD = "bad"
    RATE_LIMITED = "rate_limited"
    MISCONFIGURED = "misconfigured"
    NEUTRAL = "neutral"


_MISCONFIGURED = frozenset(
    {
        Outcome.HTTP_AUTH,
        Outcome.HTTP_QUOTA,
        Outcome.HTTP_BAD_REQUEST,
        Outcome.HTTP_NOT_FOUND,
        Outcome.HTTP_REDIRECT,
    }
)


def verdict(outcome: Outcome) -> Verdict:
    """Say how an outcome counts: good, bad, or outside the ratio and why."""
    if outcome is Outcome.OK:
        return Verdict.GOOD
    if outcome is Outcome.HTTP_RATE_LIMITED:
        return Verdict.RATE_LIMITED
    if outcome in _MISCONFIGURED:
        return Verdict.MISCONFIGURED
    if outcome in (Outcome.CONTENT_FILTER, Outcome.ABORTED):
        return Verdict.NEUTRAL
    return Verdict.BAD


class Excluded(StrEnum):
    """Why a result stays out of every indicator; it is kept and shown."""

    UNKNOWN = "unknown"
    TAINTED = "tainted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds spent before the answer, each None where the phase did not happen or not end.

    Attributes:
        dns: Name resolution; None for an address or a pooled connection.
        connect: TCP handshake; None for a pooled connection.
        tls: TLS handshake; None without TLS or for a pooled connection.
        send: From the connection being ready to the request's last byte written.
        wait: From the request's last byte to the response head.
    """

    dns: float | None = None
    connect: float | None = None
    tls: float | None = None
    send: float | None = None
    wait: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Itl:
    """Gaps between output events: count and seconds. Per event, not per token."""

    n: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call, put together from its deltas."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the endpoint said; kept only when asked for.

    Attributes:
        vectors: Number of embedding vectors; None for other kinds, as with all that follow.
        dims: Length of a vector.
        first_vector: The vector of the first input.
        ranking: Document indices, best first.
        audio_s: Length of the audio as the server states it, seconds.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    vectors: int | None = None
    dims: int | None = None
    first_vector: tuple[float, ...] | None = None
    ranking: tuple[int, ...] | None = None
    audio_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one attempt saw. Times are seconds since the request's last byte was written.

    Attributes:
        started_at: Wall clock, seconds since the epoch, UTC.
        reason: One plain sentence for a person, secrets removed; None when ok.
        http_status: None without a response head.
        ttfb_s: First body byte.
        ttft_s: First output event; None when there was none or the body was not streamed.
        ttfat_s: First output event that is not reasoning.
        last_s: Last output event.
        tpot_s: (last - first output event) / (visible tokens - 1), definition tpot/1; None below
            two tokens or when delivery is clumped.
        e2e_s: End marker, end of body, or the moment a failure was known; None before a request.
        chunks: Number of output events; None when no stream was read.
        cached_tokens: Prompt tokens that the server says came from its cache.
        output_tokens: As `output_tokens_source` says: `usage`, `tokenizer` or `chunks`.
        visible_tokens: Output tokens less reasoning that was not streamed.
        flags: Sorted facts about the answer, the vocabulary of tests/conformance/README.md.
        error_code: The peer's own error code as text.
        error_excerpt: First and last part of an error body, redacted and length-capped.
        retry_after_s: As the peer asked; a date in the past is 0; None when absent or unknown.
        server_metrics: Times the server itself reports, seconds by name.
        loop_lag_s: Worst delay of the event loop during the attempt.
        schedule_lag_s: Start minus due time; None outside a schedule.
        merged: Output events that share an arrival stamp with another one.
        late_s: Longest time between a read's arrival stamp and its handling.
        stamp_source: `transport`; where arrival stamps come from.
        upload: Whether over 14 kB were sent on a fresh connection (slow start in `send`).
        tainted: Our own delay may have bent the figures: loop_lag > max(10 ms, 5 % of TTFT).
        cost: In the unit of the endpoint's price; None when a price or a count is unknown.
        text_sha256: Of the answer's text; None when there was none.
        body_bytes: Bytes of the body as received.
        content: Present only when asked for.
    """

    endpoint: str
    workload: str
    kind: str
    model: str | None
    started_at: float
    outcome: Outcome
    reason: str | None = None
    http_status: int | None = None
    phases: Phases = field(default_factory=Phases)
    ttfb_s: float | None = None
    ttft_s: float | None = None
    ttfat_s: float | None = None
    last_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    itl: Itl | None = None
    chunks: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    visible_tokens: int | None = None
    output_tokens_source: str | None = None
    flags: tuple[str, ...] = ()
    finish_reason: str | None = None
    served_model: str | None = None
    fingerprint: str | None = None
    request_id_sent: str | None = None
    request_id: str | None = None
    error_code: str | None = None
    error_excerpt: str | None = None
    retry_after_s: float | None = None
    ratelimit_remaining_requests: int | None = None
    ratelimit_reset_requests_s: float | None = None
    server_metrics: Mapping[str, float] = field(default_factory=dict)
    loop_lag_s: float = 0.0
    schedule_lag_s: float | None = None
    merged: int = 0
    late_s: float = 0.0
    stamp_source: str = "transport"
    connection: str = "fresh"
    cache: str = "cold"
    upload: bool = False
    tainted: bool = False
    cost: float | None = None
    text_sha256: str | None = None
    text_chars: int = 0
    reasoning_chars: int = 0
    body_bytes: int = 0
    content: Content | None = None
    steps: tuple[Mapping[str, Any], ...] = ()

    @property
    def excluded(self) -> Excluded | None:
        """Why no indicator may use this result; None when it counts."""
        return Excluded.TAINTED if self.tainted else None
