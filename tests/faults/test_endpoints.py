"""Endpoints that misbehave without end, seen through the whole monitor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, wait_for
from tests.faults.rig import doubled, missing, prober, rss, running, slots
from tests.figures import Figure
from tests.probes.raw_server import (
    ANSWER,
    HEAD,
    Peer,
    RawServer,
    Script,
    chunk,
    event,
    serve_aside,
)

pytestmark = pytest.mark.slow

INTERVAL = 1.0
TOTAL = 3.0
KEY = "planted-key-Zx81"
CONFIG = """
workloads:
  chat:
    kind: chat
    interval: 1s
    limits: {connect: 1s, ttft: 2s, stall: 3s, total: 3s, body_bytes: 4000000,
             event_bytes: 500000}
endpoints:
"""


async def endless(peer: Peer) -> None:
    """Tokens without end."""
    await peer.request()
    many = chunk(event("more ") * 500)
    await peer.send(HEAD)
    while True:
        await peer.send(many, gap=0.0005)


async def endless_comments(peer: Peer) -> None:
    """Keep-alives and never a token."""
    await peer.request()
    await peer.send(HEAD)
    while True:
        await peer.send(chunk(b": ping\n\n"), gap=0.05)


async def endless_line(peer: Peer) -> None:
    """One line that never ends."""
    await peer.request()
    await peer.send(HEAD, chunk(b'data: {"x": "'))
    while True:
        await peer.send(chunk(b"y" * 65536), gap=0.0005)


async def byte_a_second(peer: Peer) -> None:
    """A good answer, one byte a second."""
    await peer.request()
    for byte in ANSWER:
        await peer.send(bytes([byte]), gap=1.0)


async def garbage(peer: Peer) -> None:
    """Something that is no chunk size."""
    await peer.request()
    await peer.send(HEAD, chunk(event("hello")), b"zz;\r\nhello\r\n")
    await peer.closed()


async def redirect(peer: Peer) -> None:
    """Somewhere else, where nobody must go."""
    await peer.request()
    head = f"HTTP/1.1 307 Go\r\nLocation: {peer.server.url}/elsewhere\r\nContent-Length: 0\r\n\r\n"
    await peer.send(head.encode())
    await peer.closed()


async def healthy(peer: Peer) -> None:
    """What goes on beside all that."""
    while await peer.request() is not None:
        await peer.send(ANSWER)


FAULTS: dict[str, tuple[Script, set[str], bool]] = {
    "endless": (endless, {"protocol_error", "timeout_total"}, True),  # by size or, slowly, by time
    "comments": (endless_comments, {"timeout_ttft"}, True),
    "line": (endless_line, {"protocol_error"}, False),
    "trickle": (byte_a_second, {"timeout_ttft"}, True),
    "garbage": (garbage, {"protocol_error"}, False),
    "redirect": (redirect, {"http_redirect"}, False),
    "healthy": (healthy, {"ok"}, False),
}
"""By endpoint: what it does, its outcomes, and whether an attempt lasts beyond its next slot."""


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, RawServer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serve_aside(script)) for name, (script, *_) in FAULTS.items()
        }


@pytest.fixture(scope="module")
def monitor(
    peers: dict[str, RawServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitored]:
    lines = [
        f"  {name}: {{url: '{peer.url}', model: m, api_key: {KEY}}}\n"
        for name, peer in peers.items()
    ]
    folder = tmp_path_factory.mktemp("endpoints")
    with running(folder, CONFIG + "".join(lines)) as running_monitor:
        yield running_monitor


@pytest.fixture(scope="module")
def watched(monitor: Monitored) -> int:
    """Let it run for some slots; the most memory that the prober held."""
    pid, most = prober(monitor), 0
    end = time.monotonic() + 15
    while time.monotonic() < end:
        most = max(most, rss(pid))
        time.sleep(0.05)
    assert prober(monitor) == pid
    return most


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_its_outcome_and_nothing_else(
    monitor: Monitored, watched: int, name: str
) -> None:
    assert watched
    _, expected, lasts = FAULTS[name]
    outcomes = {outcome: n for (endpoint, _, outcome), n in monitor.stored_counts().items()
                if endpoint == name}  # fmt: skip
    assert set(outcomes) <= expected
    assert sum(outcomes.values()) >= (4 if lasts else 9)


def test_every_slot_is_there_once_and_on_time(monitor: Monitored, watched: int) -> None:
    assert watched
    intervals = {f"{name}/chat": INTERVAL for name in FAULTS}
    for probe, counts in slots(monitor, intervals, until=time.time() - TOTAL - 1).items():
        assert not doubled(counts), probe
        assert not missing(counts), probe
    late = "select max(schedule_lag_s) from results where endpoint = 'healthy'"
    assert monitor.query(late)[0][0] < INTERVAL
    assert monitor.query("select distinct reason from skips") in ([], [("overlap",)])


def test_memory_stays_bounded(monitor: Monitored, watched: int, figure: Figure) -> None:
    figure(f"prober's memory under endless answers: {watched >> 20} MB at most")
    assert watched < 200 << 20


def test_nobody_follows_the_redirect(peers: dict[str, RawServer], watched: int) -> None:
    assert watched
    for peer in peers.values():
        assert all(b" /v1/chat/completions " in request for request in peer.requests)


def test_metrics_count_what_the_database_holds(monitor: Monitored, watched: int) -> None:
    assert watched
    wait_for(lambda: agree(monitor.metric_counts, monitor.stored_counts), 10)


def agree(one: Callable[[], object], other: Callable[[], object]) -> bool:
    return one() == other()


def test_it_ends_well_with_all_of_that_in_flight(monitor: Monitored, watched: int) -> None:
    assert watched
    assert monitor.stop() < 5
    assert monitor.process.returncode == 0
    log = Path(monitor.log).read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert KEY not in log
