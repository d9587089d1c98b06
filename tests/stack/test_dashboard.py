"""The committed dashboard: as generated, and what Grafana needs to load it."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from grafana import overview, promql
from monitor.metrics import Metrics
from tests.stack.tools import DASHBOARD, filled

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def charts(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_the_committed_file_is_what_is_generated() -> None:
    assert DASHBOARD.read_text() == overview.text(), "run: make dashboards"


def test_queries_have_a_letter_each_and_panels_a_number(dashboard: dict[str, Any]) -> None:
    numbers = Counter(panel["id"] for panel in dashboard["panels"])
    assert set(numbers.values()) == {1}
    assert 0 not in numbers
    for panel in charts(dashboard):
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == list("ABCDEFG"[: len(letters)]), panel["title"]


def test_the_dashboard_has_an_address_and_asks_only_the_chosen_prometheus(
    dashboard: dict[str, Any],
) -> None:
    assert re.fullmatch("[a-z-]{1,40}", dashboard["uid"])
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "endpoint", "workload", "window"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for asked in (variables["endpoint"], variables["workload"], *charts(dashboard)):
        assert asked["datasource"] == SOURCE


def test_every_panel_says_what_it_is_and_none_overlap(dashboard: dict[str, Any]) -> None:
    places = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        xs = range(place["x"], place["x"] + place["w"])
        ys = range(place["y"], place["y"] + place["h"])
        assert xs.stop <= 24, panel["title"]
        places.append((panel["title"], xs, ys))
    for (one, xs, ys), (other, us, vs) in combinations(places, 2):
        apart = xs.stop <= us.start or us.stop <= xs.start
        assert apart or ys.stop <= vs.start or vs.stop <= ys.start, (one, other)
    titles = [title for title, _, _ in places]
    assert len(set(titles)) == len(titles)


def test_every_metric_in_a_query_is_one_that_we_export(dashboard: dict[str, Any]) -> None:
    metrics = Metrics()
    known = {"endpoint_info", *metrics._own.registry._names_to_collectors}
    known |= {family._name for family in metrics._families.all}
    for panel in charts(dashboard):
        for target in panel["targets"]:
            for name in re.findall(r"\bendpoint_\w+", filled(target["expr"])):
                bare = re.sub("_(bucket|sum|count|total)$", "", name)
                assert {name, bare} & known, name


def test_a_percentile_is_withheld_below_one_result_beyond_it(dashboard: dict[str, Any]) -> None:
    queries = [t["expr"] for panel in charts(dashboard) for t in panel["targets"]]
    guarded = [expr for expr in queries if "histogram_quantile" in expr]
    assert len(guarded) == 11
    for expr in guarded:
        found = re.fullmatch(r"histogram_quantile\((0\.\d+), .* and .* >= (\d+)", expr)
        assert found, expr
        assert int(found[2]) == promql.needed(float(found[1])) >= 1 / (1 - float(found[1])) - 1e-9
