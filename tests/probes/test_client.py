from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

import probes.client
from probes import Connections, LoopLag, Outcome, Workload
from probes.workload import Connection, Limits
from tests.probes.raw_server import (
    ANSWER,
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
    until,
)

REUSE = Workload(connection=Connection.REUSE)
MODELS = Workload(kind="models")
LISTED = plain("200 OK", b'{"data": [{"id": "m"}]}')


def big(megabytes: int, **more: Any) -> Workload:
    return Workload(prompt="x" * (megabytes << 20), **more)


# -- when -----------------------------------------------------------------------------------------


async def test_t0_is_the_last_byte_of_the_request() -> None:
    """A server that takes 32 MB slowly lengthens `send`, not TTFT."""

    async def slow_reader(peer: Peer) -> None:
        await asyncio.sleep(0.6)
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.send(ANSWER)

    async with serve(slow_reader) as server:
        result = await probe(server.url, big(32))
    assert result.outcome is Outcome.OK
    assert result.phases.send is not None
    assert result.ttft_s is not None
    assert result.phases.send > 0.5
    assert 0.045 < result.ttft_s < 0.5
    assert result.upload


async def test_only_a_large_body_on_a_fresh_connection_is_an_upload() -> None:
    async with serve(answer) as server:
        pool = Connections()
        small = await probe(server.url, REUSE, connections=pool)
        reused = await probe(server.url, big(1, connection=Connection.REUSE), connections=pool)
        fresh = await probe(server.url, big(1))
        await pool.close()
    assert (small.upload, reused.upload, fresh.upload) == (False, False, True)
    assert reused.connection == "reuse"


async def test_phases_follow_each_other_without_overlap() -> None:
    """What the connection took is no part of what the answer took."""

    async def unhurried(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.1)
        await peer.send(HEAD)
        await asyncio.sleep(0.1)
        await peer.send(chunk(event("hello", "stop")))
        await asyncio.sleep(0.1)
        await peer.send(chunk(DONE), END)

    async with serve(unhurried) as server:
        result = await probe(server.url)
    phases = result.phases
    assert phases.dns is None
    assert phases.tls is None
    assert phases.connect is not None
    assert phases.send is not None
    assert phases.wait is not None
    assert phases.connect + phases.send < 0.09
    assert 0.09 < phases.wait < 0.19
    assert result.ttfb_s is not None
    assert result.ttft_s is not None
    assert result.e2e_s is not None
    assert 0.19 < result.ttfb_s == result.ttft_s < 0.29
    assert 0.29 < result.e2e_s < 0.39


async def test_no_duration_comes_from_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = time.time, 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return real() + (3600 if calls % 2 else -3600)

    async def unhurried(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.send(HEAD, chunk(event("a")), chunk(event("b", "stop")), gap=0.02)
        await peer.send(chunk(DONE), END)

    async with serve(unhurried) as server:
        monkeypatch.setattr(time, "time", jumping)
        result = await probe(server.url)
    assert calls
    durations = [result.ttft_s, result.e2e_s, result.last_s, result.loop_lag_s]
    durations += [result.phases.connect, result.phases.send, result.phases.wait]
    assert all(d is not None and 0 <= d < 1 for d in durations)


# -- connections ----------------------------------------------------------------------------------


async def test_a_fresh_probe_opens_its_own_connection_and_a_reusing_one_does_not() -> None:
    """M43: 20 probes are 20 connections, or one."""
    async with serve(answer) as server:
        fresh = [await probe(server.url) for _ in range(20)]
        opened = server.opened
        pool = Connections()
        reused = [await probe(server.url, REUSE, connections=pool) for _ in range(20)]
        await pool.close()
    assert {r.outcome for r in fresh + reused} == {Outcome.OK}
    assert opened == 20
    assert server.opened == 21
    assert [r.connection for r in fresh] == ["fresh"] * 20
    assert [r.connection for r in reused] == ["fresh"] + ["reuse"] * 19
    assert all(r.phases.connect is None for r in reused[1:])
    assert all(r.phases.connect is not None for r in fresh)


async def test_a_connection_closed_while_idle_is_no_fault() -> None:
    """Servers close idle connections after some seconds."""

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(ANSWER)

    async with serve(once) as server:
        pool = Connections()
        results = []
        for _ in range(3):
            results.append(await probe(server.url, REUSE, connections=pool))
            await asyncio.sleep(0.02)
        await pool.close()
    assert [r.outcome for r in results] == [Outcome.OK] * 3
    assert server.opened == 3


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", ["chat", "models"])
async def test_a_connection_closed_just_as_the_request_comes_is_no_fault(
    kind: str, *, reset: bool
) -> None:
    """The close may cross the request on its way: the probe is made on a new connection."""
    good = ANSWER if kind == "chat" else LISTED

    async def impatient(peer: Peer) -> None:
        await peer.request()
        await peer.send(good)
        if server.opened == 1:
            await peer.reader.read(1)
            if reset:
                peer.reset()
        else:
            await peer.closed()

    workload = Workload(kind=kind, connection=Connection.REUSE)
    async with serve(impatient) as server:
        pool = Connections()
        first = await probe(server.url, workload, connections=pool)
        second = await probe(server.url, workload, connections=pool)
        await pool.close()
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert (first.connection, second.connection) == ("fresh", "fresh")
    assert second.phases.connect is not None
    assert server.opened == 2
    assert second.e2e_s is not None
    assert second.e2e_s < 0.5


async def test_a_pooled_connection_lost_at_work_is_the_endpoint_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes.client, "_STALE", 0.05)

    async def crashing(peer: Peer) -> None:
        await peer.request()
        await peer.send(ANSWER)
        await peer.request()
        await asyncio.sleep(0.15)

    async with serve(crashing) as server:
        pool = Connections()
        await probe(server.url, REUSE, connections=pool)
        result = await probe(server.url, REUSE, connections=pool)
        await pool.close()
    assert result.outcome is Outcome.CONNECTION_LOST
    assert result.connection == "reuse"
    assert server.opened == 1


@pytest.mark.parametrize("workload", [Workload(), MODELS], ids=["post", "get"])
async def test_nothing_an_endpoint_may_have_seen_is_asked_twice(workload: Workload) -> None:
    """By itself aiohttp repeats a GET whose connection was lost, and hides the loss."""

    async def lossy(peer: Peer) -> None:
        await peer.request()

    async with serve(lossy) as server:
        result = await probe(server.url, workload)
    assert result.outcome is Outcome.CONNECTION_LOST
    assert len(server.requests) == 1


async def test_a_pooled_connection_is_kept_when_the_end_comes_after_done() -> None:
    """[DONE] ends the measurement; the chunked body's own end may come a little later."""

    async def two_steps(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(ANSWER.removesuffix(END))
            await asyncio.sleep(0.1)
            await peer.send(END)

    async with serve(two_steps) as server:
        pool = Connections()
        results = [await probe(server.url, REUSE, connections=pool) for _ in range(2)]
        await pool.close()
    assert [r.connection for r in results] == ["fresh", "reuse"]
    assert all(r.e2e_s is not None and r.e2e_s < 0.08 for r in results)


async def test_no_limit_applies_after_the_answer_s_end() -> None:
    """A server that holds the connection after [DONE] made no mistake."""

    async def holding(peer: Peer) -> None:
        await peer.request()
        await peer.send(ANSWER.removesuffix(END))
        await peer.closed()

    limits = Limits(stall=0.1, total=0.2)
    async with serve(holding) as server:
        pool = Connections()
        workload = Workload(connection=Connection.REUSE, limits=limits)
        result = await probe(server.url, workload, connections=pool)
        await pool.close()
    assert result.outcome is Outcome.OK


async def test_descriptors_stay_constant() -> None:
    """M45: neither answers nor failures leave a socket behind."""

    async def mixed(peer: Peer) -> None:
        if await peer.request() is None:
            return
        turn = len(server.requests) % 4
        if turn == 0:
            await peer.send(ANSWER)
        elif turn == 1:
            await peer.send(HEAD, chunk(event("hello")))
            await peer.closed()
        elif turn == 2:
            await peer.send(b"junk\r\n\r\n")
        else:
            peer.reset()

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts, no paths

    workload = Workload(limits=Limits(stall=0.02))
    async with serve(mixed) as server:
        for _ in range(4):
            await probe(server.url, workload)
        await asyncio.sleep(0.05)
        before = descriptors()
        for _ in range(20):
            await probe(server.url, workload)
        await asyncio.sleep(0.05)
        assert descriptors() <= before + 1


@pytest.mark.parametrize(
    "status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"]
)
async def test_redirects_are_not_followed_and_carry_no_key_elsewhere(status: str) -> None:
    async with serve(answer) as other:

        async def redirect(peer: Peer) -> None:
            await peer.request()
            await peer.send(plain(status, b"", f"Location: {other.url}/chat/completions"))

        async with serve(redirect) as server:
            result = await probe(
                server.url, api_key="sk-secret-key-1", headers={"X-Key": "sk-other-key-22"}
            )
    assert result.outcome is Outcome.HTTP_REDIRECT
    assert other.opened == 0


async def test_extra_headers_replace_ours_whatever_their_case() -> None:
    extra = {"authorization": "Basic own", "ACCEPT-ENCODING": "gzip", "X-More": "1"}
    async with serve(answer) as server:
        await probe(server.url, api_key="key", headers=extra)
    head = server.requests[0].partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert head.count(b"authorization: basic own") == 1
    assert head.count(b"accept-encoding: gzip") == 1
    assert head.count(b"x-more: 1") == 1
    assert sum(line.startswith((b"authorization", b"accept-encoding")) for line in head) == 2


# -- proxies --------------------------------------------------------------------------------------


async def test_a_plain_proxy_is_given_the_whole_address() -> None:
    async with serve(answer) as proxy:
        result = await probe("http://endpoint.invalid/v1", proxy=f"http://127.0.0.1:{proxy.port}")
    assert result.outcome is Outcome.OK
    assert proxy.requests[0].startswith(b"POST http://endpoint.invalid/v1/chat/completions ")


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "502 Bad Gateway"])
async def test_a_proxy_that_opens_no_tunnel_is_a_failed_connection(status: str) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(status, b""))

    async with serve(refuse) as proxy:
        result = await probe("https://endpoint.invalid/v1", proxy=f"http://127.0.0.1:{proxy.port}")
    assert result.outcome is Outcome.CONNECT
    assert proxy.requests[0].startswith(b"CONNECT endpoint.invalid:443 ")
    assert result.ttfb_s is None


async def test_environment_proxies_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serve(answer) as server:
        assert (await probe(server.url)).outcome is Outcome.OK


# -- our own delay --------------------------------------------------------------------------------


async def test_events_in_one_read_share_a_stamp_and_are_counted() -> None:
    async def clumped(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await asyncio.sleep(0.03)
        await peer.send(b"".join(chunk(event(t)) for t in "abc"))
        await asyncio.sleep(0.03)
        await peer.send(chunk(event("d", "stop")), chunk(DONE), END)

    async with serve(clumped) as server:
        result = await probe(server.url)
    assert result.outcome is Outcome.OK
    assert result.chunks == 4
    assert result.merged == 3
    assert result.itl is not None
    assert result.itl.max > 0.025


async def test_a_stalled_loop_never_makes_ttft_shorter_and_says_so() -> None:
    """Ten events 10 ms apart while our loop sleeps 200 ms: late, never early, and marked."""
    start = 0.0

    async def steady(peer: Peer) -> None:
        nonlocal start
        await peer.request()
        start = time.monotonic()
        await peer.send(HEAD)
        await peer.send(*(chunk(event(f" {n}")) for n in range(10)), gap=0.01)
        await peer.send(chunk(event(".", "stop")), chunk(DONE), END)

    with serve_aside(steady) as server:
        task = asyncio.create_task(probe(server.url))
        await until(lambda: start > 0)
        time.sleep(0.2)  # noqa: ASYNC251 - the fault under test
        result = await task
    assert result.outcome is Outcome.OK
    assert result.chunks == 11
    assert result.ttft_s is not None
    assert result.ttft_s <= 0.35
    assert result.loop_lag_s > 0.15
    assert result.tainted
    assert result.merged > 0


async def test_a_stalled_loop_makes_no_timeout_of_what_came_in_time() -> None:
    """Our loop sleeps past the TTFT limit: the answer that lay in the socket counts, tainted."""
    asked = False

    async def prompt_peer(peer: Peer) -> None:
        nonlocal asked
        await peer.request()
        asked = True
        await asyncio.sleep(0.1)
        await peer.send(ANSWER)

    with serve_aside(prompt_peer) as server:
        workload = Workload(limits=Limits(ttft=0.5, stall=0.5, total=0.6))
        task = asyncio.create_task(probe(server.url, workload))
        await until(lambda: asked)
        time.sleep(1.5)  # noqa: ASYNC251 - the fault under test
        result = await task
    assert result.outcome is Outcome.OK
    assert result.loop_lag_s >= 1.0
    assert result.tainted


async def test_cancelling_passes_and_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def patient(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD, chunk(event("a")))
        await peer.closed()
        closed.set()

    async with serve(patient) as server:
        task = asyncio.create_task(probe(server.url))
        await until(lambda: bool(server.requests))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 1)


async def test_a_shared_watch_of_the_loop_goes_on_after_a_probe() -> None:
    lag = LoopLag()
    async with serve(answer) as server:
        await probe(server.url, lag=lag)
        began = time.monotonic()
        time.sleep(0.1)  # noqa: ASYNC251 - the fault under test
        await asyncio.sleep(0.01)
    assert lag.worst(began) > 0.05
    lag.stop()


async def test_a_model_s_answer_can_be_kept() -> None:
    async with serve(answer) as server:
        kept = await probe(server.url, keep_content=True)
        dropped = await probe(server.url)
    assert kept.content is not None
    assert kept.content.text == "hello world"
    assert dropped.content is None
