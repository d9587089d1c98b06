from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from aiohttp.abc import ResolveResult

from probes import Limits, Outcome, Workload, resolve
from probes.resolve import Question, Resolver
from tests.probes.raw_server import answer, probe, serve


class Names:
    """A name service in which names that begin with `hang` never resolve."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = threading.Event()

    def __call__(self, question: Question) -> list[ResolveResult]:
        host, port, _ = question
        self.asked.append(host)
        if host.startswith("hang"):
            self.over.wait(10)
            raise socket.gaierror(socket.EAI_AGAIN, "gave up")
        entry = ResolveResult(
            hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=6, flags=0
        )
        return [entry]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(resolve, "look_up", names)
    yield names
    names.over.set()


async def test_a_name_that_hangs_delays_no_other(names: Names) -> None:
    """Both loops look names up in a handful of threads: four dead names stopped all others."""
    async with serve(answer) as server:
        limited = Workload(limits=Limits(connect=0.5))
        hanging = [
            asyncio.create_task(probe(f"http://hang{n}.example:{server.port}/v1", limited))
            for n in range(40)
        ]
        await asyncio.sleep(0.05)
        good = await probe(f"http://good.example:{server.port}/v1")
        bad = await asyncio.gather(*hanging)
    assert good.outcome is Outcome.OK
    assert good.phases.dns is not None
    assert good.phases.dns < 0.3
    assert {r.outcome for r in bad} == {Outcome.DNS}
    assert {r.reason for r in bad} == {"host name not resolved within 0.5 s"}
    assert len(names.asked) == 41


async def test_a_name_that_hangs_gathers_no_threads(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_HANGS", 0.02)
    resolver = Resolver()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(resolver.resolve("hang"), 0.05)
    assert names.asked == ["hang"]
    waiting = asyncio.create_task(resolver.resolve("hang"))
    await asyncio.sleep(0)
    names.over.set()
    with pytest.raises(socket.gaierror, match="gave up"):
        await waiting
    with pytest.raises(socket.gaierror):
        await resolver.resolve("hang")
    assert names.asked == ["hang", "hang"]


async def test_giving_up_on_one_wait_leaves_the_others(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_HANGS", 0.0)
    resolver = Resolver()
    waits = [asyncio.create_task(resolver.resolve("hang")) for _ in range(3)]
    await asyncio.sleep(0.02)
    waits[0].cancel()
    await asyncio.sleep(0)
    names.over.set()
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(end) for end in ends] == [
        asyncio.CancelledError,
        socket.gaierror,
        socket.gaierror,
    ]
    assert names.asked == ["hang"]


def test_a_loop_that_ended_meanwhile_is_left_alone(names: Names) -> None:
    """Neither the thread nor the interpreter's end may wait for a dead name server."""

    async def gives_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Resolver().resolve("hang"), 0.02)

    before = time.monotonic()
    asyncio.run(gives_up())
    assert time.monotonic() - before < 2
    thread = next(t for t in threading.enumerate() if "_ask" in t.name)
    assert thread.daemon
    names.over.set()
    thread.join(5)
    assert not thread.is_alive()


async def test_the_system_is_asked() -> None:
    found = await Resolver().resolve("localhost", 80, socket.AF_UNSPEC)
    assert {entry["host"] for entry in found} <= {"127.0.0.1", "::1"}
    assert {entry["port"] for entry in found} == {80}
    with pytest.raises(socket.gaierror):
        await Resolver().resolve("no-such-host.invalid")
    with pytest.raises(OSError, match="not a host name"):
        await Resolver().resolve("a" * 80 + ".example")
