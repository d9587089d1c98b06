"""What one exchange left behind, and the record made of it; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from probes import headers as response_headers
from probes.endpoint import Endpoint
from probes.judge import judge, reported
from probes.meter import GAP, Meter, Reader, Rules
from probes.redact import redact
from probes.result import Outcome, Phases, ProbeResult
from probes.said import digest
from probes.tokens import Usage
from probes.transport import Timeline
from probes.workload import Limits, Workload

UPLOAD_BYTES = 14_000
TAINT_LAG = 0.010
TAINT_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent.

    Attributes:
        path: Below the base URL.
        body: None for a GET.
        document: The fields sent, for the kind's reader; None where there are none.
    """

    method: str = "POST"
    path: str = ""
    body: bytes | None = None
    content_type: str = "application/json"
    document: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one kind of workload asks and reads.

    Attributes:
        build: (endpoint, workload, salt) -> request.
        reader: (workload, request) -> what reads the answer.
        rules: (workload) -> what completes an answer of this kind.
    """

    name: str
    build: Callable[[Endpoint, Workload, str], Request]
    reader: Callable[[Workload, Request], Reader]
    rules: Callable[[Workload], Rules]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One attempt as the client leaves it.

    Attributes:
        started_at: Wall clock, seconds since the epoch.
        headers: Of the response; None without a head.
        outcome: Set where the transport or a limit decided; None leaves it to the judge.
        late: Longest time between a read's arrival and its handling, seconds.
    """

    kind: Kind
    endpoint: Endpoint
    workload: Workload
    request: Request
    timeline: Timeline
    meter: Meter
    started_at: float
    request_id: str
    headers: Mapping[str, str] | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    late: float = 0.0


def since(start: float | None, end: float | None) -> float | None:
    """Return a duration; None where either end is missing."""
    return None if start is None or end is None else max(0.0, end - start)


def phases(timeline: Timeline) -> Phases:
    """Cut the time before the answer into phases; each is None where it did not end."""
    tcp_start = timeline.dns_end or timeline.connect_start
    tcp_end = timeline.tls_start or timeline.connected
    return Phases(
        dns=since(timeline.dns_start, timeline.dns_end),
        connect=None if timeline.reused else since(tcp_start, tcp_end),
        tls=since(timeline.tls_start, timeline.connected),
        send=since(timeline.connected or timeline.ready, timeline.sent),
        wait=since(timeline.sent, timeline.head),
    )


def result_of(exchange: Exchange, loop_lag: float, *, keep_content: bool) -> ProbeResult:
    """Make the record of an attempt; `loop_lag` is our own worst delay during it, seconds."""
    meter, sent = exchange.meter, exchange.timeline.sent
    endpoint, workload = exchange.endpoint, exchange.workload
    hide = endpoint.secrets()
    outcome, reason = exchange.outcome, exchange.reason
    if outcome is None:
        outcome, reason = judge(meter, endpoint, workload)
    error, counted, pace = reported(meter), meter.counted(), meter.pace
    headers = exchange.headers or {}
    now = datetime.now(UTC)
    flags = meter.flags(counted)
    if response_headers.fallback(headers):
        flags.add("server_fallback")
    ttft = since(sent, pace.first)
    usage = meter.usage or Usage()
    text = meter.said.text("text")
    return ProbeResult(
        endpoint=endpoint.name,
        workload=workload.name,
        kind=exchange.kind.name,
        model=endpoint.model,
        started_at=exchange.started_at,
        outcome=outcome,
        reason=redact(reason, hide, cut=True),
        http_status=meter.status,
        phases=phases(exchange.timeline),
        ttfb_s=since(sent, meter.first_byte_at),
        ttft_s=ttft,
        ttfat_s=since(sent, pace.answer_at),
        last_s=since(sent, pace.last),
        tpot_s=pace.tpot(counted.visible),
        e2e_s=since(sent, meter.ended_at),
        itl=pace.itl(),
        chunks=len(pace.stamps),
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        output_tokens=counted.output,
        reasoning_tokens=usage.reasoning,
        visible_tokens=counted.visible,
        output_tokens_source=counted.source,
        flags=tuple(sorted(flags)),
        finish_reason=_short(meter.finish, hide),
        served_model=_short(meter.model, hide),
        fingerprint=_short(meter.fingerprint, hide),
        request_id_sent=exchange.request_id,
        request_id=_short(response_headers.request_id(headers, meter.request_id), hide),
        error_code=_short(error.code, hide) if error else None,
        error_excerpt=_excerpt(meter.excerpt(), hide),
        retry_after_s=response_headers.retry_after(headers, now),
        ratelimit_remaining_requests=response_headers.remaining_requests(headers),
        ratelimit_reset_requests_s=response_headers.reset_requests(headers, now),
        server_metrics=response_headers.server_times(headers) | meter.metrics,
        loop_lag_s=loop_lag,
        merged=pace.merged,
        late_s=exchange.late,
        connection="reuse" if exchange.timeline.reused else "fresh",
        cache=workload.cache.value,
        upload=len(exchange.request.body or b"") > UPLOAD_BYTES and not exchange.timeline.reused,
        tainted=tainted(outcome, loop_lag, ttft, since(sent, meter.ended_at), workload.limits),
        cost=_cost(endpoint, usage, counted.output),
        text_sha256=digest(text),
        text_chars=len(text),
        reasoning_chars=len(meter.said.text("reasoning")),
        body_bytes=meter.body_bytes,
        content=meter.said.content() if keep_content else None,
    )


def tainted(
    outcome: Outcome, lag: float, ttft: float | None, e2e: float | None, limits: Limits
) -> bool:
    """Whether our own delay `lag`, in seconds, may have bent what a result says.

    An answer's times are bent by more than 10 ms and 5 % of TTFT, or of the whole where nothing
    was streamed. A limit is in doubt when 5 % of it went by unwatched. What else an endpoint did
    wrong is as true late as in time, and must not vanish from its availability on a busy machine.
    """
    if outcome is Outcome.OK:
        return lag > max(TAINT_LAG, TAINT_SHARE * ((e2e if ttft is None else ttft) or 0.0))
    limit = {
        Outcome.DNS: limits.connect,
        Outcome.TIMEOUT_CONNECT: limits.connect,
        Outcome.TIMEOUT_TTFT: limits.ttft,
        Outcome.TIMEOUT_STALL: limits.stall,
        Outcome.TIMEOUT_TOTAL: limits.total,
    }.get(outcome)
    return limit is not None and lag > max(TAINT_LAG, TAINT_SHARE * limit)


def _cost(endpoint: Endpoint, usage: Usage, output: int | None) -> float | None:
    """Return what the server charged, else tokens times prices; None when a part is unknown."""
    if usage.cost is not None:
        return usage.cost
    parts = ((usage.prompt, endpoint.price_input), (output, endpoint.price_output))
    if any(count is None or price is None for count, price in parts):
        return None
    return sum((count or 0) * (price or 0.0) for count, price in parts)


def _short(text: str | None, hide: Sequence[str]) -> str | None:
    """Cap and clean what the peer chose."""
    return None if text is None else redact(text[:200], hide, cut=True, guess=False)


def _excerpt(text: str | None, hide: Sequence[str]) -> str | None:
    """Clean both ends of a body; a secret may have been cut by what was left out between them."""
    if text is None:
        return None
    return GAP.join(redact(part, hide, cut=True) or "" for part in text.split(GAP))
