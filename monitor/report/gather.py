"""From the store to a report: reads one probe at a time, so that memory holds one."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.config import Config, SlaRule
from monitor.report.evaluate import AVAILABLE, Report, WhatIf, report_probe
from monitor.slo import applies
from monitor.store.periods import reading

NOTHING = WhatIf()


async def gather(
    config: Config,
    since: float,
    until: float,
    *,
    what_if: WhatIf = NOTHING,
    rules: Sequence[SlaRule] = (),
) -> Report:
    """Judge the stored history of every probe.

    A probe without an SLO is judged by availability of 99 %, so that there is something to ask
    what-if about; one that lists models has none.

    Args:
        config: Which probes, SLOs and database.
        since: Begin of the period, seconds since the epoch; cut to what retention keeps, as from
            before that only failures are left.
        until: Its end.
        what_if: Figures in place of the configured ones.
        rules: Vendors' rules to judge by as well.

    Raises:
        StoreError: The database does not exist or cannot be read.
    """
    kept_since = max(since, until - config.retention.results)
    probes = []
    async with reading(config.store_url) as periods:
        for probe in config.probes:
            endpoint, workload = probe.endpoint.name, probe.workload.name
            slots = await periods.slots(endpoint, workload, kept_since, until)
            slos = config.slos_of(probe)
            if not slos and applies(AVAILABLE, endpoint, workload, probe.workload.kind):
                slos = (AVAILABLE,)
            report = report_probe(
                (probe.id, endpoint, workload),
                probe.interval,
                slots,
                [what_if.applied(slo) for slo in slos],
                (kept_since, until),
                rules if probe.workload.kind != "models" else (),
            )
            probes.append(report)
    return Report(
        since=since,
        until=until,
        kept_since=kept_since,
        probes=tuple(probes),
        what_if=None if what_if == NOTHING else what_if,
        unjudged=tuple(
            f"{rule.vendor}, {rule.product}: {'; '.join(rule.incomplete)}"
            for rule in rules
            if not rule.terms
        ),
    )
