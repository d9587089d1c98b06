"""Limits: which one ends an attempt, when, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from probes import Limits, LoopLag, Outcome, ProbeResult, Workload, resolve
from tests.probes.raw_server import (
    DONE,
    END,
    HEAD,
    Peer,
    Script,
    chunk,
    event,
    probe,
    serve,
    silence,
)

# On an idle machine limits are met within a millisecond; a shared one may be late, never early.
EARLY = 0.002


async def timed(script: Script, limits: Limits) -> tuple[ProbeResult, float]:
    """One attempt and how long it took."""
    async with serve(script) as server:
        began = time.monotonic()
        result = await probe(server.url, Workload(limits=limits))
        return result, time.monotonic() - began


def met(took: float, nominal: float, result: ProbeResult) -> bool:
    """Whether a limit was met within 50 ms, our own delay allowed for."""
    return nominal - EARLY <= took <= nominal + 0.05 + 3 * result.loop_lag_s


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """URL of a port that neither accepts nor refuses connections."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


async def test_a_resolver_that_never_answers_is_a_dns_fault_at_the_connect_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve, "look_up", lambda _: time.sleep(1))
    began = time.monotonic()
    result = await probe("http://slow.invalid/v1", Workload(limits=Limits(connect=0.2)))
    assert result.outcome is Outcome.DNS
    assert met(time.monotonic() - began, 0.2, result)


async def test_connect_limit() -> None:
    with full_backlog() as url:
        began = time.monotonic()
        result = await probe(url, Workload(limits=Limits(connect=0.3)))
        took = time.monotonic() - began
    assert result.outcome is Outcome.TIMEOUT_CONNECT
    assert met(took, 0.3, result)
    assert result.ttfb_s is None
    assert result.reason == "no connection within 0.3 s"


async def test_ttft_limit() -> None:
    result, took = await timed(silence, Limits(ttft=0.3))
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert met(took, 0.3, result)
    assert result.http_status is None
    assert result.e2e_s == pytest.approx(0.3)


async def test_a_ttft_limit_shorter_than_the_connect_limit_holds() -> None:
    result, took = await timed(silence, Limits(connect=5, ttft=0.2))
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert met(took, 0.2, result)


async def test_heads_comments_and_empty_deltas_do_not_move_the_ttft_limit() -> None:
    """A stream that never says anything is cut at the TTFT limit, however busy it is."""

    async def chatter(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        while not peer.reader.at_eof():
            await peer.send(chunk(b": keep-alive\n\n"), chunk(event("")), gap=0.01)

    result, took = await timed(chatter, Limits(ttft=0.3, stall=0.1))
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert met(took, 0.3, result)
    assert result.http_status == 200
    assert result.ttfb_s is not None
    assert result.ttfb_s < 0.1
    assert result.ttft_s is None


async def test_stall_limit_counts_from_the_last_output() -> None:
    async def stalls(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await peer.send(*(chunk(event(f" {n}")) for n in range(5)), gap=0.1)
        while not peer.reader.at_eof():
            await peer.send(chunk(b": keep-alive\n\n"), gap=0.02)

    result, took = await timed(stalls, Limits(ttft=5, stall=0.3))
    assert result.outcome is Outcome.TIMEOUT_STALL
    assert result.last_s is not None
    assert met(took, result.last_s + 0.3, result)
    assert result.e2e_s == pytest.approx(result.last_s + 0.3)
    assert result.chunks == 5


async def test_total_limit_ends_a_stream_that_goes_on_for_ever() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        while not peer.reader.at_eof():
            await peer.send(chunk(event(" on")), gap=0.02)

    result, took = await timed(endless, Limits(total=0.4))
    assert result.outcome is Outcome.TIMEOUT_TOTAL
    assert met(took, 0.4, result)
    assert result.e2e_s == pytest.approx(0.4)
    assert (result.chunks or 0) > 5


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (Limits(ttft=0.3, total=5), Outcome.TIMEOUT_TTFT),
        (Limits(ttft=5, total=0.3), Outcome.TIMEOUT_TOTAL),
    ],
)
async def test_a_byte_at_a_time_moves_no_limit(limits: Limits, outcome: Outcome) -> None:
    """Limits that restart on bytes never end this."""

    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        for byte in event("a long first event"):
            await peer.send(chunk(bytes([byte])), gap=0.05)

    result, took = await timed(drip, limits)
    assert result.outcome is outcome
    assert met(took, 0.3, result)


async def test_a_drip_inside_the_head_ends_at_the_ttft_limit() -> None:
    async def drip(peer: Peer) -> None:
        await peer.request()
        for byte in HEAD:
            await peer.send(bytes([byte]), gap=0.05)

    result, took = await timed(drip, Limits(ttft=0.3))
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert met(took, 0.3, result)
    assert result.http_status is None


async def test_a_peer_that_never_reads_the_request_ends_at_the_ttft_limit() -> None:
    """The limit holds while we write, and what is unwritten is dropped with the connection."""
    gone, came = asyncio.Event(), 0

    async def deaf(peer: Peer) -> None:
        nonlocal came
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.4)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            while data := await peer.reader.read(1 << 20):
                came += len(data)
        gone.set()

    async with serve(deaf) as server:
        began = time.monotonic()
        workload = Workload(prompt="x" * (32 << 20), limits=Limits(ttft=0.3))
        result = await probe(server.url, workload)
        took = time.monotonic() - began
        assert not server.requests
        await asyncio.wait_for(gone.wait(), 2)
    assert came < 16 << 20  # what the kernel had taken, no more
    assert result.outcome is Outcome.TIMEOUT_TTFT
    assert met(took, 0.3, result)
    assert result.phases.send is None
    assert result.ttfb_s is None


async def test_a_slow_answer_inside_every_limit_is_ok() -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.15)
        await peer.send(HEAD)
        await peer.send(*(chunk(event(f" {n}")) for n in range(4)), gap=0.15)
        await peer.send(chunk(event(".", "stop")), chunk(DONE), END)

    result, _ = await timed(slow, Limits(ttft=0.4, stall=0.4, total=5))
    assert result.outcome is Outcome.OK


async def test_a_shared_watch_reports_a_stall_to_every_attempt_it_crossed() -> None:
    async def late(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.3)
        await peer.send(HEAD, chunk(event("a", "stop")), chunk(DONE), END)

    lag = LoopLag()
    async with serve(late) as server:
        crossed = [asyncio.create_task(probe(server.url, lag=lag)) for _ in range(2)]
        await asyncio.sleep(0.1)
        time.sleep(0.06)  # noqa: ASYNC251 - the fault under test
        results = await asyncio.gather(*crossed)
        await asyncio.sleep(0.02)
        after = await probe(server.url, lag=lag)
    lag.stop()
    assert all(r.loop_lag_s > 0.04 and r.tainted for r in results)
    assert after.loop_lag_s < min(r.loop_lag_s for r in results)
