"""What the web surface needs to know, and the records that the templates print."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Protocol

from monitor.status import Block, Health, ProbeStatus, State
from monitor.web import units, words
from probes.result import Outcome, Verdict, verdict

MAX_BLOCKS = 60
MIN_BLOCKS = 12
PAGE_BLOCKS = 2400
"""Blocks on one page, so that its size stays bounded: from 41 probes on each shows fewer."""

STALE_INTERVALS = 3
_LEVELS = 8

_WORST_FIRST = (
    State.DOWN,
    State.FAILING,
    State.MISCONFIGURED,
    State.UNKNOWN,
    State.RATE_LIMITED,
    State.STARTING,
    State.UP,
)

_VERDICT_CLASS = {
    Verdict.BAD: "b",
    Verdict.RATE_LIMITED: "r",
    Verdict.MISCONFIGURED: "m",
    Verdict.NEUTRAL: "n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts about the monitor itself.

    Attributes:
        started_at: Wall clock, seconds since the epoch, UTC.
        window_s: Length of the window behind every figure, seconds.
        schedule: Sentences on intervals, such as "chat every 60 s".
        notices: Sentences a reader should know, such as "prober restarted at ...".
        queue_length: Rows that wait for the store.
    """

    site: str
    version: str
    started_at: float
    window_s: float
    schedule: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    queue_length: int = 0


class View(Protocol):
    """What the pages show, as the monitor knows it now. No method may wait."""

    def statuses(self) -> Sequence[ProbeStatus]:
        """Return every probe's status in the order of the configuration."""
        ...

    def health(self) -> Health:
        """Return whether the monitor itself does its work."""
        ...

    def metrics(self) -> tuple[bytes, str]:
        """Return the last rendered exposition and its content type."""
        ...

    def about(self) -> About:
        """Return facts about the monitor itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The last slots of a probe as blocks.

    Attributes:
        blocks: CSS class and hover text of each, oldest first.
        tallest: TTFT of a block at full height, seconds; None without any.
        summary: The strip in one sentence, for those who do not see it.
    """

    blocks: tuple[tuple[str, str], ...]
    tallest: float | None
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One probe as the page shows it.

    Attributes:
        anchor: An id that is safe in HTML and the same as long as the probe's.
        stale_since: When the newest slot ended, if that is too long ago; else None.
        notes: Sentences on why the figures may be old.
    """

    status: ProbeStatus
    anchor: str
    strip: Strip
    stale_since: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An endpoint and its probes."""

    endpoint: str
    anchor: str
    labels: Mapping[str, str]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """The page in one sentence. `troubled` are the rows not known to be up or starting."""

    sentence: str
    detail: str
    icon: str
    short: str
    troubled: tuple[Row, ...]


class Rows:
    """Builds rows, each only when its probe's status changed since the last time."""

    def __init__(self) -> None:
        self._built: dict[str, Row] = {}

    def build(self, statuses: Sequence[ProbeStatus], now: float) -> list[Row]:
        """Return a row for each status, in their order; the same object while nothing changed."""
        shown = max(MIN_BLOCKS, min(MAX_BLOCKS, PAGE_BLOCKS // max(len(statuses), 1)))
        self._built = {status.id: self._row(status, now, shown) for status in statuses}
        return list(self._built.values())

    def _row(self, status: ProbeStatus, now: float, shown: int) -> Row:
        stale = _stale_since(status, now)
        old = self._built.get(status.id)
        same_length = old and len(old.strip.blocks) == min(shown, len(status.blocks))
        if old and same_length and old.stale_since == stale and old.status == status:
            return old
        return _row(status, stale, shown)


def groups(rows: Sequence[Row]) -> tuple[Group, ...]:
    """Arrange rows by endpoint, both in the order of first appearance."""
    by_endpoint: dict[str, list[Row]] = {}
    for row in rows:
        by_endpoint.setdefault(row.status.endpoint, []).append(row)
    return tuple(
        Group(
            endpoint=endpoint,
            anchor="g" + _digest(endpoint),
            labels=_common_labels([row.status.labels for row in members]),
            rows=tuple(members),
        )
        for endpoint, members in by_endpoint.items()
    )


def overall(rows: Sequence[Row]) -> Overall:
    """Sum up every probe in a sentence, and name those in trouble, worst first."""
    tally = Counter(row.status.state for row in rows)
    up, total = tally[State.UP], len(rows)
    troubled = sorted(
        (row for row in rows if _in_trouble(row)),
        key=lambda row: _WORST_FIRST.index(row.status.state),
    )
    stale = sum(row.stale_since is not None for row in rows)
    parts = [f"{tally[s]} {words.STATE[s][0]}" for s in _WORST_FIRST if tally[s] and s != State.UP]
    parts += [f"{stale} stale"] if stale else []
    worst = min((row.status.state for row in rows), key=_WORST_FIRST.index, default=State.STARTING)
    return Overall(
        sentence=_sentence(up, total, tally[State.STARTING]),
        detail="" if tally[State.STARTING] == total else ", ".join(parts),
        icon="stale" if stale and worst is State.UP else worst,
        short=f"{up}/{total} up" if total else "no probes",
        troubled=tuple(troubled),
    )


def _in_trouble(row: Row) -> bool:
    return row.stale_since is not None or row.status.state not in (State.UP, State.STARTING)


def _sentence(up: int, total: int, starting: int) -> str:
    if not total:
        return "No probes yet"
    plural = "" if total == 1 else "s"
    if starting == total:
        return f"Waiting for the first result of {total} probe{plural}"
    if up == total:
        return {1: "The probe is up", 2: "Both probes up"}.get(total, f"All {total} probes up")
    return f"{up} of {total} probe{plural} up"


def _common_labels(labels: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the labels that all probes of an endpoint share."""
    first, *others = labels
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}


def _digest(text: str) -> str:
    return blake2s(text.encode(errors="surrogatepass"), digest_size=5).hexdigest()


def _row(status: ProbeStatus, stale: float | None, shown: int) -> Row:
    return Row(
        status=status,
        anchor="p" + _digest(status.id),
        strip=_strip(status.blocks[-shown:]),
        stale_since=stale,
        notes=(*_ageing(status, stale), *_skipping(status)),
    )


def _stale_since(status: ProbeStatus, now: float) -> float | None:
    moments = [status.last.at] if status.last else []
    moments += [status.blocks[-1].at] if status.blocks else []
    newest = max(moments, default=None)
    if newest is None or now - newest <= STALE_INTERVALS * status.interval:
        return None
    return newest


def _ageing(status: ProbeStatus, stale: float | None) -> list[str]:
    if stale is None:
        return []
    since, every = units.iso(stale), units.duration(status.interval)
    return [f"No slot has ended since {since}, though one is due every {every}."]


def _skipping(status: ProbeStatus) -> list[str]:
    """Say so when the newest slots were all skipped: the figures stand still for a reason."""
    run: list[Block] = []
    for block in reversed(status.blocks):
        if block.skip is None:
            break
        run.append(block)
    if len(run) < STALE_INTERVALS:
        return []
    reasons = dict.fromkeys(words.skip(block.skip) for block in run if block.skip)
    return [f"The last {len(run)} slots were skipped: {', '.join(reasons)}."]


def _strip(blocks: Sequence[Block]) -> Strip:
    times = [b.ttft_s for b in blocks if b.outcome is Outcome.OK and b.ttft_s and not b.excluded]
    # A steady probe stands at two thirds, so that a slow one, and a failure, stand out.
    tallest = max(*times, 1.5 * statistics.median(times)) if times else None
    drawn = [_block(block, tallest) for block in blocks]
    good = sum(1 for css, _ in drawn if css.startswith("h"))
    skipped = sum(1 for b in blocks if b.skip)
    return Strip(
        blocks=tuple(drawn),
        tallest=tallest,
        summary=f"Last {len(drawn)} slots: {good} good, {len(drawn) - good - skipped} not good, "
        f"{skipped} skipped. Arrow keys read each.",
    )


def _block(block: Block, tallest: float | None) -> tuple[str, str]:
    """Return a block's CSS class and hover text."""
    at = units.iso(block.at)
    if block.outcome is None:
        return "s", f"{at}: skipped, {words.skip(block.skip or 'no reason given')}"
    text = f"{at}: {words.outcome(block.outcome)}"
    if block.ttft_s is not None:
        text += f", TTFT {units.seconds(block.ttft_s)}"
    if block.excluded:
        return "x", f"{text}; left out: {words.outcome(block.excluded)}"
    css = _VERDICT_CLASS.get(verdict(block.outcome))
    return css or f"h{_level(block.ttft_s, tallest)}", text


def _level(ttft_s: float | None, tallest: float | None) -> int:
    """Return a height of 1 to 8 eighths, linear in TTFT."""
    if not ttft_s or not tallest:
        return 5
    return min(_LEVELS, max(1, round(_LEVELS * ttft_s / tallest)))
