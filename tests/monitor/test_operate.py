"""`notify test`, `silence` and `ack` beside the store of a monitor."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monitor.alerting import Facts, decide
from monitor.cli import app
from monitor.config import load
from monitor.store import Store
from tests.monitor.notify.crasher import fact
from tests.monitor.notify.receiver import Receiver, serving
from tests.servers import free_port

CONFIG = "endpoints: {a: {url: http://a, model: m}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "m.yaml"
    found.write_text(CONFIG)
    return found


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


async def test_notify_test_sends_both_ends_and_names_what_fails(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    async with serving(Receiver()) as hook:
        nobody = f"http://127.0.0.1:{free_port()}/PLANTED"
        path.write_text(
            CONFIG + f"notify:\n  ops: {{type: webhook, url: '{hook.url}'}}\n"
            f"  gone: {{type: webhook, url: '{nobody}'}}\n"
        )
        code, text = await asyncio.to_thread(call, "notify", "test", path)
        assert (code, text) == (1, "ops: delivered\ngone: connection refused\n")
        assert [body["kind"] for body in hook.bodies] == ["firing", "resolved"]
        assert (await asyncio.to_thread(call, "notify", "test", path, "ops"))[0] == 0
        assert (await asyncio.to_thread(call, "notify", "test", path, "who"))[0] == 2


def test_a_silence_is_added_listed_and_ended(path: Path) -> None:
    assert call("silence", path) == (0, "no silence holds\n")
    code, text = call("silence", path, "-m", "endpoint=a*", "--for", "2h", "-c", "upgrade")
    assert (code, "endpoint=a* until" in text) == (0, True)
    uid = text.split()[1].rstrip(":")
    assert "endpoint=a*" in call("silence", path)[1]
    assert call("silence", path, "--end", uid) == (0, f"ended {uid}\n")
    assert call("silence", path) == (0, "no silence holds\n")


@pytest.mark.parametrize(
    "arguments", [("-m", "endpoint"), ("-m", "a=b", "--for", "soon"), ("--end", "none")]
)
def test_bad_usage_of_silence_is_one_line_and_code_2(
    path: Path, arguments: tuple[str, ...]
) -> None:
    code, text = call("silence", path, *arguments)
    assert (code, text.count("\n")) == (2, 1)


def test_an_open_alert_is_listed_and_taken_in_hand(path: Path) -> None:
    async def fire() -> None:
        config = load(path, {})
        store = await Store.open(config.store_url)
        alerts = store.alerting("local")
        book, _ = decide(await alerts.load(), *FACTS)
        await alerts.save(book)
        await store.close()

    assert call("ack", path) == (0, "nothing fires\n")
    asyncio.run(fire())
    code, text = call("ack", path)
    assert (code, text.split()[:2]) == (0, ["Down/a/chat", "page"])
    assert call("ack", path, "Down/a/chat", "-c", "on it")[0] == 0
    assert call("ack", path, "Down/b/chat")[0] == 2

    async def acked() -> bool:
        config = load(path, {})
        store = await Store.open(config.store_url)
        alerts = store.alerting("local")
        facts = Facts(silences=await alerts.silences(time.time()))
        book, _ = decide(await alerts.load(), facts, FACTS[1] + 10)
        await store.close()
        return all(incident.acked for incident in book.incidents.values())

    assert asyncio.run(acked())


FACTS = (Facts(probes=(fact("a", bad=True),)), 1_700_000_000.0)
