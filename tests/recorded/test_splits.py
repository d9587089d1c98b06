"""However a recorded body is cut into reads, it says the same; and no cut is an exception.

"The same" is the whole result, text included. Where a cut moves the arrival of an event, times
differ rightly: so either all reads share one time, or a read's parts keep the read's own. Only the
bytes received may differ, where some came along with the end marker.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import KINDS, Limits, ProbeResult, Workload
from probes.meter import End
from probes.result import Outcome
from probes.sse import Event, Parser
from tests.recorded import pure
from tests.recorded.pure import Read
from tests.recorded.recording import NAMES, Recording, load, measure

BODIES = [name for name in NAMES if load(name).body]
STREAMS = [name for name in BODIES if load(name).is_stream]
ASKED = [name for name in STREAMS if load(name).meta["path"].endswith("completions")]
# Of a short body every single cut is tried; of the others hypothesis draws some.
SHORT = [name for name in BODIES if len(load(name).body) < 2600]
MEDIUM = [name for name in BODIES if len(load(name).body) < 6000]
NOW = 1.0
DRAWN = settings(max_examples=100, deadline=None)
ENDS = st.sampled_from(sorted(End))
JUNK = st.sampled_from(
    [b"", b"\x00", b"\xff\xfe", b"\r", b"\n\n", b"data: ", b"[DONE]", b"null", b'{"', b"}", b"\\u"]
)


def pieces(body: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    for start, end in pairwise([0, *sorted(cuts), len(body)]):
        yield body[start:end]


def timed(recording: Recording, reads: Iterable[Read] | None = None) -> ProbeResult:
    """The result of a recording, or of its body in other reads."""
    return replace(measure(recording, reads), body_bytes=0)


def at_once(recording: Recording, parts: Iterable[bytes], end: End | None = None) -> ProbeResult:
    """The result of a body whose parts all come at one time."""
    result = measure(recording, [(NOW, part) for part in parts], NOW, end)
    return replace(result, body_bytes=0)


def single(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


def parsed(parts: Iterable[bytes]) -> list[Event]:
    parser = Parser(1 << 23)
    events = [event for part in parts for event in parser.feed(part)]
    rest = parser.close()
    return [*events, rest] if rest else events


@cache
def whole(name: str) -> ProbeResult:
    recording = load(name)
    return at_once(recording, [recording.body])


@pytest.mark.parametrize("name", BODIES)
def test_a_byte_at_a_time_is_the_same_answer(name: str) -> None:
    recording = load(name)
    assert at_once(recording, single(recording.body)) == whole(name)


@pytest.mark.parametrize("name", BODIES)
def test_the_bytes_of_a_read_are_the_read(name: str) -> None:
    recording = load(name)
    reads = [(at, byte) for at, data in recording.reads for byte in single(data)]
    assert timed(recording, reads) == timed(recording)


@pytest.mark.parametrize("name", SHORT)
def test_every_single_cut_of_a_short_body_is_the_same_answer(name: str) -> None:
    recording, expected = load(name), whole(name)
    body = recording.body
    for cut in range(1, len(body)):
        assert at_once(recording, [body[:cut], body[cut:]]) == expected, cut


@pytest.mark.parametrize("name", STREAMS)
def test_every_single_cut_gives_the_same_events(name: str) -> None:
    body = load(name).body[:800]
    expected = parsed([body])
    for cut in range(1, len(body)):
        assert parsed([body[:cut], body[cut:]]) == expected, cut


@st.composite
def cut_recordings(draw: st.DrawFn) -> tuple[Recording, list[int]]:
    """A recording and where to cut its body: nowhere, here and there, or often."""
    recording = load(draw(st.sampled_from(BODIES)))
    places = st.integers(0, len(recording.body))
    return recording, sorted(draw(st.lists(places, max_size=40)))


@DRAWN
@given(cut_recordings())
def test_any_cuts_of_a_body_give_the_same_answer(case: tuple[Recording, list[int]]) -> None:
    recording, cuts = case
    assert at_once(recording, pieces(recording.body, cuts)) == whole(recording.name)


@DRAWN
@given(cut_recordings())
def test_any_cuts_of_the_reads_give_the_same_times(case: tuple[Recording, list[int]]) -> None:
    recording, cuts = case
    assert timed(recording, cut_reads(recording.reads, cuts)) == timed(recording)


def cut_reads(reads: Iterable[Read], cuts: Sequence[int]) -> Iterator[Read]:
    """Cut at offsets of the body; the parts keep the time of their read."""
    position = 0
    for at, data in reads:
        inside = [cut - position for cut in cuts if 0 < cut - position < len(data)]
        yield from ((at, part) for part in pieces(data, inside))
        position += len(data)


@DRAWN
@given(cut_recordings(), ENDS)
def test_times_are_in_order_wherever_a_body_ends(
    case: tuple[Recording, list[int]], end: End
) -> None:
    recording, cuts = case
    left = cuts[0] if cuts else 0
    kept = []
    for at, data in recording.reads:
        kept.append((at, data[:left]))
        left = max(0, left - len(data))
    result = measure(recording, kept, recording.ended_at, end)
    times = (0.0, result.ttfb_s, result.ttft_s, result.ttfat_s, result.last_s, result.e2e_s)
    known = [time for time in times if time is not None]
    assert known == sorted(known)


@pytest.mark.parametrize("name", ASKED)
def test_a_stream_cut_before_its_finish_is_never_ok(name: str) -> None:
    recording = load(name)
    body = recording.body
    finish = body.find(b'"finish_reason":"')  # null has no quote
    until = finish if finish >= 0 else len(body)
    for left in range(0, until, max(1, until // 25)):
        for end in End:
            result = at_once(recording, [body[:left]], end)
            assert result.outcome is not Outcome.OK, (left, end)
            assert result.finish_reason is None


@DRAWN
@given(
    st.sampled_from(MEDIUM),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), JUNK), min_size=1, max_size=8),
    ENDS,
)
def test_a_damaged_body_is_a_result_and_reads_the_same_in_bytes(
    name: str, damages: list[tuple[float, int, bytes]], end: End
) -> None:
    recording = load(name)
    body = bytearray(recording.body)
    for where, length, junk in damages:
        place = int(where * len(body))
        body[place : place + length] = junk
    damaged = bytes(body)
    assert at_once(recording, [damaged], end) == at_once(recording, single(damaged), end)


@DRAWN
@given(
    st.sampled_from(NAMES),
    st.text(string.printable, max_size=40).map(str.encode) | st.binary(max_size=40),
    ENDS,
)
def test_any_bytes_are_a_result_and_read_the_same_one_by_one(
    name: str, body: bytes, end: End
) -> None:
    recording = load(name)
    assert at_once(recording, [body], end) == at_once(recording, single(body), end)


@DRAWN
@given(st.integers(190, 320), st.lists(st.integers(0, 3000), max_size=20))
def test_the_cap_on_an_event_is_the_same_however_its_bytes_come(cap: int, cuts: list[int]) -> None:
    recording = load("llamacpp__chat_stream_reasoning")
    limited = replace(recording.workload, limits=Limits(event_bytes=cap))

    def seen(parts: Iterable[bytes]) -> ProbeResult:
        result = pure.measure(pure.ask(limited), [(NOW, part) for part in parts], NOW)
        return replace(result, body_bytes=0)

    places = sorted(min(cut, len(recording.body)) for cut in cuts)
    assert seen(pieces(recording.body, places)) == seen([recording.body])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_answer_to_another_kind_s_request_is_a_result_too(kind: str) -> None:
    for name in NAMES:
        assert isinstance(read_as(kind, load(name)).outcome, Outcome)


@pytest.mark.parametrize("kind", ["embeddings", "rerank", "models"])
def test_a_stream_in_the_place_of_a_document_is_never_ok(kind: str) -> None:
    for name in STREAMS:
        assert read_as(kind, load(name)).outcome is not Outcome.OK, name
    overload = read_as(kind, load("vllm__overload_200_then_inband_503"))
    assert (overload.outcome, overload.error_code) == (Outcome.STREAM_ERROR, "503")


def read_as(kind: str, recording: Recording) -> ProbeResult:
    """The result if a probe of this kind had got the recorded answer."""
    return pure.measure(
        pure.ask(Workload(kind=kind)),
        recording.reads,
        recording.ended_at,
        status=recording.status,
        headers=recording.headers,
        end=recording.end,
    )
