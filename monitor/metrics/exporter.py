"""From rows to the exposition.

Theory of operation. One thread, the loop's, observes; another renders. Observing marks a probe as
changed by appending to a deque, rendering empties it first: what changes while a probe is being
rendered is rendered again the next time. Dictionaries are copied before they are walked.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Counter, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from monitor.history import History
from monitor.link import Heartbeat, ProbePlan, ResultRow, SkipRow
from monitor.metrics.families import INFO_LABELS, Families, Own, info_family
from monitor.metrics.series import Key, ProbeSeries, braced, header
from monitor.slo import Standing
from probes.result import Excluded, Outcome, ProbeResult

_PHASES = ("dns", "connect", "tls", "send", "wait")
_WINDOW, _WINDOW_S = "1h", 3600.0
_REFRESH_S = 30.0  # a window moves on even when no result comes
_BEATS = 60  # a minute of them


class Metrics:
    """Everything at /metrics.

    Attributes:
        content_type: Of what `render` returns.
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        *,
        version: str = "unknown",
        thresholds: Mapping[str, Iterable[float]] | None = None,
        max_lines: int = 200_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the families.

        Args:
            version: Of the program.
            thresholds: SLO thresholds in seconds by metric (`ttft`, `tpot`, `e2e`); each becomes a
                bound of that histogram for every probe, as sums over probes need equal bounds.
            max_lines: Cap on the lines of probes; probes past it are left out and counted.
            clock: Wall clock, seconds since the epoch.
        """
        self._clock = clock
        self._max_lines = max_lines
        self._families = Families(thresholds or {})
        self._headers = {family: header(family) for family in self._families.all}
        # Kept as gauges, as we know the values; exposed as summaries, as quantiles over a sliding
        # window are a summary's, and promtool refuses the label in any other type.
        for family in self._families.quantiles.values():
            self._headers[family] = header(family, "summary")
        self._info_header = header(info_family())
        self._own = Own(version)
        self._probes: dict[Key, ProbeSeries] = {}
        self._infos: dict[str, str] = {}
        self._changed: deque[Key] = deque()
        self._lags: deque[float] = deque(maxlen=_BEATS)
        self._pauses: deque[float] = deque(maxlen=_BEATS)
        self._totals: dict[Counter, tuple[str, int]] = {}
        self._alerts: set[tuple[str, str]] = set()

    def watch(
        self, plan: ProbePlan, history: History | None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Declare a probe: where its window quantiles come from, and its endpoint's labels."""
        probe = self._probe(_key(plan))
        probe.history = history
        probe.reasons = probe.reasons or plan.workload.kind == "reasoning"
        known = {"model": plan.endpoint.model or "", **(labels or {})}
        info = {name: str(known.get(name, "")) for name in INFO_LABELS}
        self._infos[plan.endpoint.name] = braced({"endpoint": plan.endpoint.name, **info})

    def forget(self, plan: ProbePlan) -> None:
        """Remove every series of a probe, and its endpoint's info with the last of them."""
        probe = self._probes.pop(_key(plan), None)
        if probe is not None:
            probe.drop_all()
        if not any(endpoint == plan.endpoint.name for endpoint, _ in self._probes):
            self._infos.pop(plan.endpoint.name, None)

    def observe(self, row: ResultRow, excluded: Excluded | None = None) -> None:
        """Count a result; `excluded` overrides what the result says of itself.

        Everything counts as a result, as tokens and as money; latencies are of ok results that
        are not excluded.
        """
        result, families = row.result, self._families
        key, excluded = (result.endpoint, result.workload), excluded or result.excluded
        probe = self._probe(key)
        probe.child(families.results, outcome=result.outcome.value).inc()
        self._count_use(probe, result)
        if result.outcome is Outcome.OK:
            probe.child(families.last_success).set(result.started_at)
        if excluded is not None:
            probe.child(families.excluded, reason=excluded.value).inc()
        elif result.outcome is Outcome.OK:
            self._observe_times(probe, result)
        self._own.slots.labels("result").inc()
        if result.schedule_lag_s is not None:
            self._own.schedule_lag.observe(result.schedule_lag_s)
        self._changed.append(key)

    def skip(self, row: SkipRow) -> None:
        """Count a slot without a result."""
        self._own.slots.labels(row.reason.value).inc()

    def beat(self, beat: Heartbeat) -> None:
        """Take the prober's account of itself."""
        self._lags.append(beat.loop_lag)
        self._pauses.append(beat.gc_pause)
        self._own.loop_lag.set(max(self._lags))
        self._own.gc_pause.set(max(self._pauses))
        self._raise(self._own.dropped.labels("link"), beat.dropped, beat.boot)
        self._raise(self._own.clock_steps, beat.clock_steps, beat.boot)

    def set_up(self, plan: ProbePlan, value: int | None) -> None:
        """Set `endpoint_up`; None removes it, for it would freeze."""
        key = _key(plan)
        probe, family = self._probe(key), self._families.up
        if value == probe.up:
            return
        probe.up = value
        if value is None:
            probe.drop(family)
        else:
            probe.child(family).set(value)
        self._changed.append(key)

    def count_slo(self, plan: ProbePlan, slo: str, *, good: bool) -> None:
        """Count an event that is valid for an SLO."""
        key, families = _key(plan), self._families
        probe = self._probe(key)
        probe.child(families.slo_valid, slo=slo).inc()  # first: good never exceeds valid
        probe.child(families.slo_good, slo=slo).inc(good)
        self._changed.append(key)

    def set_slos(self, plan: ProbePlan, standings: Mapping[str, Standing]) -> None:
        """Set budgets and burn rates of a probe, by SLO; what is None or left out is removed."""
        key, families = _key(plan), self._families
        probe = self._probe(key)
        left = {(n,): s.remaining for n, s in standings.items() if s.remaining is not None}
        rates = {(n, w): rate for n, s in standings.items() for w, rate in s.rates.items()}
        probe.drop(families.slo_budget, keep=left)
        probe.drop(families.slo_burn, keep=rates)
        for (slo,), remaining in left.items():
            probe.child(families.slo_budget, slo=slo).set(remaining)
        for (slo, window), rate in rates.items():
            probe.child(families.slo_burn, slo=slo, window=window).set(rate)
        self._changed.append(key)

    def set_store(self, queue_length: int, dropped: int) -> None:
        """Set what the store says of itself; `dropped` counts since the start."""
        self._own.queue.set(queue_length)
        self._raise(self._own.dropped.labels("store"), dropped)

    def set_restarts(self, total: int) -> None:
        """Set how often the prober was replaced since the start."""
        self._raise(self._own.restarts, total)

    def set_alerts(self, firing: Mapping[tuple[str, str], int], oldest_s: float) -> None:
        """Set the alerts that fire, by name and severity, and the age of the oldest notice."""
        self._own.outbox_oldest.set(oldest_s)
        for gone in self._alerts - firing.keys():
            self._own.alerts.labels(*gone).set(0)
        for key, number in firing.items():
            self._own.alerts.labels(*key).set(number)
        self._alerts |= firing.keys()

    def render(self) -> bytes:
        """Return the exposition. Made to run in a thread beside the one that observes."""
        probes = dict(self._probes)
        for key in self._stale(probes):
            probes[key].render()
        texts = [probe.text for probe in self._within_cap(probes.values())]
        infos = self._infos.copy().values()
        parts = [self._info_header, *(f"endpoint_info{labels} 1.0\n" for labels in infos)]
        for family, head in self._headers.items():
            if lines := [text[family] for text in texts if family in text]:
                parts += [head, *lines]
        return "".join(parts).encode("utf-8", "replace") + generate_latest(self._own.registry)

    def _probe(self, key: Key) -> ProbeSeries:
        probe = self._probes.get(key)
        if probe is None:
            probe = self._probes[key] = ProbeSeries(key)
        return probe

    def _count_use(self, probe: ProbeSeries, result: ProbeResult) -> None:
        tokens, source = result.output_tokens, result.output_tokens_source
        if tokens is not None and source is not None:
            probe.child(self._families.tokens, token_source=source).inc(tokens)
        # The cost may be the server's own word; a counter must neither fall nor become NaN.
        if result.cost is not None and 0 <= result.cost < math.inf:
            probe.child(self._families.cost).inc(result.cost)

    def _observe_times(self, probe: ProbeSeries, result: ProbeResult) -> None:
        families, source = self._families, result.output_tokens_source
        if result.ttft_s is not None:
            probe.child(families.ttft).observe(result.ttft_s)
        if result.ttfat_s is not None:
            # Once it has reasoned, always: a histogram of the slower answers only would lie.
            probe.reasons = probe.reasons or result.ttfat_s != result.ttft_s
            if probe.reasons:
                probe.child(families.ttfat).observe(result.ttfat_s)
        if result.tpot_s is not None and source is not None:
            probe.child(families.tpot, token_source=source).observe(result.tpot_s)
        if result.e2e_s is not None:
            probe.child(families.e2e).observe(result.e2e_s)
        for phase in _PHASES:
            seconds = getattr(result.phases, phase)
            if seconds is not None:
                probe.child(families.phase, phase=phase).observe(seconds)

    def _stale(self, probes: Mapping[Key, ProbeSeries]) -> set[Key]:
        """Return the probes to render: those with news, and those whose window has moved on."""
        now, changed = time.monotonic(), set[Key]()
        while self._changed:
            changed.add(self._changed.popleft())
        changed &= probes.keys()
        moved = {key for key, probe in probes.items() if now - probe.refreshed > _REFRESH_S}
        for key in changed | moved:
            self._refresh_quantiles(probes[key], now)
        return changed | moved

    def _refresh_quantiles(self, probe: ProbeSeries, now: float) -> None:
        probe.refreshed = now
        if probe.history is None:
            return
        found = probe.history.quantiles(self._clock(), _WINDOW_S)
        for name, family in self._families.quantiles.items():
            values = found[name].values if name in found else {}
            known = {(f"{q:g}", _WINDOW): seconds for q, seconds in values.items()}
            probe.drop(family, keep=known)  # what the count no longer carries, or nobody measures
            for (quantile, window), seconds in known.items():
                probe.child(family, quantile=quantile, window=window).set(seconds)

    def _within_cap(self, probes: Iterable[ProbeSeries]) -> list[ProbeSeries]:
        kept, lines, left_out = list[ProbeSeries](), 0, 0
        for probe in probes:
            lines += probe.lines
            if lines <= self._max_lines:
                kept.append(probe)
            else:
                left_out += 1
        self._own.unexported.set(left_out)
        return kept

    def _raise(self, counter: Counter, total: int, boot: str = "") -> None:
        """Bring a counter up to a total that begins anew with every boot."""
        last_boot, last = self._totals.get(counter, (boot, 0))
        counter.inc(max(0, total - (last if last_boot == boot else 0)))
        self._totals[counter] = (boot, total)


def _key(plan: ProbePlan) -> Key:
    return plan.endpoint.name, plan.workload.name
