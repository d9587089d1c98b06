"""The wall clock is set while the monitor runs; the monotonic clock goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.monitored import Monitored, wait_for
from tests.faults.rig import running
from tests.figures import Figure
from tests.servers import reference_server, require

pytestmark = pytest.mark.slow

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
TTFT = 0.05
CONFIG = """
endpoints:
  a: {{url: "{url}", model: reference}}
workloads:
  chat: {{kind: chat, interval: 500ms, max_tokens: 4}}
  models: {{kind: models, interval: 400ms}}
"""


@dataclass
class Clock:
    """The wall clock of a monitor: this machine's plus an offset that can be changed."""

    monitor: Monitored
    file: Path
    offset: float = 0.0
    gaps: list[float] = field(default_factory=list)

    def step(self, seconds: float) -> None:
        """Set the clock; wait until every probe has gone on, and note how long that took."""
        before = self.newest()
        self.offset += seconds
        self.file.write_text(f"{self.offset:+g}")
        began = time.monotonic()
        wait_for(lambda: all(self.newest()[p] > before[p] for p in before), 15, every=0.02)
        self.gaps.append(time.monotonic() - began)
        time.sleep(1)  # two steps within half a second would count as one

    def newest(self) -> dict[str, int]:
        return dict(self.monitor.query("select probe, max(id) from results group by 1"))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clock]:
    require(LIBRARY, "Debian package faketime")
    folder = tmp_path_factory.mktemp("clock")
    file = folder / "offset"
    file.write_text("+0")
    env = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with (
        reference_server("--ttft", str(TTFT)) as server,
        running(folder, CONFIG.format(url=server.url), env=env) as monitor,
    ):
        wait_for(lambda: len(monitor.stored_counts()) == 2, 30)
        yield Clock(monitor, file)


@pytest.mark.parametrize("step", [3600, -3600, -20, 20])
def test_slots_go_on_after_a_step(clock: Clock, step: float) -> None:
    clock.step(step)
    # One interval until the next slot, a commit, and what a crowded machine adds.
    assert clock.gaps[-1] < 2.5
    for row in clock.monitor.status().values():
        assert row["availability"] is None or 0 <= row["availability"] <= 1
        assert row["coverage"] is None or 0 <= row["coverage"] <= 1
        assert row["outages"]["count"] == 0
        assert row["last"]["outcome"] == "ok"
    assert clock.monitor.health()[0] == 200
    assert clock.monitor.get("/")
    assert wait_for(lambda: clock.monitor.up("a/chat") == 1, 5)


def test_no_duration_knows_of_the_steps(clock: Clock, figure: Figure) -> None:
    steps = len(clock.gaps)
    figure(f"{steps} clock steps: every probe went on in {max(clock.gaps):.2f} s at most")
    rows = clock.monitor.query(
        "select ttft_s, e2e_s, schedule_lag_s, loop_lag_s from results where workload = 'chat'"
    )
    assert len(rows) > steps
    for ttft, e2e, schedule_lag, loop_lag in rows:
        assert TTFT <= ttft <= e2e < 2
        assert 0 <= schedule_lag < 2
        assert 0 <= loop_lag < 2
    assert {key[2] for key in clock.monitor.stored_counts()} == {"ok"}
    counted = "endpoint_monitor_clock_steps_total"
    wait_for(lambda: list(clock.monitor.samples(counted).values()) == [steps], 5)
    assert clock.monitor.stop() < 5
    assert clock.monitor.process.returncode == 0
    assert "Traceback" not in clock.monitor.log.read_text()
