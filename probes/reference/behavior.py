"""How the reference endpoint behaves: its times, its faults, and which request gets which."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_GOLDEN = 0.6180339887498949


class Fault(StrEnum):
    """What can go wrong on purpose; the value is also the suffix of the model's name."""

    ERROR500 = "error500"
    ERROR503 = "error503"
    ERROR429 = "error429"
    """The three with `retry-after: 1`, before anything is generated."""
    HANG = "hang"
    """`Behavior.pause` of silence before the first token; the head is sent at once."""
    STALL = "stall"
    """`Behavior.pause` of silence in mid-stream."""
    RESET = "reset"
    """A TCP reset in mid-stream."""
    TRUNCATE = "truncate"
    """An orderly end in mid-stream, without a finish reason."""
    ERROR_EVENT = "error-event"
    """An error inside the stream, status 200."""
    EMPTY = "empty"
    """An orderly answer without a token."""
    WRONG_MODEL = "wrong-model"
    """An answer by another model."""
    SLOW = "slow"
    """TTFT times `Behavior.slowdown`."""


_BY_SUFFIX = {fault.value: fault for fault in Fault}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """What the reference endpoint does with a request.

    Attributes:
        ttft: Seconds from the request's last byte read to the first token.
        gap: Seconds from one token to the next, on a fixed grid: delays never add up.
        tokens: Length of an answer that the request does not limit further.
        jitter: Share of `ttft`, and of `gap` for each token by itself, added at random.
        seed: Of the jitter and of the order of faults.
        model: The served model; `MODEL-FAULT` asks for one fault.
        api_key: The key that every request under /v1 must carry; None takes any.
        faults: Share of requests by fault; together at most 1.
        pause: Seconds of silence of `hang` and `stall`, after which the answer goes on.
        slowdown: Factor of `slow`.
    """

    ttft: float = 0.05
    gap: float = 0.01
    tokens: int = 64
    jitter: float = 0.0
    seed: int = 0
    model: str = "reference"
    api_key: str | None = field(default=None, repr=False)
    faults: Mapping[Fault, float] = field(default_factory=dict)
    pause: float = 60.0
    slowdown: float = 8.0

    def __post_init__(self) -> None:
        for name in ("ttft", "gap", "tokens", "pause", "slowdown"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be a share from 0 to 1")
        if any(share < 0 for share in self.faults.values()) or sum(self.faults.values()) > 1:
            raise ValueError("faults must be shares that add up to at most 1")

    def models(self) -> tuple[str, ...]:
        """Every model name that is served."""
        return (self.model, *(f"{self.model}-{fault}" for fault in Fault))

    def fault(self, number: int, model: str) -> Fault | None:
        """Say what goes wrong with a request: as the model's name asks, else by its number.

        The golden ratio's multiples spread evenly, so every stretch of requests holds about its
        share of each fault, and the same seed gives the same order.
        """
        asked = _BY_SUFFIX.get(model.removeprefix(f"{self.model}-"))
        if asked is not None:
            return asked
        place = (self.seed * 0.7548776662466927 + (number + 1) * _GOLDEN) % 1.0
        for fault, share in self.faults.items():
            if place < share:
                return fault
            place -= share
        return None

    def token_times(self, number: int, length: int, fault: Fault | None) -> list[int]:
        """Return when each token is due, nanoseconds after the request was read."""
        chance = random.Random(f"{self.seed}/{number}")  # noqa: S311 - no secret
        slowdown = self.slowdown if fault is Fault.SLOW else 1.0
        first = self.ttft * slowdown * (1 + self.jitter * chance.random())
        if fault is Fault.HANG:
            first += self.pause
        times = [first + i * self.gap for i in range(length)]
        if self.jitter:
            late = self.jitter * self.gap
            times[1:] = [time + late * chance.random() for time in times[1:]]
        if fault is Fault.STALL:
            half = cut(length)
            times[half:] = [time + self.pause for time in times[half:]]
        return [round(time * 1e9) for time in times]


def cut(length: int) -> int:
    """Return after how many tokens a fault in mid-stream strikes: half of them, at least one."""
    return max(1, length // 2)
