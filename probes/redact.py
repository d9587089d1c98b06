"""Keeps secrets, and what no store can hold, out of what is stored and shown; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "[redacted]"
_SHORTEST = 4
# Things that look like a key although no configuration names them: vendors echo them in errors.
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|gsk|xai|nvapi|hf|r8|fw|csk)[-_](?=[A-Za-z_.-]*[\d*])[A-Za-z0-9_*.-]{12,}"
    r"|(?<=[?&])(?:api[-_]?key|key|token|sig)=[^&\s\"']+"
    r"|(?i:bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
)


def clean(text: str) -> str:
    """Return a peer's text as every encoder and database takes it.

    Header bytes that are not UTF-8 come as lone surrogates; PostgreSQL refuses NUL.
    """
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def redact(
    text: str | None, secrets: Iterable[str], *, cut: bool = False, guess: bool = True
) -> str | None:
    """Return the text cleaned, and with every secret, and whatever looks like one, masked.

    Args:
        text: What a peer said; None stays None.
        secrets: The values that are known to be secret.
        cut: The text may have been cut off, so that a part of a secret may stand at either end.
        guess: Mask what only looks like a key too. Not for names: models are called `xai-...` too.
    """
    if text is None:
        return None
    text = clean(text)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < _SHORTEST:
            continue
        text = text.replace(secret, MASK)
        if cut:
            text = _mask_ends(text, secret)
    return _LOOKS_SECRET.sub(MASK, text) if guess else text


def _mask_ends(text: str, secret: str) -> str:
    most = min(len(secret), len(text))
    parts = range(most, _SHORTEST - 1, -1)
    # One look tells nearly always that no part is there.
    if secret[:_SHORTEST] in text[-most:]:
        n = next((n for n in parts if text.endswith(secret[:n])), 0)
        text = text[: len(text) - n] + MASK if n else text
    if secret[-_SHORTEST:] in text[:most]:
        n = next((n for n in parts if text.startswith(secret[-n:])), 0)
        text = MASK + text[n:] if n else text
    return text
