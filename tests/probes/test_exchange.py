from __future__ import annotations

import pytest

from probes import Endpoint, Limits, Outcome
from probes.exchange import _cost, phases, since, tainted
from probes.result import Phases
from probes.tokens import Usage
from probes.transport import Timeline


def test_a_duration_needs_both_ends_and_is_never_negative() -> None:
    assert since(1.0, 3.5) == 2.5
    assert since(3.0, 1.0) == 0.0
    assert since(None, 1.0) is None
    assert since(1.0, None) is None


def test_phases_of_a_fresh_tls_connection_by_name_add_up_to_the_whole() -> None:
    """M39: nothing between the first and the last moment is lost."""
    timeline = Timeline(
        connect_start=1.0, dns_start=1.0, dns_end=1.5, tls_start=2.0, connected=3.0, ready=3.1,
        sent=3.5, head=5.0,
    )  # fmt: skip
    got = phases(timeline)
    assert got == Phases(dns=0.5, connect=0.5, tls=1.0, send=0.5, wait=1.5)
    parts = (got.dns, got.connect, got.tls, got.send, got.wait)
    assert sum(part or 0.0 for part in parts) == 4.0


def test_phases_that_did_not_happen_or_not_end_are_absent() -> None:
    plain = Timeline(connect_start=1.0, connected=2.0, ready=2.0, sent=2.5)
    assert phases(plain) == Phases(connect=1.0, send=0.5)
    pooled = Timeline(reused=True, ready=2.0, sent=2.5, head=3.0)
    assert phases(pooled) == Phases(send=0.5, wait=0.5)
    hanging = Timeline(connect_start=1.0, tls_start=2.0)
    assert phases(hanging) == Phases(connect=1.0)
    assert phases(Timeline(connect_start=1.0)) == Phases()


@pytest.mark.parametrize(
    ("usage", "output", "prices", "cost"),
    [
        (Usage(cost=0.5, prompt=1), 1, (1.0, 1.0), 0.5),
        (Usage(prompt=10), 20, (0.1, 0.2), 5.0),
        (Usage(prompt=10), 20, (0.0, 0.0), 0.0),
        (Usage(prompt=10), 20, (0.1, None), None),
        (Usage(), 20, (0.1, 0.2), None),
        (Usage(prompt=10), None, (0.1, 0.2), None),
    ],
)
def test_cost_is_the_server_s_own_else_tokens_times_prices(
    usage: Usage, output: int | None, prices: tuple[float | None, float | None], cost: float | None
) -> None:
    endpoint = Endpoint(
        name="e", url="http://host/v1", price_input=prices[0], price_output=prices[1]
    )
    assert _cost(endpoint, usage, output) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("outcome", "lag", "ttft", "e2e", "spoiled"),
    [
        (Outcome.OK, 0.009, 0.01, 0.02, False),
        (Outcome.OK, 0.011, 0.01, 0.02, True),
        (Outcome.OK, 0.011, 1.0, 2.0, False),
        (Outcome.OK, 0.051, 1.0, 2.0, True),
        (Outcome.OK, 0.011, None, 0.1, True),
        (Outcome.OK, 0.011, None, 1.0, False),
        (Outcome.CONNECT, 0.2, None, 0.001, False),
        (Outcome.HTTP_5XX, 0.2, None, 0.001, False),
        (Outcome.TRUNCATED, 0.2, 0.1, 0.2, False),
        (Outcome.TIMEOUT_CONNECT, 0.4, None, None, False),
        (Outcome.TIMEOUT_CONNECT, 0.6, None, None, True),
        (Outcome.DNS, 0.6, None, None, True),
        (Outcome.TIMEOUT_TTFT, 0.9, None, 20.0, False),
        (Outcome.TIMEOUT_TTFT, 1.1, None, 20.0, True),
        (Outcome.TIMEOUT_STALL, 0.6, 1.0, 20.0, True),
        (Outcome.TIMEOUT_TOTAL, 2.0, 1.0, 45.0, False),
    ],
)
def test_our_delay_spoils_only_what_it_could_bend(
    outcome: Outcome, lag: float, ttft: float | None, e2e: float | None, *, spoiled: bool
) -> None:
    """A refused connection is true however late we were; a limit is not if we slept through it."""
    assert tainted(outcome, lag, ttft, e2e, Limits()) is spoiled
