from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.link import Skip
from monitor.slo import Counts, Indicator, Slices, Slo, classify
from monitor.store import Store, StoreError
from monitor.store.periods import EXCLUDED, OUTCOMES, Periods, reading
from probes.result import Excluded, Outcome
from tests.monitor.rows import result_row, skip_row

T0 = 1_796_083_200.0

SLOS = [
    *(Slo(name=i.value, indicator=i) for i in Indicator if i is not Indicator.LATENCY),
    Slo(name="own", count_429=True),
    Slo(name="fast", indicator=Indicator.LATENCY, metric="ttft", threshold=0.25),
    Slo(name="even", indicator=Indicator.LATENCY, metric="tpot", threshold=0.05, count_429=True),
]


def rows() -> list[tuple[float, Outcome, Excluded | None, dict[str, float | None]]]:
    """Every outcome, excluded and not, with times below, at, above and without a threshold."""
    times = [{}, {"ttft": 0.1, "tpot": 0.05}, {"ttft": 0.25}, {"ttft": 0.3, "tpot": 0.06}]
    return [
        (T0 + 7.0 * n, outcome, excluded, dict(some))
        for n, (outcome, excluded, some) in enumerate(
            (o, e, t) for o in Outcome for e in (None, Excluded.TAINTED) for t in times
        )
    ]


@pytest.fixture
async def periods(store_url: str) -> AsyncIterator[Periods]:
    store = await Store.open(store_url)
    for seq, (at, outcome, excluded, times) in enumerate(rows()):
        details: dict[str, Any] = {f"{name}_s": value for name, value in times.items()}
        row = result_row(seq, at, outcome, prompt_tokens=seq, **details)
        store.put_result(row, boot="b", site="here", excluded=excluded)
    store.put_result(result_row(900, T0, endpoint="other"), boot="b", site="here")
    for seq, reason in enumerate((Skip.OVERLAP, Skip.BUDGET, Skip.OVERLAP), 901):
        skip = skip_row(seq, T0 + seq - 901, reason)
        store.put_skip(skip, boot="b", site="here", endpoint="a", workload="chat")
    await store.flush()
    await store.close()
    async with reading(store_url) as opened:
        yield opened


async def test_slots_come_back_in_order_with_all_that_judges_them(periods: Periods) -> None:
    slots = await periods.slots("a", "chat", T0, T0 + 1e6)
    expected = rows()
    assert slots.at.tolist() == [row[0] for row in expected]
    assert [OUTCOMES[code] for code in slots.outcome] == [row[1] for row in expected]
    assert [EXCLUDED[code] for code in slots.excluded] == [row[2] for row in expected]
    ttft = [row[3].get("ttft") for row in expected]
    assert [None if np.isnan(v) else v for v in slots.times["ttft"]] == ttft
    assert slots.prompt_tokens.tolist() == list(range(len(expected)))
    assert slots.skips == {"budget": 1, "overlap": 2}


async def test_a_stretch_holds_its_begin_and_not_its_end(periods: Periods) -> None:
    slots = await periods.slots("a", "chat", T0 + 7, T0 + 21)
    assert slots.at.tolist() == [T0 + 7, T0 + 14]
    whole = await periods.slots("a", "chat", T0, T0 + 1e6)
    part = whole.between(T0 + 1, T0 + 8)
    assert part.at.tolist() == [T0 + 7]
    assert part.skips == {"budget": 1, "overlap": 1}


@pytest.mark.parametrize("slo", SLOS, ids=lambda slo: slo.name)
async def test_the_database_counts_as_we_classify(slo: Slo, periods: Periods) -> None:
    expected: dict[float, Counts] = {}
    for at, outcome, excluded, times in rows():
        good = classify(slo, outcome, excluded, times)
        if good is not None:
            minute = at // 60 * 60
            expected[minute] = expected.get(minute, Counts()) + Counts(int(good), 1)
    assert dict(await periods.counts("a", "chat", slo, T0, T0 + 1e6)) == expected


async def test_slices_are_counted_by_their_own_length(periods: Periods) -> None:
    slo = Slo(name="s", slices=Slices(seconds=300, target=0.9))
    found = await periods.counts("a", "chat", slo, T0, T0 + 1e6)
    assert {at % 300 for at, _ in found} == {0.0}
    assert sum((counts for _, counts in found), Counts()).valid > 0


async def test_a_probe_without_results_has_none(periods: Periods) -> None:
    slots = await periods.slots("nobody", "chat", T0, T0 + 1e6)
    assert (len(slots.at), slots.skips) == (0, {})
    assert await periods.counts("nobody", "chat", SLOS[0], T0, T0 + 1e6) == []


async def test_a_database_that_does_not_exist_is_one_line_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.db: no such file"):
        async with reading(f"sqlite:///{tmp_path}/none.db"):
            pass
    assert not (tmp_path / "none.db").exists()
