"""Adapter: runs every scenario through the product's own measurement call.

python -m tests.conformance --info JSON --scenarios DIR --results FILE [--only ID] [--jobs 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvloop
import yaml

from probes import Connections, Endpoint, Limits, LoopLag, ProbeResult, Workload, run
from probes.endpoint import Auth, Inline, normalize_url
from probes.workload import Check

KIND_OF = {"transcriptions": "transcription"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SIDE_PORTS = ("main", "tls", "blackhole", "slam", "mute", "closed")


def credentials(auth: str) -> dict[str, Any]:
    """Return how a scenario's `auth` sends a key: a style, the name of a header, or none."""
    if auth == "none":
        return {}
    style = auth if auth in (Auth.BEARER, Auth.API_KEY, Auth.QUERY) else Auth.API_KEY
    name = None if style == auth else auth
    return {"api_key": "conformance-key", "auth": Auth(style), "auth_name": name}


def endpoint_of(scenario: Mapping[str, Any], info: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint that a scenario's `client` describes."""
    client = scenario.get("client") or {}
    target = client.get("target") or f"http://{info['host']}:{{main}}/v1"
    for name in SIDE_PORTS:
        target = target.replace("{" + name + "}", str(info["ports"].get(name)))
    inline = client.get("inline_reasoning")
    return Endpoint(
        name=scenario["id"],
        url=normalize_url(target),
        model=scenario["id"],
        **credentials(client.get("auth") or "bearer"),
        api_version=client.get("api_version"),
        token_param=client.get("token_param", "max_tokens"),
        send_stream_options=client.get("send_stream_options", True),
        expected_model=client.get("expected_model"),
        inline_reasoning=Inline(inline) if inline else None,
        cumulative_content=bool(client.get("cumulative_content")),
    )


def workload_of(scenario: Mapping[str, Any]) -> Workload:
    """Return the workload that a scenario's `request` and `client` describe."""
    client = scenario.get("client") or {}
    extra = dict(scenario.get("request") or {})
    if extra.get("tools") == "any" or (client.get("tools") and "tools" not in extra):
        extra["tools"] = [TOOL]
    if client.get("n"):
        extra.setdefault("n", client["n"])
    if scenario["endpoint"] not in ("chat", "completions"):
        extra.pop("stream_options", None)
    limits = {
        name.removesuffix("_ms"): value / 1000
        for name, value in (client.get("limits") or {}).items()
    }
    check = client.get("validate")
    return Workload(
        name=scenario["id"],
        kind=KIND_OF.get(scenario["endpoint"], scenario["endpoint"]),
        limits=Limits(**limits),
        stream=bool(extra.get("stream", False)) or "stream" not in extra,
        max_tokens=64,
        input_tokens=20,
        extra=extra,
        check=Check(**{**check, "json": bool(check.get("json"))}) if check else None,
    )


def milliseconds(seconds: float | None) -> float | None:
    """Convert for the judge."""
    return None if seconds is None else seconds * 1000


def row_of(scenario: str, result: ProbeResult) -> dict[str, Any]:
    """Return a result in the field names of the judge."""
    assert result.content is not None
    return {
        "scenario": scenario,
        "variant": None,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "http_status": result.http_status,
        "ttft_ms": milliseconds(result.ttft_s),
        "ttfat_ms": milliseconds(result.ttfat_s),
        "last_ms": milliseconds(result.last_s),
        "e2e_ms": milliseconds(result.e2e_s),
        "tpot_ms": milliseconds(result.tpot_s),
        "itl_max_ms": milliseconds(result.itl.max if result.itl else None),
        "retry_after_ms": milliseconds(result.retry_after_s),
        "ratelimit_reset_requests_ms": milliseconds(result.ratelimit_reset_requests_s),
        "server_metrics": {
            f"{name}_ms": milliseconds(value) for name, value in result.server_metrics.items()
        },
        "flags": list(result.flags),
        "request_id": result.request_id,
        "request_id_sent": result.request_id_sent,
        **{
            name: getattr(result, name)
            for name in (
                "chunks", "prompt_tokens", "output_tokens", "output_tokens_source",
                "visible_tokens", "reasoning_tokens", "reasoning_chars", "finish_reason",
                "served_model", "error_code", "ratelimit_remaining_requests", "merged",
                "late_s", "tainted", "stamp_source", "loop_lag_s",
            )
        },
        **json.loads(json.dumps(asdict(result.content))),
    }  # fmt: skip


async def attempt(
    scenario: Mapping[str, Any], info: Mapping[str, Any], pool: Connections, lag: LoopLag
) -> list[dict[str, Any]]:
    """Run one scenario: one request, or one for each entry of its sequence, in order."""
    rows = []
    for _ in scenario.get("sequence") or [None]:
        result = await run(
            endpoint_of(scenario, info),
            workload_of(scenario),
            keep_content=True,
            connections=pool,
            lag=lag,
        )
        rows.append(row_of(scenario["id"], result))
    return rows


async def main() -> int:
    """Run the scenarios and write one JSON object a line; return 1 if one of them raised."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("--info", required=True)
    parser.add_argument("--scenarios", required=True, action="append", type=pathlib.Path)
    parser.add_argument("--results", required=True, type=pathlib.Path)
    parser.add_argument("--only")
    parser.add_argument("--jobs", type=int, default=3)
    args = parser.parse_args()
    info = json.loads(args.info)
    paths = sorted(p for d in args.scenarios for p in d.rglob("*.yaml"))
    loaded = [yaml.load(p.read_text("utf-8"), Loader=yaml.CSafeLoader) for p in paths]
    chosen = [s for s in loaded if args.only in (None, s["id"])]
    base = f"http://{info['host']}:{info['ports']['main']}"
    assert urlsplit(base).hostname in ("127.0.0.1", "::1", "localhost"), "loopback only"
    async with aiohttp.ClientSession() as session, session.post(base + "/reset"):
        pass
    turn, lag = asyncio.Semaphore(args.jobs), LoopLag()
    lag.start()
    pool = Connections()

    async def in_turn(scenario: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with turn:
            return await attempt(scenario, info, pool, lag)

    done = await asyncio.gather(*map(in_turn, chosen), return_exceptions=True)
    await pool.close()
    lag.stop()
    # A fault of ours in one scenario must not take the results of the others along.
    raised = 0
    with args.results.open("w", encoding="utf-8") as out:
        for scenario, rows in zip(chosen, done, strict=True):
            if isinstance(rows, BaseException):
                raised = 1
                sys.stderr.write(f"{scenario['id']} raised\n")
                traceback.print_exception(rows)
            else:
                out.writelines(json.dumps(row) + "\n" for row in rows)
    return raised


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
