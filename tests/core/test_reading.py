"""What is read of a response: what it names as made, where that can be asked for, and in which version it is."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import MISSING, parse_json, parse_pointer
from gateway.core.message import IndexedHeaders
from gateway.core.outcome import RESOURCE_BYTES_MAX, ResponseRule, fetch_target, is_address, is_target, resource_in

HOSTS = (b"api.test", b"127.0.0.1:9000", b"")
ID = parse_pointer("/id")


def named(body: bytes) -> str | None:
    return resource_in(ID, {}, parse_json(body))


@pytest.mark.parametrize(
    ("body", "resource"),
    [
        (b'{"id":"pay_7"}', "pay_7"),
        (b'{"id":10.00}', "10.00"),
        (b'{"id":true}', None),
        (b'{"id":"a\\u0000b"}', None),
        (b'{"id":"\\ud800"}', None),
        (b'{"id":"' + b"x" * RESOURCE_BYTES_MAX + b'"}', "x" * RESOURCE_BYTES_MAX),
        (b'{"id":"' + b"x" * (RESOURCE_BYTES_MAX + 1) + b'"}', None),
        (b'{"id":"' + "\u00e9".encode() * RESOURCE_BYTES_MAX + b'"}', None),
        (b'{"id":"a","id":"b"}', None),
    ],
)
def test_a_resource_is_short_printable_text(body: bytes, resource: str | None) -> None:
    """A string or a number; nothing that could end a header line, be cut, or be read in two ways."""
    assert named(body) == resource


def test_a_location_that_cannot_be_kept() -> None:
    """Of several, or in octets that are no text, none is."""
    assert resource_in("location", IndexedHeaders(((b"LOCATION", b"/a"),)).by_name) == "/a"
    assert resource_in("location", IndexedHeaders(((b"Location", b"/a"), (b"location", b"/a"))).by_name) is None
    assert resource_in("location", IndexedHeaders(((b"Location", b"/\xff"),)).by_name) is None
    assert resource_in("location", {}) is None
    assert resource_in(None, IndexedHeaders(((b"Location", b"/a"),)).by_name) is None
    assert resource_in(ID, IndexedHeaders(((b"Location", b"/a"),)).by_name, MISSING) is None


@pytest.mark.parametrize(
    ("resource", "target"),
    [
        ("/v1/7?a=b#c", b"/v1/7?a=b"),
        ("http://api.test/v1/7", b"/v1/7"),
        ("http://API.TEST:80/v1/7", b"/v1/7"),
        ("https://api.test:443?a=b", b"/?a=b"),
        ("http://api.test:8080/v1/7", None),
        ("//evil/v1/7", None),
        ("http://api.test@evil/v1/7", None),
        ("http://evil/http://api.test/", None),
        ("http:///v1/7", None),
        ("/a/../b", None),
        ("/a/%2E./b", None),
        ("/a/%252e%2E%5cb", None),
        ("/a/..;x=1/b", None),
        ("/a b", None),
        ("pay_7", None),
    ],
)
def test_an_address_is_of_the_service(resource: str, target: bytes | None) -> None:
    """A path, or a URL by one of the service's own names; nothing is asked for that another host has."""
    assert fetch_target(None, resource, HOSTS) == target


@given(st.text(min_size=1, max_size=40).filter(str.isprintable))
def test_a_reference_stays_where_it_is_put(resource: str) -> None:
    """In one segment or one value of the query, whatever it is."""
    for before, after in (("/v1/payments/", "/state"), ("/v1/payments?id=", "&all=1")):
        target = fetch_target(f"{before}{{reference}}{after}", resource, HOSTS)
        if target is None:
            assert "." in resource or "%2" in resource
            continue
        assert is_target(target)
        inside = target.removeprefix(before.encode()).removesuffix(after.encode())
        assert not set(inside) & set(b"/?#&; +\\")


@given(st.text(max_size=60))
def test_an_address_can_be_sent_as_a_location(text: str) -> None:
    """It is visible ASCII, and no script."""
    if is_address(text):
        assert text.isascii()
        assert text.isprintable()
        assert " " not in text
        assert text.lower().startswith(("/", "http://", "https://"))


def rule(*statuses: int, **where: str) -> ResponseRule:
    wanted = tuple((parse_pointer(f"/{name}"), frozenset(values.split())) for name, values in where.items())
    return ResponseRule(frozenset(statuses), wanted)


def test_a_rule_covers_what_it_matches_at_least() -> None:
    """By fewer conditions, more values or more statuses, each alone or all together; what is absent matches nothing."""
    narrow = rule(200, a="x", b="y")
    for wider in (rule(200, a="x"), rule(200, a="x z", b="y"), rule(200, 201, a="x", b="y"), narrow):
        assert wider.covers(narrow)
    for one, other in permutations((rule(200, a="x"), rule(200, b="x"), rule(201, a="x"), rule(200, a="y")), 2):
        assert not one.covers(other)
    assert not any(rule(200, a="x null").fits(200, document) for document in (MISSING, None, [], "x", {}))
