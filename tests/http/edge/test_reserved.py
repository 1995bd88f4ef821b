"""Headers that an authorising service alone may set: a client that sends them gets nowhere."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, RequestHead
from gateway.core.routing import PathPattern
from gateway.http.request import PATH_BYTES_MAX, ReservedHeaders

RESERVED = ReservedHeaders(
    [
        (PathPattern.parse("/v1/charges/{rest:.*}"), frozenset((b"X-User-Id", b"X-User-Email"))),
        (PathPattern.parse("/v1/charges/{id}/refunds"), frozenset((b"x-role",))),
    ]
)
FORGED = ((b"X-User-Id", b"victim"), (b"X-Role", b"admin"))
OTHERS = ((b"Host", b"shop.example"), (b"X-User", b"a"), (b"X-User-Id-2", b"b"))


def left(target: bytes, headers: Headers = FORGED, method: bytes = b"GET") -> Headers:
    """What is left of these headers."""
    head = RESERVED.without(RequestHead(method, target, (*OTHERS, *headers)))
    assert (head.method, head.target, head.headers[: len(OTHERS)]) == (method, target, OTHERS)
    return tuple(head.headers[len(OTHERS) :])


@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS", b"PURGE"])
def test_every_method(method: bytes) -> None:
    """Whether a route matches the method or not, and of all routes whose path it is."""
    assert left(b"/v1/charges/7?x=1", method=method) == FORGED[1:]
    assert left(b"/v1/charges/7/refunds", method=method) == ()


def test_other_paths() -> None:
    """There the headers may come from somebody else."""
    for target in (b"/v1/charge", b"/", b"*", b"/other?/v1/charges/7"):
        assert left(target) == FORGED


@pytest.mark.parametrize(
    "name", [b"x-user-id", b"X-USER-ID", b"X_User_Id", b"X-User_Id", b"x.user.id", b"X!User~Id"], ids=bytes.decode
)
def test_spellings(name: bytes) -> None:
    """A service that makes variables of headers takes them for the same."""
    assert left(b"/v1/charges/7", ((name, b"victim"), (b"X-Userid", b"c"))) == ((b"X-Userid", b"c"),)


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/charges",
        b"/V1/Charges/7",
        b"/v1//charges/7/",
        b"/v1/./charges/7",
        b"/x/../v1/charges/7",
        b"/v1%2Fcharges%2f7",
        b"/v1/ch%61rges/7",
        b"/v1;a=b/charges/7",
        b"\\v1\\charges\\7",
        b"http://other.example/v1/charges/7",
        b"//other.example/v1/charges/7",
    ],
    ids=bytes.decode,
)
def test_readings(target: bytes) -> None:
    """However a service may read the path of the request."""
    assert (b"X-User-Id", b"victim") not in left(target)


def test_a_header_that_names_another_path() -> None:
    """A service may heed it; and nobody compares one that takes long."""
    override = (b"X-Rewrite-URL", b"/v1/charges/7")
    assert left(b"/other", (override, *FORGED)) == (override, FORGED[1])
    endless = (b"X-Original-URL", b"/" + b"a" * PATH_BYTES_MAX)
    assert left(b"/other", (endless, *FORGED)) == (endless,)


def test_a_connection_header() -> None:
    """It cannot have the gateway drop what the authorising service says."""
    assert left(b"/v1/charges/7", ((b"Connection", b"close, X-User-Id,x_user_email"),)) == ((b"Connection", b"close"),)
    assert left(b"/other", ((b"Connection", b"X-User-Id"),)) == ((b"Connection", b"X-User-Id"),)
