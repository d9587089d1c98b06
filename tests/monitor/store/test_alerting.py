from __future__ import annotations

from monitor.alerting import AlertBook, AlertState, Incident, Phase, Silence
from monitor.conditions import Alert, Rule
from monitor.store import Store


def state(name: str) -> AlertState:
    alert = Alert(rule=Rule.DOWN, endpoint=name, workload="chat")
    return AlertState(alert=alert, phase=Phase.FIRING, since=1.0, last_error="a\0b")


def book(*names: str) -> AlertBook:
    incident = Incident(
        id="i", rule=Rule.DOWN, group="", members=names, since=1.0, opened_at=1.0, told_at=1.0
    )
    return AlertBook(alerts={f"Down/{n}/chat": state(n) for n in names}, incidents={"i": incident})


async def test_a_book_comes_back_as_it_was_saved(store_url: str) -> None:
    """But for NUL, which PostgreSQL refuses; what is gone from it is gone."""
    store = await Store.open(store_url)
    alerts = store.alerting("fra")
    assert await alerts.load() == AlertBook()
    await alerts.save(book("a", "b"))
    await alerts.save(book("b", "c"))
    found = await store.alerting("fra").load()
    assert set(found.alerts) == {"Down/b/chat", "Down/c/chat"}
    assert found.alerts["Down/b/chat"].last_error == "ab"
    assert found.incidents == book("b", "c").incidents
    assert await store.alerting("other").load() == AlertBook()  # a site of its own
    await store.close()


async def test_silences_that_have_ended_are_not_read(store_url: str) -> None:
    store = await Store.open(store_url)
    alerts = store.alerting("fra")
    short = Silence(id="1", matchers={"endpoint": "a"}, at=100.0, until_at=200.0)
    ack = Silence(id="2", matchers={"incident": "i"}, at=100.0, ack=True, author="me")
    await alerts.add_silence(short)
    await alerts.add_silence(ack)
    assert await alerts.silences(150.0) == (short, ack)
    assert await alerts.silences(200.0) == (ack,)
    assert await alerts.end_silence("1", 120.0)
    assert not await alerts.end_silence("9", 120.0)
    assert await alerts.silences(150.0) == (ack,)
    await store.close()
