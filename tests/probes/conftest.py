from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

# The service runs on uvloop; whoever uses `probes` as a library may run on asyncio's own loop.
_BOTH = ("test_client", "test_transport")


@pytest.hookimpl
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem.startswith(_BOTH):
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
