"""Views with known content, for the tests of the page and for looking at it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monitor.link import Skip
from monitor.status import Block, Health, Last, Outages, ProbeStatus, Spread, State
from monitor.web import About
from probes.result import Outcome

NOW = 1_764_547_200.0  # 2025-12-01T00:00:00Z

HOSTILE = (
    "<script>alert(1)</script>\"' onmouseover=alert(1) <img src=x onerror=alert(1)> {{ 7 * 7 }} "
    "javascript:alert(1) \x00\x1b[31m\u202egnp.exe\u202c \ud800 \u05d0\u05d1\u05d2 http://e.example/"
)


@dataclass
class Shown:
    """A `View` that shows what it is given."""

    probes: Sequence[ProbeStatus] = ()
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    exposition: bytes = b"# HELP endpoint_up Whether the last valid result was good.\n"
    calls: list[str] = field(default_factory=list)

    def statuses(self) -> Sequence[ProbeStatus]:
        self.calls.append("statuses")
        return self.probes

    def health(self) -> Health:
        return Health(problems=self.problems)

    def metrics(self) -> tuple[bytes, str]:
        return self.exposition, "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"

    def about(self) -> About:
        return About(
            site="lab",
            version="0.1.0",
            started_at=NOW - 9000,
            window_s=86400.0,
            schedule=("chat every 60 s",),
            notices=self.notices,
        )


def blocks(
    outcomes: Sequence[Outcome | Skip], *, ttft: float = 0.12, interval: float = 60.0
) -> tuple[Block, ...]:
    """Blocks that end two seconds before NOW; TTFT varies, but the same way every time."""
    vary = random.Random(4)
    start = NOW - 2 - interval * (len(outcomes) - 1)
    return tuple(
        Block(at=start + i * interval, skip=what)
        if isinstance(what, Skip)
        else Block(
            at=start + i * interval,
            outcome=what,
            ttft_s=ttft * vary.lognormvariate(0, 0.25) if what is Outcome.OK else None,
        )
        for i, what in enumerate(outcomes)
    )


def probe(endpoint: str = "llama", workload: str = "chat", **fields: Any) -> ProbeStatus:
    """A healthy probe over a day, unless `fields` say otherwise."""
    status = ProbeStatus(
        id=f"{endpoint}/{workload}",
        endpoint=endpoint,
        workload=workload,
        kind="chat",
        interval=60.0,
        window_s=86400.0,
        state=State.UP,
        since=NOW - 7300,
        availability=0.99930,
        coverage=0.99791,
        n=1437,
        good=1436,
        scheduled=1440,
        outages=Outages(count=1, longest_s=180.0),
        ttft=Spread(n=1436, p50=0.1204, p90=0.1926),
        tpot=Spread(n=1430, p50=0.01232, p90=0.0189),
        last=Last(outcome=Outcome.OK, at=NOW - 2),
        excluded={"tainted": 3},
        blocks=blocks([Outcome.OK] * 60),
        labels={"vendor": "local", "region": "eu"},
    )
    return replace(status, **fields)


def new(endpoint: str = "new") -> ProbeStatus:
    """A probe of which nothing is known yet."""
    return ProbeStatus(
        id=f"{endpoint}/chat",
        endpoint=endpoint,
        workload="chat",
        kind="chat",
        interval=60.0,
        window_s=86400.0,
        state=State.STARTING,
    )


def failing(
    outcome: Outcome = Outcome.HTTP_5XX,
    reason: str | None = "HTTP 503: model is overloaded",
    **fields: Any,
) -> ProbeStatus:
    """A probe whose last twenty results were all `outcome`."""
    last = Last(outcome=outcome, at=NOW - 2, reason=reason)
    known: dict[str, Any] = {
        "state": State.DOWN,
        "since": NOW - 1200,
        "availability": 2 / 3,
        "coverage": 1.0,
        "n": 60,
        "good": 40,
        "last": last,
        "last_error": last,
        "blocks": blocks([Outcome.OK] * 40 + [outcome] * 20),
    }
    return probe(**{**known, **fields})


def story() -> list[ProbeStatus]:
    """Four probes as the demo shows them: two healthy, one slow, one that fails now and then."""
    outcomes: list[Outcome | Skip] = [Outcome.OK] * 60
    for at, what in (
        (7, Outcome.TIMEOUT_TTFT),
        (19, Outcome.HTTP_5XX),
        (24, Skip.OVERLAP),
        (33, Outcome.TRUNCATED),
        (45, Outcome.HTTP_RATE_LIMITED),
        (59, Outcome.HTTP_5XX),
    ):
        outcomes[at] = what
    return [
        probe("smollm2"),
        probe(
            "smollm2",
            "models",
            kind="models",
            interval=15.0,
            availability=1.0,
            coverage=1.0,
            n=5760,
            good=5760,
            outages=Outages(),
            ttft=Spread(),
            tpot=Spread(),
            excluded={},
            blocks=blocks([Outcome.OK] * 60, ttft=0.0, interval=15.0),
        ),
        probe("slow", ttft=Spread(n=1436, p50=1.402, p90=2.24), labels={"vendor": "reference"}),
        failing(
            endpoint="flaky",
            id="flaky/chat",
            state=State.FAILING,
            availability=0.9132,
            excluded={"http_rate_limited": 17},
            skipped={"overlap": 30},
            labels={"vendor": "reference"},
            blocks=blocks(outcomes),
        ),
    ]
