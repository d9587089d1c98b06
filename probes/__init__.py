"""Measures live OpenAI-compatible endpoints; usable without the service.

from probes import Endpoint, Workload, run
result = await run(Endpoint(name="mine", url="http://127.0.0.1:8000/v1", model="m"), Workload())
"""

from __future__ import annotations

from probes.client import Connections, measure
from probes.endpoint import Endpoint
from probes.kinds import KINDS
from probes.lag import LoopLag
from probes.result import Outcome, ProbeResult
from probes.workload import Limits, Workload

__all__ = [
    "KINDS",
    "Connections",
    "Endpoint",
    "Limits",
    "LoopLag",
    "Outcome",
    "ProbeResult",
    "Workload",
    "run",
]


async def run(
    endpoint: Endpoint,
    workload: Workload,
    *,
    keep_content: bool = False,
    salt: str | None = None,
    connections: Connections | None = None,
    lag: LoopLag | None = None,
) -> ProbeResult:
    """Make one attempt; never raises for what the peer does.

    Args:
        endpoint: Where to ask.
        workload: What to ask.
        keep_content: Whether the result holds what the endpoint said.
        salt: Head of the generated prompt; None draws a random one.
        connections: Keeps pooled connections between attempts; None does not.
        lag: A running watch of the event loop, shared between attempts; None makes one.

    Raises:
        KeyError: The workload's kind is not in KINDS.
    """
    return await measure(
        KINDS[workload.kind],
        endpoint,
        workload,
        keep_content=keep_content,
        salt=salt,
        connections=connections,
        lag=lag,
    )
