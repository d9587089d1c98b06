"""The aiohttp application: routes, headers, errors. The only module that knows aiohttp.web."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2s
from pathlib import Path
from types import MappingProxyType

import jinja2
from aiohttp import ETag, web
from markupsafe import Markup

from monitor.web import units, words
from monitor.web.api import status_json
from monitor.web.rows import Row, Rows, View, groups, overall

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent

_HEADERS = MappingProxyType(
    {
        # No inline script, no inline style, nothing from elsewhere.
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; object-src 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Server": "endpoint-monitor",  # instead of the versions of Python and aiohttp
        "X-Content-Type-Options": "nosniff",
    }
)

_TYPES = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)

_COMPRESS_FROM = 1400
_COMPRESS_IN_THREAD_FROM = 32768

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """What every handler needs. `build` changes with any file of the page."""

    view: View
    clock: Callable[[], float]
    page: jinja2.Template
    fragment: jinja2.Template
    probe: jinja2.Template
    static: dict[str, bytes]
    build: str
    rows: Rows = field(default_factory=Rows)
    articles: dict[str, tuple[Row, Markup]] = field(default_factory=dict)


_SITE = web.AppKey("site", _Site)


def build_app(view: View, *, clock: Callable[[], float] = time.time) -> web.Application:
    """Build the application over `view`; `clock` gives wall clock seconds since the epoch."""
    static = {
        path.name: path.read_bytes()
        for path in sorted((_HERE / "static").iterdir())
        if path.suffix in _TYPES
    }
    pages = _templates()
    build = _digest(b"".join([*static.values(), *_sources()]))
    app = web.Application(middlewares=[_plain_errors])
    app[_SITE] = _Site(
        view=view,
        clock=clock,
        page=pages.get_template("page.html"),
        fragment=pages.get_template("status.html"),
        probe=pages.get_template("probe.html"),
        static=static,
        build=build,
    )
    app.on_response_prepare.append(_add_headers)
    app.router.add_get("/", _page)
    app.router.add_get("/partial/status", _fragment)
    app.router.add_get("/api/v1/status", _status)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/static/{name}", _static)
    return app


# --- handlers ---------------------------------------------------------------------------------


async def _page(request: web.Request) -> web.Response:
    return _html(request, request.app[_SITE].page)


async def _fragment(request: web.Request) -> web.Response:
    return _html(request, request.app[_SITE].fragment)


async def _status(request: web.Request) -> web.Response:
    body = status_json(request.app[_SITE].view.statuses())
    return _tagged(request, body, "application/json")


async def _healthz(request: web.Request) -> web.Response:
    health = request.app[_SITE].view.health()
    text = "ok" if health.ok else "\n".join(units.plain(p) for p in health.problems)
    return web.Response(
        text=text + "\n",
        status=200 if health.ok else 503,
        headers={"Cache-Control": "no-store"},
    )


async def _metrics(request: web.Request) -> web.Response:
    body, content_type = request.app[_SITE].view.metrics()
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    return web.Response(body=body, headers=headers)


async def _static(request: web.Request) -> web.Response:
    site = request.app[_SITE]
    name = request.match_info["name"]
    if name not in site.static:
        raise web.HTTPNotFound
    # The page asks with ?v=<build>, so a copy may be kept until there is another build.
    fresh = request.query.get("v") == site.build
    cache = "public, max-age=31536000, immutable" if fresh else "no-cache"
    return _tagged(request, site.static[name], _TYPES[Path(name).suffix], cache=cache)


# --- answers ----------------------------------------------------------------------------------


def _html(request: web.Request, template: jinja2.Template) -> web.Response:
    site = request.app[_SITE]
    now = site.clock()
    rows = site.rows.build(site.view.statuses(), now)
    for gone in site.articles.keys() - {row.anchor for row in rows}:
        del site.articles[gone]
    html = template.render(
        about=site.view.about(),
        article=partial(_article, site),
        build=site.build,
        groups=groups(rows),
        health=site.view.health(),
        now=now,
        overall=overall(rows),
    )
    response = _tagged(request, html.encode(), "text/html; charset=utf-8")
    response.headers["X-Build"] = site.build  # a page left open for months notices a new build
    return response


def _article(site: _Site, row: Row) -> Markup:
    """Render a probe, or return what it was rendered to when nothing has changed since."""
    known = site.articles.get(row.anchor)
    if known is None or known[0] is not row:
        known = row, Markup(site.probe.render(row=row))  # noqa: S704 - autoescape is on
        site.articles[row.anchor] = known
    return known[1]


def _tagged(
    request: web.Request, body: bytes, content_type: str, *, cache: str = "no-cache"
) -> web.Response:
    """Answer with a tag over the body, or with 304 when the client has it already."""
    tag = _digest(body)
    known = request.if_none_match or ()
    headers = {"Content-Type": content_type, "Cache-Control": cache, "Vary": "Accept-Encoding"}
    if any(etag.value in (tag, "*") for etag in known):
        del headers["Content-Type"]
        response = web.Response(status=304, headers=headers)
    else:
        response = web.Response(
            body=body, headers=headers, zlib_executor_size=_COMPRESS_IN_THREAD_FROM
        )
        if len(body) >= _COMPRESS_FROM:
            response.enable_compression()
    response.etag = ETag(tag, is_weak=True)  # weak: compressed and plain are the same page
    return response


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in one line of text; our own faults are logged once, never shown."""
    try:
        return await handler(request)
    except web.HTTPException as exc:
        allow = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else None
        return web.Response(status=exc.status, text=f"{exc.status} {exc.reason}\n", headers=allow)
    except Exception:  # noqa: BLE001 - the border: no traceback may leave this program
        _log.exception("request failed method=%s path=%r", request.method, request.path)
        return web.Response(status=500, text="500 Internal Server Error\n")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


# --- templates --------------------------------------------------------------------------------


def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        seconds=units.seconds,
        percent=units.percent,
        duration=units.duration,
        count=units.count,
        iso=units.iso,
        said=words.outcome,
        skip=words.skip,
    )
    env.globals.update(STATE=words.STATE, FIGURE=words.FIGURE)
    return env


def _harmless(value: object) -> object:
    """Pass every printed text through `units.plain`, before Jinja escapes it."""
    return units.plain(value) if isinstance(value, str) and type(value) is not Markup else value


def _sources() -> list[bytes]:
    return [path.read_bytes() for path in sorted((_HERE / "templates").iterdir())]


def _digest(content: bytes) -> str:
    return blake2s(content, digest_size=8).hexdigest()
