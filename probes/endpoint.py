"""What is probed: a base URL, a model, credentials, and how this server wants to be asked."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, urlsplit, urlunsplit


class Auth(StrEnum):
    """Where the API key goes."""

    BEARER = "bearer"
    """`Authorization: Bearer KEY`."""
    API_KEY = "api-key"
    """Header `api-key: KEY` (Azure); the header's name is `Endpoint.auth_name`."""
    QUERY = "query"
    """Query parameter `key=KEY`; its name is `Endpoint.auth_name`."""


class Inline(StrEnum):
    """Mark-up by which a server puts reasoning inside `content`."""

    THINK = "think"
    REASONING = "reasoning"
    HARMONY = "harmony"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A base URL, a model and the profile of the server behind it.

    Attributes:
        name: The endpoint's key in the configuration; a metric label.
        url: Base URL as `normalize_url` returns it, without a trailing slash.
        model: Value of the request's `model` field; None leaves the field out.
        api_key: The secret; None sends none. Never shown by `repr`.
        auth: Where the key goes.
        auth_name: Header or query parameter name; None means `api-key` or `key`.
        token_param: Name of the output limit field, `max_tokens` or `max_completion_tokens`;
            None leaves it out. Responses always use `max_output_tokens`.
        send_stream_options: Whether to ask for usage with `stream_options`.
        api_version: Value of the query parameter `api-version`; None sends none.
        headers: Extra request headers; their values are treated as secrets.
        proxy: URL of an HTTP proxy; None connects directly (the environment is not read).
        ca_file: Path of a PEM bundle trusted instead of the system's; None is the system's.
        expected_model: Glob that the served model must match; None does not check.
        inline_reasoning: Mark-up of reasoning inside `content`; None if there is none.
        cumulative_content: Whether every delta repeats all the text so far.
        price_input: Money per input token; None is unknown.
        price_output: Money per output token; None is unknown.
    """

    name: str
    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    auth: Auth = Auth.BEARER
    auth_name: str | None = None
    token_param: str | None = "max_tokens"
    send_stream_options: bool = True
    api_version: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    expected_model: str | None = None
    inline_reasoning: Inline | None = None
    cumulative_content: bool = False
    price_input: float | None = None
    price_output: float | None = None

    def secrets(self) -> tuple[str, ...]:
        """Every value that must not appear in a log, metric, page or database.

        With each, the forms in which a peer or a library repeats it: percent-encoded, inside JSON,
        without its scheme (`Bearer KEY`), and the credentials of a proxy by themselves.
        """
        return _all_forms(self.api_key, self.proxy, tuple(self.headers.values()))


@lru_cache(maxsize=1024)
def _all_forms(
    api_key: str | None, proxy: str | None, headers: tuple[str, ...]
) -> tuple[str, ...]:
    values = [api_key or "", proxy or "", *headers]
    values += [value.split()[-1] for value in headers if " " in value.strip()]
    if proxy and (password := urlsplit(proxy).password):
        login = f"{unquote(urlsplit(proxy).username or '')}:{unquote(password)}"
        values += [password, unquote(password), b64encode(login.encode()).decode()]
    forms = (form for value in values if value for form in _forms(value))
    return tuple(dict.fromkeys(forms))


def _forms(value: str) -> tuple[str, ...]:
    """How a value may stand in a text: as it is, in a URL (strictly, as aiohttp does), in JSON."""
    escaped = json.dumps(value)[1:-1]
    encoded = (quote(value, safe=""), quote_plus(value), quote(value, safe="/?:@!$'()*,"))
    return value, *encoded, escaped, escaped.replace("/", "\\/")


def normalize_url(url: str) -> str:
    """Return the base URL of an OpenAI-compatible API.

    An empty path or `/` means `/v1`; any other path is kept. Slashes at its end never matter.

    Raises:
        ValueError: Not an absolute http(s) URL, user or password inside it, a query, a fragment
            or a bad port. The message says what is wrong and never repeats a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        # Its own words may quote a piece of a password.
        raise ValueError("not a URL (bad port or brackets)") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("URL must start with http:// or https://")
    if not parts.hostname:
        raise ValueError("URL has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("URL must not hold user:password; use api_key or headers")
    if parts.query or parts.fragment:
        raise ValueError("URL must not hold a query or fragment")
    if any(c.isspace() for c in parts.netloc + parts.path) or port == 0:
        raise ValueError("not a URL (blank or port 0)")
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
