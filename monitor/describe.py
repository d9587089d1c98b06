"""What `check` and `init` print: the effective configuration, what it costs, a first file.

Pure functions of a configuration. Secrets are masked wherever they occur.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from monitor.config import Config, EndpointConfig
from monitor.config.slos import section_of, slo_doubts
from monitor.link import ProbePlan
from monitor.slo import Slo
from probes.endpoint import Endpoint
from probes.workload import Limits, Workload

DAY = 86400.0
MONTH_DAYS = 30
MASK = "***"

_BAD_IN_A_ROW = 3
CONFIRM_S: float | None = None
"""Seconds from a failure's end to its confirmation; None while the prober sends none."""
_GENERATING = {"chat", "completions", "responses"}
_READING = {"embeddings", "rerank"}
_UNITS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))
_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9._/@:+=-]*(?<!:)|[0-9.]+(ms|s|m|h|d)")
_PASSWORD = re.compile(r"(://[^:/@]*:).*@")
_WORDS = {"true", "false", "null"}
_SHORT_SECRET = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one probe will send, cost and be able to tell.

    Attributes:
        requests: Requests a day.
        tokens: Most tokens a day, prompt and answer; None is unknown.
        money: Most money a day, in the currency of the endpoint's price; None is unknown.
        page_best: Seconds from a full outage to the page, at best.
        page_worst: The same at worst, for an endpoint that refuses or answers with an error.
        page_hanging: The same at worst, for an endpoint that says nothing any more.
    """

    probe: ProbePlan
    requests: float
    tokens: float | None
    money: float | None
    page_best: float
    page_worst: float
    page_hanging: float


def forecast(probe: ProbePlan) -> Forecast:
    """Work out what a probe does in a day.

    A day holds 86,400 / interval requests of at most `input_tokens` + `max_tokens` tokens each (an
    own prompt counts one token per three bytes; nothing is known without `max_tokens`, nor for
    audio).

    A page follows the third bad valid result in a row. If an outage begins just before a slot,
    that is `third_bad` later (best); if just after one, an interval more (worst). An endpoint that
    hangs answers nothing until its limit max(connect, min(ttft, total)), and takes that long for
    each of the three (hanging).
    """
    interval = probe.interval
    requests = DAY / interval
    sent, received = _tokens(probe.workload)
    tokens = None if sent is None or received is None else requests * (sent + received)
    price = _price(probe.endpoint, sent, received)
    limits = probe.workload.limits
    limit = max(limits.connect, min(limits.ttft, limits.total))
    return Forecast(
        probe=probe,
        requests=requests,
        tokens=tokens,
        money=None if price is None else requests * price,
        page_best=third_bad(interval, 0.0, CONFIRM_S),
        page_worst=interval + third_bad(interval, 0.0, CONFIRM_S),
        page_hanging=interval + third_bad(interval, limit, CONFIRM_S),
    )


def third_bad(interval: float, takes: float, confirm: float | None) -> float:
    """Return the seconds from the first failing slot to the end of the third failed attempt.

    One attempt is in flight at a time, so slots that fall into one are skipped.

    Args:
        interval: Seconds between slots.
        takes: Seconds after which an attempt has failed.
        confirm: Seconds from that to a confirmation, if no slot comes first; None for none.
    """
    start = 0.0
    for _ in range(_BAD_IN_A_ROW - 1):
        slot = interval * (math.floor((start + takes) / interval) + 1)
        start = slot if confirm is None else min(slot, start + takes + confirm)
    return start + takes


def warnings(config: Config) -> tuple[str, ...]:
    """Return what is allowed but probably not meant, a sentence each."""
    found = [
        f"{name}: {text}"
        for name, endpoint in config.endpoints.items()
        for text in _doubts(endpoint, [p for p in config.probes if p.endpoint.name == name])
    ]
    return (*found, *slo_doubts(config))


def describe(config: Config) -> str:
    """Return the whole text of `check`, secrets masked."""
    parts = [
        f"# {config.source}: valid; with every default filled in:",
        effective(config),
        "# what it sends, costs at most, and how soon it can page (three bad results in a row):",
        _table(config),
        *(f"warning: {text}" for text in warnings(config)),
    ]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def effective(config: Config) -> str:
    """Return the configuration as YAML with every default filled in and secrets masked.

    Intervals are left out: they differ by endpoint and stand in the table of probes.
    """
    whole = {
        "site": config.site,
        "seed": config.seed,
        "concurrency": config.concurrency,
        "listen": _address(*config.listen),
        "store": _PASSWORD.sub(rf"\1{MASK}@", config.store_url),
        "retention": {k: span(v) for k, v in config.retention.model_dump().items()},
        "alerting": config.alerting,
        "references": config.references,
        "slos": _slos(config.slos),
        "alerts": config.alerts,
        "maintenance": config.maintenance,
        "notify": config.notify,
        "endpoints": {name: _endpoint(e) for name, e in config.endpoints.items()},
        "workloads": {p.workload.name: _workload(p.workload) for p in config.probes},
    }
    # Longest first, so that a secret inside another leaves no rest of it.
    secrets = sorted(config.secrets(), key=len, reverse=True)
    return "\n".join(_lines(_masked(whole, secrets))) + "\n"


def starter(url: str | None = None, model: str | None = None) -> str:
    """Return a first configuration, valid and of at most eight lines without its comments.

    Args:
        url: Base URL; None takes the usual one of a server on this machine.
        model: What to ask for; None takes a placeholder.
    """
    model = model or "llama-3.1-8b"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rsplit("/", 1)[-1])[:64].strip("-.")
    return "\n".join(
        [
            "# `endpoint-monitor check` shows every default and what probing costs.",
            "endpoints:",
            f"  {name or 'endpoint'}:",
            f"    url: {_scalar(url or 'http://127.0.0.1:8000/v1')}",
            f"    model: {_scalar(model)}",
            "    # api_key: ${API_KEY}",
            "# slos:",
            "#   available: {objective: 99, window: 30d}",
            "",
        ]
    )


def span(seconds: float) -> str:
    """Return a duration as the configuration writes it, in the largest unit that is exact."""
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.10g}s" if seconds >= 1 else f"{seconds * 1000:.10g}ms"


def _tokens(workload: Workload) -> tuple[float | None, float | None]:
    """Return most tokens sent and received by one request; None is unknown."""
    if workload.kind == "models":
        return 0, 0
    if workload.kind not in _GENERATING | _READING:
        return None, None
    sent = workload.input_tokens if workload.prompt is None else _estimate(workload.prompt)
    sent += _estimate(workload.system or "")
    return sent, 0 if workload.kind in _READING else workload.max_tokens


def _estimate(text: str) -> int:
    # Upper bound: English has four bytes a token, other scripts about three.
    return math.ceil(len(text.encode()) / 3)


def _price(endpoint: Endpoint, sent: float | None, received: float | None) -> float | None:
    """Return the most money one request costs; None is unknown."""
    prices = endpoint.price_input, endpoint.price_output
    if prices == (None, None):
        return None
    total = 0.0
    for count, price in zip((sent, received), prices, strict=True):
        if count is None or (count and price is None):
            return None
        total += count * (price or 0.0)
    return total


def _doubts(config: EndpointConfig, probes: Sequence[ProbePlan]) -> Iterator[str]:
    if not probes:
        yield "no workload runs on this endpoint, so nothing is known about it"
    forecasts = [forecast(probe) for probe in probes]
    tokens = sum(f.tokens or 0 for f in forecasts)
    money = sum(f.money or 0 for f in forecasts)
    if tokens > config.budget.tokens:
        yield f"up to {tokens:,.0f} tokens a day, over its budget of {config.budget.tokens:,}"
    if config.budget.money is not None and money > config.budget.money:
        currency = config.price.currency
        yield f"up to {money:,.2f} {currency} a day, over its budget of {config.budget.money:,.2f}"


_HEAD = (
    "probe", "every", "requests/day", "tokens/day", "tokens/30d", "money/day", "money/30d",
    "page: best", "worst", "hanging",
)  # fmt: skip


def _table(config: Config) -> str:
    forecasts = [forecast(probe) for probe in config.probes]
    rows = [_HEAD, *(_row(config, f) for f in forecasts), *_totals(config, forecasts)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(config: Config, f: Forecast) -> tuple[str, ...]:
    currency = config.endpoints[f.probe.endpoint.name].price.currency
    return (
        f.probe.id,
        span(f.probe.interval),
        f"{f.requests:,.0f}" if f.requests >= 1 else f"{f.requests:.2g}",
        *_day_and_month(f.tokens),
        *_day_and_month(f.money, f" {currency}"),
        *(span(seconds) for seconds in (f.page_best, f.page_worst, f.page_hanging)),
    )


def _day_and_month(a_day: float | None, currency: str = "") -> tuple[str, str]:
    if a_day is None:
        return "-", "-"
    digits = 2 if currency else 0
    return f"{a_day:,.{digits}f}{currency}", f"{a_day * MONTH_DAYS:,.{digits}f}{currency}"


def _totals(config: Config, forecasts: Sequence[Forecast]) -> Iterator[tuple[str, ...]]:
    """Yield one line per currency, because money of different ones does not add up."""
    by_currency: dict[str, list[Forecast]] = {}
    for f in forecasts:
        currency = config.endpoints[f.probe.endpoint.name].price.currency
        by_currency.setdefault(currency, []).append(f)
    for currency, group in by_currency.items():
        requests = f"{sum(f.requests for f in group):,.0f}"
        tokens = _sum_cells([f.tokens for f in group])
        money = _sum_cells([f.money for f in group], f" {currency}")
        yield ("total", "", requests, *tokens, *money, "", "", "")


def _sum_cells(values: Sequence[float | None], currency: str = "") -> tuple[str, ...]:
    known = [value for value in values if value is not None]
    if not known:
        return "-", "-"
    more = "+" if len(known) < len(values) else ""
    return tuple(cell + more for cell in _day_and_month(sum(known), currency))


def _endpoint(config: EndpointConfig) -> dict[str, Any]:
    asked: dict[str, Any] = asdict(config.endpoint)
    for key in ("name", "price_input", "price_output"):
        del asked[key]  # the entry's own key; and `price` says it in the file's unit
    asked["api_key"] = MASK if config.endpoint.api_key else None
    asked["proxy"] = MASK if config.endpoint.proxy else None
    asked["headers"] = dict.fromkeys(config.endpoint.headers, MASK)
    # The one key whose null means something: no limit is sent.
    asked["token_param"] = _Null if config.endpoint.token_param is None else asked["token_param"]
    load = config.load.model_dump()
    load["duration"] = None if config.load.duration is None else span(config.load.duration)
    return asked | {
        "id": None if config.id == config.endpoint.name else config.id,
        "labels": config.labels,
        "severity": config.severity,
        "runbook_url": config.runbook_url,
        "release": config.release,
        "budget": config.budget.model_dump(),
        "scale_to_zero": config.scale_to_zero,
        "system": config.system.model_dump(),
        "price": config.price.model_dump(),
        "load": load,
        "references": config.references,
        "slos": _slos(config.slos),
        "alerts": config.alerts,
        "maintenance": config.maintenance,
    }


def _workload(workload: Workload) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(workload)
    del fields["name"]
    fields["limits"] = _limits(workload.limits)
    if workload.max_tokens is None and workload.kind in _GENERATING:
        fields["max_tokens"] = _Null
    for key in ("prompt", "system"):
        if fields[key] is not None:
            fields[key] = f"({len(fields[key])} characters of your own)"
    return fields


def _slos(slos: Mapping[str, Slo]) -> dict[str, Any]:
    return {name: section_of(slo) for name, slo in slos.items()}


def _limits(limits: Limits) -> dict[str, Any]:
    times = {key: span(getattr(limits, key)) for key in ("connect", "ttft", "stall", "total")}
    return times | {"body_bytes": limits.body_bytes, "event_bytes": limits.event_bytes}


class _Null:
    """A null that is shown; other values of None are left out."""


def _lines(mapping: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield YAML of a mapping; lists of mappings and the like stay on one line, as JSON."""
    for key, value in mapping.items():
        name = f"{indent}{_scalar(key)}:"
        if value is None or value in ({}, []):
            continue
        if isinstance(value, Mapping):
            inner = list(_lines(value, indent + "  "))
            yield from (name, *inner) if inner else ()
        else:
            yield f"{name} {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return _scalar(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_quoted(v) if isinstance(v, str) else _flow(v) for v in value) + "]"
    return "null" if value is _Null else json.dumps(value)


def _scalar(text: str) -> str:
    """Return a text bare where YAML reads it back as the same text, else in quotes."""
    return text if _BARE.fullmatch(text) and text.lower() not in _WORDS else _quoted(text)


def _quoted(text: str) -> str:
    # JSON leaves some characters as they are that YAML refuses; `$` would begin a variable.
    quoted = json.dumps(text.replace("$", "$$"), ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _masked(value: Any, secrets: Collection[str]) -> Any:
    """Return a value without any secret in it.

    Short ones are masked only by their own keys: `chat` as a header's value is a word elsewhere.
    """
    if isinstance(value, Mapping):
        return {_masked(k, secrets): _masked(v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets) for item in value]
    if not isinstance(value, str) or isinstance(value, Enum):
        return value
    for secret in secrets:
        value = value.replace(secret, MASK) if len(secret) >= _SHORT_SECRET else value
    return value
