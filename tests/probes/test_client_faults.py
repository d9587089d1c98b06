"""What breaks below or inside HTTP, and answers made to hurt."""

from __future__ import annotations

import asyncio
import gzip
import socket
from pathlib import Path

import pytest

from probes import Limits, Outcome, Workload
from tests.probes.raw_server import (
    DONE,
    END,
    HEAD,
    Peer,
    answer,
    chunk,
    event,
    plain,
    probe,
    serve,
    serve_aside,
)


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def forget_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM


def memory(field: str) -> int:
    """Megabytes of this process: VmRSS now, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) >> 10
    raise AssertionError(field)


# -- before a response ----------------------------------------------------------------------------


async def test_a_name_that_does_not_resolve_is_a_dns_fault() -> None:
    result = await probe("http://no-such-host.invalid/v1")
    assert result.outcome is Outcome.DNS
    assert result.phases.connect is None
    assert result.ttfb_s is None
    assert result.reason is not None
    assert result.reason.startswith("host name does not resolve: ")


async def test_a_closed_port_is_a_failed_connection() -> None:
    result = await probe(f"http://127.0.0.1:{closed_port()}/v1")
    assert result.outcome is Outcome.CONNECT
    assert "refused" in (result.reason or "")


async def test_a_dead_proxy_is_a_failed_connection() -> None:
    result = await probe("http://endpoint.invalid/v1", proxy=f"http://127.0.0.1:{closed_port()}")
    assert result.outcome is Outcome.CONNECT


@pytest.mark.parametrize("url", ["http://[::1/v1", "http:///v1"])
async def test_a_url_that_cannot_be_asked_is_our_own_fault(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - aiohttp's and yarl's own words
        await probe(url)


async def test_a_header_that_cannot_be_sent_is_our_own_fault() -> None:
    async with serve(answer) as server:
        with pytest.raises(ValueError, match="header"):
            await probe(server.url, headers={"X-Bad": "a\r\nInjected: 1"})
    assert not server.requests


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Ty"])
@pytest.mark.parametrize("reset", [True, False])
async def test_an_end_before_a_whole_head_is_a_lost_connection(
    part: bytes, *, reset: bool
) -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(part)
        await asyncio.sleep(0.02)
        if reset:
            peer.reset()

    async with serve(ends) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.CONNECTION_LOST
    assert result.http_status is None
    assert result.e2e_s is not None
    assert result.phases.send is not None


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\xa5\x01" + bytes(60),
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
    ids=["ssh", "tls", "status", "header", "long-header", "length", "lengths"],
)
async def test_what_is_not_http_is_a_protocol_error(answer: bytes) -> None:
    async def speaks(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.closed()

    async with serve(speaks) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.PROTOCOL_ERROR
    assert result.reason is not None
    assert len(result.reason) < 400


async def test_interim_responses_are_passed_over() -> None:
    async def hints(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", gap=0.05)
        await peer.send(HEAD, chunk(event("a", "stop")), chunk(DONE), END)

    async with serve(hints) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.OK
    assert result.phases.wait is not None
    assert result.phases.wait > 0.04


async def test_an_answer_given_before_the_request_is_read_counts() -> None:
    """413: the server need not read what it refuses."""

    async def refuses(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(plain("413 Too Large", b'{"error": {"message": "too large"}}'))
        await peer.closed()

    async with serve(refuses) as server:
        result = await probe(server.url, Workload(prompt="x" * (32 << 20)))
    assert result.outcome is Outcome.HTTP_BAD_REQUEST
    assert result.http_status == 413
    assert result.reason == "HTTP 413: too large"


# -- inside a body --------------------------------------------------------------------------------


async def test_garbage_for_a_chunk_size_is_a_protocol_error() -> None:
    async def garbled(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD, chunk(event("a")), gap=0.02)
        await peer.send(b"zz\r\nwhat\r\n")
        await peer.closed()

    async with serve(garbled) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.PROTOCOL_ERROR
    assert result.chunks == 1


async def test_http_itself_may_come_byte_by_byte() -> None:
    """Chunk sizes, their line ends and the last chunk in reads of their own are no end."""

    async def drip(peer: Peer) -> None:
        await peer.request()
        body = chunk(event("a")) + chunk(event("b", "stop")) + chunk(DONE) + END
        for byte in HEAD + body:
            await peer.send(bytes([byte]), gap=0.0002)

    async with serve(drip) as server:
        result = await probe(server.url, keep_content=True)
    assert result.outcome is Outcome.OK
    assert result.content is not None
    assert result.content.text == "ab"
    assert result.merged == 0


@pytest.mark.parametrize("reset", [True, False])
async def test_a_body_shorter_than_its_length_is_truncated(*, reset: bool) -> None:
    async def short(peer: Peer) -> None:
        await peer.request()
        whole = plain("200 OK", event("a") + event("b", "stop"), kind="text/event-stream")
        await peer.send(whole[:-60])
        await asyncio.sleep(0.02)
        if reset:
            peer.reset()

    async with serve(short) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.TRUNCATED
    assert result.chunks == 1


@pytest.mark.parametrize("reset", [True, False])
async def test_a_chunked_body_without_its_end_is_truncated(*, reset: bool) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD, chunk(event("a")))
        await asyncio.sleep(0.02)
        if reset:
            peer.reset()

    async with serve(cut) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.TRUNCATED


async def test_a_finish_reason_is_enough_when_the_connection_then_breaks() -> None:
    async def careless(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD, chunk(event("a", "stop")))
        await asyncio.sleep(0.02)
        peer.reset()

    async with serve(careless) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.OK
    assert "missing_done" in result.flags


async def test_a_body_that_ends_with_the_connection_is_whole() -> None:
    """HTTP/1.0 servers give neither length nor chunks."""

    async def old(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await peer.send(event("a", "stop"), DONE)

    async with serve(old) as server:
        assert (await probe(server.url)).outcome is Outcome.OK


# -- too much -------------------------------------------------------------------------------------


async def test_a_gigabyte_without_a_line_end_is_refused_in_little_memory() -> None:
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(HEAD, chunk(b"data: "))
        block = chunk(b"x" * (1 << 20))
        while sent < 1 << 30:
            await peer.send(block)
            sent += 1 << 20

    with serve_aside(flood) as server:
        forget_peak_memory()
        before = memory("VmRSS")
        result = await probe(server.url)
        grown = memory("VmHWM") - before
    assert result.outcome is Outcome.PROTOCOL_ERROR
    assert "longer than" in (result.reason or "")
    assert sent < 100 << 20
    assert grown < 100


async def test_an_endless_body_is_refused_at_the_body_limit() -> None:
    async def flood(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        while True:
            await peer.send(chunk(b": comment\n" * 1000))

    workload = Workload(limits=Limits(body_bytes=1 << 20))
    async with serve(flood) as server:
        result = await probe(server.url, workload)
    assert result.outcome is Outcome.PROTOCOL_ERROR
    assert result.reason == "body longer than 1048576 bytes"


@pytest.mark.parametrize(
    ("head", "outcome"),
    [
        (b"data: ", Outcome.PROTOCOL_ERROR),
        (b"\n\n", Outcome.PROTOCOL_ERROR),
        (b"data: {}\n\n", Outcome.TIMEOUT_TTFT),
    ],
    ids=["line", "blanks", "events"],
)
async def test_a_gzip_bomb_is_refused_in_little_memory_and_lets_others_go_on(
    head: bytes, outcome: Outcome
) -> None:
    """A few hundred kilobytes that unpack to 128 MB: one line, blank lines, very many events."""
    packed = gzip.compress(head * ((128 << 20) // len(head)), 9)

    async def bomb(peer: Peer) -> None:
        await peer.request()
        kind = "text/event-stream"
        await peer.send(plain("200 OK", packed, "Content-Encoding: gzip", kind=kind))
        await peer.closed()

    with serve_aside(bomb) as server:
        forget_peak_memory()
        before = memory("VmRSS")
        ttft = 1.0 if outcome is Outcome.TIMEOUT_TTFT else 20.0
        result = await probe(server.url, Workload(limits=Limits(ttft=ttft)))
        grown = memory("VmHWM") - before
    assert result.outcome is outcome
    assert grown < 150
    assert result.loop_lag_s < 0.5


async def test_a_gzipped_stream_is_read_although_it_was_not_asked_for() -> None:
    async def packs(peer: Peer) -> None:
        await peer.request()
        assert b"accept-encoding: identity" in server.requests[0].lower()
        body = gzip.compress(event("a", "stop") + DONE)
        await peer.send(plain("200 OK", body, "Content-Encoding: gzip", kind="text/event-stream"))

    async with serve(packs) as server:
        result = await probe(server.url, keep_content=True)
    assert result.outcome is Outcome.OK
    assert result.content is not None
    assert result.content.text == "a"
