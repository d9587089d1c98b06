from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import Endpoint
from probes.endpoint import normalize_url


@pytest.mark.parametrize(
    ("given_url", "base"),
    [
        ("http://host", "http://host/v1"),
        ("http://host/", "http://host/v1"),
        ("http://host:8000", "http://host:8000/v1"),
        ("https://host/v1", "https://host/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/api", "https://host/api"),
        ("https://host/openai/deployments/gpt/", "https://host/openai/deployments/gpt"),
        ("https://host/a//", "https://host/a"),
        ("  http://host/v1  ", "http://host/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://[::1]", "http://[::1]/v1"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
        ("http://[2001:db8::1]:443/x", "http://[2001:db8::1]:443/x"),
        ("HTTPS://Host/V1", "https://Host/V1"),
        ("http://host/v1%20a", "http://host/v1%20a"),
    ],
)
def test_urls_are_brought_to_one_form(given_url: str, base: str) -> None:
    assert normalize_url(given_url) == base
    assert normalize_url(base) == base


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must start with http"),
        ("host", "must start with http"),
        ("host:8000", "must start with http"),
        ("ftp://host", "must start with http"),
        ("http://", "no host"),
        ("http://:8000", "no host"),
        ("http://user:password@host", "user:password"),
        ("http://user@host", "user:password"),
        ("http://host/v1?key=k", "query or fragment"),
        ("http://host/v1#x", "query or fragment"),
        ("http://host:0", "port 0"),
        ("http://host:70000", "not a URL"),
        ("http://host:port", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://ho st/v1", "blank"),
        ("http://host/v 1", "blank"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        normalize_url(url)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_whatever_is_accepted_is_accepted_again(text: str) -> None:
    """And nothing raises anything but ValueError."""
    for url in (text, f"http://{text}", f"http://host/{text}"):
        try:
            base = normalize_url(url)
        except ValueError:
            continue
        assert base.startswith(("http://", "https://"))
        assert normalize_url(base) == base


@pytest.mark.parametrize("url", ["http://u:hunter2@host", "http://u:hunter2@host:x/v1"])
def test_a_refusal_never_repeats_a_password(url: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - what it does not say matters
        normalize_url(url)
    assert "hunter2" not in str(raised.value)


def test_an_endpoint_shows_no_secret() -> None:
    endpoint = Endpoint(
        name="e",
        url="http://host/v1",
        api_key="sk-secret",
        headers={"X-Key": "other-secret"},
        proxy="http://u:hunter2@proxy",
    )
    shown = f"{endpoint!r} {endpoint}"
    assert not any(word in shown for word in ("sk-secret", "other-secret", "hunter2"))


def test_secrets_are_named_in_every_form_in_which_a_peer_may_repeat_them() -> None:
    endpoint = Endpoint(
        name="e",
        url="http://host/v1",
        api_key='a/b+c "d',
        headers={"Authorization": "Basic Zm9vOmJhcg=="},
        proxy="http://us%2Fer:pass%40word@proxy:3128",
    )
    secrets = endpoint.secrets()
    assert {
        'a/b+c "d',
        "a%2Fb%2Bc%20%22d",
        "a%2Fb%2Bc+%22d",
        'a/b+c \\"d',
        'a\\/b+c \\"d',
        "Basic Zm9vOmJhcg==",
        "Zm9vOmJhcg==",
        "pass%40word",
        "pass@word",
        "dXMvZXI6cGFzc0B3b3Jk",
    } <= set(secrets)
    assert len(secrets) == len(set(secrets))
    assert Endpoint(name="e", url="http://host/v1").secrets() == ()
