"""Where API keys come from: the file itself, another file, or a command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from monitor.config.problem import KeyPath, UnfitError
from monitor.config.schema import EndpointSection
from monitor.config.source import Source
from monitor.config.values import clean_key

COMMAND_SECONDS = 10.0
_MAX_BYTES = 1 << 16


class Keyring:
    """Finds the key of each endpoint once per load; a command used twice runs once."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._outputs: dict[str, str | UnfitError] = {}

    def find(self, section: EndpointSection, path: KeyPath) -> str | None:
        """Return an endpoint's key, None without one or after noting a problem."""
        known = ("api_key", "api_key_file", "api_key_command")
        ways = [way for way in known if getattr(section, way) is not None]
        if len(ways) > 1:
            self._source.add((*path, ways[1]), f"a second key, expected only {ways[0]} or this")
            return None
        try:
            if section.api_key is not None:
                return section.api_key.get_secret_value()
            if section.api_key_file is not None:
                return self._from_file(self._source.base / section.api_key_file)
            if section.api_key_command is not None:
                return self._from_command(section.api_key_command.get_secret_value())
        except UnfitError as exc:
            self._source.add((*path, ways[0]), f"{exc.what}, expected {exc.expected}")
        return None

    def _from_file(self, path: Path) -> str:
        try:
            with path.open("rb") as stream:
                return _decode(stream.read(_MAX_BYTES + 1))
        except OSError as exc:
            raise UnfitError(
                "a file that holds the key", f"cannot be read ({exc.strerror})"
            ) from None

    def _from_command(self, command: str) -> str:
        if command not in self._outputs:
            try:
                self._outputs[command] = _run(command, self._source.base, self._environ)
            except UnfitError as exc:
                self._outputs[command] = exc
        found = self._outputs[command]
        if isinstance(found, UnfitError):
            raise UnfitError(found.expected, found.what)
        return found


def _run(command: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Return what a command prints. Its words, output and complaints may hold a key: not shown."""
    expected = "a command that prints the key"
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise UnfitError(expected, "no command line (empty, or a quote is open)")
    try:
        process = subprocess.Popen(  # noqa: S603  the operator's own command, without a shell
            words,
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "bad text"
        raise UnfitError(expected, f"cannot be started ({reason})") from None
    late = threading.Event()
    alarm = threading.Timer(COMMAND_SECONDS, _end, (process, late))
    alarm.start()
    with process:
        assert process.stdout is not None  # noqa: S101  asked for above
        output = process.stdout.read(_MAX_BYTES + 1)
        if len(output) > _MAX_BYTES:
            _end(process, threading.Event())
        status = process.wait()
    alarm.cancel()
    if late.is_set():
        raise UnfitError(expected, f"no end within {COMMAND_SECONDS:g} s")
    if status != 0 and len(output) <= _MAX_BYTES:
        raise UnfitError(expected, f"exit status {status}")
    return _decode(output)


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    # The whole session: a child of the command that keeps the pipe open would make us wait on.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _decode(content: bytes) -> str:
    if len(content) > _MAX_BYTES:
        raise UnfitError("a key", "more than 64 kB")
    try:
        return clean_key(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UnfitError("UTF-8 text", "not UTF-8") from None
