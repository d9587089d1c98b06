"""Numbers, times and foreign text as a person reads them. Pure; None is shown as a dash."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from itertools import pairwise

DASH = "–"
TEXT_LIMIT = 300
_SPANS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))

# Control characters, the soft hyphen, zero-width and direction marks, separators, surrogates and
# tags: what can hide, reorder or break the text around it. The joiners U+200C and U+200D stay:
# Persian, Hindi and emoji are written with them.
_HIDING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str, limit: int = TEXT_LIMIT) -> str:
    """Make foreign text harmless to read: white space flat, hiding characters spelled out, capped.

    This is not HTML escaping, which the templates do.
    """
    text = " ".join(text[: limit + 1].split())
    text = _HIDING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def three_digits(value: float) -> str:
    """Write a number >= 0 with three significant digits, never in powers of ten."""
    if value <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(value))
    rounded = round(value, digits)
    if rounded >= 10 ** (3 - digits):  # 9.996 became 10.0: one digit fewer behind the point
        digits -= 1
    return f"{rounded:.{max(digits, 0)}f}"


def seconds(value: float | None) -> str:
    """Write a measured time: ms under one second, else s; three significant digits."""
    if value is None or not math.isfinite(value) or value < 0:
        return DASH
    if value < 0.9995:  # from here on, three digits of ms read 1000
        return f"{three_digits(value * 1000)} ms"
    return f"{three_digits(value)} s"


def percent(value: float | None) -> str:
    """Write a ratio, rounded down: 100 % and 0 % are said only when they are exact."""
    if value is None or not math.isfinite(value):
        return DASH
    if value in (0, 1):
        return f"{value * 100:.0f} %"
    floor = math.floor(value * 1e4 + 1e-7) / 100  # the addend undoes 0.9993 * 1e4 = 9992.999...
    floor = min(floor, 99.99)
    return f"{floor:.2f} %" if floor else "< 0.01 %"


def duration(value: float | None) -> str:
    """Write a span between moments, in at most two units: `60 s`, `2 min 5 s`, `24 h`, `30 d`."""
    if value is None or not math.isfinite(value):
        return DASH
    if value < 1:
        return seconds(value)
    left = round(value)
    for (big, size), (small, part) in pairwise(_SPANS):
        if left >= size * (1 if big == "h" else 2):
            count_big, rest = divmod(left, size)
            count_small = rest // part
            return f"{count_big} {big}" + (f" {count_small} {small}" if count_small else "")
    return f"{left} s"


def count(value: int) -> str:
    """Write a count with thousands marked."""
    return f"{value:,}"


def iso(at: float, *, millis: bool = False) -> str:
    """Write a wall clock time, seconds since the epoch, as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(at, UTC)
    text = moment.isoformat(timespec="milliseconds" if millis else "seconds")
    return text.removesuffix("+00:00") + "Z"
