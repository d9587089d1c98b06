"""What is wrong with a configuration, one line each.

Exception
├── ConfigError         all that is wrong with a file; the only one that leaves the package
└── ValueError
    └── UnfitError      one value does not fit its key
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Where a value stands: mapping keys and list positions from the root."""

_SHOWN = 40
_LISTED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to correct.

    Attributes:
        where: `file:line`, `file`, or the environment variable that gave the value.
        line: Line in the file, from 1; None for an environment variable or a file not read.
        key: Path of the key, `endpoints.llama.url`; empty for the file as a whole.
        text: What is wrong and what is expected, never with a secret in it.
    """

    where: str
    line: int | None
    key: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.where} {self.key}: {self.text}" if self.key else f"{self.where}: {self.text}"
        )


class ConfigError(Exception):
    """A configuration that cannot be used; its text is one line per problem.

    Attributes:
        problems: At least one, in the order of the file, then of environment variables.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        order = sorted(problems, key=lambda p: (p.line is None, p.line or 0))
        self.problems: tuple[Problem, ...] = tuple(order)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnfitError(ValueError):
    """A value that its key does not allow.

    Args:
        expected: What is allowed, to follow "expected".
        what: What is wrong, never with the value in it; None shows the value, if that is safe.
    """

    def __init__(self, expected: str, what: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.what = what


def printable(text: str) -> str:
    """Return `text` on one line: whatever a terminal would act on becomes an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str) -> str:
    """Return `text` on one line, cut to a length that suits a message."""
    line = printable(text[: _SHOWN + 1])
    return line if len(text) <= _SHOWN else line[: _SHOWN - 1] + "…"


def dotted(path: KeyPath) -> str:
    """Return a path as people write it: `workloads.chat.endpoints[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{shorten(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def one_of(names: Sequence[str]) -> str:
    """Return `one of a, b, c`, not longer than a person reads."""
    rest = "" if len(names) <= _LISTED else f" and {len(names) - _LISTED} more"
    return f"one of {', '.join(shorten(name) for name in names[:_LISTED])}{rest}"
