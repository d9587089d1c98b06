"""`notify`, `alerts`, `maintenance` and `references`: whom to tell, of what, and when not to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from monitor.config import schema, values
from monitor.config.problem import KeyPath, UnfitError
from monitor.config.schema import Duration, Line, Link, Section
from monitor.config.source import Source
from monitor.maintenance import EVERY_DAY, Window

RuleName = Literal[
    "Down",
    "SLOBurn",
    "NoData",
    "Misconfigured",
    "RateLimited",
    "CertificateExpiry",
    "BudgetExhausted",
    "MonitorBlind",
    "ConfigReloadFailed",
    "OutboxStuck",
    "ProberRestarted",
]
RULES: tuple[str, ...] = get_args(RuleName)
"""Names of alerts. A test holds them equal to `monitor.conditions.Rule`, which is above us."""

_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Mapping[str, frozenset[int]] = {
    "day": EVERY_DAY,
    "weekday": frozenset(range(5)),
    "weekend": frozenset({5, 6}),
    **{name: frozenset({number}) for number, name in enumerate(_WEEK)},
}
_Every = Literal[
    "day", "weekday", "weekend",
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
]  # fmt: skip
_LONGEST_WINDOW_S = 31 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Somebody who is told of alerts.

    Attributes:
        url: Of the receiver; a secret.
        secret: Signs what is sent to a webhook; None signs nothing.
        timeout: Seconds of one attempt.
        severities: Those that it is told of; empty is all.
    """

    name: str
    type: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    timeout: float = 10.0
    severities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """When what is worth an alert.

    Attributes:
        down_after: Bad valid results in a row.
        up_after: Good valid results in a row.
        certificate: Seconds before a certificate expires.
        remind: Seconds between reminders.
        page_url: Base of links in messages; None is the address that is listened on.
        off: Names of rules without alert.
    """

    down_after: int = 3
    up_after: int = 2
    certificate: float = 14 * 86_400.0
    remind: float = 4 * 3600.0
    page_url: str | None = None
    off: frozenset[str] = frozenset()


def _receiver(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        parts = urlsplit(text)
        known = parts.scheme and (parts.hostname or parts.scheme not in ("http", "https"))
    except ValueError:
        known = False
    if not known or "://" not in text or not text.isprintable() or " " in text:
        raise UnfitError("the URL of a receiver", "not a URL")
    return value


def _clock(value: Any) -> time:
    try:
        if len(value) != 5:
            raise ValueError
        return time.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnfitError("a time of day such as 02:30") from None


def _moment(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnfitError("a date and time such as 2026-12-01T22:00") from None


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (OSError, ValueError, KeyError):
        raise UnfitError("an IANA zone such as Europe/Berlin") from None
    return value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _target(value: str) -> str:
    host, _, port = (urlsplit(value).netloc if "://" in value else value).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UnfitError("host:port such as one.one.one.one:443")
    return value


class ChannelSection(Section):
    """An entry of `notify`."""

    type: Literal["webhook", "alertmanager", "apprise"]
    url: Annotated[SecretStr, AfterValidator(_receiver)]
    secret: SecretStr | None = None
    timeout: Duration = 10.0
    severities: list[Line] = Field(default_factory=list)


class OwnAlertsSection(Section):
    """`alerts` of an endpoint; None takes what the root says."""

    down_after: Annotated[int, Field(ge=1, le=1000)] | None = None
    up_after: Annotated[int, Field(ge=1, le=1000)] | None = None
    certificate: Duration | None = None
    off: list[RuleName] = Field(default_factory=list)


class AlertsSection(OwnAlertsSection):
    """`alerts` of the root."""

    remind: Duration | None = None
    page_url: Link | None = None


class WindowSection(Section):
    """An entry of `maintenance`: either `every`, `at`, `for`, or `from`, `until`."""

    name: Line | None = None
    every: Annotated[list[_Every], BeforeValidator(_listed)] = Field(default_factory=list)
    at: Annotated[time, BeforeValidator(_clock)] | None = None
    length: Duration | None = Field(default=None, alias="for")
    begin: Annotated[datetime, BeforeValidator(_moment)] | None = Field(default=None, alias="from")
    until: Annotated[datetime, BeforeValidator(_moment)] | None = None
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    endpoints: list[Line] = Field(default_factory=list)


class _References(Section):
    references: list[Annotated[str, AfterValidator(_target)]] = Field(default_factory=list)


def channels(source: Source) -> tuple[Channel, ...]:
    """Return the receivers of `notify`, noting what is wrong."""
    return tuple(_channels(source))


def _channels(source: Source) -> Iterator[Channel]:
    for name, value in _items(source, ("notify",)):
        path = ("notify", name)
        entry = schema.check(ChannelSection, value, path, source)
        if entry is None:
            continue
        url = entry.url.get_secret_value()
        if entry.type != "apprise" and not url.startswith(("http://", "https://")):
            source.add((*path, "url"), "another kind of URL, expected http:// or https://")
        yield Channel(
            name=str(name),
            type=entry.type,
            url=url,
            secret=entry.secret.get_secret_value() if entry.secret else None,
            timeout=entry.timeout,
            severities=frozenset(entry.severities),
        )


def rules(source: Source, endpoint: str | None, base: AlertRules) -> AlertRules:
    """Return the rules of the root, or of an endpoint over those of the root."""
    path: KeyPath = ("alerts",) if endpoint is None else ("endpoints", endpoint, "alerts")
    section = AlertsSection if endpoint is None else OwnAlertsSection
    value = _at(source, path)
    found = None if value is None else schema.check(section, value, path, source)
    if found is None:
        return base
    given = {name: v for name, v in found.model_dump().items() if name != "off" and v is not None}
    return replace(base, **given, off=base.off | frozenset(found.off))


def windows(source: Source, names: list[str]) -> tuple[Window, ...]:
    """Return the maintenance windows of the root and of each endpoint."""
    found = list(_windows(source, ("maintenance",), names))
    for name in names:
        found += _windows(source, ("endpoints", name, "maintenance"), [name])
    return tuple(found)


def _windows(source: Source, path: KeyPath, names: list[str]) -> Iterator[Window]:
    for key, value in _items(source, path):
        here = (*path, key)
        entry = schema.check(WindowSection, value, here, source)
        if entry is not None:
            covered = _covered(source, entry.endpoints, names, here)
            window = _window(entry, str(key), covered)
            if window is None:
                what = "not a window, expected every, at and for, or from and until"
                source.add(here, what)
            elif not 0 < window.length <= _LONGEST_WINDOW_S:
                source.add(here, "a window of this length, expected up to 31 days")
            else:
                yield window


def _window(entry: WindowSection, key: str, covered: frozenset[str]) -> Window | None:
    name = entry.name or key
    if entry.begin and entry.until and not (entry.every or entry.at or entry.length):
        begin, end = (_instant(moment, entry.zone) for moment in (entry.begin, entry.until))
        return Window(name=name, once_at=begin, length=end - begin, endpoints=covered)
    if entry.at and entry.length and not (entry.begin or entry.until):
        days = frozenset[int]().union(*(_DAYS[day] for day in entry.every)) or EVERY_DAY
        return Window(
            name=name,
            at=entry.at,
            length=entry.length,
            zone=entry.zone,
            days=days,
            endpoints=covered,
        )
    return None


def references(source: Source) -> tuple[tuple[str, int], ...]:
    """Return the reference targets of the root, host and port."""
    value = source.root.get("references")
    if not isinstance(value, list):
        return ()
    found = schema.check(_References, {"references": value}, (), source)
    pairs = []
    for target in found.references if found else ():
        host, _, port = (urlsplit(target).netloc if "://" in target else target).rpartition(":")
        pairs.append((host.strip("[]"), int(port)))
    return tuple(pairs)


def _covered(
    source: Source, patterns: list[str], names: list[str], path: KeyPath
) -> frozenset[str]:
    """Return the endpoints that patterns name, noting a pattern without one; none is all."""
    found = set[str]()
    for number, pattern in enumerate(patterns):
        hits = [name for name in names if fnmatchcase(name, pattern)]
        if not hits:
            what = f"matches no endpoint, {schema.unknown(pattern, names)}"
            source.add((*path, "endpoints", number), what)
        found.update(hits)
    return frozenset(found or names)


def _instant(moment: datetime, zone: str) -> float:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))
    return aware.astimezone(UTC).timestamp()


def _items(source: Source, path: KeyPath) -> Iterator[tuple[str | int, Any]]:
    """Yield the entries of a mapping by name, or of a list by position."""
    found = _at(source, path)
    if isinstance(found, dict):
        for key, value in found.items():
            try:
                values.name(key)
            except UnfitError as exc:
                source.add((*path, key), f"{exc.what}, expected {exc.expected}")
            yield key, value
    elif isinstance(found, list):
        yield from enumerate(found)


def _at(source: Source, path: KeyPath) -> Any:
    found: Any = source.root
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found
