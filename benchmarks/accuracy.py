"""How exact our measurement is and what it costs, beside the reference client in the same run.

python -m benchmarks.accuracy [--concurrency 1,32,128] [--rounds 3] [--repeat 1] [--realtime]
    [--server truth] [--json]

The server runs on core 0 and writes its own CLOCK_MONOTONIC stamp into each event just before
the send (`truth.c`, compiled here; `--server known` is the Python one, without stamps). One client
at a time runs on core 1: ours on a kept and on a fresh connection, starts spread over one stream's
length as a schedule spreads them; `burst`, all at once, as the reference client starts; and the
reference client, whose errors are against the nominal times. CPU is that of the process less that
of a process which makes one request. On shared cores trust ratios, not milliseconds, and of the
repetitions the least CPU and the median of everything else. GAP_MS in the environment sets the
time between tokens: 128 streams at 10 ms are 12,800 tokens a second, more than some cores take.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

import probes.meter
from probes import KINDS, Connections, Endpoint, LoopLag, ProbeResult, Workload
from probes.client import measure
from probes.kinds.chat import ChatReader
from probes.pace import Pace
from probes.sse import Event
from probes.wire import Piece
from probes.workload import Connection

HERE = Path(__file__).parent
TTFT, TOKENS = 0.050, 100
GAP = float(os.environ.get("GAP_MS", "10")) / 1e3  # between tokens
LENGTH = TTFT + GAP * TOKENS
ASK = f"gap={GAP * 1e6:.0f}"  # truth.c looks for it anywhere in the request
STAMPS = re.compile(rb'"t":(\d+),"r":(\d+)}$')
CLIENTS = ("reuse", "fresh", "burst", "reference")


# -- our client, in a process of its own ----------------------------------------------------------


class Kept:
    """What one attempt left: our stamps, and the events that carry the server's."""

    def __init__(self) -> None:
        self.pace: Pace | None = None
        self.events: list[bytes] = []
        self.result: ProbeResult | None = None


class KeepingReader(ChatReader):
    """Reads as the product does and keeps the events, to be looked at after the run."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def event(self, event: Event) -> Piece:
        """Read one chunk."""
        self._kept.events.append(event.data)
        return super().event(event)


def errors(kept: Kept) -> dict[str, Any]:
    """What one attempt got wrong against the server's stamps, seconds."""
    result, pace = kept.result, kept.pace
    assert result is not None
    assert pace is not None
    found = [m for data in kept.events if (m := STAMPS.search(data))]
    sent = [int(m[1]) / 1e9 for m in found][: len(pace.stamps)]
    error: dict[str, Any] = {"merged": result.merged, "tainted": result.tainted}
    if sent and result.ttft_s is not None and result.tpot_s is not None:
        error["ttft"] = result.ttft_s - (sent[0] - int(found[0][2]) / 1e9)
        error["tpot"] = result.tpot_s / ((sent[-1] - sent[0]) / (len(sent) - 1)) - 1
        error["stamps"] = [ours - theirs for ours, theirs in zip(pace.stamps, sent, strict=True)]
    elif result.ttft_s is not None and result.tpot_s is not None:
        error |= {"ttft": result.ttft_s - TTFT, "tpot": result.tpot_s / GAP - 1}
    return error


async def play(url: str, mode: str, concurrency: int, count: int) -> list[Kept]:
    """Make `count` attempts, at most `concurrency` at a time."""
    reuse = mode != "fresh"
    workload = Workload(connection=Connection.REUSE if reuse else Connection.FRESH)
    endpoint = Endpoint(name="bench", url=url, model="known", headers={"X-Ask": ASK})
    pool, lag, turns, all_kept = Connections(), LoopLag(), iter(range(count)), []
    current: ContextVar[Kept] = ContextVar("current")

    def recording() -> Pace:
        pace = current.get().pace = Pace()
        return pace

    def reader(*_: object) -> KeepingReader:
        return KeepingReader(current.get())

    probes.meter.Pace = recording  # type: ignore[assignment,attr-defined]
    kind = replace(KINDS["chat"], reader=reader)

    async def slot(number: int) -> None:
        await asyncio.sleep(0 if mode == "burst" else LENGTH * number / concurrency)
        for _ in turns:
            kept = Kept()
            current.set(kept)
            all_kept.append(kept)
            kept.result = await measure(kind, endpoint, workload, connections=pool, lag=lag)

    gc.collect()
    gc.freeze()  # as the prober does
    await asyncio.gather(*map(slot, range(concurrency)))
    await pool.close()
    lag.stop()
    return all_kept


def child(url: str, mode: str, concurrency: int, count: int) -> None:
    """Run our client and print what it found."""
    kept = uvloop.run(play(url, mode, concurrency, count))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime  # before the evaluation, which is no part of measuring
    errs = [errors(k) for k in kept]
    stamps = [s for e in errs for s in e.get("stamps", ())]
    bad = [k.result for k in kept if k.result is not None and k.result.outcome != "ok"]
    tpot = [abs(e["tpot"]) for e in errs if "tpot" in e]
    row = {
        "n": len(kept),
        "bad": len(bad),
        "why": bad[0].reason if bad else None,
        "tainted": sum(e["tainted"] for e in errs),
        "merged": sum(e["merged"] for e in errs),
        "ttft_p50_ms": ms(percentile([e["ttft"] for e in errs if "ttft" in e], 50)),
        "ttft_p99_ms": ms(percentile([e["ttft"] for e in errs if "ttft" in e], 99)),
        "stamp_p50_ms": ms(percentile(stamps, 50)),
        "stamp_p99_ms": ms(percentile(stamps, 99)),
        "stamp_max_ms": ms(percentile(stamps, 100)),
        "tpot_p99_pct": None if not tpot else 100 * (percentile(tpot, 99) or 0.0),
        "cpu_s": cpu,
    }
    print(json.dumps(row))


def percentile(values: Sequence[float], p: int) -> float | None:
    """Nearest rank; None of nothing."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * p // 100) - 1)] if ranked else None


def ms(seconds: float | None) -> float | None:
    """Convert for people."""
    return None if seconds is None else seconds * 1e3


# -- the comparison -------------------------------------------------------------------------------


@contextlib.contextmanager
def server(kind: str, realtime: bool) -> Iterator[str]:
    """Run a known server on core 0; yields its base URL."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "truth":
            binary = str(Path(folder) / "truth")
            source = str(HERE / "truth.c")
            build = [shutil.which("gcc") or "gcc", "-O2", "-o", binary, source]
            subprocess.run([*build, "-lssl", "-lcrypto"], check=True)
            command = [binary, "0"]
        else:
            command = [sys.executable, str(HERE / "known_server.py"), "0"]
        process = subprocess.Popen(pinned(0, command, realtime), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = process.stdout.readline().split()[-1]
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def pinned(core: int, command: list[str], realtime: bool) -> list[str]:
    """Return a command that stays on one core, or on the last one there is.

    In `realtime` nothing else runs there meanwhile: SCHED_FIFO, the server above the clients.
    """
    cores = sorted(os.sched_getaffinity(0))
    lines = ["import os, sys", f"os.sched_setaffinity(0, {{{cores[min(core, len(cores) - 1)]}}})"]
    if realtime:
        lines.append(f"os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param({2 - core}))")
    lines.append("os.execvp(sys.argv[1], sys.argv[1:])")
    return [sys.executable, "-c", "\n".join(lines), *command]


def run_client(
    client: str, url: str, concurrency: int, count: int, realtime: bool
) -> dict[str, Any]:
    """Run one client on core 1 to its end."""
    if client == "reference":
        target = f"{url}/chat/completions?{ASK}"
        command = [str(HERE / "ref_client.py"), target, "known", str(concurrency), str(count)]
    else:
        command = ["-m", "benchmarks.accuracy", "--child", client, "--url", url]
        command += ["--concurrency", str(concurrency), "--count", str(count)]
    done = subprocess.run(
        pinned(1, [sys.executable, *command], realtime),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=HERE.parent,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    if client == "reference":
        tpots = (found["tpot50"], found["tpot99"])
        worst = max(abs(t / 1e3 / GAP - 1) for t in tpots)
        found = {
            "n": found["n"],
            "bad": count - found["n"],
            "ttft_p50_ms": found["ttft50"] - TTFT * 1e3,
            "ttft_p99_ms": found["ttft99"] - TTFT * 1e3,
            "tpot_p99_pct": 100 * worst,
            "cpu_s": found["cpu"],
        }
    return found


def compare(
    url: str, concurrency: int, count: int, repeat: int, realtime: bool
) -> list[dict[str, Any]]:
    """Return one row a client; the clients take turns `repeat` times."""
    runs: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
    idle: dict[str, float] = {}
    for _ in range(repeat):
        for client in CLIENTS:
            alone = run_client(client, url, 1, 1, realtime)["cpu_s"]
            idle[client] = min(alone, idle.get(client, alone))
            runs[client].append(run_client(client, url, concurrency, count, realtime))
    rows = []
    for client, results in runs.items():
        cpu = min(row["cpu_s"] for row in results) - idle[client]
        row: dict[str, Any] = {"client": client, "concurrency": concurrency}
        for name in COLUMNS:
            values = [value for r in results if (value := r.get(name)) is not None]
            row[name] = row.get(name, statistics.median(values) if values else None)
        rows.append(row | {"cpu_per_1k": cpu / ((count - 1) * TOKENS / 1000)})
    for row in rows:
        row["cpu_ratio"] = row["cpu_per_1k"] / rows[-1]["cpu_per_1k"]
    return rows


COLUMNS = {
    "client": "client",
    "concurrency": "C",
    "n": "n",
    "bad": "bad",
    "tainted": "tainted",
    "merged": "merged",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "p99",
    "stamp_p50_ms": "stamp p50 ms",
    "stamp_p99_ms": "p99",
    "tpot_p99_pct": "TPOT p99 %",
    "cpu_per_1k": "CPU s/1k tok",
    "cpu_ratio": "of reference",
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay rows out for a terminal."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.0f}" if value.is_integer() and value > 1 else f"{value:.3f}"
        return "-" if value is None else str(value)

    lines = [list(COLUMNS.values())]
    lines += [[cell(row.get(name)) for name in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in lines
    )


def main() -> None:
    """Compare, or be one of the compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy")
    parser.add_argument("--concurrency", default="1,32,128")
    parser.add_argument("--rounds", type=int, default=3, help="streams per slot")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--server", choices=("truth", "known"), default="truth")
    parser.add_argument(
        "--realtime", action="store_true", help="keep every other process off both cores (root)"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=CLIENTS[:-1], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.url, args.child, int(args.concurrency), args.count)
        return
    kind = args.server
    if kind == "truth" and shutil.which("gcc") is None:
        print("no gcc: the Python server, without stamps", file=sys.stderr)
        kind = "known"
    rows = []
    with server(kind, args.realtime) as url:
        for concurrency in map(int, args.concurrency.split(",")):
            count = max(10, concurrency * args.rounds)
            rows += compare(url, concurrency, count, args.repeat, args.realtime)
    print(json.dumps(rows, indent=1) if args.json else table(rows))


if __name__ == "__main__":
    main()
