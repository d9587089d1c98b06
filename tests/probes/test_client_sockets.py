from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from probes import Outcome, ProbeResult, Workload
from probes.workload import Limits
from tests.probes.raw_server import probe

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def slammed_port() -> Iterator[int]:
    """A port whose listener resets every connection at once, from a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def slam() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                accepted.close()

    thread = threading.Thread(target=slam)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)


def lost(numbers: list[int]) -> int:
    """How many of these descriptors somebody else has closed."""
    count = 0
    for number in numbers:
        try:
            os.close(number)
        except OSError:
            count += 1
    return count


async def in_turn(url: str) -> list[ProbeResult]:
    """Make forty attempts one after another."""
    return [await probe(url, Workload(limits=Limits(connect=5))) for _ in range(40)]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_reset_connection_never_closes_a_descriptor_of_another(scheme: str) -> None:
    gc.collect()
    gc.disable()
    try:
        with slammed_port() as port:
            url = f"{scheme}://127.0.0.1:{port}/v1"
            rounds = await asyncio.gather(*(in_turn(url) for _ in range(6)))
        # Take every number that is free now, those of the closed connections among them.
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(120)]
    finally:
        gc.enable()
    gc.collect()
    assert lost(files) == 0
    known = {Outcome.CONNECT, Outcome.TLS, Outcome.CONNECTION_LOST}
    assert {result.outcome for results in rounds for result in results} <= known
