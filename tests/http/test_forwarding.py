"""Which header fields cross the gateway: nobody speaks in its name, and everything else keeps its bytes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from uuid import UUID

import pytest

from gateway.core.identity.caller import Hop, hop_from
from gateway.core.message import Headers, IndexedHeaders, RequestHead, asks_upgrade
from gateway.core.operation import Event, Identity, Record, State
from gateway.protect.forwarding import (
    ForwardingPolicy,
    UpstreamKey,
    fetched_request,
    protected_request,
    response_headers,
    unprotected_request,
)

CLIENT = hop_from("203.0.113.9", is_secure=True)
PROXY = hop_from("10.0.0.7", is_secure=True)
HOST = (b"Host", b"api.example")
POLICY = ForwardingPolicy(authority=b"upstream:9000", trusted_proxies=(ip_network("10.0.0.0/8"),))
OPERATION_ID = UUID("6f1c1f3e-8a5b-5a6f-9c0d-2b7a3e4d5c6b")
OPERATION = str(OPERATION_ID).encode()
VIA = (b"Via", b"1.1 idempotency-gateway")
ADDED = ((b"Idempotency-Operation", OPERATION), (b"Idempotency-Fencing-Token", b"42"), (b"Idempotency-Attempt", b"3"))


# What of a record matters to the upstream.
CLAIMED = Record(
    Identity(OPERATION_ID, "route", "route", b"scope", b"key"), State.CLAIMED, 42, OPERATION_ID, Event.CLAIM, "a", None,
    None, 3, 0, 0,
)  # fmt: skip


def said_of_hop(peer: bytes = b"203.0.113.9", host: bytes = b"api.example") -> Headers:
    """The fields that a request from a client gets on its way."""
    return ((b"X-Forwarded-For", peer), (b"X-Forwarded-Proto", b"https"), (b"X-Forwarded-Host", host), VIA)


def unprotected(
    *fields: tuple[bytes, bytes], hop: Hop = CLIENT, policy: ForwardingPolicy = POLICY, host: Headers = (HOST,)
) -> Headers:
    """What an unprotected request with these fields becomes, without the host if that is unchanged."""
    request = RequestHead(b"POST", b"/a/../b", IndexedHeaders((*host, *fields)))
    sent = unprotected_request(request, hop, policy, upgrades=asks_upgrade(request.headers))
    assert (sent.method, sent.target) == (request.method, request.target)
    return sent.headers[1:] if sent.headers[:1] == (HOST,) else sent.headers


def protected(
    *fields: tuple[bytes, bytes],
    key: UpstreamKey = "original",
    key_headers: tuple[bytes, ...] = (b"Idempotency-Key",),
) -> Headers:
    """What a protected request with these fields becomes, without what every one of them gets."""
    request = RequestHead(b"POST", b"/", IndexedHeaders((HOST, *fields)))
    policy = replace(POLICY, key=key, key_headers=key_headers)
    sent = protected_request(request, CLIENT, policy, CLAIMED).headers
    assert sent[0] == HOST
    assert sent[-3:] == ADDED
    assert [field for field in sent if field in said_of_hop()] == list(said_of_hop())
    return tuple(field for field in sent[1:-3] if field not in said_of_hop())


PLAIN = (
    (b"x-B", b"\xff"), (b"Cookie", b"a=b"), (b"x-B", b""), (b"Authorization", b"Bearer x"), (b"traceparent", b"00"),
)  # fmt: skip
SOCKET_KEY = (b"Sec-WebSocket-Key", b"k")
UPGRADE = ((b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"))
OURS = (
    b"Idempotency-Status", b"idempotent-replayed", b"Idempotency-Attempt", b"IDEMPOTENT_REPLAYED",
    b"Idempotency_Operation", b"Idempotency-Fencing_Token",
)  # fmt: skip


def preferring(prefer: bytes, sent: bytes | None) -> tuple[Headers, Headers, Headers]:
    """The wait is for the gateway where it protects; other preferences are the service's."""
    return ((b"Prefer", prefer),), ((b"Prefer", prefer), *said_of_hop()), ((b"Prefer", sent),) if sent else ()


CROSSING: dict[str, tuple[Headers, Headers, Headers]] = {
    # what a client sends, what becomes of it unprotected, and protected
    "bytes-order-and-repeats": (PLAIN, (*PLAIN, *said_of_hop()), PLAIN),
    # Those of the client's connection; but `Connection` cannot take the host away.
    "hop-by-hop": (
        (
            (b"Connection", b"close, X-Mine, Host"), (b"x-mine", b"1"), (b"Keep-Alive", b"timeout=5"),
            (b"TE", b"trailers"), (b"Transfer-Encoding", b"chunked"), (b"Proxy-Authorization", b"secret"),
            (b"Upgrade", b"h2c"), (b"Expect", b"100-continue"),
        ), said_of_hop(), (),
    ),
    # Connection names it and nothing else.
    "upgrade": (
        ((b"Connection", b"keep-alive, Upgrade"), UPGRADE[0], SOCKET_KEY), (SOCKET_KEY, *said_of_hop(), *UPGRADE),
        (SOCKET_KEY,),
    ),
    # No caller speaks as the gateway, whatever the spelling.
    **{f"ours {name.decode()}": (((name, b"x"),), said_of_hop(), ()) for name in OURS},
    # Nor has a proxy behind us retry what we protect.
    "retries": (((b"x-envoy-retry-on", b"5xx"),), ((b"x-envoy-retry-on", b"5xx"), *said_of_hop()), ()),
    "wait-alone": preferring(b"wait=10", None),
    "wait-with-another": preferring(b"respond-async, WAIT = 10", b"respond-async"),
    "wait-inside-quotes": preferring(b'note="a, wait=1", wait=2', b'note="a, wait=1"'),
    "untouched": preferring(b"waiting=1 ,  handling=lenient", b"waiting=1 ,  handling=lenient"),
    "wait-before-an-escape-without-an-end": preferring(b'wait=2, note="a\\', b'note="a\\'),
    "empty": preferring(b"", b""),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "passed_on", "kept"), CROSSING.values(), ids=CROSSING)
def test_which_fields_of_a_request_cross(fields: Headers, passed_on: Headers, kept: Headers) -> None:
    """What is not named anywhere keeps its bytes, its order and its repeats."""
    assert unprotected(*fields) == passed_on
    assert protected(*fields) == kept


def test_a_forwarded_request_has_a_host() -> None:
    """HTTP/1.0 has none, HTTP/1.1 needs one. Another one stands in its place, and X-Forwarded-Host has the caller's."""
    assert unprotected(host=()) == ((b"Host", b"upstream:9000"), *said_of_hop()[:2], VIA)
    policy = ForwardingPolicy(b"upstream:9000", host=b"other.example")
    found = unprotected((b"A", b"b"), policy=policy, host=((b"hOST", b"api.example"),))
    assert found == ((b"hOST", b"other.example"), (b"A", b"b"), *said_of_hop())


def test_the_gateway_adds_itself_behind_earlier_hops() -> None:
    """Those keep their lines, a caller cannot have ours left out, and responses stay as they are recorded (Via)."""
    earlier = (b"via", b"1.0 fred, 1.1 idempotency-gateway")
    assert unprotected(earlier) == (earlier, *said_of_hop())
    assert unprotected((b"Connection", b"Via"), earlier) == said_of_hop()
    assert response_headers((earlier,)) == (earlier,)


def test_what_an_untrusted_peer_says_of_earlier_hops_is_replaced() -> None:
    """Also in the spelling that CGI-like servers take for the same."""
    forged = (
        (b"X-Forwarded-For", b"1.1.1.1"), (b"x-forwarded-proto", b"http"), (b"X-Forwarded-Host", b"evil"),
        (b"Forwarded", b"for=1.1.1.1;host=evil"), (b"X-Real-IP", b"1.1.1.1"), (b"X-Forwarded-Prefix", b"/evil"),
        (b"X_Forwarded_For", b"1.1.1.1"),
    )  # fmt: skip
    assert unprotected(*forged) == said_of_hop()
    assert unprotected(*forged, hop=hop_from(None, is_secure=True)) == said_of_hop()[1:]


def test_what_a_trusted_proxy_says_is_kept_and_continued() -> None:
    """Its chain gets its own address, its scheme and host stay."""
    said = (
        (b"X-Forwarded-For", b"1.1.1.1"), (b"x-forwarded-for", b"2.2.2.2"), (b"X-Forwarded-Proto", b"http"),
        (b"Forwarded", b"for=1.1.1.1"), (b"X-Real-IP", b"1.1.1.1"),
    )  # fmt: skip
    assert unprotected(*said, hop=PROXY) == (
        said[0], (b"x-forwarded-for", b"2.2.2.2, 10.0.0.7"), *said[2:], (b"X-Forwarded-Host", b"api.example"), VIA,
    )  # fmt: skip
    mapped = hop_from("::ffff:10.0.0.7", is_secure=True)
    assert unprotected((b"X-Forwarded-For", b""), hop=mapped)[0] == (b"X-Forwarded-For", b"10.0.0.7")


@pytest.mark.parametrize(
    ("key", "key_headers", "sent"),
    [
        ("operation_id", (b"Other-Key", b"Idempotency-Key"), ((b"Other-Key", OPERATION),)),
        ("operation_id", (), ((b"idempotency-key", b'"k"'), (b"Other-Key", b"o"), (b"Idempotency-Key", OPERATION))),
        ("none", (b"Idempotency-Key",), ((b"Other-Key", b"o"),)),
        ("none", (b"Other-Key", b"Idempotency_Key"), ()),
    ],
    ids=["first-name", "composed", "none", "none-folded"],
)
def test_the_upstream_gets_the_key_that_the_route_says(
    key: UpstreamKey, key_headers: tuple[bytes, ...], sent: Headers
) -> None:
    assert protected((b"idempotency-key", b'"k"'), (b"Other-Key", b"o"), key=key, key_headers=key_headers) == sent


def test_a_fetch_is_only_a_fetch() -> None:
    """What is about another request goes: its body, key, conditions and ranges, and above all what would make it one
    that writes. The caller's own headers go along as they are."""
    own = ((b"Authorization", b"Bearer \xff"), (b"Accept", b"a/b"), (b"Cookie", b"a=b"), (b"X-Tenant", b"t"))
    others = (
        b"Content-Type content-encoding If-Match If-None-Match If-Modified-Since If-Range Range Idempotency-Key X-Key "
        b"x_key Prefer Expect Digest Repr-Digest Idempotency-Operation X-HTTP-Method-Override X_HTTP_Method_Override "
        b"x-http-method X-Method-Override X-Original-URL X-Rewrite-Url Connection TE Upgrade X-Envoy-Retry-On"
    ).split()
    head = RequestHead(b"POST", b"/charges", IndexedHeaders((HOST, *own, *[(name, b"1") for name in others])))
    fetch = fetched_request(head, CLIENT, replace(POLICY, key_headers=(b"X-Key",)), b"/charges/1")
    assert (fetch.method, fetch.target) == (b"GET", b"/charges/1")
    assert fetch.headers == (HOST, *own, *said_of_hop())
