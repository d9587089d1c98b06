"""From a metered exchange to its outcome and one plain sentence; pure.

Fixed order (tests/conformance/README.md): transport and limits, which the client knows, then HTTP
status, protocol, error inside the answer, filter, truncation, empty output, wrong model, check.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from probes.endpoint import Endpoint
from probes.meter import Meter, Mode
from probes.result import Outcome
from probes.wire import NotJson, PeerError, is_filtered, load_json
from probes.workload import Check, Workload

_STATUS = {
    401: Outcome.HTTP_AUTH,
    402: Outcome.HTTP_QUOTA,
    403: Outcome.HTTP_AUTH,
    404: Outcome.HTTP_NOT_FOUND,
    429: Outcome.HTTP_RATE_LIMITED,
}
_CLASS = {3: Outcome.HTTP_REDIRECT, 4: Outcome.HTTP_BAD_REQUEST, 5: Outcome.HTTP_5XX}


def judge(meter: Meter, endpoint: Endpoint, workload: Workload) -> tuple[Outcome, str | None]:
    """Judge an exchange that no transport fault and no limit ended: outcome and reason."""
    status = meter.status
    if status is not None and not 200 <= status < 300:
        return _judge_status(status, meter.error or PeerError(None, None))
    if meter.protocol:
        return Outcome.PROTOCOL_ERROR, meter.protocol
    error = reported(meter)
    if error is not None and not error.by_filter():
        said = error.message or error.code or "no message"
        return Outcome.STREAM_ERROR, f"error inside a 200 answer: {said}"
    if error is not None or meter.filtered or is_filtered(meter.finish):
        return Outcome.CONTENT_FILTER, "the endpoint's filter stopped the answer"
    if meter.mode is Mode.STREAM and not meter.rules.generates:
        return Outcome.PROTOCOL_ERROR, "an event stream came in the place of a document"
    if not meter.marked_end and not (meter.finish and meter.rules.done_marker):
        return Outcome.TRUNCATED, "the answer ended without a finish reason or end marker"
    return _judge_answer(meter, endpoint, workload)


def reported(meter: Meter) -> PeerError | None:
    """Return the error that the peer reported, be it only by a finish reason."""
    if meter.error is None and meter.failed is not None:
        return PeerError(meter.failed, f"finish_reason {meter.failed}")
    return meter.error


def _judge_answer(
    meter: Meter, endpoint: Endpoint, workload: Workload
) -> tuple[Outcome, str | None]:
    if meter.rules.generates and not meter.said.anything() and not meter.pace.stamps:
        return Outcome.EMPTY_OUTPUT, "the answer ended well but nothing was generated"
    expected, served = endpoint.expected_model, meter.model
    if expected and served and not fnmatchcase(served, expected):
        return Outcome.WRONG_MODEL, f"model {served[:100]!r} answered, expected {expected!r}"
    why = meter.invalid or failed_check(workload.check, meter.said.text("text"))
    return (Outcome.VALIDATION_FAILED, why) if why else (Outcome.OK, None)


def _judge_status(status: int, error: PeerError) -> tuple[Outcome, str]:
    said = error.message or error.code
    return status_outcome(status, error), f"HTTP {status}" + (f": {said}" if said else "")


def status_outcome(status: int, error: PeerError) -> Outcome:
    """Map an HTTP status and the error in its body to an outcome."""
    if error.by_filter():
        return Outcome.CONTENT_FILTER
    if error.code == "insufficient_quota":
        return Outcome.HTTP_QUOTA
    return _STATUS.get(status) or _CLASS.get(status // 100, Outcome.PROTOCOL_ERROR)


def failed_check(check: Check | None, text: str) -> str | None:
    """Say why an answer fails its check; None when it passes."""
    if check is None:
        return None
    if check.contains is not None and check.contains not in text:
        return f"answer does not contain {check.contains[:100]!r}"
    if check.equals is not None and text.strip() != check.equals.strip():
        return f"answer is not {check.equals[:100]!r}"
    return "answer is not JSON" if check.json and not _is_json(text) else None


def _is_json(text: str) -> bool:
    try:
        load_json(text.encode("utf-8", "surrogatepass"))
    except NotJson:
        return False
    return True
