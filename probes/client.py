"""One exchange with a live endpoint: the only file that opens connections and maps their faults.

Theory of operation. `measure` opens (or borrows) a connection, writes the request, and feeds the
meter with stamped reads until the meter is over, the body ends, or a limit expires. One timer
watches all limits: it sleeps until the nearest deadline, and output events only move the deadline,
so a token costs no timer. The peer's faults end as an outcome; ours raise. Nothing that the peer
may have worked on is retried: only a pooled connection that proves to have been closed while idle
is replaced by a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict

from probes.endpoint import Auth, Endpoint
from probes.exchange import Exchange, Kind, result_of
from probes.lag import LoopLag
from probes.meter import End, Meter
from probes.resolve import Resolver
from probes.result import Outcome, ProbeResult
from probes.transport import (
    Arrivals,
    ConnectionLost,
    Garbled,
    StampedResponse,
    Timeline,
    begin,
    clock,
    loop_socket,
    tls_context,
    tracing,
)
from probes.workload import Connection, Limits, Workload

_LATE_TIMER = 0.050
_GRACE = 0.020
_DRAIN = 1.0
_DRAIN_BYTES = 64 << 10
_STALE = 1.0
_STEP = 8 << 10
# Shorter than the idle limits of cloud load balancers (240 s and more), some of which drop the
# connection without a word.
_KEEP_ALIVE = 180.0


class Connections:
    """Lends HTTP sessions: a new one for a fresh connection, a kept one for reuse."""

    def __init__(self) -> None:
        self._resolver = Resolver()
        self._kept: dict[tuple[str, str | None, str | None], aiohttp.ClientSession] = {}

    @contextlib.asynccontextmanager
    async def lend(
        self, endpoint: Endpoint, connection: Connection
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield a session for one exchange."""
        if connection is Connection.FRESH:
            async with open_session(endpoint, self._resolver, reuse=False) as session:
                yield session
            return
        key = (endpoint.url, endpoint.ca_file, endpoint.proxy)
        if key not in self._kept:
            self._kept[key] = open_session(endpoint, self._resolver, reuse=True)
        yield self._kept[key]

    async def close(self) -> None:
        """Close every kept session."""
        kept, self._kept = list(self._kept.values()), {}
        for session in kept:
            await session.close()


def open_session(endpoint: Endpoint, resolver: Resolver, *, reuse: bool) -> aiohttp.ClientSession:
    """Return a session without timeouts, cookies, decompression or environment proxies."""
    keep: dict[str, Any] = {"keepalive_timeout": _KEEP_ALIVE} if reuse else {"force_close": True}
    connector = aiohttp.TCPConnector(
        **keep,
        limit=0,
        use_dns_cache=False,
        resolver=resolver,
        socket_factory=loop_socket,
        ssl=security(endpoint),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        response_class=StampedResponse,
        trace_configs=[tracing()],
        trust_env=False,
    )


def security(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """Return what verifies the endpoint's certificate; aiohttp's default where there is none.

    Raises:
        OSError, ssl.SSLError: The CA file cannot be used.
    """
    if not endpoint.url.startswith("https://"):
        return True
    file = endpoint.ca_file
    return tls_context(file, None if file is None else pathlib.Path(file).stat().st_mtime_ns)


class Watch:
    """Ends an exchange at the nearest of its limits.

    Attributes:
        expired: Which limit ended the exchange; None while none has.
        at: When that limit was reached.
    """

    def __init__(
        self, scope: asyncio.Timeout, workload: Workload, timeline: Timeline, meter: Meter
    ) -> None:
        self._scope = scope
        self._limits = workload.limits
        self._timeline = timeline
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._graced: float | None = None
        self.expired: Outcome | None = None
        self.at = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._arm()

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def deadline(self) -> tuple[float, Outcome]:
        """Return the nearest deadline and what it means."""
        timeline, limits, meter = self._timeline, self._limits, self._meter
        if timeline.sent is None:
            if timeline.ready is not None:  # connected, but the request is not yet written
                return timeline.ready + limits.ttft, Outcome.TIMEOUT_TTFT
            return timeline.begun + limits.connect, self._connect_outcome()
        total = timeline.sent + limits.total
        last = meter.pace.last
        if last is None:
            near = timeline.sent + limits.ttft, Outcome.TIMEOUT_TTFT
        else:
            near = last + limits.stall, Outcome.TIMEOUT_STALL
        return near if near[0] <= total else (total, Outcome.TIMEOUT_TOTAL)

    def _connect_outcome(self) -> Outcome:
        timeline = self._timeline
        resolving = timeline.dns_start is not None and timeline.dns_end is None
        return Outcome.DNS if resolving else Outcome.TIMEOUT_CONNECT

    def _arm(self) -> None:
        # What happens next may bring a nearer deadline than this one (connected: TTFT in place of
        # connect), but none that is nearer to now than the shortest limit.
        limits, (when, _) = self._limits, self.deadline()
        wait = min(when - clock(), limits.ttft, limits.stall, limits.total)
        self._handle = self._loop.call_later(max(0.0, wait), self._fire)

    def _fire(self) -> None:
        if self._handle is None or self._meter.over:
            return
        now = clock()
        when, outcome = self.deadline()
        if now < when:
            self._arm()
        elif now - when > _LATE_TIMER and self._graced != when:
            # The loop was stalled: what the peer sent in time may lie unread in the socket. Let it
            # be read, and the tasks that wait for it run, before judging.
            self._graced = when
            self._handle = self._loop.call_later(_GRACE, self._loop.call_soon, self._fire)
        else:
            self.expired, self.at = outcome, when
            self._scope.reschedule(self._loop.time())


async def measure(
    kind: Kind,
    endpoint: Endpoint,
    workload: Workload,
    *,
    salt: str | None = None,
    keep_content: bool = False,
    connections: Connections | None = None,
    lag: LoopLag | None = None,
) -> ProbeResult:
    """Make one attempt and return what it saw; never raises for what the peer does.

    Args:
        kind: How to ask and read.
        endpoint: Where.
        workload: What.
        salt: Head of the generated prompt; None draws a random one.
        keep_content: Whether the result holds what the endpoint said.
        connections: Where pooled connections live; None closes them after this attempt.
        lag: A running watch of the event loop; None makes one for this attempt.

    Raises:
        asyncio.CancelledError: The caller gave up.
        ValueError: The endpoint's URL or a header cannot be sent.
        OSError, ssl.SSLError: The endpoint's CA file cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        if lag is None:
            lag = LoopLag()
            stack.callback(lag.stop)
        lag.start()
        if connections is None:
            connections = Connections()
            stack.push_async_callback(connections.close)
        exchange = await _exchange(kind, endpoint, workload, salt, connections)
        if _stale(exchange):
            workload = replace(workload, connection=Connection.FRESH)
            exchange = await _exchange(kind, endpoint, workload, salt, connections)
        loop_lag = lag.worst(exchange.timeline.begun)
        return result_of(exchange, loop_lag, keep_content=keep_content)


async def _exchange(
    kind: Kind, endpoint: Endpoint, workload: Workload, salt: str | None, pool: Connections
) -> Exchange:
    security(endpoint)  # a bad CA file is our own fault and must not look like the peer's
    request = kind.build(endpoint, workload, salt or secrets.token_hex(8))
    timeline, body = begin(request.body, request.content_type)
    meter = Meter(endpoint, workload, kind.reader(workload, request), kind.rules(workload))
    exchange = Exchange(
        kind=kind,
        endpoint=endpoint,
        workload=workload,
        request=request,
        timeline=timeline,
        meter=meter,
        started_at=time.time(),
        request_id=secrets.token_hex(16),
    )
    watch: Watch | None = None
    try:
        async with asyncio.timeout(None) as scope:
            watch = Watch(scope, workload, timeline, meter)
            async with pool.lend(endpoint, workload.connection) as session:
                timeline.begun = clock()
                await _converse(exchange, session, body)
    except (aiohttp.ClientError, OSError) as exc:
        if isinstance(exc, aiohttp.InvalidURL):
            raise
        if watch is None or watch.expired is None or not isinstance(exc, TimeoutError):
            _map_fault(exchange, exc)
        elif not meter.over:  # else the limit came between the end of the answer and this line
            meter.abandon(watch.at)
            exchange.outcome = watch.expired
            exchange.reason = _limit_reason(watch.expired, workload.limits)
    finally:
        if watch is not None:
            watch.close()
        pooled = workload.connection is Connection.REUSE and exchange.outcome is None
        if timeline.arrivals is not None and not (pooled and meter.over):
            # A mere close would first write what the peer does not read.
            timeline.arrivals.transport.abort()
    return exchange


def _stale(exchange: Exchange) -> bool:
    """Whether a pooled connection was lost as one is that the peer closed while it was idle.

    That is its right, and no fault of the endpoint: at once, and without a byte of an answer. What
    dies later than that died while it worked on the request.
    """
    timeline = exchange.timeline
    unheard = timeline.arrivals is None or timeline.arrivals.heard is None
    lost = exchange.outcome is Outcome.CONNECTION_LOST and unheard
    return lost and timeline.reused and clock() - (timeline.sent or clock()) < _STALE


async def _converse(
    exchange: Exchange, session: aiohttp.ClientSession, body: aiohttp.Payload | None
) -> None:
    """Send the request and read the answer into the meter."""
    endpoint, meter = exchange.endpoint, exchange.meter
    async with session.request(
        exchange.request.method,
        _url(endpoint, exchange.request.path),
        data=body,
        headers=_request_headers(exchange),
        allow_redirects=False,
        proxy=endpoint.proxy,
    ) as response:
        exchange.headers = response.headers
        meter.head(
            response.status,
            response.headers.get("content-type", ""),
            response.headers.get("content-encoding", ""),
        )
        arrivals = cast("Arrivals", exchange.timeline.arrivals)  # there is a response
        await _read(exchange, arrivals)
        if exchange.workload.connection is Connection.REUSE and not arrivals.over:
            await _drain(arrivals)


async def _read(exchange: Exchange, arrivals: Arrivals) -> None:
    """Feed the body to the meter, read by read."""
    meter, timeline = exchange.meter, exchange.timeline
    arrivals.sink = None if meter.compressed else meter
    try:
        while not meter.over:
            reads = await arrivals.reads()
            if not reads:
                break
            exchange.late = max(exchange.late, clock() - reads[0][0])
            for at, data in reads:
                if len(data) > _STEP or meter.compressed:
                    await _feed_large(meter, at, data)
                else:
                    meter.feed(at, data)
        meter.close(clock(), End.EOF)
    except Garbled:
        meter.close(timeline.broken or clock(), End.GARBLED)
    except aiohttp.ClientError:
        meter.close(timeline.broken or clock(), End.BROKEN)
    finally:
        arrivals.sink = None


async def _feed_large(meter: Meter, at: float, data: bytes) -> None:
    """Feed one read in steps: other streams must not wait while much is parsed."""
    for start in range(0, len(data), _STEP):
        for _ in meter.feed_steps(at, data[start : start + _STEP]):
            await asyncio.sleep(0)


async def _drain(arrivals: Arrivals) -> None:
    """Read the little rest of a finished answer, or aiohttp will not pool its connection."""
    left = _DRAIN_BYTES
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN):
            while left > 0 and (reads := await arrivals.reads()):
                left -= sum(len(data) for _, data in reads)


def _url(endpoint: Endpoint, path: str) -> str:
    query = []
    if endpoint.api_version is not None:
        query.append(("api-version", endpoint.api_version))
    if endpoint.auth is Auth.QUERY and endpoint.api_key:
        query.append((endpoint.auth_name or "key", endpoint.api_key))
    return endpoint.url + path + (f"?{urlencode(query)}" if query else "")


def _request_headers(exchange: Exchange) -> CIMultiDict[str]:
    endpoint, request = exchange.endpoint, exchange.request
    sent = CIMultiDict(
        {
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "endpoint-monitor",
            "x-request-id": exchange.request_id,
        }
    )
    if request.body is not None:
        sent["Content-Type"] = request.content_type
    if endpoint.api_key and endpoint.auth is Auth.BEARER:
        sent["Authorization"] = f"Bearer {endpoint.api_key}"
    elif endpoint.api_key and endpoint.auth is Auth.API_KEY:
        sent[endpoint.auth_name or "api-key"] = endpoint.api_key
    sent.update(endpoint.headers)  # in place of ours, whatever the case of the name
    return sent


def _fail(exchange: Exchange, outcome: Outcome, reason: str) -> None:
    exchange.outcome, exchange.reason = outcome, reason
    exchange.meter.abandon(clock())


def _map_fault(exchange: Exchange, exc: BaseException) -> None:
    """Map what aiohttp and the system raise to an outcome; the most specific wins."""
    outcome, timeline = _fault_outcome(exc), exchange.timeline
    told = timeline.arrivals.told_status() if timeline.arrivals is not None else None
    if outcome is Outcome.PROTOCOL_ERROR and exchange.meter.status is None and told is not None:
        # A head and the garbage behind it came in one read, which aiohttp then drops as a whole.
        # How bytes are cut must decide nothing: the status was told.
        exchange.meter.head(told, "", "")
        exchange.meter.protocol = f"{_FAULT_WORDS[outcome]}: {_cause(exc)}"
        exchange.meter.close(clock(), End.GARBLED)
        return
    if outcome is Outcome.CONNECT and timeline.ready is not None:
        outcome = Outcome.CONNECTION_LOST
    elif outcome is Outcome.CONNECT and timeline.tls_start is not None:
        outcome = Outcome.TLS  # TCP stood
    _fail(exchange, outcome, f"{_FAULT_WORDS[outcome]}: {_cause(exc)}")


_FAULT_WORDS = {
    Outcome.DNS: "host name does not resolve",
    Outcome.TLS: "TLS failed",
    Outcome.CONNECT: "cannot connect",
    Outcome.CONNECTION_LOST: "connection lost before a response",
    Outcome.PROTOCOL_ERROR: "answer is not HTTP",
}


def _fault_outcome(exc: BaseException) -> Outcome:
    cause = getattr(exc, "os_error", None) or exc.__cause__
    if isinstance(exc, aiohttp.ClientConnectorDNSError) or isinstance(cause, socket.gaierror):
        return Outcome.DNS
    if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError | ssl.CertificateError) or isinstance(
        cause, ssl.SSLError
    ):
        return Outcome.TLS
    if isinstance(exc, aiohttp.ClientProxyConnectionError | aiohttp.ClientConnectorError):
        return Outcome.CONNECT
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return Outcome.CONNECT
    if isinstance(exc, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return Outcome.PROTOCOL_ERROR
    if isinstance(exc, ConnectionLost):
        return Outcome.CONNECTION_LOST
    return Outcome.CONNECT


def _cause(exc: BaseException) -> str:
    cause = getattr(exc, "os_error", None) or exc.__cause__ or exc
    number = cause.errno if isinstance(cause, OSError) else None
    if number is not None and number > 0 and not isinstance(cause, ssl.SSLError):
        return os.strerror(number)  # asyncio's own text names the address, not the fault
    text = getattr(cause, "strerror", None) or getattr(cause, "message", None) or str(cause)
    return str(text or type(cause).__name__)[:300]


def _limit_reason(outcome: Outcome, limits: Limits) -> str:
    words = {
        Outcome.DNS: f"host name not resolved within {limits.connect:g} s",
        Outcome.TIMEOUT_CONNECT: f"no connection within {limits.connect:g} s",
        Outcome.TIMEOUT_TTFT: f"no output within {limits.ttft:g} s",
        Outcome.TIMEOUT_STALL: f"no further output for {limits.stall:g} s",
        Outcome.TIMEOUT_TOTAL: f"not complete within {limits.total:g} s",
    }
    return words[outcome]
