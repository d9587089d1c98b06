"""No key leaves where it belongs, whatever the peer does with it."""

from __future__ import annotations

import json
from urllib.parse import quote_plus

import pytest

from probes import Outcome, ProbeResult
from probes.endpoint import Auth
from tests.probes.raw_server import DONE, END, HEAD, Peer, chunk, plain, probe, serve

KEY = "zq-Ab/9+Xy=7Kk2mN4"
HEADER = "Token hv-own-Header-Value-5"
IN_URL = "zq-Ab/9%2BXy%3D7Kk2mN4"
SECRET_PARTS = (
    *(KEY, IN_URL, quote_plus(KEY), KEY.replace("/", "\\/")),
    "hv-own-Header-Value-5",
)


def held(result: ProbeResult) -> str:
    """Everything a result could show of itself."""
    return f"{result!r} {result.reason} {result.error_excerpt}"


def leaks(text: str) -> list[str]:
    return [part for part in SECRET_PARTS if part in text or part[:12] in text]


async def echo_error(peer: Peer) -> None:
    """Repeat the whole request in an error, as some gateways do."""
    request = await peer.request()
    assert request is not None
    message = f"bad request: {request.decode()}"
    body = json.dumps({"error": {"message": message, "code": KEY, "type": HEADER}}).encode()
    await peer.send(plain("401 Unauthorized", body, f"x-request-id: {KEY}"))


async def echo_stream(peer: Peer) -> None:
    """Repeat it inside a 200, and as the model's name."""
    request = await peer.request()
    assert request is not None
    said = {"model": KEY, "system_fingerprint": HEADER, "error": {"message": request.decode()}}
    await peer.send(HEAD, chunk(b"data: " + json.dumps(said).encode() + b"\n\n"), chunk(DONE), END)


async def echo_html(peer: Peer) -> None:
    """Repeat it in what is no answer at all."""
    request = await peer.request()
    assert request is not None
    await peer.send(plain("200 OK", b"<html>" + request, kind="text/html"))


async def echo_status(peer: Peer) -> None:
    """Repeat it in what is no HTTP."""
    request = await peer.request()
    assert request is not None
    await peer.send(b"ECHO " + request)


@pytest.mark.parametrize("script", [echo_error, echo_stream, echo_html, echo_status])
@pytest.mark.parametrize("auth", list(Auth))
async def test_a_peer_that_repeats_the_request_gives_no_secret_away(
    script: object, auth: Auth
) -> None:
    async with serve(script) as server:  # type: ignore[arg-type]
        result = await probe(server.url, api_key=KEY, auth=auth, headers={"X-Own": HEADER})
    assert result.outcome is not Outcome.OK
    sent = server.requests[0].decode()
    assert (IN_URL if auth is Auth.QUERY else KEY) in sent
    assert not leaks(held(result))


@pytest.mark.parametrize("shift", range(1000, 1030))
async def test_a_secret_at_the_cut_of_an_excerpt_is_masked_to_its_last_letter(shift: int) -> None:
    async def page(peer: Peer) -> None:
        await peer.request()
        body = b"x" * shift + KEY.encode() + b"y" * 4000 + KEY.encode() + b"z" * shift
        await peer.send(plain("500 Oops", body, kind="text/plain"))

    async with serve(page) as server:
        result = await probe(server.url, api_key=KEY)
    assert result.outcome is Outcome.HTTP_5XX
    assert result.error_excerpt is not None
    head, gap, tail = result.error_excerpt.partition(" [...] ")
    assert gap
    assert not any(KEY[:n] in head for n in range(4, len(KEY)))
    assert not any(KEY[n:] in tail for n in range(len(KEY) - 4))


@pytest.mark.parametrize(
    "url", ["http://no-such-host.invalid/v1", "http://127.0.0.1:9/v1", "https://127.0.0.1:9/v1"]
)
async def test_a_failed_connection_shows_no_secret(url: str) -> None:
    result = await probe(
        url,
        api_key=KEY,
        auth=Auth.QUERY,
        headers={"X-Own": HEADER},
        proxy=f"http://user:{quote_plus(KEY)}@127.0.0.1:9",
    )
    assert result.outcome is Outcome.CONNECT
    assert not leaks(held(result))


async def test_a_proxy_that_repeats_its_credentials_gives_none_away() -> None:
    async def refuse(peer: Peer) -> None:
        request = await peer.request()
        assert request is not None
        await peer.send(plain("502 Bad Gateway", request, kind="text/plain"))

    async with serve(refuse) as proxy:
        address = f"http://user:hunter-2-Secret@127.0.0.1:{proxy.port}"
        result = await probe("http://endpoint.invalid/v1", proxy=address)
    login = next(line for line in proxy.requests[0].split(b"\r\n") if b"Basic " in line)
    assert result.outcome is Outcome.HTTP_5XX
    assert "hunter-2-Secret" not in held(result)
    assert login.split()[-1].decode() not in held(result)
