"""What a person is shown of one probe: the record that page, API and tests share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.link import Skip
from probes.result import Outcome


class State(StrEnum):
    """A probe's condition in one word."""

    STARTING = "starting"
    """No slot has ended yet."""
    UP = "up"
    """The last valid result was good."""
    FAILING = "failing"
    """The last valid result was bad, fewer than three in a row."""
    DOWN = "down"
    """Three or more valid results in a row were bad, and not yet two good ones since."""
    MISCONFIGURED = "misconfigured"
    """The endpoint refuses our key, account or request."""
    RATE_LIMITED = "rate_limited"
    """The endpoint answers 429."""
    UNKNOWN = "unknown"
    """No valid result for max(3 intervals, 5 minutes), and no skip on purpose explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles in seconds over `n` ok results; None when n is 0."""

    n: int = 0
    p50: float | None = None
    p90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """One result in short. `at` is wall clock, seconds since the epoch, UTC."""

    outcome: Outcome
    at: float
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One slot on the page: a result, or a skip (then `outcome` is None)."""

    at: float
    outcome: Outcome | None = None
    skip: Skip | None = None
    ttft_s: float | None = None
    excluded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """Runs of bad valid results.

    `longest_s` is None without one; its edges are one interval wide.
    """

    count: int = 0
    longest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatus:
    """One probe over a window.

    Attributes:
        availability: good / valid, 0 to 1; None without a valid slot.
        coverage: valid / scheduled slots, 0 to 1; None without a scheduled slot.
        n: Valid slots.
        good: Good slots.
        scheduled: Slots that ended in the window, as results or skips.
        excluded: Results outside the ratio, by reason or outcome.
        skipped: Slots without a result, by reason.
        blocks: The last 60 slots, oldest first.
        window_s: Length of the window; every number above is over it.
    """

    id: str
    endpoint: str
    workload: str
    kind: str
    interval: float
    window_s: float
    state: State
    since: float | None = None
    availability: float | None = None
    coverage: float | None = None
    n: int = 0
    good: int = 0
    scheduled: int = 0
    outages: Outages = field(default_factory=Outages)
    ttft: Spread = field(default_factory=Spread)
    tpot: Spread = field(default_factory=Spread)
    e2e: Spread = field(default_factory=Spread)
    last: Last | None = None
    last_error: Last | None = None
    excluded: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the monitor itself does its work; `problems` are sentences, empty when well."""

    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems
