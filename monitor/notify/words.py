"""How a notice is worded: what, since when, how bad with n, the last error, where to look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from monitor.alerting import FIRES, AlertState, Kind, Notice

_LISTED = 20
_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who speaks.

    Attributes:
        site: The place the prober runs.
        page: Base URL of the page, as people reach it.
    """

    site: str = "local"
    page: str = ""


def title(notice: Notice, about: About) -> str:
    """Return one line: `[DOWN, page] llama (chat)`."""
    first = notice.alerts[0]
    word = {
        Kind.FIRING: first.alert.rule.value,
        Kind.REMINDER: f"still {first.alert.rule.value}",
        Kind.RESOLVED: "resolved",
        Kind.FLAPPING: "flapping",
        Kind.CHANGED: "changed",
    }[notice.kind]
    who = _name(first) if len(notice.alerts) == 1 else f"{len(notice.alerts)} probes"
    if notice.group and (len(notice.alerts) > 1 or notice.also_failing):
        who = f"{who} of {notice.group}" if len(notice.alerts) > 1 else f"{who}, {notice.group}"
    return f"[{word}, {notice.severity}] {who} @ {about.site}"


def text(notice: Notice, about: About) -> str:
    """Return the message for a person, a few short lines."""
    return "\n".join(_lines(notice, about))


def link(about: About) -> str:
    """Return where to look; empty if nobody said how the page is reached."""
    return f"{about.page}/" if about.page else ""


def _lines(notice: Notice, about: About) -> Iterator[str]:
    ended = notice.kind is Kind.RESOLVED
    if notice.kind is Kind.FLAPPING:
        yield "Fires and ends again and again; you hear of it next when it is steady."
    if notice.kind is Kind.REMINDER:
        yield f"Still open after {duration(notice.at - notice.since)}."
    if ended:
        yield f"Well again after {duration(_end(notice) - notice.since)}."
    for state in notice.alerts[:_LISTED]:
        yield from _of_alert(state, about, brief=ended or len(notice.alerts) > 1)
    if len(notice.alerts) > _LISTED:
        yield f"... and {len(notice.alerts) - _LISTED} more."
    if notice.also_failing:
        yield f"{notice.also_failing} more of {notice.group} are failing."


def _of_alert(state: AlertState, about: About, *, brief: bool) -> Iterator[str]:
    if brief:
        numbers = state.numbers if _fires(state) else ""
        yield f"- {_name(state)}: {_lasted(state)} {numbers}".strip()
        return
    yield state.what
    yield f"Since {clock(state.since)}"
    if state.numbers:
        yield f"How bad: {state.numbers}"
    if state.last_error:
        yield f"Last error: {state.last_error[:_TEXT]}"
    if owner := state.labels.get("owner"):
        yield f"Owner: {owner}"
    if where := link(about):
        yield f"Page: {where}"
    if state.runbook_url:
        yield f"Runbook: {state.runbook_url}"


def _lasted(state: AlertState) -> str:
    if _fires(state) or state.resolved_at is None:
        return f"{state.alert.rule.value} since {clock(state.since)}."
    lasted = duration(state.resolved_at - state.since)
    return f"well since {clock(state.resolved_at)}, lasted {lasted}."


def _fires(state: AlertState) -> bool:
    return state.phase in FIRES


def _name(state: AlertState) -> str:
    alert = state.alert
    if not alert.endpoint:
        return "the monitor"
    return f"{alert.endpoint} ({', '.join(filter(None, (alert.workload, alert.slo)))})"


def _end(notice: Notice) -> float:
    return max((s.resolved_at or notice.at for s in notice.alerts), default=notice.at)


def clock(at: float) -> str:
    """Return a wall-clock time in UTC to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: float) -> str:
    """Return RFC 3339 with milliseconds, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `3 h 20 min`."""
    if seconds < 120:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
