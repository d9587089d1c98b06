"""Log lines on stderr, with every known secret taken out of the finished text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from probes.redact import redact


class RedactingFormatter(logging.Formatter):
    """Formats a record, traceback included, then masks secrets in the whole of it."""

    def __init__(self, pattern: str, secrets: Iterable[str]) -> None:
        super().__init__(pattern)
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Return one redacted text."""
        return redact(super().format(record), self._secrets) or ""


def log_to_stderr(
    level: int, secrets: Iterable[str] = (), pattern: str = "%(asctime)s %(levelname)s %(message)s"
) -> None:
    """Send log lines of this process to stderr. Called once, by the program and no library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(pattern, secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.raiseExceptions = False  # a closed stderr must not fill the log with tracebacks
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
