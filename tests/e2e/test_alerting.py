"""An outage of the reference endpoint, told to a real Alertmanager and to a webhook."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.monitored import Monitored, monitored, wait_for
from tests.servers import Server, free_port, reference_server, require

pytestmark = pytest.mark.e2e

PAGED_WITHIN = 90.0
ALERTMANAGER = Path("/usr/bin/prometheus-alertmanager")

log = logging.getLogger(__name__)


class Hook:
    """A webhook's receiver; what came, with the time."""

    def __init__(self) -> None:
        self.came: list[tuple[float, dict[str, Any]]] = []
        came = self.came

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                came.append((time.monotonic(), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/PLANTED"

    def of(self, kind: str, alert: str) -> list[tuple[float, dict[str, Any]]]:
        return [
            (at, body)
            for at, body in list(self.came)
            if body["kind"] == kind and body["alerts"][0]["alert"] == alert
        ]


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@contextlib.contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    require(ALERTMANAGER.exists(), "prometheus-alertmanager")
    port, path = free_port(), folder / "alertmanager.yml"
    path.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    with (folder / "alertmanager.log").open("w") as log_file:
        process = subprocess.Popen(
            [
                ALERTMANAGER, f"--config.file={path}", f"--storage.path={folder}/am",
                f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
            ],
            stdout=log_file, stderr=log_file,
        )  # fmt: skip
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def active(base: str) -> dict[str, dict[str, Any]]:
    """Alerts that Alertmanager holds for active, by `alertname/workload`."""
    with urllib.request.urlopen(f"{base}/api/v2/alerts?active=true", timeout=5) as answer:
        found = json.load(answer)
    return {f"{a['labels']['alertname']}/{a['labels'].get('workload', '')}": a for a in found}


def refuse(server: Server, seconds: float) -> None:
    request = urllib.request.Request(
        server.url.removesuffix("/v1") + "/control",
        data=json.dumps({"refuse": seconds}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=5).close()


def config(server: Server, hook: Hook, manager: str | None, interval: str = "5s") -> str:
    told = f"  ops: {{type: webhook, url: '{hook.url}', secret: abc}}\n"
    if manager is not None:
        told += f"  am: {{type: alertmanager, url: '{manager}'}}\n"
    return (
        f"endpoints:\n  ref: {{url: '{server.url}', model: reference,"
        " runbook_url: 'http://wiki/ref', labels: {owner: ops}}\n"
        f"workloads:\n  chat: {{kind: chat, interval: {interval}, max_tokens: 4}}\n"
        f"notify:\n{told}"
    )


@pytest.mark.parametrize("interval", ["5s", pytest.param("15s", marks=pytest.mark.slow)])
def test_an_outage_is_in_alertmanager_and_webhook_within_90_s_and_resolved_later(
    interval: str, tmp_path: Path, hook: Hook
) -> None:
    with (
        reference_server("--ttft", "0.02", "--gap", "0.001", "--tokens", "4") as server,
        alertmanager(tmp_path) as manager,
        monitored(tmp_path, config(server, hook, manager, interval)) as monitor,
    ):
        wait_for(lambda: monitor.up("ref/chat") == 1.0, 60)  # a first result may be tainted
        assert active(manager) == {}
        began = time.monotonic()
        seconds = 75.0 if interval == "15s" else 30.0
        refuse(server, seconds)
        wait_for(lambda: hook.of("firing", "Down/ref/chat"), PAGED_WITHIN)
        posted = wait_for(lambda: active(manager).get("Down/chat"), 10)
        (at, body), *doubled = hook.of("firing", "Down/ref/chat")
        assert doubled == []
        paged = at - began
        assert posted["labels"]["severity"] == "page"
        assert posted["annotations"]["runbook_url"] == "http://wiki/ref"
        assert "Last error: connect:" in body["text"]
        assert "Owner: ops" in body["text"]
        series, down = "endpoint_monitor_alerts_firing", (("alert", "Down"), ("severity", "page"))
        wait_for(lambda: monitor.samples(series).get(down) == 1.0, 5)
        assert "Alert Down/ref/chat" in monitor.get("/")
        wait_for(lambda: hook.of("resolved", "Down/ref/chat"), seconds + 60)
        wait_for(lambda: not active(manager), 20)
        ended = hook.of("resolved", "Down/ref/chat")[0][0] - began - seconds
        log.info("interval=%s paged_s=%.1f resolved_s=%.1f", interval, paged, ended)
        assert paged < PAGED_WITHIN
        assert [body["kind"] for _, body in hook.came] == ["firing", "resolved"]
        assert "PLANTED" not in monitor.log.read_text() + monitor.get("/metrics")


def test_a_kill_while_firing_makes_no_new_alert_and_its_end_is_told(
    tmp_path: Path, hook: Hook
) -> None:
    """CASES M25: the duration goes on over the restart."""
    with reference_server("--ttft", "0.02", "--gap", "0.001", "--tokens", "4") as server:
        text = config(server, hook, None, "2s")
        with monitored(tmp_path, text) as monitor:
            wait_for(lambda: monitor.up("ref/chat") == 1.0, 60)  # a first result may be tainted
            server.kill()
            wait_for(lambda: hook.of("firing", "Down/ref/chat"), 30)
            wait_for(lambda: _delivered(monitor) == 1, 5)
            monitor.process.send_signal(signal.SIGKILL)
            monitor.process.wait()
        with monitored(tmp_path, text) as monitor:
            wait_for(lambda: monitor.up("ref/chat") == 0.0, 20)
            time.sleep(5)
            assert [body["kind"] for _, body in hook.came] == ["firing"]
            server.start()
            (_, ended), *_ = wait_for(lambda: hook.of("resolved", "Down/ref/chat"), 30)
        (_, began), *_ = hook.of("firing", "Down/ref/chat")
        assert ended["incident"] == began["incident"]
        assert ended["since"] == began["since"]
        assert len(hook.came) == 2


def _delivered(monitor: Monitored) -> int:
    ((number,),) = monitor.query("select count(*) from outbox where done_at is not null")
    return int(number)
