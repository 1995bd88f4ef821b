"""Headers that an authorising service alone may set: a client that sends them gets nowhere."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.http.handler import ReservedHeaders

RESERVED = ReservedHeaders((b"X-User-Id", b"X-User-Email", b"x-role"))
OTHERS = ((b"Host", b"shop.example"), (b"X-User", b"a"), (b"X-User-Id-2", b"b"), (b"X-Userid", b"c"))


def left(headers: Headers, target: bytes = b"/v1/charges/7", method: bytes = b"GET") -> Headers:
    """What is left of these headers."""
    head = RESERVED.without(RequestHead(method, target, IndexedHeaders((*OTHERS, *headers))))
    assert (head.method, head.target, head.headers[: len(OTHERS)]) == (method, target, OTHERS)
    return tuple(head.headers[len(OTHERS) :])


@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS", b"PURGE"])
@pytest.mark.parametrize("target", [b"/v1/charges/7?x=1", b"/V1/charges", b"/other", b"*", b"/x/../v1%2fcharges"])
def test_every_request(method: bytes, target: bytes) -> None:
    """Of any method, and at any path: a service may read another one."""
    assert left(((b"X-User-Id", b"victim"), (b"X-Role", b"admin")), target, method) == ()


@pytest.mark.parametrize(
    "name", [b"x-user-id", b"X-USER-ID", b"X_User_Id", b"X-User_Id", b"x.user.id", b"X!User~Id"], ids=bytes.decode
)
def test_spellings(name: bytes) -> None:
    """A service that makes variables of headers takes them for the same."""
    assert left(((name, b"victim"), (b"X-Other", b"c"))) == ((b"X-Other", b"c"),)


def test_a_connection_header() -> None:
    """It cannot have the gateway drop what the authorising service says."""
    assert left(((b"Connection", b"close, X-User-Id,x_user_email"),)) == ((b"Connection", b"close"),)
