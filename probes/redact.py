"""Keeps secrets out of what is stored and shown; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "[redacted]"
# Things that look like a key although no configuration names them: vendors echo them in errors.
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|gsk|xai|nvapi|hf|r8|fw|csk|key)[-_][A-Za-z0-9_*.-]{8,}"
    r"|(?<=[?&])(?:api[-_]?key|key|token|sig)=[^&\s\"']+"
    r"|(?i:bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
)


def redact(text: str | None, secrets: Iterable[str]) -> str | None:
    """Return the text with every secret, and whatever looks like one, masked."""
    if text is None:
        return None
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    return _LOOKS_SECRET.sub(MASK, text)
