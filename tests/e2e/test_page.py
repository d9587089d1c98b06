"""The page in a real browser: no errors, no policy violations, readable, alive."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from monitor.web import build_app
from probes.result import Outcome
from tests.monitor.web_views import HOSTILE, NOW, Shown, failing, new, probe, story

pytestmark = pytest.mark.e2e

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync""".split()

try:
    from playwright.async_api import BrowserContext, Page, async_playwright
except ImportError:
    MISSING = "the package playwright is not installed"
else:
    MISSING = "" if CHROMIUM.exists() else f"{CHROMIUM} is not installed"


@dataclass
class Window:
    """A browser window on a view, and all it complained about."""

    page: Page
    view: Shown
    server: TestServer
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Awaitable[Window]]


@pytest.fixture
async def look(tmp_path: Path) -> AsyncIterator[Open]:
    if MISSING:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(MISSING)
    servers: list[TestServer] = []
    contexts: list[BrowserContext] = []
    async with async_playwright() as browsers:

        async def look_at(
            view: Shown, *, width: int = 1200, dark: bool = False, script: bool = True
        ) -> Window:
            server = TestServer(build_app(view, clock=lambda: NOW))
            await server.start_server()
            servers.append(server)
            context = await browsers.chromium.launch_persistent_context(
                tmp_path / f"profile{len(contexts)}",
                executable_path=CHROMIUM,
                args=FLAGS,
                viewport={"width": width, "height": 850},
                color_scheme="dark" if dark else "light",
                timezone_id="Asia/Kolkata",  # no whole hours from UTC
                locale="en-GB",
                java_script_enabled=script,
            )
            contexts.append(context)
            window = Window(context.pages[0], view, server)
            window.page.on("console", lambda said: window.complaints.append(said.text))
            window.page.on("pageerror", lambda error: window.complaints.append(str(error)))
            await window.page.goto(str(server.make_url("/")))
            return window

        yield look_at
        for context in contexts:
            await context.close()
    for server in servers:
        await server.close()


def hostile_view() -> Shown:
    return Shown(
        [
            *story(),
            failing(Outcome.STREAM_ERROR, HOSTILE, endpoint="evil" + HOSTILE, id="evil"),
            new(),
        ]
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 390, 320])
async def test_the_page_is_clean_and_fits(look: Open, width: int, dark: bool) -> None:
    window = await look(hostile_view(), width=width, dark=dark)
    page = window.page
    assert await page.locator("h1").inner_text() == "3 of 6 probes up"
    assert await page.title() == "3/6 up · Endpoint monitor"
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(overflow) <= 0
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(14, 18, 23)" if dark else "rgb(244, 246, 248)")
    assert window.complaints == []


async def test_hover_tells_a_block_in_utc_and_in_the_marked_zone_of_the_browser(
    look: Open,
) -> None:
    window = await look(Shown([failing(Outcome.TIMEOUT_TTFT)]))
    tip = window.page.locator("#tip")
    assert not await tip.is_visible()
    await window.page.locator("ol.strip li").nth(59).hover()
    said = await tip.inner_text()
    assert said.startswith("2025-11-30T23:59:58Z: no first token within the limit")
    assert said.endswith("(05:29:58 Asia/Calcutta)")
    await window.page.locator("h1").hover()
    assert not await tip.is_visible()


async def test_without_script_blocks_have_titles_and_everything_is_there(look: Open) -> None:
    window = await look(Shown([failing(Outcome.CONNECT)]), script=False)
    block = window.page.locator("ol.strip li").nth(59)
    said = await block.get_attribute("title")
    assert said == "2025-11-30T23:59:58Z: connection refused or unreachable"
    assert "66.66 %" in await window.page.locator("main").inner_text()


async def test_the_policy_stops_what_is_not_ours(look: Open) -> None:
    window = await look(Shown([probe()]))
    await window.page.evaluate(
        """() => { document.body.insertAdjacentHTML("beforeend",
        "<p id=alien style='color: rgb(1, 2, 3)' onclick='this.id = 0'>x</p>"); }"""
    )
    alien = window.page.locator("#alien")
    await alien.click()
    assert await alien.evaluate("p => getComputedStyle(p).color") != "rgb(1, 2, 3)"
    assert len(window.complaints) == 2
    assert all("Content Security Policy" in said for said in window.complaints)


async def test_blocks_can_be_read_by_keyboard(look: Open) -> None:
    window = await look(Shown([failing(Outcome.CONNECT)]))
    await window.page.locator("ol.strip").focus()
    tip = window.page.locator("#tip")
    await window.page.keyboard.press("ArrowLeft")
    assert "23:59:58Z: connection refused" in await tip.inner_text()
    await window.page.keyboard.press("Home")
    assert "23:00:58Z: answered, TTFT" in await tip.inner_text()
    await window.page.keyboard.press("Escape")
    assert not await tip.is_visible()


async def test_times_stay_utc_and_the_browser_zone_is_set_apart(look: Open) -> None:
    window = await look(Shown([failing()]))
    times = await window.page.locator("time").all_inner_texts()
    assert all(time.endswith("Z") for time in times)
    beside = await window.page.locator(".error .beside").inner_text()
    assert beside.endswith("05:29:58 Asia/Calcutta)")


async def test_the_page_refreshes_only_what_changed(look: Open) -> None:
    window = await look(Shown([probe("steady"), probe("fails")]))
    page = window.page
    await page.evaluate("document.querySelector('article').dataset.mine = 'kept'")
    await page.locator("ol.strip").nth(1).focus()
    focused = await page.evaluate("document.activeElement.id")
    window.view.probes = [probe("steady"), failing(endpoint="fails", id="fails/chat")]
    await page.locator("h1", has_text="1 of 2 probes up").wait_for(timeout=10_000)
    assert await page.title() == "1/2 up · Endpoint monitor"
    assert "bad.svg" in (await page.locator("#favicon").get_attribute("href") or "")
    assert await page.locator("article").first.get_attribute("data-mine") == "kept"
    assert await page.evaluate("document.activeElement.id") == focused
    window.view.probes = [failing(endpoint="fails", id="fails/chat"), new("late")]
    await page.locator("h2", has_text="late").wait_for(timeout=10_000)
    assert await page.locator("h2").all_inner_texts() == ["fails", "late"]
    assert window.complaints == []


async def test_a_monitor_that_is_gone_is_said_at_once(look: Open) -> None:
    window = await look(Shown([probe()]))
    await window.server.close()
    alert = window.page.locator("#offline")
    await alert.wait_for(timeout=15_000)
    said = await alert.inner_text()
    assert said.startswith("The monitor does not answer. What you see is as of 20")


async def test_text_has_enough_contrast(look: Open) -> None:
    for dark in (False, True):
        window = await look(hostile_view(), dark=dark)
        assert await window.page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const paint = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (el) => {
    for (; el; el = el.parentElement) {
      const colour = paint(getComputedStyle(el).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  for (const el of document.querySelectorAll("main *, .top *, footer *")) {
    const own = [...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own) continue;
    const [a, b] = [light(paint(getComputedStyle(el).color)), light(ground(el))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.add(`${el.className}: ${ratio.toFixed(2)}`);
  }
  return [...poor];
}"""
