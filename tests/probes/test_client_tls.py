from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from probes import Connections, Outcome, ProbeResult, Workload
from probes.workload import Connection, Limits
from tests.probes.raw_server import ANSWER, Peer, RawServer, answer, probe, serve


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def certified(
    authority: trustme.CA, name: str = "127.0.0.1", *, expired: bool = False
) -> ssl.SSLContext:
    """A server's context with a certificate for `name`."""
    ends = datetime.now(UTC) - timedelta(days=1) if expired else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_after=ends).configure_cert(context)
    return context


async def test_a_ca_file_is_trusted_and_tls_is_a_phase_of_its_own(
    authority: trustme.CA, ca_file: str
) -> None:
    async with serve(answer, certified(authority)) as server:
        result = await probe(server.url, ca_file=ca_file)
    assert result.outcome is Outcome.OK
    assert result.phases.tls is not None
    assert result.phases.connect is not None
    assert 0 < result.phases.connect < 0.5
    assert 0 < result.phases.tls < 0.5
    assert result.phases.send is not None
    assert result.phases.send < 0.1


async def test_a_reused_tls_connection_has_no_tls_phase(
    authority: trustme.CA, ca_file: str
) -> None:
    workload = Workload(connection=Connection.REUSE)
    async with serve(answer, certified(authority)) as server:
        pool = Connections()
        first, second = [
            await probe(server.url, workload, ca_file=ca_file, connections=pool) for _ in range(2)
        ]
        await pool.close()
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert first.phases.tls
    assert second.phases.tls is None
    assert server.opened == 1


async def test_an_unknown_authority_is_a_tls_fault(authority: trustme.CA) -> None:
    async with serve(answer, certified(authority)) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.TLS
    assert "certificate" in (result.reason or "").lower()


async def test_a_certificate_for_another_host_is_a_tls_fault(
    authority: trustme.CA, ca_file: str
) -> None:
    async with serve(answer, certified(authority, "other.example")) as server:
        result = await probe(server.url, ca_file=ca_file)
    assert result.outcome is Outcome.TLS


async def test_an_expired_certificate_is_a_tls_fault(authority: trustme.CA, ca_file: str) -> None:
    async with serve(answer, certified(authority, expired=True)) as server:
        result = await probe(server.url, ca_file=ca_file)
    assert result.outcome is Outcome.TLS
    assert "expired" in (result.reason or "")


async def test_https_to_a_port_without_tls_is_a_tls_fault() -> None:
    async def talkative(peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await peer.closed()

    async with serve(talkative) as server:
        result = await probe(server.url.replace("http:", "https:"))
    assert result.outcome is Outcome.TLS


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_ended_inside_the_handshake_is_a_tls_fault(*, reset: bool) -> None:
    async def shy(peer: Peer) -> None:
        await peer.reader.read(1)
        if reset:
            peer.reset()

    async with serve(shy) as server:
        result = await probe(server.url.replace("http:", "https:"))
    assert result.outcome is Outcome.TLS
    assert result.phases.connect is not None
    assert result.phases.tls is None


async def test_a_handshake_that_hangs_is_a_connect_timeout() -> None:
    async def mute(peer: Peer) -> None:
        await peer.closed()

    async with serve(mute) as server:
        began = asyncio.get_running_loop().time()
        workload = Workload(limits=Limits(connect=0.3))
        result = await probe(server.url.replace("http:", "https:"), workload)
        took = asyncio.get_running_loop().time() - began
    assert result.outcome is Outcome.TIMEOUT_CONNECT
    assert 0.29 < took < 0.6


async def test_t0_is_the_last_byte_of_the_request_under_tls(
    authority: trustme.CA, ca_file: str
) -> None:
    """The TLS layer passes on at once what it is given: its empty buffer proves nothing."""

    async def slow_reader(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.6)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.send(ANSWER)

    async with serve(slow_reader, certified(authority)) as server:
        result = await probe(server.url, Workload(prompt="x" * (32 << 20)), ca_file=ca_file)
    assert result.outcome is Outcome.OK
    assert result.phases.send is not None
    assert result.ttft_s is not None
    assert result.phases.send > 0.5
    assert 0.045 < result.ttft_s < 0.5


async def test_a_ca_file_that_cannot_be_used_is_our_own_fault(tmp_path: Path) -> None:
    """It must never look like the endpoint's."""
    with pytest.raises(OSError, match=r"missing\.pem"):
        await probe("https://127.0.0.1:9/v1", ca_file=str(tmp_path / "missing.pem"))
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        await probe("https://127.0.0.1:9/v1", ca_file=str(tmp_path / "bad.pem"))


async def test_a_renewed_ca_file_is_used_by_the_next_fresh_probe(
    authority: trustme.CA, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    async with serve(answer, certified(authority)) as server:
        before = await probe(server.url, ca_file=str(path))
        authority.cert_pem.write_to_path(str(path))
        os.utime(path, ns=(1, 1))
        after = await probe(server.url, ca_file=str(path))
    assert (before.outcome, after.outcome) == (Outcome.TLS, Outcome.OK)


@contextlib.asynccontextmanager
async def tunnel(to: RawServer) -> AsyncIterator[RawServer]:
    """A proxy that opens tunnels to one server, whatever host is asked for."""

    async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()
            await sink.wait_closed()

    async def connect(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", to.port)
        await peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(relay(peer.reader, writer), relay(reader, peer.writer))

    async with serve(connect) as proxy:
        yield proxy


async def test_https_through_a_proxy_is_verified_end_to_end(
    authority: trustme.CA, ca_file: str
) -> None:
    """The key goes through the tunnel only, and the proxy's time is no part of the answer's."""
    secret = "sk-secret-key-1"
    async with (
        serve(answer, certified(authority, "endpoint.example")) as server,
        tunnel(server) as proxy,
    ):
        result: ProbeResult = await probe(
            "https://endpoint.example/v1",
            proxy=f"http://127.0.0.1:{proxy.port}",
            ca_file=ca_file,
            api_key=secret,
        )
    assert result.outcome is Outcome.OK
    assert result.phases.tls
    assert result.phases.connect is not None
    assert result.phases.connect > 0.04
    assert result.ttft_s is not None
    assert result.ttft_s < 0.04
    assert secret.encode() not in proxy.requests[0]
    assert secret.encode() in server.requests[0]
