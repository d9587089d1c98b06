"""Our own error: measured times against the reference endpoint's own stamps.

Theory of operation. The reference endpoint writes its monotonic clock into every event just before
sending it, and this machine's processes share that clock. So the truth of each answer is known:
TTFT = first output event sent - request read, TPOT = (last - first sent) / (tokens - 1). The probe
measures the same answer through the ordinary path; the difference is ours (and the loopback's).
Only references to the events' bytes are kept while streaming, and they are read afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from probes.client import Connections, measure
from probes.endpoint import Endpoint
from probes.exchange import Request
from probes.kinds import chat
from probes.lag import LoopLag
from probes.meter import Reader
from probes.result import Outcome, ProbeResult
from probes.sse import Event
from probes.wire import Piece, chat_event
from probes.workload import Connection, Limits, Workload


class _Stamps(msgspec.Struct):
    sent_ns: int
    read_ns: int


_decoder = msgspec.json.Decoder(_Stamps)


class StampedReader(chat.ChatReader):
    """Reads a chat stream and remembers the bytes of its first and last output event."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._last: bytes | None = None

    def event(self, event: Event) -> Piece:
        """Read one chunk."""
        piece = chat_event(event)
        if piece.text:
            self._first = self._first or event.data
            self._last = event.data
        return piece

    def truth(self, tokens: int) -> tuple[float, float]:
        """Return the endpoint's own TTFT and TPOT, seconds."""
        first, last = _decoder.decode(self._first or b""), _decoder.decode(self._last or b"")
        ttft = (first.sent_ns - first.read_ns) / 1e9
        return ttft, (last.sent_ns - first.sent_ns) / 1e9 / (tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Our error at one concurrency; times in seconds, measured minus true.

    Attributes:
        n: Answers measured.
        failed: Answers that were not ok, of which nothing is known.
        tpot_share_p99: 99th percentile of |error| / true TPOT.
        cpu_per_1000: CPU seconds of this process for 1,000 tokens, everything included.
        merged: Share of output events whose own arrival is not known.
        tainted: Share of answers marked as tainted.
        loop_lag: Worst event loop delay.
    """

    streams: int
    n: int
    failed: int
    tokens: int
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    tpot_share_p99: float
    cpu_per_1000: float
    merged: float
    tainted: float
    loop_lag: float


async def calibrate(url: str, model: str, streams: int, rounds: int) -> Calibration:
    """Measure `streams` answers at a time, `rounds` times, against a reference endpoint at `url`.

    Raises:
        ValueError: No answer was ok: there is nothing to compare.
    """
    endpoint = Endpoint(name="reference", url=url, model=model)
    workload = Workload(
        max_tokens=100, connection=Connection.REUSE, limits=Limits(ttft=30, stall=30, total=120)
    )
    lag, pool = LoopLag(), Connections()
    lag.start()
    try:
        await _answers(endpoint, workload, 1, 1, lag, pool)  # what only the first call costs
        began = time.process_time()
        pairs = await _answers(endpoint, workload, streams, rounds, lag, pool)
        cpu = time.process_time() - began
    finally:
        lag.stop()
        await pool.close()
    return _summary(streams, pairs, cpu)


Pair = tuple[ProbeResult, StampedReader]


async def _answers(
    endpoint: Endpoint,
    workload: Workload,
    streams: int,
    rounds: int,
    lag: LoopLag,
    pool: Connections,
) -> list[Pair]:
    """Keep `streams` answers in flight, their starts spread over one of them."""

    async def stream(number: int) -> list[Pair]:
        await asyncio.sleep(number / streams)
        pairs = []
        for _ in range(rounds):
            reader = StampedReader()
            kind = replace(chat.KIND, reader=_always(reader))
            result = await measure(kind, endpoint, workload, connections=pool, lag=lag)
            pairs.append((result, reader))
        return pairs

    done = await asyncio.gather(*map(stream, range(streams)))
    return [pair for pairs in done for pair in pairs]


def _always(reader: Reader) -> Any:
    def give(_workload: Workload, _request: Request) -> Reader:
        return reader

    return give


def _summary(streams: int, pairs: Sequence[Pair], cpu: float) -> Calibration:
    good = [(r, s) for r, s in pairs if r.outcome is Outcome.OK and r.tpot_s is not None]
    if not good:
        raise ValueError(f"none of {len(pairs)} answers was ok: {pairs[0][0].reason}")
    ttft, tpot, share = [], [], []
    for result, reader in good:
        true_ttft, true_tpot = reader.truth(result.visible_tokens or 2)
        ttft.append((result.ttft_s or 0.0) - true_ttft)
        tpot.append((result.tpot_s or 0.0) - true_tpot)
        share.append(abs(tpot[-1]) / true_tpot)
    tokens = sum(result.output_tokens or 0 for result, _ in good)
    return Calibration(
        streams=streams,
        n=len(good),
        failed=len(pairs) - len(good),
        tokens=tokens,
        ttft_p50=_rank(ttft, 50),
        ttft_p99=_rank(ttft, 99),
        tpot_p50=_rank(tpot, 50),
        tpot_p99=_rank([abs(error) for error in tpot], 99),
        tpot_share_p99=_rank(share, 99),
        cpu_per_1000=cpu / tokens * 1000,
        merged=sum(r.merged for r, _ in good) / sum(r.chunks or 0 for r, _ in good),
        tainted=sum(r.tainted for r, _ in good) / len(good),
        loop_lag=max(r.loop_lag_s for r, _ in good),
    )


def _rank(values: Sequence[float], percentile: int) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percentile // 100) - 1)]
