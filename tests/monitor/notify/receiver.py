"""A real receiver of webhooks that remembers, and misbehaves when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web


@dataclass
class Receiver:
    """What came, in order; `status` and `delay` are how it answers."""

    status: int = 200
    delay: float = 0.0
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    raw: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/PLANTED"

    @property
    def keys(self) -> list[str]:
        return [body["key"] for body in self.bodies]

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        await asyncio.sleep(self.delay)
        if 200 <= self.status < 300:
            self.raw.append((dict(request.headers), body))
            self.bodies.append(msgspec.json.decode(body))
        return web.Response(status=self.status)


@asynccontextmanager
async def serving(receiver: Receiver) -> AsyncIterator[Receiver]:
    """Listen; on the same port as before, if it did."""
    app = web.Application()
    app.router.add_post("/{tail:.*}", receiver.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", receiver.port, reuse_address=True)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()
