"""Environment variables that replace single values of a configuration.

`ENDPOINT_MONITOR__ENDPOINTS__LLAMA__URL` replaces `endpoints.llama.url`: case does not matter, and
`_` stands for `-` and `.` in a name. A key may be new, a name must be in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.config.problem import KeyPath, Problem, dotted, printable, shorten
from monitor.config.schema import NAMED, RootSection, Section, inner, keys, unknown
from monitor.config.source import Source, is_utf8, text

PREFIX = "ENDPOINT_MONITOR__"


def apply(source: Source, environ: Mapping[str, str]) -> None:
    """Replace values of `source` and note a problem for each variable that fits nowhere."""
    for variable in sorted(environ):
        if not variable.upper().startswith(PREFIX):
            continue
        try:
            path = _find(source.root, _fold(variable)[len(PREFIX) :])
            if not is_utf8(environ[variable]):
                raise ValueError("not UTF-8, expected UTF-8 text")
        except ValueError as exc:
            where = printable(variable)
            source.problems.append(Problem(where=where, line=None, key="", text=str(exc)))
        else:
            _put(source.root, path, environ[variable])
            source.overrides[path] = variable


def _put(root: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    holder = root
    for part in path[:-1]:
        if holder.get(part) is None:
            holder[part] = {}
        holder = holder[part]
    holder[path[-1]] = text(value, bare=True, hidden=True)


def _find(root: dict[str, Any], rest: str) -> tuple[str, ...]:
    path: tuple[str, ...] = ()
    section: type[Section] | None = RootSection
    here: Any = root
    while rest or not path:
        if here is not None and not isinstance(here, dict):
            raise ValueError(f"goes beyond {dotted(path)}, expected the name of a single value")
        name = _pick(rest, path, list(keys(section) if section else here or {}))
        path = (*path, name)
        rest = rest[len(_fold(name)) :].removeprefix("__")
        section = _below(section, path)
        here = here.get(name) if here else None
    return path


def _pick(rest: str, path: KeyPath, known: list[str]) -> str:
    folded = {name: _fold(name) for name in known}
    hits = [n for n, f in folded.items() if rest == f or rest.startswith(f + "__")]
    # `a` and `a__b` both begin A__B: the longer one is meant.
    longest = max((len(folded[name]) for name in hits), default=0)
    hits = [name for name in hits if len(folded[name]) == longest]
    if len(hits) == 1:
        return hits[0]
    within = f" in {dotted(path)}" if path else ""
    if hits:
        raise ValueError(f"fits {' and '.join(map(shorten, hits))}{within}, expected one name")
    wanted = rest.partition("__")[0]
    expected = unknown(wanted, known) if known else "expected a name that is in the file"
    raise ValueError(f"nothing is named '{shorten(wanted)}'{within}, {expected}")


def _below(section: type[Section] | None, path: tuple[str, ...]) -> type[Section] | None:
    if len(path) > 1 and path[-2] in NAMED and (len(path) == 2 or path[-2] == "slos"):
        return NAMED[path[-2]]
    return inner(keys(section)[path[-1]]) if section else None


def _fold(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").upper()
