"""What the kinds' requests have in common: JSON bodies, limits, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from probes.endpoint import Endpoint
from probes.exchange import Request
from probes.prompts import generate
from probes.workload import Cache, Workload


def json_request(
    path: str, endpoint: Endpoint, workload: Workload, fields: Mapping[str, Any]
) -> Request:
    """Return a JSON request: the fields, the model, and the workload's own fields over them.

    A field that the workload sets to None is left out.
    """
    document = {"model": endpoint.model, **fields, **workload.extra}
    document = {name: value for name, value in document.items() if value is not None}
    return Request(path=path, body=msgspec.json.encode(document), document=document)


def prompt(workload: Workload, salt: str) -> str:
    """Return the user's text; the salt stands first unless the cache shall be warm.

    A prefix cache matches from the first token on, so only a salt at the head defeats it.
    """
    text = workload.prompt
    if text is None:
        text = generate(workload.input_tokens, workload.seed)
    return text if workload.cache is Cache.WARM else f"[{salt}] {text}"


def token_limit(endpoint: Endpoint, workload: Workload) -> dict[str, Any]:
    """Return the output limit under the endpoint's name for it; empty when none is sent."""
    if endpoint.token_param is None or workload.max_tokens is None:
        return {}
    return {endpoint.token_param: workload.max_tokens}


def streaming(endpoint: Endpoint, workload: Workload) -> dict[str, Any]:
    """Return the fields that ask for a stream and for usage at its end."""
    if not workload.stream:
        return {}
    options = {"include_usage": True} if endpoint.send_stream_options else None
    return {"stream": True, "stream_options": options}
