"""The web surface on a real server: contract of the JSON, escaping, headers, errors, size."""

from __future__ import annotations

import gc
import json
import math
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import TestClient, TestServer

from monitor.link import Skip
from monitor.status import Block, Last, Outages, ProbeStatus, Spread, State
from monitor.web import build_app, rows, units, words
from probes.result import Excluded, Outcome
from tests.monitor.web_views import (
    HOSTILE,
    NOW,
    Shown,
    blocks,
    failing,
    new,
    probe,
    story,
)

Client = TestClient[Any, Any]
Serve = Callable[[Shown], Awaitable[Client]]

ROUTES = ("/", "/partial/status", "/api/v1/status", "/healthz", "/metrics", "/static/page.css")


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    clients: list[Client] = []

    async def start(view: Shown) -> Client:
        client = TestClient(TestServer(build_app(view, clock=lambda: NOW)))
        clients.append(client)
        await client.start_server()
        return client

    yield start
    for client in clients:
        await client.close()


async def page(serve: Serve, *probes: ProbeStatus, path: str = "/") -> str:
    return await text_of(await serve(Shown(probes)), path)


async def text_of(client: Client, path: str) -> str:
    response = await client.get(path)
    assert response.status == 200
    return await response.text()


def words_of(html: str) -> str:
    """Return what a reader sees: no tags, no titles, white space flat."""
    return " ".join(Seen(html).text.split())


class Seen(HTMLParser):
    """A page taken apart; fails when tags do not close as they opened."""

    VOID = frozenset({"meta", "link", "circle", "path", "use"})
    OPTIONAL = frozenset({"li"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.OPTIONAL and self._open[-1] == tag:
            self._open.pop()
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._open[-1] in self.OPTIONAL and self._open[-1] != tag:
            self._open.pop()
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


# --- JSON -------------------------------------------------------------------------------------


async def test_status_json_is_as_promised(serve: Serve) -> None:
    client = await serve(
        Shown(
            [
                failing(
                    Outcome.HTTP_5XX,
                    endpoint="flaky",
                    skipped={"overlap": 30},
                    last=Last(
                        outcome=Outcome.HTTP_5XX, at=NOW - 1.75, reason="HTTP 503: overloaded"
                    ),
                ),
                new(),
            ]
        )
    )
    response = await client.get("/api/v1/status")
    assert response.content_type == "application/json"
    assert json.loads(await response.read()) == [
        {
            "endpoint": "flaky",
            "workload": "chat",
            "kind": "chat",
            "state": "down",
            "availability": 2 / 3,
            "coverage": 1.0,
            "n": 60,
            "outages": {"count": 1, "longest_s": 180.0},
            "ttft": {"p50": 0.1204, "p90": 0.1926, "n": 1436},
            "tpot": {"p50": 0.01232, "p90": 0.0189, "n": 1430},
            "e2e": {"p50": None, "p90": None, "n": 0},
            "last": {
                "outcome": "http_5xx",
                "at": "2025-11-30T23:59:58.250Z",
                "reason": "HTTP 503: overloaded",
            },
            "excluded": {"tainted": 3},
            "skipped": {"overlap": 30},
            "interval_s": 60.0,
            "window_s": 86400.0,
            "labels": {"vendor": "local", "region": "eu"},
        },
        {
            "endpoint": "new",
            "workload": "chat",
            "kind": "chat",
            "state": "starting",
            "availability": None,
            "coverage": None,
            "n": 0,
            "outages": {"count": 0, "longest_s": None},
            "ttft": {"p50": None, "p90": None, "n": 0},
            "tpot": {"p50": None, "p90": None, "n": 0},
            "e2e": {"p50": None, "p90": None, "n": 0},
            "last": None,
            "excluded": {},
            "skipped": {},
            "interval_s": 60.0,
            "window_s": 86400.0,
            "labels": {},
        },
    ]


async def test_json_stays_json_whatever_was_measured_or_said(serve: Serve) -> None:
    last = Last(outcome=Outcome.STREAM_ERROR, at=NOW, reason=HOSTILE + "x" * 100_000)
    bent = probe(ttft=Spread(n=1, p50=math.nan, p90=math.inf), last=last)
    body = await (await (await serve(Shown([bent]))).get("/api/v1/status")).read()
    assert body.isascii()
    (answer,) = json.loads(body, parse_constant=pytest.fail)
    assert answer["ttft"] == {"p50": None, "p90": None, "n": 1}
    assert answer["last"]["reason"].startswith("<script>")
    assert len(answer["last"]["reason"]) == units.TEXT_LIMIT


@pytest.mark.parametrize("path", ["/", "/partial/status", "/api/v1/status", "/static/page.js"])
async def test_an_unchanged_answer_is_not_sent_twice(serve: Serve, path: str) -> None:
    view = Shown([probe()])
    client = await serve(view)
    tag = (await client.get(path)).headers["ETag"]
    again = await client.get(path, headers={"If-None-Match": tag})
    assert (again.status, await again.read()) == (304, b"")
    assert again.headers["ETag"] == tag
    if path != "/static/page.js":
        view.probes = [failing()]
        changed = await client.get(path, headers={"If-None-Match": tag})
        assert (changed.status, changed.headers["ETag"] == tag) == (200, False)


# --- health and metrics -----------------------------------------------------------------------


async def test_healthz_says_ok_or_names_each_problem_in_a_line(serve: Serve) -> None:
    view = Shown([probe()])
    client = await serve(view)
    well = await client.get("/healthz")
    assert (well.status, await well.text()) == (200, "ok\n")
    view.problems = ("llama/chat has not reported for 200 s", "the store\nis full")
    ill = await client.get("/healthz")
    assert ill.status == 503
    assert await ill.text() == "llama/chat has not reported for 200 s\nthe store is full\n"
    assert ill.content_type == "text/plain"


async def test_metrics_are_the_bytes_given_and_need_nothing_else(serve: Serve) -> None:
    view = Shown([probe()])
    response = await (await serve(view)).get("/metrics")
    assert await response.read() == view.exposition
    assert response.headers["Content-Type"] == view.metrics()[1]
    assert view.calls == []


# --- headers and errors -----------------------------------------------------------------------


def assert_guarded(response: ClientResponse) -> None:
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert "aiohttp" not in response.headers["Server"]


@pytest.mark.parametrize("path", [*ROUTES, "/nothing-here", "/static/../pages.py"])
async def test_every_answer_carries_the_security_headers(serve: Serve, path: str) -> None:
    client = await serve(Shown(story()))
    response = await client.get(path)
    assert_guarded(response)
    if tag := response.headers.get("ETag"):
        assert_guarded(await client.get(path, headers={"If-None-Match": tag}))


@pytest.mark.parametrize("path", ROUTES)
async def test_head_answers_without_a_body(serve: Serve, path: str) -> None:
    client = await serve(Shown(story()))
    response = await client.head(path)
    assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/static/",
        "/static/none.css",
        "/static/%2e%2e/pages.py",
        "/static/..%2fpages.py",
    ],
)
async def test_what_is_not_there_is_one_plain_line(serve: Serve, path: str) -> None:
    response = await (await serve(Shown())).get(path)
    assert (response.status, await response.text()) == (404, "404 Not Found\n")
    assert response.content_type == "text/plain"


@pytest.mark.parametrize("path", ROUTES)
async def test_writing_is_refused_in_one_plain_line(serve: Serve, path: str) -> None:
    response = await (await serve(Shown())).post(path, data=b"x")
    assert (response.status, await response.text()) == (405, "405 Method Not Allowed\n")
    assert response.headers["Allow"] == "GET,HEAD"


class Broken(Shown):
    def statuses(self) -> Sequence[ProbeStatus]:
        raise RuntimeError("secret-detail")


async def test_our_own_fault_is_logged_once_and_not_shown(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serve(Broken())
    response = await client.get("/")
    assert (response.status, await response.text()) == (500, "500 Internal Server Error\n")
    assert_guarded(response)
    assert [bool(record.exc_info) for record in caplog.records] == [True]
    assert "secret-detail" in caplog.text
    assert (await client.get("/metrics")).status == 200
    assert (await client.get("/healthz")).status == 200


async def test_static_files_are_kept_by_build(serve: Serve) -> None:
    client = await serve(Shown())
    html = await text_of(client, "/")
    (css,) = re.findall(r'href="(/static/page\.css\?v=\w+)"', html)
    kept = await client.get(css)
    assert kept.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert kept.content_type == "text/css"
    other = await client.get("/static/page.css?v=other")
    assert other.headers["Cache-Control"] == "no-cache"


# --- hostile text -----------------------------------------------------------------------------


def hostile_probe() -> ProbeStatus:
    last = Last(outcome=Outcome.STREAM_ERROR, at=NOW - 2, reason=HOSTILE)
    return failing(
        Outcome.STREAM_ERROR,
        id=HOSTILE,
        endpoint="e" + HOSTILE,
        workload="w" + HOSTILE,
        kind="k" + HOSTILE,
        last=last,
        last_error=last,
        labels={HOSTILE: HOSTILE},
        excluded={HOSTILE: 1},
        skipped={HOSTILE: 2},
        blocks=(Block(at=NOW - 2, outcome=Outcome.OK, excluded=HOSTILE),),
    )


@pytest.mark.parametrize("path", ["/", "/partial/status"])
async def test_hostile_text_stays_text(serve: Serve, path: str) -> None:
    view = Shown([hostile_probe(), probe()], problems=(HOSTILE,), notices=(HOSTILE,))
    html = await text_of(await serve(view), path)
    seen = Seen(html)
    assert {"img"}.isdisjoint(tag for tag, _ in seen.tags)
    scripts = [attrs for tag, attrs in seen.tags if tag == "script"]
    assert all((attrs["src"] or "").startswith("/static/") for attrs in scripts)
    assert len(scripts) == (path == "/")
    for tag, attrs in seen.tags:
        assert tag != "style"
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        for link in (attrs.get("href"), attrs.get("src")):
            assert link is None or re.fullmatch(r"/[\w./]*(\?v=\w+)?|#[\w-]+", link)
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7 * 7 }}" in seen.text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    assert "\\u202egnp.exe" in seen.text


async def test_a_long_error_is_cut(serve: Serve) -> None:
    html = await page(serve, failing(reason="A" * 100_000))
    assert max(map(len, re.findall("A+", html))) == units.TEXT_LIMIT - 1
    assert "A…" in html


async def test_an_error_is_never_a_link(serve: Serve) -> None:
    html = await page(serve, failing(reason="see https://evil.example/ now"))
    assert "see https://evil.example/ now" in html
    assert not [a for tag, a in Seen(html).tags if tag == "a" and "evil" in str(a)]


# --- what the page says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probes", "sentence"),
    [
        ([], "No probes yet"),
        ([new("a")], "Waiting for the first result of 1 probe"),
        ([new("a"), new("b")], "Waiting for the first result of 2 probes"),
        ([probe("a")], "The probe is up"),
        ([probe("a"), probe("b"), probe("c")], "All 3 probes up"),
        (story(), "3 of 4 probes up"),
        ([failing()], "0 of 1 probe up"),
    ],
)
async def test_the_page_starts_with_one_sentence(
    serve: Serve, probes: list[ProbeStatus], sentence: str
) -> None:
    html = await page(serve, *probes)
    (heading,) = re.findall(r"<h1>(.*?)</h1>", html, re.DOTALL)
    assert words_of(f"<p>{heading}</p>") == sentence


async def test_a_probe_shows_its_figures_each_with_its_n(serve: Serve) -> None:
    text = words_of(await page(serve, probe()))
    assert "chat up" in text
    assert "TTFT p50 120 ms p90 193 ms, n 1,436" in text
    assert "TPOT p50 12.3 ms p90 18.9 ms, n 1,430" in text
    assert "Availability 24 h 99.93 % coverage 99.79 %, n 1,437 1 outage, longest 3 min" in text
    assert "last 60 slots" in text
    assert "Left out of availability: 3 \u00d7 our own delay may have bent the figures." in text
    assert "MLPerf Endpoints-style; not an MLPerf result, not verified by MLCommons." in text
    assert "Site lab, version 0.1.0" in text
    assert "All figures over the last 24 h." in text


async def test_an_availability_never_stands_without_coverage_and_n(serve: Serve) -> None:
    probes = [*story(), failing(endpoint="down"), new(), probe("none", availability=None, n=0)]
    text = words_of(await page(serve, *probes, path="/partial/status"))
    said = re.findall(r"Availability 24 h (\S+)( %)? coverage (\S+)( %)?, n ([\d,]+)", text)
    assert len(said) == text.count("Availability") == 7


async def test_the_last_error_is_in_plain_words_with_its_time(serve: Serve) -> None:
    text = words_of(await page(serve, failing(Outcome.TIMEOUT_TTFT, reason="none in 20 s")))
    assert (
        "Last error no first token within the limit: none in 20 s at 2025-11-30T23:59:58Z" in text
    )


async def test_every_block_says_when_and_what(serve: Serve) -> None:
    seen = Seen(await page(serve, failing(Outcome.CONNECT)))
    drawn = [(a["class"], a["title"]) for tag, a in seen.tags if tag == "li" and "title" in a]
    assert len(drawn) == 60
    css, text = drawn[0]
    assert re.fullmatch("h[1-8]", css or "")
    assert re.fullmatch(r"2025-11-30T23:00:58Z: answered, TTFT \d+ ms", text or "")
    assert drawn[-1] == ("b", "2025-11-30T23:59:58Z: connection refused or unreachable")


@pytest.mark.parametrize(
    ("block", "css", "text"),
    [
        (Block(at=NOW, outcome=Outcome.HTTP_AUTH), "m", "our key was refused (401 or 403)"),
        (Block(at=NOW, outcome=Outcome.HTTP_RATE_LIMITED), "r", "asked to slow down (429)"),
        (Block(at=NOW, outcome=Outcome.CONTENT_FILTER), "n", "stopped by the content filter"),
        (Block(at=NOW, skip=Skip.BUDGET), "s", "skipped, the token budget was used up"),
        (
            Block(at=NOW, outcome=Outcome.OK, ttft_s=1.5, excluded="tainted"),
            "x",
            "answered, TTFT 1.50 s; left out: our own delay may have bent the figures",
        ),
        (Block(at=NOW, outcome=Outcome.OK), "h5", "answered"),
    ],
)
async def test_blocks_differ_by_what_they_mean(
    serve: Serve, block: Block, css: str, text: str
) -> None:
    html = await page(serve, probe(blocks=(block,)))
    assert f'<li class="{css}" title="2025-12-01T00:00:00Z: {text}">' in html
    assert f".strip .{css} {{" in await text_of(await serve(Shown()), "/static/page.css")


def test_a_block_is_as_high_as_its_ttft_and_what_is_left_out_sets_no_scale() -> None:
    drawn = (
        rows.Rows()
        .build(
            [
                probe(
                    blocks=(
                        *(
                            Block(at=NOW, outcome=Outcome.OK, ttft_s=t)
                            for t in (0.1, 0.1, 0.2, 0.4)
                        ),
                        Block(at=NOW, outcome=Outcome.OK, ttft_s=9.0, excluded="tainted"),
                    )
                )
            ],
            NOW,
        )[0]
        .strip
    )
    assert [css for css, _ in drawn.blocks] == ["h2", "h2", "h4", "h8", "x"]
    assert drawn.tallest == 0.4
    assert drawn.summary.startswith("Last 5 slots: 4 good, 1 not good, 0 skipped")


@pytest.mark.parametrize("state", list(State))
async def test_every_state_has_a_word_and_a_shape_of_its_own(serve: Serve, state: State) -> None:
    html = await page(serve, probe("a", state=state), probe("b"))
    word, sentence = words.STATE[state]
    assert f'title="{sentence}">{word}</span>' in html
    assert f'<symbol id="i-{state}"' in html
    assert f'<use href="#i-{state}"/>' in html


async def test_those_in_trouble_are_named_first_and_worst_first(serve: Serve) -> None:
    html = await page(
        serve,
        probe("fine"),
        probe("odd", state=State.UNKNOWN),
        failing(endpoint="dead", id="dead/chat"),
    )
    (listed,) = re.findall(r'<ul class="troubled">(.*?)</ul>', html, re.DOTALL)
    assert words_of(f"<ul>{listed}</ul>") == "dead chat odd chat"
    for anchor in re.findall(r'href="#(p\w+)"', listed):
        assert f'<article id="{anchor}"' in html


async def test_a_probe_without_recent_slots_is_marked_stale(serve: Serve) -> None:
    old = replace(
        probe(),
        blocks=tuple(replace(b, at=b.at - 179) for b in blocks([Outcome.OK] * 3)),
        last=Last(outcome=Outcome.OK, at=NOW - 181),
    )
    text = words_of(await page(serve, old))
    assert "chat up, stale" in text
    assert "No slot has ended since 2025-11-30T23:56:59Z, though one is due every 60 s." in text
    assert "1 stale" in text
    fresh = replace(old, last=Last(outcome=Outcome.OK, at=NOW - 180))
    assert "up, stale" not in words_of(await page(serve, fresh))


async def test_slots_that_were_skipped_are_no_staleness_but_are_said(serve: Serve) -> None:
    skipping = probe(
        blocks=blocks([Outcome.OK] * 5 + [Skip.BUDGET] * 5),
        last=Last(outcome=Outcome.OK, at=NOW - 302),
        skipped={"budget": 5},
    )
    text = words_of(await page(serve, skipping))
    assert "up, stale" not in text
    assert "The last 5 slots were skipped: the token budget was used up." in text
    assert "Skipped: 5 \u00d7 the token budget was used up." in text


async def test_an_empty_page_says_what_to_do(serve: Serve) -> None:
    html = await page(serve)
    assert "Nothing is being watched yet" in html
    assert "endpoint-monitor init URL --model M" in html


async def test_problems_and_notices_of_the_monitor_are_on_the_page(serve: Serve) -> None:
    client = await serve(Shown([probe()], ("the store is full",), ("The prober was restarted.",)))
    text = words_of(await text_of(client, "/partial/status"))
    assert "The monitor itself is not well. the store is full" in text
    assert "The prober was restarted." in text


async def test_without_script_the_page_reloads_by_itself(serve: Serve) -> None:
    assert '<noscript><meta http-equiv="refresh" content="15"></noscript>' in await page(serve)


async def test_ids_are_unique_and_stable(serve: Serve) -> None:
    client = await serve(Shown([*story(), hostile_probe(), new()]))
    html = await text_of(client, "/")
    ids = [str(a["id"]) for _, a in Seen(html).tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert html == await text_of(client, "/")


async def test_the_page_holds_the_fragment_that_refreshes_it(serve: Serve) -> None:
    client = await serve(Shown(story()))
    fragment = await text_of(client, "/partial/status")
    assert fragment.strip() in await text_of(client, "/")


def test_every_outcome_skip_exclusion_and_state_has_words() -> None:
    assert set(words.OUTCOME) == set(Outcome)
    assert set(words.SKIP) == set(Skip)
    assert set(words.EXCLUDED) == set(Excluded)
    assert set(words.STATE) == set(State)
    for said in (*words.OUTCOME.values(), *words.SKIP.values(), *words.EXCLUDED.values()):
        assert 3 < len(said) < 60
        assert "_" not in said


# --- cost -------------------------------------------------------------------------------------


def hundred() -> list[ProbeStatus]:
    """A hundred probes, every fifth of them down with an error of usual length."""
    reason = "HTTP 503 Service Unavailable: the model is overloaded, please try again later"
    return [
        failing(reason=reason, endpoint=f"endpoint-{i}", id=f"{i}", skipped={"overlap": 3})
        if i % 5 == 0
        else probe(f"endpoint-{i}", id=f"{i}")
        for i in range(100)
    ]


async def test_the_page_stays_small_and_quick_for_a_hundred_probes(serve: Serve) -> None:
    view = Shown(hundred())
    client = await serve(view)
    took = []
    size = 0
    for _ in range(3):
        start = time.perf_counter()
        size = len(await text_of(client, "/"))
        took.append(time.perf_counter() - start)
        view.probes = [replace(p, n=p.n + (i % 4 == 0)) for i, p in enumerate(view.probes)]
    sent = (await client.get("/", headers={"Accept-Encoding": "gzip"})).headers["Content-Length"]
    print(  # noqa: T201 - the figure is for whoever reads the run
        f"\n100 probes: {size} bytes, {sent} compressed; first {took[0] * 1e3:.0f} ms, "
        f"a quarter changed {took[1] * 1e3:.0f} ms"
    )
    assert size < 400_000
    assert int(sent) < 40_000


async def test_the_size_does_not_depend_on_the_length_of_history(serve: Serve) -> None:
    short = await page(serve, probe())
    long = await page(serve, probe(blocks=blocks([Outcome.OK] * 5000)))
    assert abs(len(long) - len(short)) < 200
    many = await page(serve, *(probe(f"e{i}", id=f"{i}") for i in range(500)))
    assert many.count('<li class="h') == 500 * rows.MIN_BLOCKS


async def test_a_page_is_rendered_again_only_where_something_changed() -> None:
    built = rows.Rows()
    first = built.build([probe("a"), probe("b")], NOW)
    again = built.build([probe("a"), probe("b", n=1)], NOW + 1)
    assert again[0] is first[0]
    assert again[1] is not first[1]
    assert [row.status.endpoint for row in built.build([probe("b", n=1)], NOW + 1)] == ["b"]


async def test_refreshing_keeps_no_memory(serve: Serve) -> None:
    view = Shown()
    url = (await serve(view)).make_url("/partial/status")

    async def refresh(times: int) -> int:
        async with ClientSession() as session:  # a TestClient keeps every answer
            for i in range(times):
                view.probes = [probe(n=i)]
                async with session.get(url) as response:
                    await response.read()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = await refresh(20)
        after = await refresh(60)
    finally:
        tracemalloc.stop()
    assert after - before < 60 * 500  # a page kept would be 6,000 bytes each time


async def test_probes_without_outage_or_valid_slot_claim_none(serve: Serve) -> None:
    some = words_of(await page(serve, probe(outages=Outages())))
    assert "no outage" in some
    none = words_of(await page(serve, probe(outages=Outages(), n=0, availability=None)))
    assert "no outage" not in none
