"""A report as text, JSON, CSV and one self-contained HTML page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

import jinja2

from monitor.report.evaluate import ProbeReport, Report, SloReport
from monitor.report.sla import SlaReport
from monitor.slo import Estimate

Cells = tuple[str, ...]

_FORMULA = ("=", "+", "-", "@")


def render(report: Report, form: str) -> str:
    """Return the report in one of `FORMATS`."""
    return FORMATS[form](report)


def to_table(report: Report) -> str:
    """Return text for a terminal."""
    lines = [*_head(report)]
    for probe in report.probes:
        lines += ["", f"== {plain(probe.id)}, every {probe.interval:g} s", *_facts(probe)]
        if probe.slos:
            lines += _aligned([_SLO_HEAD, *(_slo_cells(slo) for slo in probe.slos)])
        for sla in probe.slas:
            lines += _sla_lines(sla)
    return "\n".join(lines) + "\n"


def to_json(report: Report) -> str:
    """Return the whole report as JSON; times are seconds since the epoch, UTC."""
    return json.dumps(asdict(report), indent=2) + "\n"


def to_csv(report: Report) -> str:
    """Return one line an SLO and probe. No cell begins a formula in a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        "probe endpoint workload slo objective since until good valid attainment met"
        " budget_remaining scheduled coverage availability availability_low availability_high"
        " long_run_low long_run_high outages longest_outage_s".split()
    )
    for probe in report.probes:
        for slo in probe.slos:
            writer.writerow([_guarded(cell) for cell in _csv_cells(probe, slo)])
    return out.getvalue()


def to_html(report: Report) -> str:
    """Return one page that needs nothing else; every text is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(_PAGE)
    return page.render(
        report=report,
        head=list(_head(report)),
        slo_head=_SLO_HEAD,
        slo_cells=_slo_cells,
        facts=_facts,
        sla_lines=_sla_lines,
    )


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "table": to_table,
    "json": to_json,
    "csv": to_csv,
    "html": to_html,
}


def plain(text: str) -> str:
    """Return one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def _guarded(cell: object) -> object:
    """Keep a spreadsheet from taking a text for a formula (OWASP: CSV injection)."""
    if not isinstance(cell, str):
        return cell
    text = plain(cell)  # Python's writer would let a lone carriage return end the line
    return "'" + text if text.lstrip().startswith(_FORMULA) else text


def _head(report: Report) -> Iterator[str]:
    yield f"Report of {_at(report.since)} to {_at(report.until)} UTC"
    if report.kept_since > report.since:
        yield f"Judged from {_at(report.kept_since)} on: ok results from before are not kept."
    if report.what_if is not None:
        given = asdict(report.what_if).items()
        asked = [f"{name} {value:g}" for name, value in given if value is not None]
        yield f"What if: {', '.join(asked)} in place of the configured figures."
    for text in report.unjudged:
        yield f"Not judged: {plain(text)}"
    yield report.note


def _facts(probe: ProbeReport) -> list[str]:
    mine, strict = _estimate(probe.own), _percent(probe.strict)
    long = _estimate(probe.long_run)
    lines = [
        f"coverage {_percent(probe.coverage)}: {probe.valid:,} valid of {probe.scheduled:,} slots",
        f"availability of this period {mine}, n {probe.valid:,}; with 429 as bad {strict}",
        f"availability in the long run {long}, from {probe.outage_count} outages",
    ]
    if probe.longest_s is not None:
        worst = probe.outages[0]
        lines.append(
            f"longest outage {_span(probe.longest_s)} +- {probe.interval:g} s, "
            f"from {_at(worst.at)} UTC"
        )
    if probe.worst_days:
        days = (f"{d.date} ({d.valid - d.good} of {d.valid} bad)" for d in probe.worst_days)
        lines.append(f"worst days (UTC) {', '.join(days)}")
    for name, tally in (("excluded", probe.excluded), ("skipped", probe.skipped)):
        if tally:
            lines.append(f"{name} {', '.join(f'{why} {n:,}' for why, n in tally.items())}")
    return lines


_SLO_HEAD: Cells = (
    "SLO", "objective", "from", "good", "valid", "attained", "met", "budget left", "burns",
)  # fmt: skip


def _slo_cells(slo: SloReport) -> Cells:
    attained = _percent(slo.attainment) if slo.ratio else _times(slo.attainment)
    if slo.hour_spread is not None:
        attained += f", by hour {slo.hour_spread:.2f}x"
    fired = ", ".join(f"{pair} {n}" for pair, n in slo.fired.items() if n)
    return (
        plain(slo.name),
        slo.what,
        _at(slo.since),
        f"{slo.good:,}" if slo.ratio else "-",
        f"{slo.valid:,}",
        attained,
        {True: "yes", False: "NO", None: "-"}[slo.met],
        _percent(slo.budget_remaining),
        fired or "-",
    )


def _sla_lines(sla: SlaReport) -> list[str]:
    month = f"{_at(sla.since)} to {_at(sla.until)} UTC" + ", not the whole month" * (not sla.whole)
    verdict = {True: "met", False: "NOT met", None: "no result"}[sla.met]
    lines = [
        f"SLA {sla.vendor_name}, {sla.product}: {sla.term} {100 * sla.objective:g} %, {month}",
        f"  under the vendor's rule {_estimate(sla.vendor)}, n {sla.n:,} {sla.unit}: {verdict}",
        f"  under ours {_estimate(sla.ours)}",
        f"  {_credit(sla)}",
    ]
    if sla.recheck:
        lines.append(f"  re-check before use: {plain(sla.source)}, read {sla.read_at}")
    lines += [f"  not known: {plain(text)}" for text in sla.incomplete]
    lines += [f"  assumed: {plain(text)}" for text in sla.assumed]
    return lines


def _credit(sla: SlaReport) -> str:
    if sla.credits is None:
        return "credit: the ladder is not known"
    best, middle, worst = (f"{100 * share:g} %" for share in sla.credits)
    claim = "claimable" if sla.claimable else "not claimable on these figures alone"
    until = f", by {_at(sla.claim_until)} UTC" if sla.claim_until is not None else ""
    return (
        f"credit {middle} by the estimate, {best} and {worst} at the ends of its interval: "
        f"{claim}{until}"
    )


def _csv_cells(probe: ProbeReport, slo: SloReport) -> list[object]:
    mine, long = probe.own, probe.long_run
    return [
        probe.id,
        probe.endpoint,
        probe.workload,
        slo.name,
        slo.objective,
        _iso(slo.since),
        _iso(slo.until),
        slo.good,
        slo.valid,
        slo.attainment,
        slo.met,
        slo.budget_remaining,
        probe.scheduled,
        probe.coverage,
        mine and mine.value,
        mine and mine.low,
        mine and mine.high,
        long and long.low,
        long and long.high,
        probe.outage_count,
        probe.longest_s,
    ]


def _aligned(rows: Iterable[Cells]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    interval = f"{_percent(estimate.low)} to {_percent(estimate.high)}"
    return f"{_percent(estimate.value)} (95 %: {interval})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3f} %"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Endpoint report</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse; margin: .5em 0 }
th, td { text-align: left; padding: .2em .8em; border-bottom: 1px solid #ccc }
pre { white-space: pre-wrap }
</style></head><body>
<h1>Endpoint report</h1>
{% for line in head %}<p>{{ line }}</p>
{% endfor %}
{% for probe in report.probes %}
<h2>{{ probe.id }}</h2>
<ul>{% for line in facts(probe) %}<li>{{ line }}</li>{% endfor %}</ul>
{% if probe.slos %}<table>
<tr>{% for cell in slo_head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for slo in probe.slos %}<tr>{% for cell in slo_cells(slo) %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
{% for sla in probe.slas %}<pre>{{ sla_lines(sla) | join("\\n") }}</pre>
{% endfor %}
{% endfor %}
</body></html>
"""
