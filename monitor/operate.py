"""What an operator does beside a running monitor: test channels, silence, acknowledge.

Silences go through the store that both share; the running monitor sees them within seconds.
"""

from __future__ import annotations

import getpass
import os
import time
import uuid
from collections.abc import Mapping

import aiohttp

from monitor.alerting import AlertState, Kind, Notice, Phase, Silence, firing
from monitor.conditions import Alert, Rule
from monitor.config import Channel, Config
from monitor.notify import About, SendError, send
from monitor.notify.words import clock, duration
from monitor.store import AlertStore, Store


async def test_channel(config: Config, channel: Channel) -> str | None:
    """Send a firing and a resolved notice to a channel; return what went wrong, or None."""
    now = time.time()
    about = About(site=config.site, page=config.alert_rules.page_url or "")
    key = f"test-{uuid.uuid4().hex[:12]}"
    severity = min(channel.severities, default="ticket")
    state = AlertState(
        alert=Alert(rule=Rule.DOWN, endpoint="test"),
        phase=Phase.FIRING,
        since=now,
        fired_at=now,
        what="This is a test of endpoint-monitor: nothing is wrong.",
        severity=severity,
    )
    ended = AlertState(
        alert=state.alert,
        phase=Phase.OK,
        since=now,
        resolved_at=time.time(),
        what=state.what,
        severity=severity,
    )
    try:
        async with aiohttp.ClientSession() as session:
            for kind, told in ((Kind.FIRING, state), (Kind.RESOLVED, ended)):
                notice = Notice(
                    key=f"{key}-{kind}", kind=kind, incident=key, at=now, since=now, alerts=(told,)
                )
                await send(session, channel, notice, about)
    except SendError as exc:
        return str(exc)
    return None


async def add_silence(
    config: Config, matchers: Mapping[str, str], seconds: float, comment: str
) -> str:
    """Keep alerts that match from being told; return a line that says which and until when."""
    now = time.time()
    silence = Silence(
        id=uuid.uuid4().hex[:12],
        matchers=matchers,
        at=now,
        until_at=now + seconds,
        author=_author(),
        comment=comment,
    )
    store = await Store.open(config.store_url)
    try:
        await store.alerting(config.site).add_silence(silence)
    finally:
        await store.close()
    return f"silence {silence.id}: {_worded(matchers)} until {clock(now + seconds)}"


async def end_silence(config: Config, uid: str) -> bool:
    """End a silence; return whether there is such a one."""
    store = await Store.open(config.store_url)
    try:
        return await store.alerting(config.site).end_silence(uid, time.time())
    finally:
        await store.close()


async def list_silences(config: Config) -> list[str]:
    """Return the silences that hold, a line each."""
    store = await Store.open(config.store_url)
    try:
        found = await store.alerting(config.site).silences(time.time())
    finally:
        await store.close()
    return [
        "  ".join((s.id, f"until {clock(s.until_at)}", _worded(s.matchers), s.author, s.comment))
        for s in found
        if not s.ack and s.until_at is not None
    ]


async def acknowledge(config: Config, wanted: str | None, comment: str) -> list[str]:
    """Take in hand what was told and matches an alert's key or an incident's id.

    Return a line for each open alert: those taken in hand, or without `wanted` all there are.
    """
    store = await Store.open(config.store_url)
    try:
        alerts = store.alerting(config.site)
        open_ones = [s for s in firing(await alerts.load()) if s.incident is not None]
        if wanted is None:
            return [_line(state) for state in open_ones]
        hit = [s for s in open_ones if wanted in (s.alert.key, s.incident)]
        await _acknowledge(alerts, {s.incident for s in hit if s.incident}, comment)
        return [_line(state) for state in hit]
    finally:
        await store.close()


async def _acknowledge(alerts: AlertStore, incidents: set[str], comment: str) -> None:
    for incident in sorted(incidents):
        await alerts.add_silence(
            Silence(
                id=uuid.uuid4().hex[:12],
                matchers={"incident": incident},
                at=time.time(),
                ack=True,
                author=_author(),
                comment=comment,
            )
        )


def _line(state: AlertState) -> str:
    lasted = duration(time.time() - state.since)
    return f"{state.alert.key}  {state.severity}  for {lasted}  incident {state.incident}"


def _worded(matchers: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={pattern}" for name, pattern in matchers.items()) or "everything"


def _author() -> str:
    """Return who runs this, as far as the system knows."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return str(os.getuid())
