"""Regions in the file: what is accepted, and how mistakes are reported."""

from __future__ import annotations

import pytest

from gateway.config import ConfigError, parse
from tests.config.support import with_global, with_route

KEY = "0f" * 32
HOMES = "homes: [{name: eu, url: 'https://eu.internal:8443'}, {name: us, url: 'http://127.0.0.1:1'}]"


def regions(*, here: str = "eu", homes: str = HOMES, key: str = KEY) -> str:
    return with_global(f"regions: {{here: {here}, key: '{key}', {homes}}}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (regions(here="ap"), "regions.here: expected one of the names under homes: eu, us"),
        (regions(homes="homes: [{name: eu, url: 'https://a'}]"), ".homes: expected a list of at least 2, found 1"),
        (
            regions(homes="homes: [{name: eu, url: 'https://a'}, {name: eu, url: 'https://b'}]"),
            "regions.homes[1].name: another region has this name already",
        ),
        (
            regions(homes="homes: [{name: eu, url: 'https://a'}, {name: us, url: 'https://a:443'}]"),
            "regions.homes[1].url: another region has this url already",
        ),
        (
            regions(homes="homes: [{name: eu, url: 'https://a'}, {name: us, url: 'http://us.internal'}]"),
            "regions.homes[1].url: expected https: callers' credentials cross this connection",
        ),
        (regions(homes="homes: [{name: eu, url: 'https://a/x'}, {name: us, url: 'https://b'}]"), "without a path"),
        (regions(key="short"), "regions.key: expected 32 bytes as 64 hexadecimal digits, or as base64"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    """Each is named with its place and what was expected."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert said in str(caught.value)


def test_a_certificate_does_not_reach_another_region() -> None:
    """A scope that only the first gateway could find is refused."""
    listen = "listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_ca: /ca}}"
    text = with_route("scope: {client_certificate: san}", without="scope") + f"\n{listen}\n"
    parse(text)
    with pytest.raises(ConfigError, match="a certificate is verified where its caller connects"):
        parse(f"{text}regions: {{here: eu, key: '{KEY}', {HOMES}}}\n")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("accept: {mode: always, identity: unverified}", "order: {by: /account}"), "order: one store keeps an order"),
        (("repeats: {action: refuse}",), "repeats.action: one store finds a repeat"),
    ],
    ids=["order", "repeats"],
)
def test_no_promise_over_keys_that_have_different_homes(lines: tuple[str, ...], said: str) -> None:
    """What one store keeps over the keys of a route is refused where several stores have them."""
    key, secrets = "key: {header: Idempotency-Key, required: true}", f"encryption: [{{id: e1, key: '{KEY}'}}]"
    text = f"{with_route(key, *lines, without='key')}secrets: {{{secrets}}}\n"
    parse(text)
    with pytest.raises(ConfigError, match=said):
        parse(f"{text}regions: {{here: eu, key: '{KEY}', {HOMES}}}\n")
