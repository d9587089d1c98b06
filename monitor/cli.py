"""The command `endpoint-monitor`. Imports lazily: help must answer at once."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from monitor.config import Config
    from monitor.supervise import Child
    from probes import Endpoint, ProbeResult, Workload

OK, SOME_FAILED, USAGE = 0, 1, 2
_WIDE = 500

app = typer.Typer(
    name="endpoint-monitor",
    help="Always-on performance monitor for OpenAI-compatible endpoints. "
    "MLPerf Endpoints-style; not an MLPerf result, not verified by MLCommons.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _refuse(message: str) -> NoReturn:
    """Say what is wrong in one line and end with code 2."""
    print(f"endpoint-monitor: {message}", file=sys.stderr)
    raise typer.Exit(USAGE)


_T = TypeVar("_T")


def _run(main: Coroutine[None, None, _T]) -> _T:
    import uvloop

    return uvloop.run(main)


@app.command(
    epilog="Example: endpoint-monitor probe http://127.0.0.1:8000 --model llama-3.1-8b -n 5"
)
def probe(  # noqa: PLR0913 - options are parameters
    url: Annotated[str, typer.Argument(help="Base URL; an empty path means /v1.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Model to ask for.")],
    kind: Annotated[str, typer.Option("--kind", "-k", help="Kind of workload.")] = "chat",
    count: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Number of results.")] = 1,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable with the API key.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output limit.")] = 64,
    input_tokens: Annotated[int, typer.Option(min=1, help="Approximate prompt length.")] = 100,
) -> None:
    """Probe an endpoint N times now, without a config file.

    Exit code 0: all results are ok. 1: some are not. 2: bad usage.
    """
    from probes import KINDS, Endpoint, Workload
    from probes.endpoint import normalize_url

    if kind not in KINDS:
        _refuse(f"--kind: unknown {kind!r}, expected one of {', '.join(KINDS)}")
    key = None if api_key_env is None else _key(api_key_env)
    try:
        base = normalize_url(url)
    except ValueError as exc:
        _refuse(f"URL: {exc}")
    endpoint = Endpoint(name=base, url=base, model=model, api_key=key)
    workload = Workload(name=kind, kind=kind, max_tokens=max_tokens, input_tokens=input_tokens)
    try:
        results = _run(_probe_all(endpoint, workload, count, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(OK if all(r.outcome == "ok" for r in results) else SOME_FAILED)


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        _refuse(f"--api-key-env: {variable} is not set, expected a variable with the key")
    if not key.isprintable() or " " in key:
        _refuse(f"--api-key-env: {variable} holds a blank or control character, expected a key")
    return key


async def _probe_all(
    endpoint: Endpoint, workload: Workload, count: int, *, as_json: bool
) -> list[ProbeResult]:
    """Probe one after the other; print each result as it comes, or a table."""
    from monitor.show import to_json
    from probes import LoopLag, run

    lag, results = LoopLag(), []
    lag.start()
    show = None if as_json else _Progress(count)
    try:
        for _ in range(count):
            result = await run(endpoint, workload, lag=lag)
            results.append(result)
            if show is None:
                print(json.dumps(to_json(result), ensure_ascii=False), flush=True)
            else:
                show.update(results)
    finally:
        lag.stop()
        if show is not None:
            show.stop()
    if show is not None:
        show.conclude(results)
    return results


class _Progress:
    """A live table on a terminal; on anything else the table at the end."""

    def __init__(self, count: int) -> None:
        from rich.console import Console
        from rich.live import Live

        terminal = sys.stdout.isatty()
        # A file or pipe has no width: one line a result, however long its notes.
        self._console = Console(highlight=False, width=None if terminal else _WIDE)
        self._count = count
        self._live = Live(console=self._console, transient=True) if terminal else None
        if self._live is not None:
            self._live.start()

    def update(self, results: list[ProbeResult]) -> None:
        from monitor.show import table

        if self._live is not None:
            self._live.update(table(results[-20:]))

    def stop(self) -> None:
        """Give the terminal back as it was, cursor and all."""
        if self._live is not None:
            self._live.stop()

    def conclude(self, results: list[ProbeResult]) -> None:
        from monitor.show import spread, table

        self._console.print(table(results))
        self._console.print(f"{len(results)} of {self._count} probes: {spread(results)}")


@app.command(epilog="Example: endpoint-monitor init http://127.0.0.1:8000 --model llama-3.1-8b")
def init(
    url: Annotated[str | None, typer.Argument(help="Base URL of the endpoint.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model to ask for.")] = None,
    out: Annotated[Path, typer.Option(help="File to write; never overwritten.")] = Path(
        "endpoint-monitor.yaml"
    ),
) -> None:
    """Write a first configuration file."""
    from monitor.describe import starter
    from probes.endpoint import normalize_url

    if url is not None:
        try:
            url = normalize_url(url)
        except ValueError as exc:
            _refuse(f"URL: {exc}")
        if model is None:
            _refuse("--model: missing, expected the model to ask for beside the URL")
    text = starter(url, model)
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _refuse(f"{out}: exists, expected a new file (init never overwrites)")
    except OSError as exc:
        _refuse(f"{out}: {exc.strerror}, expected a writable place")
    print(f"wrote {out}\nnext: endpoint-monitor check {out} && endpoint-monitor run {out}")


def _load(path: Path) -> Config:
    """Load a configuration or end with its problems, one a line."""
    from monitor.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as exc:
        for problem in exc.problems:
            print(problem, file=sys.stderr)
        raise typer.Exit(USAGE) from None


_CONFIG = typer.Argument(help="Configuration file.", show_default=False)


@app.command(epilog="Example: endpoint-monitor check endpoint-monitor.yaml")
def check(config: Annotated[Path, _CONFIG]) -> None:
    """Validate a configuration; show what it means and what it costs."""
    from monitor.describe import describe

    print(describe(_load(config)), end="")


@app.command(epilog="Example: endpoint-monitor run endpoint-monitor.yaml --listen 127.0.0.1:8844")
def run(
    config: Annotated[Path, _CONFIG],
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Page and metrics; port 0 is any free.")
    ] = None,
) -> None:
    """Run the monitor until SIGTERM or Ctrl-C."""
    from monitor.supervise import Child

    _end_on_signals()
    # The prober starts first and loads while this process reads its configuration.
    child = Child()
    try:
        loaded = _load(config)
        address = loaded.listen if listen is None else _address(listen)
        child.send(loaded.plan())
        _serve(loaded, address, child)
    finally:
        child.kill()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        _refuse(f"--listen: {text!r}, expected HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _serve(config: Config, address: tuple[str, int], child: Child) -> None:
    import logging

    from monitor.app import StartError, serve
    from monitor.logs import log_to_stderr

    log_to_stderr(logging.INFO, config.secrets())
    try:
        _run(serve(config, address, child, _ready))
    except StartError as exc:
        _refuse(str(exc))


def _ready(base: str) -> None:
    try:
        print(f"READY page={base}/ metrics={base}/metrics", flush=True)
    except OSError:  # whoever started us does not listen any more
        _mute(sys.stdout)


def _end_on_signals() -> None:
    """End at once, in good order and with code 0, until the event loop takes the signals."""

    def leave(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(OK)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def _mute(stream: TextIO) -> None:
    """Let a stream go nowhere: Python would complain at its end of what nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@app.command(epilog="Example: endpoint-monitor demo")
def demo(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Page and metrics; port 0 is any free.")
    ] = None,
) -> None:
    """Start endpoints on this machine and the monitor on them. Nothing leaves loopback."""
    from monitor.demo import demo_directory

    _end_on_signals()
    with demo_directory() as path:
        run(path, listen)


@app.command(epilog="Example: endpoint-monitor calibrate")
def calibrate(
    streams: Annotated[
        str, typer.Option(metavar="N,N,...", help="Concurrent streams to measure at.")
    ] = "1,32,128",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Answers of each stream.")] = 3,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Measure our own TTFT and TPOT error and cost against the reference endpoint."""
    from dataclasses import asdict

    from monitor.demo import Child
    from monitor.show import calibration_table
    from probes.calibrate import calibrate as measure

    counts = streams.split(",")
    if not all(n.isascii() and n.isdigit() and 0 < int(n) <= 1024 for n in counts):
        _refuse(f"--streams: {streams!r}, expected numbers from 1 to 1024 with commas")
    arguments = ("--port", "0", "--ttft", "0.05", "--gap", "0.01", "--tokens", "100")
    child = Child("probes.reference", *arguments)
    try:
        url = child.ready()[0]
        found = []
        for count in map(int, counts):
            # One stream alone needs more answers before it has a p99 worth the name.
            found.append(_run(measure(url, "reference", count, rounds * max(1, 32 // count))))
            if as_json:
                print(json.dumps(asdict(found[-1])), flush=True)
    finally:
        child.end()
    if not as_json:
        from rich.console import Console

        Console(soft_wrap=True).print(calibration_table(found))


notify = typer.Typer(help="Whom alerts are told.", no_args_is_help=True)
app.add_typer(notify, name="notify")


@notify.command("test", epilog="Example: endpoint-monitor notify test endpoint-monitor.yaml ops")
def notify_test(
    config: Annotated[Path, _CONFIG],
    channel: Annotated[str | None, typer.Argument(help="Name; all without one.")] = None,
) -> None:
    """Send a test to the channels of a configuration: one that fires and its end.

    Exit code 0: all were delivered. 1: some were not. 2: bad usage.
    """
    from monitor.operate import test_channel

    loaded = _load(config)
    names = [known.name for known in loaded.channels]
    if not names:
        _refuse(f"{config}: no channel, expected `notify` with at least one")
    if channel is not None and channel not in names:
        _refuse(f"{channel}: unknown channel, expected one of {', '.join(names)}")
    failed = False
    for known in loaded.channels:
        if channel in (None, known.name):
            problem = _run(test_channel(loaded, known))
            print(f"{known.name}: {problem or 'delivered'}")
            failed = failed or problem is not None
    raise typer.Exit(SOME_FAILED if failed else OK)


@app.command(
    epilog="Example: endpoint-monitor silence endpoint-monitor.yaml -m endpoint=llama --for 2h"
)
def silence(
    config: Annotated[Path, _CONFIG],
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match", "-m", metavar="LABEL=PATTERN", help="All must fit; * is anything."
        ),
    ] = None,
    last: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.")] = "1h",
    comment: Annotated[str, typer.Option("--comment", "-c", help="Why.")] = "",
    end: Annotated[str | None, typer.Option(metavar="ID", help="End a silence now.")] = None,
) -> None:
    """Keep alerts from being told for a while; without --match or --end list the silences."""
    from monitor.config.values import duration
    from monitor.operate import add_silence, end_silence, list_silences

    loaded = _load(config)
    if end is not None:
        if not _ask(end_silence(loaded, end)):
            _refuse(f"--end: no silence {end!r}")
        print(f"ended {end}")
    elif not match:
        print("\n".join(_ask(list_silences(loaded))) or "no silence holds")
    else:
        pairs = [text.partition("=") for text in match]
        if not all(name and equals for name, equals, _ in pairs):
            _refuse("--match: expected LABEL=PATTERN such as endpoint=llama")
        try:
            seconds = duration(last)
        except ValueError:
            _refuse(f"--for: {last!r}, expected a duration such as 30m, 2h or 1d")
        matchers = {name: pattern for name, _, pattern in pairs}
        print(_ask(add_silence(loaded, matchers, seconds, comment)))


@app.command(epilog="Example: endpoint-monitor ack endpoint-monitor.yaml Down/llama/chat")
def ack(
    config: Annotated[Path, _CONFIG],
    alert: Annotated[
        str | None, typer.Argument(help="An alert's key or an incident's id; lists without one.")
    ] = None,
    comment: Annotated[str, typer.Option("--comment", "-c", help="Who does what.")] = "",
) -> None:
    """Take an alert in hand: no more reminders until it ends."""
    from monitor.operate import acknowledge

    lines = _ask(acknowledge(_load(config), alert, comment))
    if alert is not None and not lines:
        _refuse(f"{alert}: not told or not firing, see `endpoint-monitor ack {config}`")
    print("\n".join(lines) or "nothing fires")


def _ask(work: Coroutine[None, None, _T]) -> _T:
    """Run what asks the store, or end with its one line."""
    from monitor.store import StoreError

    try:
        return _run(work)
    except StoreError as exc:
        _refuse(str(exc))


@app.command(epilog="Example: endpoint-monitor report endpoint-monitor.yaml --last 30d")
def report(
    config: Annotated[Path, _CONFIG],
    last: Annotated[str, typer.Option(help="Period that ends now.")] = "30d",
    form: Annotated[
        str, typer.Option("--format", help="One of table, json, csv, html.")
    ] = "table",
    objective: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="What if every SLO asked for this?")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(metavar="TIME", help="What if every latency SLO allowed this?")
    ] = None,
    sla: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Judge by a vendor's rule as well.")
    ] = None,
) -> None:
    """Judge stored history by the objectives, and by vendors' rules."""
    import time

    from monitor.config import ConfigError, load_sla, percent, seconds
    from monitor.report import FORMATS, WhatIf, gather, render
    from monitor.store import StoreError

    if form not in FORMATS:
        _refuse(f"--format: {form!r}, expected one of {', '.join(FORMATS)}")
    period = _option("--last", last, seconds)
    what_if = WhatIf(
        objective=None if objective is None else _option("--objective", objective, percent) / 100,
        threshold=None if threshold is None else _option("--threshold", threshold, seconds),
    )
    loaded, now = _load(config), time.time()
    try:
        rules = [load_sla(path) for path in sla or ()]
        found = _run(gather(loaded, now - period, now, what_if=what_if, rules=rules))
    except ConfigError as exc:
        for problem in exc.problems:
            print(problem, file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except StoreError as exc:
        _refuse(str(exc))
    print(render(found, form), end="")


def _option(name: str, text: str, read: Callable[[str], float]) -> float:
    """Return the value of an option or end with what was expected."""
    try:
        return read(text)
    except ValueError as exc:
        _refuse(f"{name}: {text!r}, expected {exc}")


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except BrokenPipeError:
        # The reader of our output left, as in `... | head`: not our fault and no traceback.
        _mute(sys.stdout)
        raise SystemExit(SOME_FAILED) from None


if __name__ == "__main__":
    main()
