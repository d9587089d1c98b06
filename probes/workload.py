"""What is sent: kind, prompt shape, token limit, time limits and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Connection(StrEnum):
    """Whether a probe opens its own connection."""

    FRESH = "fresh"
    REUSE = "reuse"


class Cache(StrEnum):
    """Whether the prompt is new to the server's prefix cache."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds and byte caps of one probe.

    Attributes:
        connect: DNS, TCP and TLS together.
        ttft: From the request's last byte to the first output event, whatever else arrives.
        stall: From the last output event to the next.
        total: From the request's last byte to the end.
        body_bytes: Most bytes of a body, after decompression; more is `protocol_error`.
        event_bytes: Most bytes of one server-sent event; more is `protocol_error`.
    """

    connect: float = 10.0
    ttft: float = 20.0
    stall: float = 10.0
    total: float = 45.0
    body_bytes: int = 64 << 20
    event_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What the answer must satisfy; all given parts must hold.

    Attributes:
        contains: Text that must appear; None does not check.
        equals: The whole answer without surrounding blanks; None does not check.
        json: Whether the answer must be JSON.
    """

    contains: str | None = None
    equals: str | None = None
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of request.

    Attributes:
        name: The workload's key in the configuration; a metric label.
        kind: A key of `probes.kinds.KINDS`.
        input_tokens: Approximate length of the generated prompt.
        max_tokens: Output limit sent with the request; None sends none.
        limits: Time limits and byte caps.
        connection: Fresh connection for each probe, or a pooled one.
        cache: `cold` salts the prompt so that no prefix cache can hold it; `warm` never does.
        stream: Whether to ask for a stream.
        prompt: The operator's own text in place of the generated one; None generates.
        system: System message before the user's; None sends none.
        seed: Seed of the generated text and the salt.
        check: What the answer must satisfy; None accepts any.
        extra: Further request fields, sent as they are; None as a value removes a field.
    """

    name: str = "chat"
    kind: str = "chat"
    input_tokens: int = 100
    max_tokens: int | None = 64
    limits: Limits = field(default_factory=Limits)
    connection: Connection = Connection.FRESH
    cache: Cache = Cache.COLD
    stream: bool = True
    prompt: str | None = None
    system: str | None = None
    seed: int = 0
    check: Check | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
