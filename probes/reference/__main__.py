"""Run one reference endpoint until it is told to stop: prints `READY URL`, ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from probes.reference import Behavior, Fault, Reference


def _share(text: str) -> tuple[Fault, float]:
    name, _, share = text.partition("=")
    try:
        return Fault(name), float(share or 1)
    except ValueError:
        known = ", ".join(Fault)
        raise argparse.ArgumentTypeError(f"expected NAME or NAME=SHARE of {known}") from None


def _parse(arguments: Sequence[str] | None) -> tuple[Behavior, int]:
    defaults = Behavior()
    parser = argparse.ArgumentParser(prog="python -m probes.reference", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 finds a free one")
    add("--ttft", type=float, default=defaults.ttft, help="seconds to the first token")
    add("--gap", type=float, default=defaults.gap, help="seconds between tokens")
    add("--tokens", type=int, default=defaults.tokens)
    add("--jitter", type=float, default=defaults.jitter, help="share added at random, 0 to 1")
    add("--seed", type=int, default=defaults.seed)
    add("--model", default=defaults.model)
    add("--api-key-env", metavar="VAR", help="variable that holds the key to ask for")
    add("--pause", type=float, default=defaults.pause, help="seconds that hang and stall last")
    add("--fault", type=_share, action="append", default=[], metavar="NAME[=SHARE]")
    given = vars(parser.parse_args(arguments))
    port, variable = given.pop("port"), given.pop("api_key_env")
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        parser.error(f"variable {variable} is not set")
    try:
        return Behavior(faults=dict(given.pop("fault")), api_key=key, **given), port
    except ValueError as exc:
        parser.error(str(exc))


async def _serve(behavior: Behavior, port: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Reference(behavior, port=port) as reference:
        sys.stdout.write(f"READY {reference.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    behavior, port = _parse(arguments)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(behavior, port))
    except OSError as exc:
        sys.stderr.write(f"cannot listen on 127.0.0.1:{port}: {exc.strerror}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
