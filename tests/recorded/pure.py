"""An answer's way through the pure core, without socket or clock: stamped reads in, result out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from multidict import CIMultiDict

from probes import KINDS, Endpoint, ProbeResult, Workload
from probes.exchange import Exchange, Kind, Request, result_of
from probes.meter import End, Meter
from probes.transport import Timeline

Read = tuple[float, bytes]
"""Seconds since the request was written, and some of the body."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was not sent."""

    kind: Kind
    endpoint: Endpoint
    workload: Workload
    request: Request


def ask(workload: Workload | None = None, endpoint: Endpoint | None = None) -> Asked:
    """Build a request; what is not given is a plain chat."""
    workload = workload or Workload()
    endpoint = endpoint or Endpoint(name="e", url="http://nowhere/v1", model="m")
    kind = KINDS[workload.kind]
    return Asked(kind, endpoint, workload, kind.build(endpoint, workload, "salt"))


def measure(
    asked: Asked,
    reads: Iterable[Read],
    ended_at: float,
    *,
    status: int = 200,
    headers: CIMultiDict[str] | None = None,
    end: End = End.EOF,
) -> ProbeResult:
    """Feed the meter as the client would, and make the record."""
    kind, workload, request = asked.kind, asked.workload, asked.request
    meter = Meter(asked.endpoint, workload, kind.reader(workload, request), kind.rules(workload))
    headers = headers or CIMultiDict({"content-type": "text/event-stream"})
    meter.head(status, headers.get("content-type", ""), headers.get("content-encoding", ""))
    for at, data in reads:
        meter.feed(at, data)
    meter.close(ended_at, end)
    exchange = Exchange(
        kind=kind,
        endpoint=asked.endpoint,
        workload=workload,
        request=request,
        timeline=Timeline(begun=0.0, sent=0.0),
        meter=meter,
        started_at=0.0,
        request_id="pure",
        headers=headers,
    )
    return result_of(exchange, 0.0, keep_content=True)
