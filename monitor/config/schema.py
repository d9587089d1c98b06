"""The keys of a configuration: their types, ranges and defaults, and how a wrong one is worded.

A section is what one mapping of the file may hold; what depends on several sections, on the
endpoint's host or on other files is decided in `build`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from monitor.config import values
from monitor.config.problem import KeyPath, UnfitError, one_of, shorten
from monitor.config.source import Source, Text
from monitor.slo import PRESETS
from probes.endpoint import Auth, Inline
from probes.workload import Cache, Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """What a kind gets where the configuration says nothing.

    Attributes:
        interval: Seconds.
        costly: Seconds on an endpoint with a token price or a public host.
        input_tokens: Length of the generated prompt.
        max_tokens: Output limit; None sends none.
    """

    interval: float = 60.0
    costly: float = 300.0
    input_tokens: int = 100
    max_tokens: int | None = None


DEFAULTS: Mapping[str, Default] = {
    "chat": Default(max_tokens=64),
    "completions": Default(max_tokens=64),
    "responses": Default(max_tokens=64),
    "embeddings": Default(),
    "rerank": Default(),
    "transcription": Default(interval=300.0),
    "models": Default(interval=15.0, costly=60.0),
}
"""A row for every kind; limits are those of `probes.workload.Limits` for all of them."""

KINDS = tuple(DEFAULTS)
"""Known kinds. A test holds them equal to `probes.kinds.KINDS`, which imports the HTTP client."""

_SECRET = {"alerts", "api_key", "api_key_command", "auth", "headers", "notify", "proxy", "store"}
# `url` is none, but people paste user:password@ into it; `auth` is none, but people paste keys.
_HIDDEN = _SECRET | {"url", "runbook_url"}

Line = Annotated[str, AfterValidator(values.line)]
Name = Annotated[str, AfterValidator(values.name)]
Url = Annotated[str, AfterValidator(values.url)]
Link = Annotated[Line, AfterValidator(values.link)]
Duration = Annotated[float, BeforeValidator(values.duration)]
Interval = Annotated[Duration, AfterValidator(values.interval)]
Key = Annotated[SecretStr, AfterValidator(values.secret_key)]
Money = Annotated[float, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 32)]
Prose = Annotated[str, Field(min_length=1)]
Headers = dict[
    Annotated[str, AfterValidator(values.header_name)],
    Annotated[SecretStr, AfterValidator(values.header_value)],
]
FreeMapping = Annotated[dict[str, Any], BeforeValidator(values.free_mapping)]
FreeList = Annotated[Any, BeforeValidator(values.free_list)]
Percent = Annotated[float, AfterValidator(values.percent)]


class Section(BaseModel):
    """A mapping of the file: no unknown keys, nothing changed after reading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )


class Limits(Section):
    """`limits` of a workload; None takes the default."""

    connect: Duration | None = None
    ttft: Duration | None = None
    stall: Duration | None = None
    total: Duration | None = None
    body_bytes: Bytes | None = None
    event_bytes: Bytes | None = None


class Check(Section):
    """`check` of a workload."""

    contains: Prose | None = None
    equals: Prose | None = None
    # `json` is a method of pydantic's.
    is_json: bool = Field(default=False, alias="json")


class WorkloadSection(Section):
    """An entry of `workloads`; None takes the kind's default."""

    id: Name | None = None
    kind: Literal[KINDS] | None = None  # type: ignore[valid-type]
    interval: Interval | None = None
    input_tokens: Count | None = None
    max_tokens: Count | None = None
    limits: Limits = Limits()
    connection: Connection = Connection.FRESH
    cache: Cache = Cache.COLD
    stream: bool = True
    prompt: Prose | None = None
    system: Prose | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    check: Check | None = None
    extra: FreeMapping = Field(default_factory=dict)
    endpoints: Annotated[list[Line], Field(min_length=1)] | None = None


class Price(Section):
    """What an endpoint costs; None is unknown.

    Attributes:
        input_per_million: Money per million input tokens.
        output_per_million: Money per million output tokens.
        accelerator_hour: Money per accelerator and hour, for hardware that one rents or owns.
    """

    input_per_million: Money | None = None
    output_per_million: Money | None = None
    accelerator_hour: Money | None = None
    currency: Name = "USD"


class System(Section):
    """The system behind an endpoint, as its operator states it; None is not stated.

    Attributes:
        accelerator: Name of one accelerator.
        accelerators: How many of them.
        power_kw: Power of the whole, kilowatts.
        status: The word as MLPerf uses it.
    """

    accelerator: Line | None = None
    accelerators: Count | None = None
    racks: Annotated[float, Field(gt=0, le=1e6)] | None = None
    memory: Line | None = None
    precision: Line | None = None
    parallelism: Line | None = None
    power_kw: Annotated[float, Field(gt=0, le=1e6)] | None = None
    software: Line | None = None
    status: Literal["available", "preview", "rdi"] | None = None


class Budget(Section):
    """What probing may cost an endpoint a day; a single number in the file is tokens.

    Attributes:
        money: In the currency of the price; None is no limit.
    """

    tokens: Annotated[int, Field(ge=0, le=10**12)] = 250_000
    money: Money | None = None


class LoadCaps(Section):
    """Whether load may be generated on an endpoint; None is no cap of its own.

    Attributes:
        rate: Requests per second.
        tokens: Tokens of one run.
        money: Money of one run.
        duration: Seconds of one run.
    """

    allow: bool = False
    concurrency: Count | None = None
    rate: Annotated[float, Field(gt=0, le=1e6)] | None = None
    tokens: Annotated[int, Field(ge=1, le=10**12)] | None = None
    money: Money | None = None
    duration: Duration | None = None


class SlicesSection(Section):
    """`slices` of an SLO."""

    every: Literal["1m", "5m"] = "1m"
    target: Percent = 99.0


class SloSection(Section):
    """An entry of `slos`; None takes the default of `monitor.slo.Slo`, or the preset's.

    Attributes:
        preset: Makes one SLO per metric of `monitor.slo.PRESETS`.
        objective: Percent of valid results that are to be good.
        window: Seconds, or `month`.
        zone: Whose month.
        ttft: Seconds that are still good; so are `ttfat`, `tpot` and `e2e`.
        consistency: Greatest p99 / p50 of `metric`.
        source: Where the figures come from.
    """

    preset: Literal[tuple(PRESETS)] | None = None  # type: ignore[valid-type]
    objective: Percent = 99.0
    window: Annotated[float | str, BeforeValidator(values.slo_window)] = 30 * 86400.0
    zone: Annotated[Line, AfterValidator(values.zone)] | None = None
    indicator: Literal["availability", "rate_limited", "correctness"] | None = None
    ttft: Duration | None = None
    ttfat: Duration | None = None
    tpot: Duration | None = None
    e2e: Duration | None = None
    consistency: Annotated[float, Field(gt=1, le=1000)] | None = None
    metric: Literal["ttft", "ttfat", "tpot", "e2e"] | None = None
    count_429: Literal["bad", "excluded"] = "excluded"
    slices: SlicesSection | None = None
    endpoints: Annotated[list[Line], Field(min_length=1)] | None = None
    workloads: Annotated[list[Line], Field(min_length=1)] | None = None
    source: Line | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> SloSection:
        what = ("preset", "indicator", "ttft", "ttfat", "tpot", "e2e", "consistency")
        given = [name for name in what if getattr(self, name) is not None]
        if len(given) > 1:
            raise UnfitError(f"one of {', '.join(what)}", f"both {given[0]} and {given[1]}")
        if self.zone and self.window != "month":
            raise UnfitError("`window: month` beside it", "a zone without a month")
        if self.metric and self.consistency is None:
            raise UnfitError("`consistency` beside it", "a metric without a limit of its spread")
        if self.slices and self.consistency is not None:
            raise UnfitError("one of the two", "both slices and consistency")
        return self


class EndpointSection(Section):
    """An entry of `endpoints`."""

    url: Url
    model: Line | None = None
    id: Name | None = None
    api_key: Key | None = None
    api_key_file: Line | None = None
    api_key_command: SecretStr | None = None
    auth: Auth = Auth.BEARER
    auth_name: Annotated[str, AfterValidator(values.header_name)] | None = None
    token_param: Name | None = "max_tokens"
    send_stream_options: bool = True
    api_version: Line | None = None
    headers: Headers = Field(default_factory=dict)
    proxy: Annotated[SecretStr, AfterValidator(values.proxy)] | None = None
    ca_file: Line | None = None
    expected_model: Line | None = None
    inline_reasoning: Inline | None = None
    cumulative_content: bool = False
    labels: dict[Name, Line] = Field(default_factory=dict)
    severity: Name | None = None
    runbook_url: Link | None = None
    release: Line | None = None
    budget: Annotated[Budget, BeforeValidator(values.budget)] = Budget()
    scale_to_zero: bool = False
    system: System = System()
    price: Price = Price()
    load: Annotated[LoadCaps, BeforeValidator(values.load)] = LoadCaps()
    references: FreeList = Field(default_factory=list)
    slos: dict[Name, SloSection] = Field(default_factory=dict)
    alerts: FreeMapping = Field(default_factory=dict)
    maintenance: FreeList = Field(default_factory=list)


class Retention(Section):
    """How long each kind of record is kept, seconds.

    Attributes:
        results: Raw results.
        failures: Results that are not ok, with their neighbours.
        minutes: Counts per 1 and 5 minutes.
        hours: Windows of an hour, with histograms.
        days: Windows of a day.
    """

    results: Duration = 14 * 86400.0
    failures: Duration = 400 * 86400.0
    minutes: Duration = 400 * 86400.0
    hours: Duration = 400 * 86400.0
    days: Duration = 1826 * 86400.0


class RootSection(Section):
    """The file. What `endpoints` and `workloads` hold is checked entry by entry: see NAMED."""

    endpoints: Annotated[dict[str, Any], Field(min_length=1)]
    workloads: Annotated[dict[str, Any], Field(min_length=1)] = Field(default_factory=dict)
    site: Name = "local"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    listen: Annotated[str, AfterValidator(values.listen)] = "127.0.0.1:8844"
    store: Line | None = None
    retention: Retention = Retention()
    alerting: Literal["internal", "prometheus"] = "internal"
    references: FreeList = Field(default_factory=list)
    slos: dict[Name, SloSection] = Field(default_factory=dict)
    alerts: FreeMapping = Field(default_factory=dict)
    maintenance: FreeList = Field(default_factory=list)
    notify: FreeMapping = Field(default_factory=dict)


NAMED: Mapping[str, type[Section]] = {
    "endpoints": EndpointSection,
    "workloads": WorkloadSection,
    "slos": SloSection,
}
"""Keys that hold a mapping of names, and what each entry is; `slos` stands in two places."""

SectionT = TypeVar("SectionT", bound=Section)


def keys(section: type[Section]) -> dict[str, Any]:
    """Return the annotation of every key that a section knows, in the order of the class."""
    return {f.alias or name: f.annotation for name, f in section.model_fields.items()}


def inner(annotation: Any) -> type[Section] | None:
    """Return the section that a key holds; None for a value or a mapping by name or free shape."""
    if get_origin(annotation) is dict:
        return None
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def check(section: type[SectionT], value: Any, path: KeyPath, source: Source) -> SectionT | None:
    """Return the section read from `value`, or None after noting every problem in `source`."""
    try:
        return section.model_validate(value)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
    for error in errors:
        loc = tuple(part for part in error["loc"] if part != "[key]")
        what = _sentence(section, loc, error, _shown((*path, *loc), _at(value, loc)))
        source.add((*path, *loc), what)
    return None


def unknown(wanted: str, known: list[str]) -> str:
    """Return what was expected in place of a name that is none of `known`."""
    by_case = {other.lower(): other for other in known}
    close = difflib.get_close_matches(wanted.lower(), by_case, n=1)
    if close:
        return f"expected a known one (did you mean {by_case[close[0]]}?)"
    return f"expected {one_of(known)}"


def _sentence(section: type[Section], loc: KeyPath, error: Any, got: str) -> str:
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key, {unknown(str(loc[-1]), _known(section, loc[:-1]))}"
        case "missing":
            return f"missing, expected {_needed(str(loc[-1]))}"
        case "value_error":
            unfit = error["ctx"]["error"]
            return f"{unfit.what or got}, expected {unfit.expected}"
        case kind:
            return f"{got}, expected {_expected(kind, error.get('ctx', {}))}"


def _at(value: Any, loc: KeyPath) -> Any:
    """Return what the file holds at `loc`; pydantic's own copy has lost the marks of `Text`."""
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            break  # a short form, `budget: 5`, that was made a mapping; or a missing key
    return value


def _known(section: type[Section], loc: KeyPath) -> list[str]:
    known: Any = section
    holds: Any = None
    for part in loc:
        if known is None:  # a mapping by name, and `part` is the name
            known = inner(get_args(holds)[-1])
        elif isinstance(part, str):
            holds = keys(known)[part]
            known = inner(holds)
    return list(keys(known))


def _needed(key: str) -> str:
    return {"url": "the endpoint's URL", "endpoints": "at least one endpoint"}.get(key, "a value")


def _expected(kind: str, ctx: Mapping[str, Any]) -> str:
    limits = {
        "greater_than": ("gt", "more than"),
        "greater_than_equal": ("ge", "at least"),
        "less_than": ("lt", "less than"),
        "less_than_equal": ("le", "at most"),
    }
    if kind in limits:
        bound, words = limits[kind]
        return f"{words} {ctx[bound]:,}"
    if kind in ("enum", "literal_error"):
        return "one of " + str(ctx["expected"]).replace("'", "").replace(" or ", ", ")
    words_by_prefix = {
        "int": "a whole number",
        "float": "a number",
        "finite": "a finite number",
        "bool": "true or false",
        "string_too_short": "some text",
        "string": "a text",
        "dict": "a mapping",
        "model": "a mapping",
        "list": "a list",
        "too_short": "at least one entry",
    }
    hits = (words for prefix, words in words_by_prefix.items() if kind.startswith(prefix))
    return next(hits, "another value")


def _shown(path: KeyPath, value: Any) -> str:
    if value is None:
        return "nothing"
    if value in ("", {}, []):
        return "empty"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if _HIDDEN.intersection(path) or (isinstance(value, Text) and value.hidden):
        return "this value"
    return f"'{shorten(str(value))}'"
