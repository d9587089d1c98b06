"""From checked sections to what the program uses: defaults, globs, keys, and one plan.

What comes out is frozen and holds nothing of the file but its path.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from monitor import link
from monitor.config import alerting, override, schema, values
from monitor.config.alerting import AlertRules, Channel
from monitor.config.keyring import Keyring
from monitor.config.problem import UnfitError
from monitor.config.schema import (
    DEFAULTS,
    KINDS,
    Budget,
    EndpointSection,
    LoadCaps,
    Price,
    Retention,
    RootSection,
    SectionT,
    System,
    WorkloadSection,
)
from monitor.config.slos import slos_of
from monitor.config.source import Source, read
from monitor.maintenance import Window
from monitor.slo import Indicator, Slo, applies
from probes.endpoint import Endpoint
from probes.workload import Check, Limits, Workload

STORE_NAME = "endpoint-monitor.db"

_ASLEEP = 3600.0
"""Seconds between probes of an endpoint that scales to zero: they must not keep it awake."""

_DATABASE = re.compile(r"(sqlite|postgresql)(\+[a-z0-9_]+)?://")
_PRIVATE = (
    "local localhost localdomain internal intranet private lan home corp svc test home.arpa"
).split()
_SECRET_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """An endpoint and what is known about it beside how to ask it.

    Attributes:
        id: Stable identity; the name unless the configuration gives one.
        public: Whether the host's name or address can be reached from the internet.
        scale_to_zero: Whether it sleeps when nobody asks, so that probes are rare.
        references: As written, for the parts that use it; so are alerts and maintenance.
        slos: By name; one here takes the place of the root's of the same name.
    """

    endpoint: Endpoint
    id: str
    public: bool
    labels: Mapping[str, str]
    severity: str | None
    runbook_url: str | None
    release: str | None
    budget: Budget
    scale_to_zero: bool
    system: System
    price: Price
    load: LoadCaps
    references: Any
    slos: Mapping[str, Slo]
    alerts: Mapping[str, Any] = field(repr=False)
    maintenance: Any
    alert_rules: AlertRules = field(default_factory=AlertRules)

    @property
    def owner(self) -> str | None:
        """The label `owner`."""
        return self.labels.get("owner")

    @property
    def priced(self) -> bool:
        """Whether a token costs money."""
        return bool(self.price.input_per_million or self.price.output_per_million)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration, valid and with every default filled in.

    Attributes:
        source: The file it was read from.
        endpoints: By name, in the order of the file.
        listen: Host and port of page and metrics; port 0 takes a free one.
        store_url: Database URL; SQLite beside the file unless the configuration gives one.
        alerting: Who sends alerts, `internal` or `prometheus`.
        references: As written, for the parts that use it; so are alerts, maintenance and notify.
        slos: Of all endpoints, by name.
        channels: Whom to tell of alerts.
        windows: Maintenance of all endpoints.
        reference_targets: Host and port of what tells our own network's fault from a target's.
    """

    source: Path
    endpoints: Mapping[str, EndpointConfig]
    probes: tuple[link.ProbePlan, ...]
    site: str
    seed: int
    concurrency: int
    listen: tuple[str, int]
    store_url: str = field(repr=False)
    retention: Retention
    alerting: str
    references: Any
    slos: Mapping[str, Slo]
    alerts: Mapping[str, Any] = field(repr=False)
    maintenance: Any
    notify: Mapping[str, Any] = field(repr=False)
    channels: tuple[Channel, ...] = ()
    windows: tuple[Window, ...] = ()
    alert_rules: AlertRules = field(default_factory=AlertRules)
    reference_targets: tuple[tuple[str, int], ...] = ()

    def plan(self) -> link.Plan:
        """Return what the prober needs to know."""
        return link.Plan(
            probes=self.probes, seed=self.seed, site=self.site, concurrency=self.concurrency
        )

    def slos_of(self, probe: link.ProbePlan) -> tuple[Slo, ...]:
        """Return the objectives of a probe, in the order of the file."""
        name, workload = probe.endpoint.name, probe.workload
        found = {**self.slos, **self.endpoints[name].slos}.values()
        return tuple(slo for slo in found if applies(slo, name, workload.name, workload.kind))

    def thresholds(self) -> dict[str, tuple[float, ...]]:
        """Return the thresholds of latency SLOs, seconds, by metric."""
        found: dict[str, set[float]] = {}
        for slos in (self.slos, *(config.slos for config in self.endpoints.values())):
            for slo in slos.values():
                if slo.indicator is Indicator.LATENCY and slo.metric and slo.threshold:
                    found.setdefault(slo.metric, set()).add(slo.threshold)
        return {metric: tuple(sorted(seconds)) for metric, seconds in found.items()}

    def secrets(self) -> frozenset[str]:
        """Return every value that must not appear in a log, metric, page or database."""
        found = {*_password(self.store_url), *_texts(self.alerts), *_texts(self.notify)}
        for channel in self.channels:
            found.update({channel.url, *({channel.secret} if channel.secret else ())})
        for config in self.endpoints.values():
            found.update(config.endpoint.secrets(), _texts(config.alerts))
            found.update(_password(config.endpoint.proxy or ""))
        return frozenset(found)


def load(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Config:
    """Read, check and complete a configuration.

    Args:
        path: A YAML file.
        environ: Where `${NAME}` and overrides come from.

    Raises:
        ConfigError: What keeps it from being used, all of it together; the operator's fault.
    """
    source = read(path, environ)
    override.apply(source, environ)
    root = schema.check(RootSection, source.root, (), source)
    endpoints = _endpoints(source, Keyring(source, environ))
    workloads, chosen = _workloads(source, root.seed if root else 0)
    _check_globs(source, workloads)
    told = alerting.channels(source)
    windows = alerting.windows(source, list(endpoints))
    targets = alerting.references(source)
    store_url = _store_url(source, root.store if root else None)
    slos = slos_of(source, ("slos",), root.slos) if root else {}
    source.check()
    assert root is not None  # noqa: S101  else there was a problem
    config = Config(
        source=Path(path),
        endpoints=endpoints,
        probes=tuple(_probes(endpoints, workloads, chosen)),
        site=root.site,
        seed=root.seed,
        concurrency=root.concurrency,
        listen=values.split_listen(root.listen),
        store_url=store_url,
        retention=root.retention,
        alerting=root.alerting,
        references=root.references,
        slos=slos,
        alerts=root.alerts,
        maintenance=root.maintenance,
        notify=root.notify,
        channels=told,
        windows=windows,
        alert_rules=alerting.rules(source, None, AlertRules()),
        reference_targets=targets,
    )
    _check_size(source, config)
    return config


def is_public(url: str) -> bool:
    """Whether the host of a URL can be reached from the internet, judged by its spelling.

    An address counts if it is globally routable; a name unless it is one label or ends as names of
    private networks do. Nothing is resolved.
    """
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        private = any(f".{host}".endswith(f".{suffix}") for suffix in _PRIVATE)
        return "." in host and not private and ".svc." not in host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_global


def _entries(source: Source, key: str, section: type[SectionT]) -> Iterator[tuple[str, SectionT]]:
    """Yield the valid entries of `endpoints` or `workloads`, noting what is wrong with others."""
    found = source.root.get(key)
    ids: dict[str, str] = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        try:
            values.name(name)
        except UnfitError as exc:
            source.add((key, name), f"{exc.what}, expected {exc.expected}")
        # Without a value, `chat:` is an entry that takes every default.
        entry = schema.check(section, {} if value is None else value, (key, name), source)
        if entry is not None:
            own = getattr(entry, "id", None) or name
            if own in ids:
                source.add((key, name, "id"), f"taken by {ids[own]}, expected an id of its own")
            ids[own] = name
            yield name, entry


def _endpoints(source: Source, keyring: Keyring) -> dict[str, EndpointConfig]:
    entries = _entries(source, "endpoints", EndpointSection)
    return {name: _endpoint(name, entry, source, keyring) for name, entry in entries}


def _endpoint(
    name: str, entry: EndpointSection, source: Source, keyring: Keyring
) -> EndpointConfig:
    return EndpointConfig(
        endpoint=_target(name, entry, source, keyring),
        id=entry.id or name,
        public=is_public(entry.url),
        labels=entry.labels,
        severity=entry.severity,
        runbook_url=entry.runbook_url,
        release=entry.release,
        budget=entry.budget,
        scale_to_zero=entry.scale_to_zero,
        system=entry.system,
        price=entry.price,
        load=entry.load,
        references=entry.references,
        slos=slos_of(source, ("endpoints", name, "slos"), entry.slos),
        alerts=entry.alerts,
        maintenance=entry.maintenance,
        alert_rules=alerting.rules(source, name, alerting.rules(source, None, AlertRules())),
    )


def _target(name: str, entry: EndpointSection, source: Source, keyring: Keyring) -> Endpoint:
    path = ("endpoints", name)
    return Endpoint(
        name=name,
        url=entry.url,
        model=entry.model,
        api_key=keyring.find(entry, path),
        auth=entry.auth,
        auth_name=entry.auth_name,
        token_param=entry.token_param,
        send_stream_options=entry.send_stream_options,
        api_version=entry.api_version,
        headers={key: value.get_secret_value() for key, value in entry.headers.items()},
        proxy=entry.proxy.get_secret_value() if entry.proxy else None,
        ca_file=_ca_file(source, path, entry.ca_file),
        expected_model=entry.expected_model,
        inline_reasoning=entry.inline_reasoning,
        cumulative_content=entry.cumulative_content,
        price_input=_per_token(entry.price.input_per_million),
        price_output=_per_token(entry.price.output_per_million),
    )


def _per_token(per_million: float | None) -> float | None:
    return None if per_million is None else per_million / 1e6


def _ca_file(source: Source, path: tuple[str, ...], value: str | None) -> str | None:
    if value is None:
        return None
    file = source.base / value
    try:
        file.open("rb").close()
    except OSError as exc:
        source.add((*path, "ca_file"), f"cannot be read ({exc.strerror}), expected a PEM file")
    return str(file)


def _workloads(
    source: Source, seed: int
) -> tuple[dict[str, Workload], dict[str, WorkloadSection]]:
    """Return the workloads and the sections they were made from, by name."""
    if "workloads" not in source.root:
        chosen = {name: WorkloadSection(kind=name) for name in ("chat", "models")}
    else:
        chosen = dict(_entries(source, "workloads", WorkloadSection))
    made = {}
    for name, entry in chosen.items():
        kind = entry.kind or name
        if kind in KINDS:
            made[name] = _workload(name, kind, entry, seed)
        else:
            what = f"missing, expected one of {', '.join(KINDS)}"
            source.add(("workloads", name, "kind"), what)
    return made, chosen


def _workload(name: str, kind: str, entry: WorkloadSection, seed: int) -> Workload:
    default = DEFAULTS[kind]
    # `max_tokens: null` is not the same as none given: it sends no limit.
    given = "max_tokens" in entry.model_fields_set
    return Workload(
        name=name,
        kind=kind,
        input_tokens=entry.input_tokens or default.input_tokens,
        max_tokens=entry.max_tokens if given else default.max_tokens,
        limits=_limits(entry.limits),
        connection=entry.connection,
        cache=entry.cache,
        stream=entry.stream,
        prompt=entry.prompt,
        system=entry.system,
        seed=seed if entry.seed is None else entry.seed,
        check=_check(entry.check),
        extra=entry.extra,
    )


def _limits(given: schema.Limits) -> Limits:
    """Complete limits so that a default never undercuts or outlasts what was given."""
    usual = Limits()
    ttft = given.ttft or min(usual.ttft, given.total or usual.total)
    total = given.total or max(usual.total, ttft + usual.total - usual.ttft)
    return Limits(
        connect=given.connect or usual.connect,
        ttft=ttft,
        stall=given.stall or min(usual.stall, total),
        total=total,
        body_bytes=given.body_bytes or usual.body_bytes,
        event_bytes=given.event_bytes or usual.event_bytes,
    )


def _check(given: schema.Check | None) -> Check | None:
    if given is None:
        return None
    return Check(contains=given.contains, equals=given.equals, json=given.is_json)


def _check_globs(source: Source, workloads: Iterable[str]) -> None:
    """Note each pattern without a match, also in an entry that is wrong elsewhere."""
    endpoints = source.root.get("endpoints")
    names = list(endpoints) if isinstance(endpoints, dict) else []
    _check_patterns(source, "workloads", "endpoints", names)
    _check_patterns(source, "slos", "endpoints", names)
    _check_patterns(source, "slos", "workloads", list(workloads))


def _check_patterns(source: Source, section: str, key: str, names: list[str]) -> None:
    entries = source.root.get(section)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        patterns = entry.get(key) if isinstance(entry, dict) else None
        for n, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
            if names and isinstance(pattern, str) and not _matching(names, [pattern]):
                what = f"matches no {key[:-1]}, {schema.unknown(pattern, names)}"
                source.add((section, name, key, n), what)


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]


def _probes(
    endpoints: Mapping[str, EndpointConfig],
    workloads: Mapping[str, Workload],
    chosen: Mapping[str, WorkloadSection],
) -> Iterator[link.ProbePlan]:
    for name, config in endpoints.items():
        for workload in workloads.values():
            entry = chosen[workload.name]
            if _matching([name], entry.endpoints or ["*"]):
                yield link.ProbePlan(
                    id=f"{config.id}/{entry.id or workload.name}",
                    endpoint=config.endpoint,
                    workload=workload,
                    interval=_interval(config, workload.kind, entry.interval),
                )


def _interval(config: EndpointConfig, kind: str, given: float | None) -> float:
    default = DEFAULTS[kind]
    usual = default.costly if config.public or config.priced else default.interval
    seconds = given or usual
    return max(seconds, _ASLEEP) if config.scale_to_zero else seconds


def _store_url(source: Source, value: str | None) -> str:
    if value is not None and "://" in value:
        if not _DATABASE.match(value):
            what = "an unknown database, expected a path, sqlite:///PATH or postgresql://HOST/NAME"
            source.add(("store",), what)
        return value
    return f"sqlite:///{source.base / (value or STORE_NAME)}"


def _check_size(source: Source, config: Config) -> None:
    size = len(link.encode(config.plan()))
    if size > link.MAX_FRAME:
        limit = f"{size >> 20} MiB of probes, expected at most {link.MAX_FRAME >> 20} MiB"
        source.add(("endpoints",), f"{limit} (a long prompt counts once per endpoint)")
        source.check()


def _password(url: str) -> set[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()


def _texts(value: Any) -> set[str]:
    """Return the texts of a free section that may be secret: webhook URLs, tokens, no words."""
    if isinstance(value, str):
        return {value} if "://" in value or len(value) >= _SECRET_LENGTH else set()
    items = value.values() if isinstance(value, Mapping) else value
    return (
        {t for item in items for t in _texts(item)} if isinstance(value, Mapping | list) else set()
    )
