import csv
import io
import json
import re
from pathlib import Path

import pytest

from monitor.config import load_sla
from monitor.report import FORMATS, Report, WhatIf, render
from monitor.report.evaluate import AVAILABLE, report_probe
from monitor.slo import Indicator, Slo
from probes.result import Outcome
from tests.monitor.report.stored import T0, slots

EVIL = '=HYPERLINK("http://evil")<script>alert(1)</script>'
SLA = Path(__file__).parents[3] / "sla" / "amazon-bedrock.yaml"


def made(name: str = "a", what_if: WhatIf | None = None) -> Report:
    outcomes = [Outcome.OK] * 117 + [Outcome.HTTP_5XX] * 3 + [Outcome.HTTP_RATE_LIMITED]
    stored = slots(outcomes, times={"ttft": [0.2] * 121}, skips=["overlap"])
    steady = Slo(name="steady", indicator=Indicator.CONSISTENCY, metric="ttft", threshold=3.0)
    slos = [AVAILABLE, Slo(name=name, objective=0.95), steady]
    period = (T0, T0 + 7260)
    probe = report_probe(
        (f"{name}/chat", name, "chat"), 60.0, stored, slos, period, [load_sla(SLA)]
    )
    return Report(since=T0 - 60, until=period[1], kept_since=T0, probes=(probe,), what_if=what_if)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_it_is_not(form: str) -> None:
    text = render(made(), form)
    said = "MLPerf Endpoints-style; not an MLPerf result, not verified by MLCommons"
    assert said in text or form == "csv"
    assert text.endswith("\n") or form == "html"


def test_the_table_tells_the_whole_story() -> None:
    text = render(made(), "table")
    for words in (
        "coverage 98.361 %: 120 valid of 122 slots",
        "availability of this period 97.500 % (95 %: ",
        "with 429 as bad 96.694 %",
        "in the long run 97.500 % (95 %: ",
        "from 1 outages",
        "longest outage 240 s +- 60 s, from 2026-12-01 01:57 UTC",
        "worst days (UTC) 2026-12-01 (3 of 120 bad)",
        "excluded http_rate_limited 1",
        "skipped overlap 1",
        "ok results from before are not kept",
        "under the vendor's rule",
        "under ours",
        "re-check before use",
    ):
        assert words.replace("240 s", "4 min") in text


def test_a_what_if_is_said_so() -> None:
    text = render(made(what_if=WhatIf(objective=0.95)), "table")
    assert "What if: objective 0.95 in place of the configured figures." in text


def test_json_carries_every_figure() -> None:
    found = json.loads(render(made(), "json"))
    [probe] = found["probes"]
    assert (probe["own"]["n"], probe["good"], probe["valid"]) == (120, 117, 120)
    assert [slo["name"] for slo in probe["slos"]] == ["availability", "a", "steady"]


def test_no_cell_of_the_csv_is_a_formula() -> None:
    for start in ("=", "+", "-", "@", "\t=", "\r="):
        text = render(made(start + "cmd|' /C calc'!A0"), "csv")
        for row in list(csv.reader(io.StringIO(text, newline="")))[1:]:
            assert not any(cell.lstrip().startswith(("=", "+", "@")) for cell in row)
            assert all(not cell.startswith("-") or float(cell) < 0 for cell in row)


def test_the_csv_has_a_line_an_slo_and_a_cell_a_column() -> None:
    head, *rows = csv.reader(io.StringIO(render(made(), "csv")))
    assert [len(row) for row in rows] == [len(head)] * 3
    first = dict(zip(head, rows[0], strict=True))
    assert (first["good"], first["valid"], first["met"]) == ("117", "120", "False")


def test_the_page_escapes_every_text_and_needs_nothing_else() -> None:
    page = render(made(EVIL), "html")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in render(made("a\x1b[2J"), "table")
