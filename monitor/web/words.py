"""What the page says: plain words for every outcome, skip, exclusion, state and figure.

The only module that knows English. A new `Outcome` or `Skip` without words here fails a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from monitor.link import Skip
from monitor.status import State
from probes.result import Excluded, Outcome

OUTCOME: Final[dict[Outcome, str]] = {
    Outcome.OK: "answered",
    Outcome.DNS: "host name not resolved",
    Outcome.CONNECT: "connection refused or unreachable",
    Outcome.TLS: "TLS handshake or certificate failed",
    Outcome.TIMEOUT_CONNECT: "no connection within the limit",
    Outcome.CONNECTION_LOST: "connection lost before the answer ended",
    Outcome.TIMEOUT_TTFT: "no first token within the limit",
    Outcome.TIMEOUT_STALL: "the answer stopped half way and did not go on",
    Outcome.TIMEOUT_TOTAL: "the answer took longer than the total limit",
    Outcome.HTTP_AUTH: "our key was refused (401 or 403)",
    Outcome.HTTP_QUOTA: "our quota or credit is used up",
    Outcome.HTTP_RATE_LIMITED: "asked to slow down (429)",
    Outcome.HTTP_BAD_REQUEST: "our request was refused (4xx)",
    Outcome.HTTP_NOT_FOUND: "path or model not found (404)",
    Outcome.HTTP_REDIRECT: "redirected elsewhere (3xx)",
    Outcome.HTTP_5XX: "server error (5xx)",
    Outcome.PROTOCOL_ERROR: "the answer was not valid HTTP, event stream or JSON",
    Outcome.TRUNCATED: "the stream ended without its end marker",
    Outcome.STREAM_ERROR: "the server reported an error inside the stream",
    Outcome.EMPTY_OUTPUT: "answered without any output",
    Outcome.CONTENT_FILTER: "stopped by the content filter",
    Outcome.WRONG_MODEL: "another model answered",
    Outcome.VALIDATION_FAILED: "the answer did not pass its checks",
    Outcome.ABORTED: "ended by our own shutdown",
}

SKIP: Final[dict[Skip, str]] = {
    Skip.OVERLAP: "the probe before it was still running",
    Skip.BUDGET: "the token budget was used up",
    Skip.RETRY_AFTER: "the endpoint had asked us to wait",
    Skip.MAINTENANCE: "maintenance window",
    Skip.PAUSED: "paused by an operator",
    Skip.LATE: "our prober was too late to start it",
    Skip.CLOCK: "our clock jumped",
    Skip.CONCURRENCY: "too many probes were running",
    Skip.PROBER_DOWN: "our prober was not running",
}

EXCLUDED: Final[dict[Excluded, str]] = {
    Excluded.UNKNOWN: "our own network or resolver was down",
    Excluded.TAINTED: "our own delay may have bent the figures",
}

STATE: Final[dict[State, tuple[str, str]]] = {
    State.STARTING: ("starting", "No slot has ended yet."),
    State.UP: ("up", "The last valid result was good."),
    State.FAILING: ("failing", "The last valid result was bad, fewer than three in a row."),
    State.DOWN: (
        "down",
        "Three or more valid results in a row were bad, and not two good ones since.",
    ),
    State.MISCONFIGURED: ("misconfigured", "The endpoint refuses our key, account or request."),
    State.RATE_LIMITED: ("rate limited", "The endpoint answers 429: slow down."),
    State.UNKNOWN: ("unknown", "No valid result for three intervals, and no skip explains it."),
}
"""Per state: the word, and the sentence that explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure on the page: its name, its formula, and what else to know."""

    name: str
    formula: str
    note: str


FIGURE: Final[dict[str, Figure]] = {
    "ttft": Figure(
        name="TTFT",
        formula="time from the request's last byte written to the first output event",
        note="Time to first token. Percentiles over the n results that were ok and not left out.",
    ),
    "tpot": Figure(
        name="TPOT",
        formula="(last - first output event) / (visible tokens - 1)",
        note="Time per output token. Percentiles over the n ok results with at least two tokens "
        "whose delivery was not clumped.",
    ),
    "e2e": Figure(
        name="Latency",
        formula="time from the request's last byte written to the end of the answer",
        note="End to end, for answers that are not streamed. Over the n ok results, as TTFT.",
    ),
    "availability": Figure(
        name="Availability",
        formula="good / valid slots",
        note="Valid are the slots whose result counts for or against the endpoint. Rate limits, "
        "refusals of our key or request, the content filter, skips, and results that we may have "
        "bent ourselves stay out and are shown beside it.",
    ),
    "coverage": Figure(
        name="Coverage",
        formula="valid / scheduled slots",
        note="How much of the time the availability speaks of.",
    ),
    "outages": Figure(
        name="Outages",
        formula="runs of bad valid results",
        note="Start and end of each are known to one interval.",
    ),
}


def outcome(value: str) -> str:
    """Say an outcome, an exclusion or an unforeseen word in plain words."""
    if value in EXCLUDED:
        return EXCLUDED[Excluded(value)]
    return OUTCOME[Outcome(value)] if value in OUTCOME else value


def skip(value: str) -> str:
    """Say a reason for a skip in plain words."""
    return SKIP[Skip(value)] if value in SKIP else value
