"""The dashboard "Endpoint performance": `python -m grafana.overview` writes its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as Series
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana import promql as q
from probes.result import Verdict

FILE = Path(__file__).parent / "dashboards" / "overview.json"
UID = "endpoint-monitor-overview"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

_DAY = "24h"
_QUANTILES = (0.5, 0.9, 0.99)
_PROBE = "{{endpoint}}/{{workload}}"
_GREEN, _ORANGE, _RED = "green", "orange", "red"

Panel = Series | Table | stat.Panel | statetimeline.Panel


def text() -> str:
    """Return the dashboard as it is committed."""
    return json.dumps(build().build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def build() -> dashboard.Dashboard:
    """Return the dashboard, row by row."""
    made = (
        dashboard.Dashboard("Endpoint performance")
        .uid(UID)
        .description(
            "Probes of OpenAI-compatible endpoints. MLPerf Endpoints-style; not an MLPerf result, "
            "not verified by MLCommons."
        )
        .tags(["endpoint-monitor", "llm"])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-6h", "now")
        .variables(_variables())
    )
    numbers = count(1)
    for title, panels in _rows().items():
        made.with_row(dashboard.Row(title).id(next(numbers)))
        for panel in panels:
            made.with_panel(panel.id(next(numbers)).datasource(SOURCE))
    return made


def _rows() -> Mapping[str, Iterator[Panel]]:
    return {
        "Now": _now(),
        "The last 24 hours": _day(),
        "How fast": _latency(),
        "What happened": _events(),
        "The monitor itself": _monitor(),
    }


# --- variables --------------------------------------------------------------------------------


def _variables() -> list[Builder[VariableModel]]:
    windows = "10m,1h,6h,1d"
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _labels("endpoint", "label_values(endpoint_info, endpoint)"),
        _labels(
            "workload",
            'label_values(endpoint_probe_results_total{endpoint=~"$endpoint"}, workload)',
        ),
        dashboard.CustomVariable("window")
        .label("Window")
        .description("How far back each point of the percentiles and counts looks.")
        .values(windows)
        .options([VariableOption(w == "1h", w, w) for w in windows.split(",")])
        .current(VariableOption(selected=True, text="1h", value="1h")),
    ]


def _labels(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query({"query": query, "refId": "labels"})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


# --- panels -----------------------------------------------------------------------------------


def _now() -> Iterator[Panel]:
    seen = f"count by ({q.BY_PROBE}) ({q.results()})"
    up = q.series("endpoint_up")
    silent = f"count({seen} unless on ({q.BY_PROBE}) {up}) or 0 * count({seen})"
    yield _queries(
        _numbers("Probes")
        .description(
            "By the last valid result. No verdict: nothing valid for long, or the key, quota or "
            "model is wrong on our side."
        )
        .override_by_name("up", [_color(_GREEN)])
        .override_by_name("down", [_color(_RED)])
        .override_by_name("no verdict", [_color(_ORANGE)])
        .span(5),
        {"up": f"sum({up})", "down": f"count({up}) - sum({up})", "no verdict": silent},
    )
    states = {
        "1": ValueMappingResult(text="up", color=_GREEN, index=0),
        "0": ValueMappingResult(text="down", color=_RED, index=1),
    }
    yield _queries(
        statetimeline.Panel()
        .title("Up or down")
        .description("A gap is no verdict: the monitor removes what it does not know.")
        .mappings([ValueMap(options=states)])
        .show_value(kinds.VisibilityMode.NEVER)
        .row_height(0.8)
        .span(13)
        .height(7),
        {_PROBE: f"min by ({q.BY_PROBE}) ({up})"},
    )
    last = q.series("endpoint_probe_last_success_timestamp_seconds")
    yield _queries(
        _numbers("Since the last success")
        .description("Wall clock of the monitor against that of Prometheus.")
        .unit("s")
        .thresholds(_steps({None: _GREEN, 900: _ORANGE, 3600: _RED}))
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .span(6),
        {_PROBE: f"time() - max by ({q.BY_PROBE}) ({last})"},
    )


def _day() -> Iterator[Panel]:
    valid = q.results(Verdict.GOOD, Verdict.BAD)
    columns = {
        "availability": q.availability(_DAY),
        "n": q.total(valid, _DAY),
        "rate limited": q.total(q.results(Verdict.RATE_LIMITED), _DAY),
        "misconfigured": q.total(q.results(Verdict.MISCONFIGURED), _DAY),
        "excluded": q.total(q.series("endpoint_probe_excluded_total"), _DAY),
    }
    table = (
        Table()
        .title("Availability")
        .description(
            "Good / valid results, n of them. Unlike on the monitor's own page, results that it "
            "excludes (tainted, unknown) are in n here, as the counters do not tell them apart."
        )
        .override_by_name(
            "availability",
            [
                DynamicConfigValue("unit", "percentunit"),
                DynamicConfigValue("decimals", 2),
                DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
                DynamicConfigValue("thresholds", _AVAILABILITY.build()),
            ],
        )
        .span(14)
        .height(8)
    )
    yield _table(table, columns)
    yield _table(
        Table()
        .title("Results by outcome")
        .sort_by([common.TableSortByFieldState().display_name("results").desc(desc=True)])
        .span(10)
        .height(8),
        {"results": f"{q.total(q.results(), _DAY, q.BY_PROBE + ', outcome')} > 0"},
    )


def _latency() -> Iterator[Panel]:
    for figure, title, more in (
        ("ttft", "TTFT", ()),
        ("tpot", "TPOT", ("token_source",)),
        ("e2e", "E2E", ()),
    ):
        family = f"endpoint_probe_{figure}_seconds"
        legend = " ".join((_PROBE, *(f"{{{{{label}}}}}" for label in more)))
        yield _queries(
            _lines(
                f"{title}, from buckets, over $window",
                "Interpolated between the histogram's bounds. Withheld: a p99 below 100 results, "
                "a p90 below 10.",
            ).unit("s"),
            {f"{legend} p{100 * p:g}": q.quantile(family, p, *more) for p in _QUANTILES},
        )
        exact = q.series(f"endpoint_{figure}_quantile_seconds", 'window="1h"')
        yield _queries(
            _lines(
                f"{title}, exact, over the last hour",
                "The monitor's own quantiles of the single results.",
            ).unit("s"),
            {f"{_PROBE} q{{{{quantile}}}}": f"max by ({q.BY_PROBE}, quantile) ({exact})"},
        )
    yield _queries(
        _lines("Results behind the percentiles, in $window", "ok and not excluded")
        .min(0)
        .span(24),
        {
            _PROBE: f"sum by ({q.BY_PROBE}) "
            f"(increase({q.series('endpoint_probe_e2e_seconds_count')}[$window]))"
        },
    )


def _events() -> Iterator[Panel]:
    yield _queries(
        _stack("Results by outcome, in $window", "Excluded ones too.").min(0),
        {"{{outcome}}": q.total(q.results(), "$window", "outcome")},
    )
    yield _queries(
        _stack(
            "Phases, mean over $window",
            "dns, connect and tls exist for fresh connections only. Phases with fewer than ten "
            "results are withheld.",
        ).unit("s"),
        {"{{phase}}": q.mean("endpoint_probe_phase_seconds", "phase", 10)},
    )
    tokens = q.series("endpoint_probe_output_tokens_total")
    yield _queries(
        _lines(
            "Output tokens a second, mean over $window",
            "What the probes received: the cost of watching, not the speed of the endpoint.",
        ).min(0),
        {
            f"{_PROBE} {{{{token_source}}}}": f"sum by ({q.BY_PROBE}, token_source) "
            f"(rate({tokens}[$window]))"
        },
    )
    cost = q.series("endpoint_probe_cost_total")
    yield _queries(
        _lines(
            "Cost of the probes in 24 hours",
            "In the currency of each endpoint's price; nothing for endpoints without one.",
        ).min(0),
        {_PROBE: f"sum by ({q.BY_PROBE}) (increase({cost}[{_DAY}]))"},
    )


def _monitor() -> Iterator[Panel]:
    lag = "endpoint_monitor_schedule_lag_seconds"
    yield _queries(
        _lines("Schedule lag over $window", "Start of a probe minus its slot.").unit("s").span(8),
        {f"p{100 * p:g}": q.own_quantile(lag, p) for p in (0.5, 0.99)},
    )
    yield _queries(
        _lines(
            "Event loop of the prober, worst of a minute",
            "A result during which it lagged by more than 10 ms, and 5 % of its TTFT, is tainted.",
        )
        .unit("s")
        .span(8),
        {
            f"{name} {{{{instance}}}}": f"max by (instance) (endpoint_monitor_{of}_seconds)"
            for name, of in (("loop lag", "event_loop_lag"), ("garbage collection", "gc_pause"))
        },
    )
    yield _queries(
        _stack("Slots by status, in $window", "All probes. Whatever is not `result` was skipped.")
        .min(0)
        .span(8),
        {"{{status}}": q.total("endpoint_monitor_slots_total", "$window", "status")},
    )
    yield _queries(
        _lines("Store queue", "Rows not yet committed.").min(0).span(12),
        {"{{instance}}": "sum by (instance) (endpoint_monitor_store_queue_length)"},
    )
    lost = {
        "prober restarts": "prober_restarts_total",
        "rows dropped": "rows_dropped_total",
        "clock steps": "clock_steps_total",
    }
    yield _queries(
        _numbers("What went wrong in 24 hours")
        .decimals(0)
        .thresholds(_steps({None: _GREEN, 0.5: _ORANGE}))
        .span(12),
        {name: f"sum(increase(endpoint_monitor_{of}[{_DAY}]))" for name, of in lost.items()},
    )


# --- parts ------------------------------------------------------------------------------------


def _queries(panel: Panel, by_legend: Mapping[str, str]) -> Panel:
    """Add the queries A, B, ...: the library leaves `refId` empty, and then one wins."""
    for letter, (legend, expr) in zip(ascii_uppercase, by_legend.items(), strict=False):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(letter)
        # A single number is that of now, not the last one of a series that may have ended.
        panel.with_target(query.instant() if isinstance(panel, stat.Panel) else query.range())
    return panel


def _table(panel: Table, columns: Mapping[str, str]) -> Table:
    """Add a query for each column; rows with the same labels become one."""
    names = dict(zip(ascii_uppercase, columns, strict=False))
    for letter, name in names.items():
        panel.with_target(
            prometheus.Dataquery()
            .expr(columns[name])
            .ref_id(letter)
            .format(PromQueryFormat.TABLE)
            .instant()
        )
    # A single query's column is called Value, one of several Value #A.
    renamed = {f"Value #{letter}" if len(names) > 1 else "Value": n for letter, n in names.items()}
    hidden = {"excludeByName": {"Time": True}, "renameByName": renamed}
    panel.decimals(0).show_header(show_header=True)
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    return panel.with_transformation(DataTransformerConfig(id_val="organize", options=hidden))


def _numbers(title: str) -> stat.Panel:
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = stat.Panel().title(title).reduce_options(last).height(7)
    return panel.graph_mode(kinds.BigValueGraphMode.NONE)


def _lines(title: str, description: str) -> Series:
    return (
        Series()
        .title(title)
        .description(description)
        .line_width(1)
        .show_points(kinds.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(show_legend=True)
            .display_mode(kinds.LegendDisplayMode.LIST)
            .placement(kinds.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI))
        .span(12)
        .height(7)
    )


def _stack(title: str, description: str) -> Series:
    stacking = common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A")
    return _lines(title, description).fill_opacity(60).stacking(stacking)


def _steps(colors: Mapping[float | None, str]) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value, color) for value, color in colors.items()]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _color(name: str) -> DynamicConfigValue:
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": name})


_AVAILABILITY = _steps({None: _RED, 0.99: _ORANGE, 0.999: _GREEN})


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
