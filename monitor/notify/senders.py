"""Each kind of receiver: Alertmanager, a webhook, and everything that apprise knows.

A channel's URL is a secret: whoever has it can write into somebody's room. No error of this module
holds it, or text that a library worded.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import socket
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import aiohttp

from monitor.alerting import FIRES, AlertState, Kind, Notice, labels_of
from monitor.config import Channel
from monitor.notify import words
from monitor.notify.words import About

RESEND_S = 60.0
"""How often Alertmanager is told again what fires."""
EXPIRES_S = 4 * RESEND_S
"""After which Alertmanager takes an alert for resolved that it no longer hears of."""

_REFUSALS = frozenset({400, 413, 415, 422})
_LABEL = re.compile(r"[^a-zA-Z0-9_]")


class SendError(Exception):
    """A notice was not delivered; the message is one line without URL or secret.

    Attributes:
        refused: Whether the receiver was heard and refused this very message, so that the same
            again cannot help.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


def missing(channel: Channel) -> str | None:
    """Return what is not installed for a channel, as a sentence; None if nothing."""
    if channel.type == "apprise" and find_spec("apprise") is None:
        return (
            f"notify.{channel.name}: apprise is not installed, "
            "install endpoint-perf-monitor[notify]"
        )
    return None


def wants(channel: Channel, notice: Notice) -> bool:
    """Whether a channel is told of this notice."""
    if notice.kind is Kind.CHANGED and channel.type != "alertmanager":
        return False
    return not channel.severities or notice.severity in channel.severities


async def send(
    session: aiohttp.ClientSession, channel: Channel, notice: Notice, about: About
) -> None:
    """Deliver a notice.

    Raises:
        SendError: The receiver cannot be reached or does not take it.
    """
    if channel.type == "alertmanager":
        await _post(session, channel, _alertmanager_url(channel), _alerts(notice.alerts, about))
    elif channel.type == "webhook":
        key = {"Idempotency-Key": notice.key}
        await _post(session, channel, channel.url, webhook_body(notice, about), key)
    else:
        await _apprise(channel, notice, about)


async def refresh(
    session: aiohttp.ClientSession, channel: Channel, states: Iterable[AlertState], about: About
) -> None:
    """Tell Alertmanager again what fires, or it would take it for resolved.

    Raises:
        SendError: As `send`.
    """
    await _post(session, channel, _alertmanager_url(channel), _alerts(states, about))


def webhook_body(notice: Notice, about: About) -> dict[str, Any]:
    """Return the JSON of a webhook; see docs/alerting.md."""
    ended = notice.kind is Kind.RESOLVED
    return {
        "version": 1,
        "key": notice.key,
        "kind": notice.kind,
        "status": "resolved" if ended else "firing",
        "incident": notice.incident,
        "severity": notice.severity,
        "title": words.title(notice, about),
        "text": words.text(notice, about),
        "site": about.site,
        "group": notice.group,
        "at": words.iso(notice.at),
        "since": words.iso(notice.since),
        "duration_s": round(notice.at - notice.since, 3),
        "also_failing": notice.also_failing,
        "alerts": [_alert(state, about) for state in notice.alerts],
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return `v1=` and the hex HMAC-SHA256 of timestamp, a dot and body."""
    signed = timestamp.encode() + b"." + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _alert(state: AlertState, about: About) -> dict[str, Any]:
    return {
        "alert": state.alert.key,
        "labels": labels_of(state),
        "state": state.phase,
        "since": words.iso(state.since),
        "resolved_at": None if state.resolved_at is None else words.iso(state.resolved_at),
        "what": state.what,
        "numbers": state.numbers,
        "last_error": state.last_error,
        "link": words.link(about),
        "runbook_url": state.runbook_url,
    }


def _alertmanager_url(channel: Channel) -> str:
    return channel.url.rstrip("/") + "/api/v2/alerts"


def _alerts(states: Iterable[AlertState], about: About) -> list[dict[str, Any]]:
    """Return alerts as Alertmanager's API v2 takes them."""
    return [_posted(state, about) for state in states]


def _posted(state: AlertState, about: About) -> dict[str, Any]:
    labels = {**labels_of(state), "site": about.site}
    annotations = {
        "summary": state.what,
        "description": " ".join(filter(None, (state.numbers, state.last_error))),
        "runbook_url": state.runbook_url or "",
    }
    fires = state.phase in FIRES or state.flapping
    ends = time.time() + EXPIRES_S if fires else state.resolved_at or time.time()
    return {
        "labels": {_LABEL.sub("_", name): value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": words.iso(min(state.since, ends)),
        "endsAt": words.iso(ends),
        "generatorURL": words.link(about),
    }


async def _post(
    session: aiohttp.ClientSession,
    channel: Channel,
    url: str,
    document: Any,
    headers: Mapping[str, str] | None = None,
) -> None:
    body = json.dumps(document, separators=(",", ":")).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    if channel.secret is not None:
        timestamp = str(int(time.time()))
        sent["X-Endpoint-Monitor-Timestamp"] = timestamp
        sent["X-Endpoint-Monitor-Signature"] = signature(channel.secret, timestamp, body)
    limit = aiohttp.ClientTimeout(total=channel.timeout)
    try:
        async with session.post(
            url, data=body, headers=sent, timeout=limit, allow_redirects=False
        ) as answer:
            status = answer.status
    except TimeoutError:
        raise SendError(f"no answer within {channel.timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise SendError(_plainly(exc)) from None  # its text and its cause hold the URL
    if not 200 <= status < 300:
        raise SendError(f"answered with status {status}", refused=status in _REFUSALS)


def _plainly(exc: Exception) -> str:
    """Return what went wrong without the address that the library puts into its text."""
    cause = getattr(exc, "os_error", exc)
    if isinstance(exc, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(exc, aiohttp.ClientSSLError):
        return "TLS failed"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(exc, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return "the connection was closed before the answer"
    return f"cannot be reached ({type(exc).__name__})"


async def _apprise(channel: Channel, notice: Notice, about: About) -> None:
    if (what := missing(channel)) is not None:
        raise SendError(what)
    import apprise  # noqa: PLC0415 - optional, and slow to load

    ended = notice.kind is Kind.RESOLVED
    kind = apprise.NotifyType.SUCCESS if ended else apprise.NotifyType.FAILURE
    messenger = apprise.Apprise()
    if not messenger.add(channel.url):
        raise SendError("apprise does not know this kind of URL")
    title, text = words.title(notice, about), words.text(notice, about)
    try:
        async with asyncio.timeout(channel.timeout):
            done = await messenger.async_notify(body=text, title=title, notify_type=kind)
    except TimeoutError:
        raise SendError(f"no answer within {channel.timeout:g} s") from None
    except (TypeError, OSError) as exc:
        raise SendError(f"apprise failed ({type(exc).__name__})") from None
    if not done:
        raise SendError("apprise could not deliver it")
