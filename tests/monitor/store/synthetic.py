"""A long history of many probes as `roll_up` would have left it, made in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Table

from monitor.store import Store
from monitor.store.rollup import BLOCK_S, DAY_S, HOUR_S, pack_minutes
from monitor.store.tables import TIMES, days, hours, minutes
from probes.histogram import count_durations, encode_counts
from tests.monitor.store.test_rollup import raw_row

START = 640 * BLOCK_S
BLOCK_HOURS = int(BLOCK_S / HOUR_S)
STREAMED = {"ttft": 0.35, "tpot_usage": 0.02, "e2e": 1.6}
"""Median seconds by column; what a streamed chat answer leaves."""

Values = Mapping[str, NDArray[np.float64]]


def values(per_hour: int) -> Values:
    """Return seconds by column, one row an hour of a block: a spread of 30 %, a few outliers."""
    rng = np.random.default_rng(4)
    shape = (BLOCK_HOURS, per_hour)
    slow = np.where(rng.random(shape) < 0.01, 5.0, 1.0)
    return {n: m * slow * rng.lognormal(0, 0.3, shape) for n, m in STREAMED.items()}


async def fill(store: Store, days_: int, probes: int, of_block: Values) -> None:
    """Write hours, minutes and days of `probes` probes from `START` on; each block alike."""
    per_hour = len(of_block["ttft"][0])
    blobs = {
        name: [encode_counts(count_durations(row)) for row in rows]
        for name, rows in of_block.items()
    }
    packed = pack_minutes(0.0, [raw_row(slot_at=n * 3600 / per_hour) for n in range(per_hour)], [])
    async with store._write_engine.begin() as connection:
        for day in range(days_):
            for table, rows in _day(day, probes, per_hour, blobs, packed):
                await connection.execute(table.insert(), rows)
            running = {
                name: encode_counts(count_durations(rows[: (day % 32 + 1) * 24].ravel()))
                for name, rows in of_block.items()
            }
            at = START + day * DAY_S
            row = _row(at, (day % 32 + 1) * 24 * per_hour) | running
            await connection.execute(days.insert(), [row | _named(n) for n in range(probes)])


def _day(
    day: int, probes: int, per_hour: int, blobs: Mapping[str, list[bytes]], packed: bytes
) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    for hour in range(day * 24, day * 24 + 24):
        at = START + hour * HOUR_S
        row = _row(at, per_hour) | {n: b[hour % BLOCK_HOURS] for n, b in blobs.items()}
        yield hours, [row | _named(n) for n in range(probes)]
        row = {"start_at": at, "counts": packed}
        yield minutes, [row | _named(n) for n in range(probes)]


def _named(number: int) -> dict[str, str]:
    return {"endpoint": f"endpoint-{number:03d}", "workload": "chat-short", "site": "local"}


def _row(at: float, n: int) -> dict[str, Any]:
    counts = {"start_at": at, "scheduled": n, "good": n, "prompt_tokens": 100 * n}
    zero = "bad rate_limited misconfigured neutral cached_tokens reasoning_tokens".split()
    counts |= dict.fromkeys(zero, 0) | {"output_tokens": 64 * n, "cost": 0.001 * n}
    return counts | dict.fromkeys(("outcomes", "excluded", "skips", *TIMES))
