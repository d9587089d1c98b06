"""A configuration file as text: reading, YAML with line numbers, variables.

The only module that knows YAML. Everything that can be wrong before a value's meaning is known is
found here.

Theory of operation: the file is read with a cap and decoded; a pass over the parser's events
refuses what would make the next step expensive or surprising (depth, number of nodes, aliases,
tags, a second document); then nodes are composed and turned into plain mappings and lists whose
scalars are `Text`. Scalars keep their spelling, because `release: 1.10` is a text and only the
schema knows that; `plain` gives what YAML 1.2's core schema makes of one, so `no` is a text,
`1:30` is not ninety and `2024-10-21` not a date.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from monitor.config.problem import ConfigError, KeyPath, Problem, dotted, printable

# libyaml where the wheel has it (all of PyPI's do): ten times faster on a large file.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000
MAX_ALIASES = 100

_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VARIABLE = re.compile(r"\$(?:\$|\{([^{}]*)(\})?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUE, _FALSE = {"true", "True", "TRUE"}, {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]+")
_RADIX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class Text(str):
    """A scalar as it was written.

    Attributes:
        bare: Written without quotes, so that it may stand for a number or a truth value.
        hidden: Holds a value from the environment; no message repeats it.
    """

    bare: bool = False
    hidden: bool = False


def text(value: str, *, bare: bool = False, hidden: bool = False) -> Text:
    """Return a scalar with its marks."""
    made = Text(value)
    made.bare, made.hidden = bare, hidden
    return made


@dataclass(slots=True)
class Source:
    """A configuration on its way from text to meaning, and what was found wrong so far.

    Attributes:
        file: The path as the operator gave it, for messages.
        base: Folder that relative paths in the file start from.
        root: The file's mapping; its scalars are `Text` or None.
        lines: Line of every value, from 1.
        overrides: Environment variable that gave a value.
    """

    file: str
    base: Path
    root: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _reported: set[KeyPath] = field(default_factory=set)

    def add(self, path: KeyPath, what: str, line: int | None = None) -> None:
        """Note a problem with the value at `path`; only the first at each path is kept.

        The line is that of the value unless another one is given.
        """
        if path in self._reported:
            return
        self._reported.add(path)
        where = f"{self.file}:{line}"
        if line is None:
            where, line = self._where(path)
        self.problems.append(Problem(where=where, line=line, key=dotted(path), text=what))

    def check(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: There is at least one problem.
        """
        if self.problems:
            raise ConfigError(self.problems)

    def _where(self, path: KeyPath) -> tuple[str, int | None]:
        # A key that is missing has no line: the nearest one around it is shown.
        for length in range(len(path), -1, -1):
            if variable := self.overrides.get(path[:length]):
                return printable(variable), None
            if line := self.lines.get(path[:length]):
                return f"{self.file}:{line}", line
        return f"{self.file}:1", 1


def read(path: str | os.PathLike[str], environ: Mapping[str, str]) -> Source:
    """Read a file into plain mappings and lists, with variables expanded.

    Problems inside the file are noted in the returned source, so that they can be reported with
    those of its meaning.

    Raises:
        ConfigError: The file cannot be read or is not one YAML mapping.
    """
    file = printable(os.fspath(path))
    content = _decode(file, _read_bytes(file, path))
    node = _compose(file, content)
    if node is None or (isinstance(node, yaml.ScalarNode) and _is_null(node)):
        _refuse(file, 1, "file is empty, expected a mapping with `endpoints`")
    if not isinstance(node, yaml.MappingNode):
        got = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        _refuse(file, _line(node), f"{got}, expected a mapping with `endpoints`")
    source = Source(file=file, base=Path(path).absolute().parent)
    source.root = _Convert(source, environ).value(node, ())
    return source


def plain(value: Any) -> Any:
    """Return a value of free shape as JSON would hold it.

    Raises:
        ValueError: A number beyond 64 bits, infinite or not a number.
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Text):
        return _core(str(value)) if value.bare else str(value)
    return value


def is_utf8(value: str) -> bool:
    """Whether a text can be encoded; other bytes come out of `os.environ` as lone surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _core(value: str) -> Any:
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    if _INT.fullmatch(value) or _RADIX.fullmatch(value):
        number = int(value, 0) if value[:2] in ("0x", "0o") else int(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError("beyond 64 bits")
        return number
    if _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    if _FLOAT.fullmatch(value) or _NO_JSON.fullmatch(value):
        raise ValueError("not finite")
    return value


def _is_null(node: yaml.ScalarNode) -> bool:
    return not node.style and node.value in _NULLS


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _refuse(file: str, line: int | None, what: str) -> NoReturn:
    where = file if line is None else f"{file}:{line}"
    # From None: what is being handled may quote the line, and the line may hold a key.
    raise ConfigError([Problem(where=where, line=line, key="", text=what)]) from None


def _read_bytes(file: str, path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse(file, None, "file not found, expected a configuration file")
    except IsADirectoryError:
        _refuse(file, None, "is a directory, expected a configuration file")
    except PermissionError:
        _refuse(file, None, "permission denied, expected a readable file")
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
        reason = getattr(exc, "strerror", None) or "bad path"
        _refuse(file, None, f"cannot be read ({reason}), expected a configuration file")
    if len(content) > MAX_BYTES:
        _refuse(file, None, f"larger than {MAX_BYTES >> 20} MiB, expected a configuration file")
    return content


def _decode(file: str, content: bytes) -> str:
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        _refuse(file, line, "not UTF-8, expected UTF-8 text")
    if control := _CONTROL.search(decoded):
        line = decoded.count("\n", 0, control.start()) + 1
        _refuse(file, line, f"control character U+{ord(control[0]):04X}, expected text")
    return decoded


def _compose(file: str, content: str) -> yaml.Node | None:
    try:
        _guard(file, content)
        node: yaml.Node | None = _Loader(content).get_single_node()
    except yaml.MarkedYAMLError as exc:
        lines = content.splitlines() or [""]
        # What never ends is noticed too late: its beginning is the place to look at.
        endless = exc.context in ("while scanning a quoted scalar", "while scanning a simple key")
        mark = (exc.context_mark if endless else None) or exc.problem_mark
        line = min(mark.line if mark else 0, len(lines) - 1)
        _refuse(file, line + 1, _syntax(exc, lines[line]))
    except yaml.YAMLError:
        _refuse(file, 1, "cannot be read, expected YAML")
    return node


def _syntax(exc: yaml.MarkedYAMLError, line: str) -> str:
    # Only `problem` is used: the exception's own text quotes the line, which may hold a key.
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "tab in the indentation, expected blanks"
    problem = exc.problem or "cannot be read"
    if problem.startswith("found undefined alias"):
        # The pure parser names the alias, and that is a key that starts with `*`.
        return "alias without an anchor, expected quotes around a text that starts with *"
    if problem.startswith("mapping values are not allowed"):
        return "a colon in the wrong place, expected `key: value` or quotes around the text"
    if problem == "found unexpected end of stream":
        return "a quote that does not end, expected a closing one"
    if exc.context and "expected" in problem:
        return f"{problem} {exc.context}"
    return f"{problem}, expected YAML"


def _guard(file: str, content: str) -> None:
    """Refuse what composing would choke on; the event parser itself does not recurse."""
    depth = nodes = aliases = documents = 0
    for event in yaml.parse(content, Loader=_Loader):
        nodes += isinstance(event, yaml.NodeEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        reason = None
        if depth > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} levels, expected a flatter mapping"
        elif nodes > MAX_NODES:
            reason = f"more than {MAX_NODES:,} values, expected fewer"
        elif aliases > MAX_ALIASES:
            reason = f"more than {MAX_ALIASES} aliases, expected fewer"
        elif documents > 1:
            reason = "a second document, expected one"
        elif isinstance(event, yaml.ScalarEvent) and not is_utf8(event.value):
            reason = "half of a surrogate pair, expected UTF-8 text"
        elif getattr(event, "tag", None) not in (None, "!"):
            # Not named: it may be a key that starts with `!`.
            reason = "a tag, expected quotes around a text that starts with !"
        if reason:
            _refuse(file, (event.start_mark.line if event.start_mark else 0) + 1, reason)


class _Convert:
    """Turns nodes into mappings, lists and `Text`, noting lines and problems in a source."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._visited = 0
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._source.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, path)
            self._enter(node)
            made: Any = {}
            for key, (line, item) in entries.items():
                self._source.lines[*path, key] = line
                made[key] = self.value(item, (*path, key))
        else:
            self._enter(node)
            made = [self.value(item, (*path, n)) for n, item in enumerate(node.value)]
        self._open.pop()
        return made

    def _enter(self, node: yaml.Node) -> None:
        # An alias is short and can stand for very much, or for the collection that it is in.
        self._visited += len(node.value)
        if self._visited > MAX_NODES or any(node is outer for outer in self._open):
            reason = "an alias that expands without end, expected fewer aliases"
            _refuse(self._source.file, _line(node), reason)
        self._open.append(node)

    def _entries(
        self, node: yaml.MappingNode, path: KeyPath | None
    ) -> dict[str, tuple[int, yaml.Node]]:
        """Return a mapping's entries with their lines, `<<` resolved; None notes no problem."""
        self._enter(node)
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name == "<<" and not key.style:
                merged = self._merge(item, path) | merged
            elif name is not None and name not in own:
                own[name] = (_line(key), item)
            elif path is not None:
                what = "a key that is not a text, expected a name"
                if name is not None:
                    what = f"duplicate key, expected one (the first is in line {own[name][0]})"
                self._source.add((*path, "?" if name is None else name), what, _line(key))
        self._open.pop()
        return merged | own

    def _merge(self, item: yaml.Node, path: KeyPath | None) -> dict[str, tuple[int, yaml.Node]]:
        merged: dict[str, tuple[int, yaml.Node]] = {}
        for part in item.value if isinstance(item, yaml.SequenceNode) else [item]:
            if isinstance(part, yaml.MappingNode):
                merged = self._entries(part, None) | merged
            elif path is not None:
                self._source.add(
                    (*path, "<<"), "not a mapping, expected one to merge", _line(part)
                )
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Text | None:
        if _is_null(node):
            return None
        value = _VARIABLE.sub(lambda match: self._variable(match, path), node.value)
        hidden = "${" in node.value
        return text(value, bare=not node.style and not hidden, hidden=hidden)

    def _variable(self, match: re.Match[str], path: KeyPath) -> str:
        name, closed = match[1], match[2]
        if match[0] == "$$":
            return "$"
        if not closed or not _NAME.fullmatch(name):
            self._source.add(path, "bad variable, expected ${NAME}, or $$ for a plain $")
        elif name not in self._environ:
            self._source.add(path, f"variable {name} is not set, expected it in the environment")
        elif not is_utf8(self._environ[name]):
            self._source.add(path, f"variable {name} is not UTF-8, expected UTF-8 text")
        else:
            return self._environ[name]
        return match[0]
