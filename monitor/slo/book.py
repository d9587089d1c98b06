"""The objectives of one probe in a running monitor: how each result counts, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from monitor.slo.burn import BURN_ALERTS, BURN_WINDOWS, Fired, budget_remaining, burn_rate
from monitor.slo.objective import Indicator, Slo, classify
from monitor.slo.windows import SloWindow
from probes.result import Excluded, Outcome

_LONG = tuple(alert.long for alert in BURN_ALERTS)
_STALE_S = 15.0
"""Seconds after which windows have moved on enough to look again without a new result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one SLO stands.

    Attributes:
        remaining: Share of the budget of its window that is left; None without a budget.
        rates: Burn rate by long window; one without a valid event is left out. The short ones say
            only whether it goes on, and rules reckon them from the counters.
        filling: Whether its window is not yet full.
    """

    remaining: float | None
    rates: Mapping[str, float]
    filling: bool


class SloBook:
    """The SLOs of one probe that are ratios. Consistency is none: `report` judges it.

    Attributes:
        windows: By name of the SLO.
    """

    def __init__(self, slos: Iterable[Slo]) -> None:
        self.windows = {
            slo.name: SloWindow(slo) for slo in slos if slo.indicator is not Indicator.CONSISTENCY
        }
        self._looked_at: float | None = None
        self._burns: tuple[tuple[Slo, Fired], ...] = ()

    def take(
        self,
        at: float,
        outcome: Outcome,
        excluded: Excluded | None,
        times: Mapping[str, float | None],
    ) -> Iterator[tuple[str, bool]]:
        """Take the result of a grid slot; yield name and verdict for which it is valid.

        Confirmation probes must not come here. Arguments are those of `classify`.
        """
        for name, window in self.windows.items():
            good = classify(window.slo, outcome, excluded, times)
            if good is not None:
                window.add(at, good=good)
                self._looked_at = None
                yield name, good

    def burns(self, now: float) -> tuple[tuple[Slo, Fired], ...]:
        """Return the burn alerts that burn; looks again after a result, or some seconds."""
        looked = self._looked_at
        if looked is None or not 0 <= now - looked < _STALE_S:
            self._looked_at = now
            self._burns = tuple(
                (window.slo, fired)
                for window in self.windows.values()
                for fired in window.burning(now)
            )
        return self._burns

    def look_again(self) -> None:
        """Forget what burned: windows were filled from the store."""
        self._looked_at = None

    def standings(self, now: float) -> dict[str, Standing]:
        """Return how every SLO stands, by name."""
        return {name: _standing(window, now) for name, window in self.windows.items()}


def _standing(window: SloWindow, now: float) -> Standing:
    objective = window.slo.objective
    rates = {
        name: rate
        for name in _LONG
        if (rate := burn_rate(window.counts(BURN_WINDOWS[name], now), objective)) is not None
    }
    return Standing(
        remaining=budget_remaining(window.total(now), objective),
        rates=rates,
        filling=window.filling(now),
    )
