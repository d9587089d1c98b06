from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from monitor.alerting import AlertBook, AlertState, Kind, Notice, Phase
from monitor.conditions import Alert, Rule
from monitor.config import Channel
from monitor.notify import About, Outbox
from monitor.notify.senders import webhook_body
from monitor.notify.words import text, title
from monitor.store import AlertStore, Store
from tests.monitor.notify.receiver import Receiver, serving
from tests.servers import free_port

AT = 1_793_456_789.0
ABOUT = About(site="fra", page="http://mon:8844")


def state(endpoint: str = "llama", *, resolved: bool = False) -> AlertState:
    return AlertState(
        alert=Alert(rule=Rule.DOWN, endpoint=endpoint, workload="chat"),
        phase=Phase.OK if resolved else Phase.FIRING,
        since=AT - 40,
        fired_at=AT,
        resolved_at=AT + 300 if resolved else None,
        what=f"{endpoint} does not answer as it should (chat).",
        severity="page",
        labels={"owner": "ml-oncall"},
        runbook_url="https://wiki/down",
        numbers="3 bad results in a row. 97 of 100 valid results of the day were good.",
        last_error="connect: connection refused",
    )


def notice(number: int = 1, kind: Kind = Kind.FIRING) -> Notice:
    resolved = kind is Kind.RESOLVED
    return Notice(
        key=f"k{number}",
        kind=kind,
        incident="i1",
        at=AT + 300 * resolved,
        since=AT - 40,
        alerts=(state(resolved=resolved),),
    )


@asynccontextmanager
async def delivering(url: str, receiver_url: str) -> AsyncIterator[tuple[Outbox, AlertStore]]:
    """An outbox at work over a database, with one webhook."""
    channel = Channel(name="ops", type="webhook", url=receiver_url, secret="s3cret", timeout=2.0)
    async with working(url, [channel]) as found:
        yield found


@asynccontextmanager
async def working(url: str, channels: list[Channel]) -> AsyncIterator[tuple[Outbox, AlertStore]]:
    store = await Store.open(url)
    alerts = store.alerting("fra")
    outbox = Outbox(channels, alerts, ABOUT, first_pause=0.02)
    outbox.put(await alerts.waiting())
    task = asyncio.create_task(outbox.run())
    try:
        yield outbox, alerts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


async def send(outbox: Outbox, alerts: AlertStore, *notices: Notice) -> None:
    letters = outbox.letters(notices)
    await alerts.save(AlertBook(), letters)
    outbox.put(letters)


async def until(done: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_notice_arrives_signed_with_all_that_one_needs(store_url: str) -> None:
    async with serving(Receiver()) as hook, delivering(store_url, hook.url) as (outbox, alerts):
        await send(outbox, alerts, notice())
        await until(lambda: len(hook.bodies) == 1)
        headers, body = hook.raw[0]
        signed = headers["X-Endpoint-Monitor-Timestamp"].encode() + b"." + body
        expected = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        assert headers["X-Endpoint-Monitor-Signature"] == f"v1={expected}"
        assert headers["Idempotency-Key"] == "k1"
        assert hook.bodies[0]["alerts"][0]["labels"]["alertname"] == "Down"
        await until(lambda: not outbox.waiting)


def test_the_wording_says_what_since_when_how_bad_and_where_to_look() -> None:
    assert title(notice(), ABOUT) == "[Down, page] llama (chat) @ fra"
    assert text(notice(), ABOUT) == (
        "llama does not answer as it should (chat).\n"
        "Since 2026-10-31 14:25:49 UTC\n"
        "How bad: 3 bad results in a row. 97 of 100 valid results of the day were good.\n"
        "Last error: connect: connection refused\n"
        "Owner: ml-oncall\n"
        "Page: http://mon:8844/\n"
        "Runbook: https://wiki/down"
    )
    ended = notice(kind=Kind.RESOLVED)
    assert title(ended, ABOUT) == "[resolved, page] llama (chat) @ fra"
    assert text(ended, ABOUT) == (
        "Well again after 6 min.\n"
        "- llama (chat): well since 2026-10-31 14:31:29 UTC, lasted 6 min."
    )
    assert webhook_body(ended, ABOUT)["status"] == "resolved"


async def test_what_comes_while_the_receiver_is_down_arrives_later_in_order_once(
    sqlite_url: str,
) -> None:
    """CASES M11."""
    hook = Receiver(port=free_port())
    async with delivering(sqlite_url, hook.url) as (outbox, alerts):
        for number in range(20):
            await send(outbox, alerts, notice(number))
        await until(lambda: outbox.failures >= 3)
        assert outbox.error == "ops: connection refused"
        async with serving(hook):
            await until(lambda: not outbox.waiting)
    assert hook.keys == [f"k{number}" for number in range(20)]


async def test_a_host_that_does_not_resolve_is_named_in_plain_words(sqlite_url: str) -> None:
    async with delivering(sqlite_url, "http://hooks.invalid/PLANTED") as (outbox, alerts):
        await send(outbox, alerts, notice())
        await until(lambda: outbox.failures >= 1)
        assert outbox.error == "ops: its host name cannot be resolved"


async def test_a_receiver_that_hangs_holds_up_only_itself(sqlite_url: str) -> None:
    async with serving(Receiver(delay=30)) as slow, serving(Receiver()) as quick:
        channels = [
            Channel(name="slow", type="webhook", url=slow.url, timeout=30.0),
            Channel(name="quick", type="webhook", url=quick.url),
        ]
        async with working(sqlite_url, channels) as (outbox, alerts):
            await send(outbox, alerts, *(notice(number) for number in range(5)))
            await until(lambda: len(quick.bodies) == 5, 2.0)
            assert slow.bodies == []
            assert outbox.waiting == 5


async def test_a_receiver_that_does_not_answer_in_time_is_tried_again(sqlite_url: str) -> None:
    async with serving(Receiver(delay=5)) as hook:
        channel = Channel(name="ops", type="webhook", url=hook.url, timeout=0.1)
        async with working(sqlite_url, [channel]) as (outbox, alerts):
            await send(outbox, alerts, notice())
            await until(lambda: outbox.failures == 2)
            assert outbox.error == "ops: no answer within 0.1 s"
            hook.delay = 0.0
            await until(lambda: not outbox.waiting)
            assert hook.keys == ["k1"]


@pytest.mark.parametrize("status", [400, 422])
async def test_what_a_receiver_refuses_is_given_up_and_does_not_block_the_rest(
    status: int, sqlite_url: str
) -> None:
    async with (
        serving(Receiver(status=status)) as hook,
        delivering(sqlite_url, hook.url) as (outbox, alerts),
    ):
        await send(outbox, alerts, notice(1))
        await until(lambda: outbox.refused == 1)
        hook.status = 200
        await send(outbox, alerts, notice(2))
        await until(lambda: hook.keys == ["k2"])


@pytest.mark.parametrize("status", [302, 401, 404, 429, 500, 503])
async def test_other_answers_are_no_delivery_and_no_refusal(status: int, sqlite_url: str) -> None:
    async with (
        serving(Receiver(status=status)) as hook,
        delivering(sqlite_url, hook.url) as (outbox, alerts),
    ):
        await send(outbox, alerts, notice(1))
        await until(lambda: outbox.failures >= 4)
        assert outbox.error == f"ops: answered with status {status}"
        hook.status = 200
        await until(lambda: hook.keys == ["k1"])


async def test_the_url_of_a_channel_is_in_no_log_and_no_database(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "monitor")
    url = f"http://127.0.0.1:{free_port()}/PLANTED"
    async with delivering(sqlite_url, url) as (outbox, alerts):
        await send(outbox, alerts, notice())
        await until(lambda: outbox.failures >= 2)
        assert "PLANTED" not in outbox.error
    assert "PLANTED" not in caplog.text
    content = b"".join(p.read_bytes() for p in Path(sqlite_url[10:]).parent.iterdir())
    assert b"PLANTED" not in content


async def test_alertmanager_is_told_start_end_labels_and_link(sqlite_url: str) -> None:
    async with serving(Receiver()) as hook:
        channel = Channel(name="am", type="alertmanager", url=f"http://127.0.0.1:{hook.port}")
        async with working(sqlite_url, [channel]) as (outbox, alerts):
            await send(outbox, alerts, notice(1))
            await send(outbox, alerts, notice(2, Kind.CHANGED))
            await until(lambda: len(hook.raw) == 2)
            (posted,) = msgspec.json.decode(hook.raw[0][1])
    assert posted["labels"] == {
        "alertname": "Down", "endpoint": "llama", "workload": "chat", "severity": "page",
        "owner": "ml-oncall", "site": "fra",
    }  # fmt: skip
    assert posted["annotations"]["runbook_url"] == "https://wiki/down"
    assert posted["generatorURL"] == "http://mon:8844/"
    assert posted["startsAt"] < posted["endsAt"]


async def test_a_letter_queued_twice_is_sent_once(store_url: str) -> None:
    async with serving(Receiver()) as hook, delivering(store_url, hook.url) as (outbox, alerts):
        await send(outbox, alerts, notice(1))
        await send(outbox, alerts, notice(1))
        await send(outbox, alerts, notice(2))
        await until(lambda: len(hook.bodies) >= 2)
        await asyncio.sleep(0.1)
        assert hook.keys == ["k1", "k2"]


async def test_a_new_process_sends_what_the_last_one_left(store_url: str) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with delivering(store_url, nobody) as (outbox, alerts):
        await send(outbox, alerts, notice(1), notice(2))
        await until(lambda: outbox.failures > 0)
    async with serving(Receiver()) as hook, delivering(store_url, hook.url) as (outbox, alerts):
        await until(lambda: hook.keys == ["k1", "k2"])
        await until(lambda: not outbox._unmarked)
        assert await alerts.waiting() == []
