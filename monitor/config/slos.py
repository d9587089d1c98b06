"""SLOs between the file and the program: built from sections, written as sections, doubted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monitor.config.problem import KeyPath
from monitor.config.schema import SlicesSection, SloSection
from monitor.config.source import Source
from monitor.link import ProbePlan
from monitor.slo import BURN_ALERTS, PRESETS, Indicator, Month, Slices, Slo, can_fire, longest
from monitor.slo.objective import TIMES

if TYPE_CHECKING:
    from monitor.config.build import Config

DAY_S = 86_400.0
_STREAMS = frozenset({"ttft", "ttfat", "tpot"})
_NO_STREAM = frozenset({"embeddings", "rerank", "models"})
_P99_NEEDS = 100
_EVERY = {"1m": 60, "5m": 300}


def slos_of(source: Source, path: KeyPath, sections: Mapping[str, SloSection]) -> dict[str, Slo]:
    """Return the objectives of one `slos`, presets taken apart; a name taken twice is noted."""
    found: dict[str, Slo] = {}
    for name, section in sections.items():
        for slo in _built(name, section):
            if slo.name in found:
                source.add((*path, name), f"'{slo.name}' is taken, expected another name")
            found[slo.name] = slo
    return found


def _built(name: str, section: SloSection) -> list[Slo]:
    metric = next((m for m in TIMES if getattr(section, m) is not None), None)
    month = Month(zone=section.zone or "UTC") if section.window == "month" else None
    common = Slo(
        name=name,
        objective=_share(section.objective),
        window=month or float(section.window),
        count_429=section.count_429 == "bad",
        slices=_slices(section.slices),
        endpoints=tuple(section.endpoints or ("*",)),
        workloads=tuple(section.workloads or ()),
        source=section.source,
    )
    if section.preset is not None:
        return [
            replace(
                common,
                name=f"{name}-{slo.name}",
                indicator=slo.indicator,
                metric=slo.metric,
                threshold=slo.threshold,
                source=slo.source,
            )
            for slo in PRESETS[section.preset]
        ]
    if section.consistency is not None:
        limit, of = section.consistency, section.metric or "ttft"
        return [replace(common, indicator=Indicator.CONSISTENCY, metric=of, threshold=limit)]
    if metric is not None:
        seconds = getattr(section, metric)
        return [replace(common, indicator=Indicator.LATENCY, metric=metric, threshold=seconds)]
    return [replace(common, indicator=Indicator(section.indicator or "availability"))]


def _share(percent: float) -> float:
    return round(percent / 100.0, 12)  # 99.9 is 0.999, not 0.9990000000000001


def _slices(given: SlicesSection | None) -> Slices | None:
    if given is None:
        return None
    return Slices(seconds=_EVERY[given.every], target=_share(given.target))


def section_of(slo: Slo) -> dict[str, Any]:
    """Return an objective as the file would say it; durations as numbers of seconds with `s`."""
    month = isinstance(slo.window, Month)
    section: dict[str, Any] = {
        "objective": round(100 * slo.objective, 9),
        "window": "month" if month else f"{slo.window:.10g}s",
        "zone": slo.window.zone if isinstance(slo.window, Month) else None,
        "count_429": "bad" if slo.count_429 else "excluded",
        "endpoints": list(slo.endpoints),
        "workloads": list(slo.workloads),
        "source": slo.source,
    }
    if slo.slices is not None:
        every = next(text for text, seconds in _EVERY.items() if seconds == slo.slices.seconds)
        section["slices"] = {"every": every, "target": round(100 * slo.slices.target, 9)}
    if slo.indicator is Indicator.LATENCY:
        section[str(slo.metric)] = _span(slo.threshold or 0.0)
    elif slo.indicator is Indicator.CONSISTENCY:
        section |= {"consistency": slo.threshold, "metric": slo.metric}
    else:
        section["indicator"] = slo.indicator.value
    return section


def _span(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def slo_doubts(config: Config) -> Iterator[str]:
    """Yield what is allowed of objectives but probably not meant, a sentence each."""
    used = set[str]()
    for probe in config.probes:
        for slo in config.slos_of(probe):
            used.add(slo.name)
            for text in _doubts(slo, probe, config.retention.results):
                yield f"{probe.id}: SLO {slo.name}: {text}"
    for name in config.slos:
        if name not in used:
            yield f"SLO {name}: no probe has it"


def _doubts(slo: Slo, probe: ProbePlan, kept: float) -> Iterator[str]:
    window = longest(slo.window)
    if window > kept:
        days = kept / DAY_S
        yield f"a restart finds only the {days:g} days of results that retention keeps"
    if slo.metric in _STREAMS and probe.workload.kind in _NO_STREAM:
        yield f"a {probe.workload.kind} workload has no {slo.metric}, so only failures count"
    if slo.indicator is Indicator.CONSISTENCY:
        if window / probe.interval < _P99_NEEDS:
            yield f"{window / probe.interval:.0f} results in its window are too few for a p99"
        return
    yield from _doubts_about_threshold(slo, probe)
    yield from _doubts_about_alerts(slo, probe, window)


def _doubts_about_threshold(slo: Slo, probe: ProbePlan) -> Iterator[str]:
    limits = probe.workload.limits
    limit = {"ttft": limits.ttft, "ttfat": limits.total, "e2e": limits.total}.get(slo.metric or "")
    if slo.threshold is not None and limit is not None and slo.threshold >= limit:
        yield (
            f"its threshold of {slo.threshold:g} s is not below the limit of {limit:g} s, at "
            "which a probe gives up: it says no more than availability"
        )


def _doubts_about_alerts(slo: Slo, probe: ProbePlan, window: float) -> Iterator[str]:
    every = max(probe.interval, slo.slices.seconds if slo.slices else 0.0)
    allowed = window / every * slo.budget
    if 0 < allowed < 1:
        yield f"its budget is {allowed:.2g} of one bad result in its window"
    whys: dict[str, list[str]] = {}
    for alert in BURN_ALERTS:
        why = can_fire(alert, slo.objective, every)
        if why is not None:
            whys.setdefault(why, []).append(f"{alert.long}/{alert.short}")
    for why, pairs in whys.items():
        yield f"its alert over {', '.join(pairs)} can never fire or hardly: {why}"
