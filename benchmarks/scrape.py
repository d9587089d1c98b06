"""Does a scrape a second disturb the stamps? Streams are measured with and without one, in turn.

python -m benchmarks.scrape [--probes 500] [--streams 64] [--rounds 5] [--json]

A running monitor with 500 probes renders and serves /metrics. Beside it our client measures 64
streams of the stamping server, in turn with a scrape a second and without. Goal: p99 of the stamp
error with scrapes is less than twice that without. Rendering in the client's own loop gave
462 ms, in a thread 247 ms; in a process of its own it only competes for a core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.accuracy import TOKENS, run_client, server
from benchmarks.scale import config, monitor
from monitor.demo import Child


class Scraper(threading.Thread):
    """Reads /metrics once a second until stopped."""

    def __init__(self, base: str) -> None:
        super().__init__(daemon=True)
        self._url = base + "/metrics"
        self._stopped = threading.Event()
        self.took: list[float] = []

    def run(self) -> None:
        """Scrape."""
        while not self._stopped.wait(1.0):
            began = time.monotonic()
            with urllib.request.urlopen(self._url, timeout=10) as answer:  # noqa: S310 - our own
                answer.read()
            self.took.append(time.monotonic() - began)

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self.join()


def measure(base: str, streams: int, rounds: int) -> dict[str, Any]:
    """Return the medians over rounds, and their ratio."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    took: list[float] = []
    with server("truth", realtime=False) as url:
        run_client("reuse", url, streams, streams, realtime=False)  # warm
        for _ in range(rounds):
            for name, values in found.items():
                scraper = Scraper(base) if name == "with" else None
                if scraper is not None:
                    scraper.start()
                row = run_client("reuse", url, streams, 3 * streams, realtime=False)
                if scraper is not None:
                    scraper.stop()
                    took += scraper.took
                values.append(row["stamp_p99_ms"])
    without, scraped = statistics.median(found["without"]), statistics.median(found["with"])
    return {
        "streams": streams,
        "tokens_a_round": 3 * streams * TOKENS,
        "stamp_p99_ms_without": without,
        "stamp_p99_ms_with": scraped,
        "ratio": scraped / without,
        "scrape_s_p50": statistics.median(took),
        "scrape_s_max": max(took),
        "scrapes": len(took),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape")
    parser.add_argument("--probes", type=int, default=500)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    reference = Child("probes.reference", "--port", "0", "--ttft", "0.05", "--gap", "0.01")
    try:
        text = config(reference.ready()[0], args.probes, 60)
        with tempfile.TemporaryDirectory() as folder, monitor(Path(folder), text) as (_, base, _b):
            time.sleep(40)  # every probe has a first result: the exposition is whole
            found = measure(base, args.streams, args.rounds)
    finally:
        reference.end()
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:22} {value:.4g}")


if __name__ == "__main__":
    main()
