"""What a single value of a configuration may be: durations, names, URLs, keys, free shapes.

Each function returns the value as the program uses it, or raises what was expected instead. None
puts a value that may be secret into its words.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import SecretStr

from monitor.config.problem import UnfitError
from monitor.config.source import Text, plain
from probes.endpoint import normalize_url

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")  # RFC 9110 section 5.6.2
_FRAMING = {"content-length", "transfer-encoding", "connection"}
_LONGEST_DURATION = 10 * 366 * 86400
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 366 * 86400
_LINE_LENGTH = 500
_KEY_LENGTH = 20_000
_SHORTEST_SLO, _LONGEST_SLO = 3600, 92 * 86400
_PORTS = 65536


def duration(value: Any) -> float:
    """Return the seconds of `500ms`, `60s`, `5m`, `1h` or `1d`."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    # Rounded, or 700ms would be 0.7000000000000001 and the bound of a histogram.
    seconds = round(float(match[1]) * _UNITS[match[2]], 9) if match else 0.0
    if seconds <= 0:
        raise UnfitError("a duration such as 500ms, 60s, 5m, 1h or 1d")
    if seconds > _LONGEST_DURATION:
        raise UnfitError("a duration of at most ten years")
    return seconds


def interval(seconds: float) -> float:
    """Return seconds between slots; more often would be a load, and rarer than a year nothing."""
    if not _SHORTEST_INTERVAL <= seconds <= _LONGEST_INTERVAL:
        raise UnfitError("an interval from 100ms to 366d")
    return seconds


def line(value: str) -> str:
    """Return a text that fits a label, a table and a log line."""
    expected = f"one line of 1 to {_LINE_LENGTH} printable characters"
    if not value:
        raise UnfitError(expected, "empty")
    if not value.isprintable():
        raise UnfitError(expected, "a line break or control character")
    if len(value) > _LINE_LENGTH:
        raise UnfitError(expected, "too long")
    return value


def name(value: str) -> str:
    """Return a name that is safe as a metric label, an id and a file's name."""
    if not _NAME.fullmatch(value):
        raise UnfitError("a name of 1 to 64 letters, digits, `.`, `_` or `-`", "bad name")
    return value


def url(value: str) -> str:
    """Return the base URL of an endpoint, normalised."""
    try:
        return normalize_url(line(value))
    except UnfitError as exc:
        what = exc.what
    except ValueError as exc:
        # What follows the bracket is urllib's and can quote a piece of a password.
        what = str(exc).partition(" (")[0]
    raise UnfitError("a URL such as http://host:8000/v1", what)


def link(value: str) -> str:
    """Return a URL that becomes a link on a page."""
    if not value.startswith(("http://", "https://")):
        raise UnfitError("a link that starts with http:// or https://")
    return value


def clean_key(value: str) -> str:
    """Return an API key without the line end that files and commands leave at it."""
    key = value.strip()
    if not key:
        raise UnfitError("a key", "empty")
    if len(key) > _KEY_LENGTH or not key.isprintable() or " " in key:
        raise UnfitError("a key", "a blank, a control character or too long")
    return key


def secret_key(value: SecretStr) -> SecretStr:
    """Return an API key as `clean_key` does."""
    return SecretStr(clean_key(value.get_secret_value()))


def header_name(value: str) -> str:
    """Return the name of a header or query parameter that does not frame the message."""
    if not _TOKEN.fullmatch(value) or value.lower() in _FRAMING:
        raise UnfitError("the name of a header that may be set", "bad name")
    return value


def header_value(value: SecretStr) -> SecretStr:
    """Return a header's value."""
    text = value.get_secret_value()
    if len(text) > _KEY_LENGTH or not text.isprintable():
        raise UnfitError("a header value", "a control character or too long")
    return value


def proxy(value: SecretStr) -> SecretStr:
    """Return the URL of an HTTP proxy; it may hold user and password."""
    text = value.get_secret_value()
    try:
        parts = urlsplit(text)
        good = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not text.isprintable() or " " in text:
        raise UnfitError("the URL of an HTTP proxy such as http://proxy:3128", "not a proxy URL")
    return value


def listen(value: str) -> str:
    """Return an address that `split_listen` accepts."""
    split_listen(value)
    return value


def split_listen(value: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:8844`, `[::1]:8844` or `host:0`."""
    host, _, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good = bare and bare.isprintable() and not set(bare) & set(" []/@")
    if not good or (":" in bare and bare == host) or not re.fullmatch("[0-9]{1,5}", port):
        raise UnfitError("host:port such as 127.0.0.1:8844 or [::1]:8844")
    if int(port) >= _PORTS:
        raise UnfitError("a port from 0 to 65535")
    return bare, int(port)


def free(value: Any) -> Any:
    """Return a value of any shape that JSON and the wire to the prober can hold."""
    try:
        return plain(value)
    except ValueError:
        what = "a number beyond 64 bits or not finite"
        raise UnfitError("numbers that JSON can hold", what) from None


def free_mapping(value: Any) -> Any:
    """Return a mapping of any shape."""
    if not isinstance(value, dict):
        raise UnfitError("a mapping")
    return free(value)


def free_list(value: Any) -> Any:
    """Return a list, or a mapping by name, of any shape."""
    if not isinstance(value, dict | list):
        raise UnfitError("a list or a mapping")
    return free(value)


def percent(value: float) -> float:
    """Return an objective in percent; 0.999 is a share, and meant as 99.9."""
    if not 50 <= value <= 100:
        raise UnfitError("a percentage from 50 to 100 such as 99.9")
    return value


def percent_of(text: str) -> float:
    """Return the number of an objective in percent that was given as text."""
    try:
        return percent(float(text))
    except ValueError:
        raise UnfitError("a percentage from 50 to 100 such as 99.9") from None


def slo_window(value: Any) -> Any:
    """Return the seconds of an SLO's rolling window, or `month`."""
    if value == "month":
        return "month"
    try:
        seconds = duration(value)
    except UnfitError:
        seconds = 0.0
    if not _SHORTEST_SLO <= seconds <= _LONGEST_SLO:
        raise UnfitError("a window from 1h to 92d such as 30d, or month")
    return seconds


def zone(value: str) -> str:
    """Return the IANA name of a time zone that this machine knows."""
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UnfitError("a time zone such as Europe/Berlin") from None
    return value


def budget(value: Any) -> Any:
    """Return a budget as a mapping; a single number is tokens."""
    return {"tokens": value} if isinstance(value, Text) else value


def load(value: Any) -> Any:
    """Return caps as a mapping; `allow` and `deny` stand alone."""
    return {"allow": value == "allow"} if value in ("allow", "deny") else value
