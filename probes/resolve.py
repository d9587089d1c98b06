"""Name resolution in which one name that hangs delays no other.

asyncio and uvloop look names up in a handful of threads. A lame name server holds a thread for
half a minute, so four endpoints with a dead zone made every other endpoint look down (`dns`). Here
each lookup has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
_HANGS = 1.0

Question = tuple[str, int, socket.AddressFamily]
Answer = asyncio.Future[list[ResolveResult]]


class Resolver(AbstractResolver):
    """Asks the system, without a cache.

    A question that has been open for a second is not asked again but joined, so that names that
    hang do not gather threads.
    """

    def __init__(self) -> None:
        self._open: dict[Question, tuple[float, Answer]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            OSError: It has none, or nobody could be asked.
        """
        question = host, port, family
        loop = asyncio.get_running_loop()
        since, answer = self._open.get(question, (loop.time(), None))
        if answer is None or loop.time() - since < _HANGS:
            answer = loop.create_future()
            answer.add_done_callback(_look)
            self._open[question] = loop.time(), answer
            ask = threading.Thread(target=self._ask, args=(loop, question, answer), daemon=True)
            ask.start()
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Nothing to close: a thread ends with its lookup."""

    def _ask(self, loop: asyncio.AbstractEventLoop, question: Question, answer: Answer) -> None:
        """Look up in a thread, and settle in the loop if that still runs."""
        found: list[ResolveResult] | OSError
        try:
            found = look_up(question)
        except (OSError, UnicodeError) as exc:
            found = exc if isinstance(exc, OSError) else socket.gaierror(-2, "not a host name")
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._settle, question, answer, found)

    def _settle(
        self, question: Question, answer: Answer, found: list[ResolveResult] | OSError
    ) -> None:
        if self._open.get(question, (0.0, None))[1] is answer:
            del self._open[question]
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def _look(answer: Answer) -> None:
    """Take a failure that nobody waits for any more, or asyncio would log it."""
    if not answer.cancelled():
        answer.exception()


def look_up(question: Question) -> list[ResolveResult]:
    """Ask the system for a host's addresses; blocks."""
    host, port, family = question
    infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host,
            host=socket.getnameinfo(address, _NUMERIC)[0],  # with the scope of a link-local one
            port=int(address[1]),
            family=found_family,
            proto=proto,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for found_family, _, proto, _, address in infos
    ]
