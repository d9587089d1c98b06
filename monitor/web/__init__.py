"""Page, JSON, `/healthz` and `/metrics`: an aiohttp application over a `View` of the monitor."""

from monitor.web.pages import build_app
from monitor.web.rows import About, View

__all__ = ["About", "View", "build_app"]
