"""SLA rule files: a vendor's own definition of its promise, as data.

What was not read in the vendor's text is named under `incomplete` or `assumed`, never filled in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from monitor.config import schema, values
from monitor.config.problem import UnfitError
from monitor.config.schema import Count, Duration, Line, Percent, Section
from monitor.config.source import read
from monitor.slo import Month
from probes.result import Outcome

_UNITS = {"request": None, "1m": 60, "5m": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """One rung of a ladder: `share` of the bill where attainment is below `below`, both 0 to 1."""

    below: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaTerm:
    """One promise.

    Attributes:
        objective: Share of good units, 0 to 1.
        slice_s: Seconds of a slice that is a unit; None counts requests.
        slice_target: Share of good results from which on a slice is good.
        slice_min: Results that a slice needs to be one.
        mean: Whether a slice is judged by its mean time instead of its share of good results.
        good: Outcomes that are good, if in time; `bad` those that are bad, others do not count.
        metric: `ttft`, `ttfat`, `tpot` or `e2e` for a promise of time; None for uptime.
        threshold: Seconds.
        credits: Highest rung first.
    """

    name: str
    objective: float
    slice_s: int | None
    slice_target: float
    slice_min: int
    mean: bool
    good: frozenset[Outcome]
    bad: frozenset[Outcome]
    metric: str | None
    threshold: float | None
    credits: tuple[Credit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaRule:
    """What a vendor promises.

    Attributes:
        source: Where the text was read.
        read_at: When, year and month.
        recheck: Whether it must be read again before use.
        incomplete: What of the text is not known.
        assumed: What this file takes for granted without having read it.
        window: Whose calendar month counts.
        context_cap: Prompt tokens above which a request does not count; None for no cap.
        claim_s: Seconds after the month's end in which credit must be claimed; None is not known.
    """

    vendor: str
    product: str
    source: str
    read_at: str
    recheck: bool
    incomplete: tuple[str, ...]
    assumed: tuple[str, ...]
    window: Month
    context_cap: int | None
    claim_s: float | None
    terms: tuple[SlaTerm, ...]


class _Credit(Section):
    below: Percent
    percent: Annotated[float, Field(ge=0, le=100)]


class _Slice(Section):
    target: Percent = 100.0
    least: Count = 1


class _Term(Section):
    objective: Percent
    unit: Literal["request", "1m", "5m"] = "request"
    statistic: Literal["share", "mean"] = "share"
    slices: _Slice = _Slice()
    good: list[Outcome] = Field(default_factory=lambda: [Outcome.OK])
    bad: list[Outcome] = Field(default_factory=list)
    ttft: Duration | None = None
    ttfat: Duration | None = None
    tpot: Duration | None = None
    e2e: Duration | None = None
    tokens_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = None
    credits: list[_Credit] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> _Term:
        if len(self.times()) > 1:
            raise UnfitError("one threshold or none", "two thresholds")
        if self.statistic == "mean" and (self.unit == "request" or not self.times()):
            raise UnfitError("a unit of time and a threshold beside it", "a mean of nothing")
        if both := set(self.good) & set(self.bad):
            raise UnfitError("one of the two", f"{min(both)} is both good and bad")
        return self

    def times(self) -> dict[str, float]:
        """Return seconds by metric; N tokens a second are 1 / N seconds a token."""
        found = {m: getattr(self, m) for m in ("ttft", "ttfat", "tpot", "e2e")}
        if self.tokens_per_second is not None:
            found["tokens_per_second"] = 1.0 / self.tokens_per_second
        return {metric: seconds for metric, seconds in found.items() if seconds is not None}


class _Rule(Section):
    vendor: Line
    product: Line
    source: Line
    read_at: Line
    recheck: bool = True
    incomplete: list[Line] = Field(default_factory=list)
    assumed: list[Line] = Field(default_factory=list)
    zone: Annotated[Line, AfterValidator(values.zone)] = "UTC"
    context_cap: Count | None = None
    claim_within: Duration | None = None
    terms: dict[schema.Name, _Term] = Field(default_factory=dict)


def load_sla(path: str | os.PathLike[str]) -> SlaRule:
    """Read and check a rule file.

    Raises:
        ConfigError: What keeps it from being used, one line each.
    """
    source = read(path, {})
    rule = schema.check(_Rule, source.root, (), source)
    if rule is not None and not rule.terms and not rule.incomplete:
        source.add(("terms",), "empty, expected a promise, or what is not known of it")
    source.check()
    assert rule is not None  # noqa: S101  else there was a problem
    return SlaRule(
        vendor=rule.vendor,
        product=rule.product,
        source=rule.source,
        read_at=rule.read_at,
        recheck=rule.recheck,
        incomplete=tuple(rule.incomplete),
        assumed=tuple(rule.assumed),
        window=Month(zone=rule.zone),
        context_cap=rule.context_cap,
        claim_s=rule.claim_within,
        terms=_terms(rule.terms),
    )


def _terms(terms: Mapping[str, _Term]) -> tuple[SlaTerm, ...]:
    return tuple(_term(name, term) for name, term in terms.items())


def _term(name: str, term: _Term) -> SlaTerm:
    [(metric, seconds)] = term.times().items() or [(None, None)]
    ladder = sorted(term.credits, key=lambda rung: -rung.below)
    return SlaTerm(
        name=name,
        objective=_share(term.objective),
        slice_s=_UNITS[term.unit],
        slice_target=_share(term.slices.target),
        slice_min=term.slices.least,
        mean=term.statistic == "mean",
        good=frozenset(term.good),
        bad=frozenset(term.bad),
        metric="tpot" if metric == "tokens_per_second" else metric,
        threshold=seconds,
        credits=tuple(
            Credit(below=_share(rung.below), share=_share(rung.percent)) for rung in ladder
        ),
    )


def _share(percent: float) -> float:
    return round(percent / 100.0, 12)
