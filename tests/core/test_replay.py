"""What of a response is kept, and which codings a retry accepts."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, IndexedHeaders, ResponseHead
from gateway.core.outcome import KeepPolicy, accepted_codings, accepts, stored_response

KEPT: Headers = (
    (b"Content-Type", b"application/json"), (b"X-Twice", b"1"), (b"x-twice", b"\xff2"),
    (b"Location", b"/charges/1"), (b"X-Internal", b"secret"), (b"Vary", b"*"),
)  # fmt: skip
# What belongs to a connection, a moment, a caller or the gateway.
DROPPED: Headers = (
    (b"content-length", b"2"), (b"Connection", b"close, X-Hop"), (b"X-Hop", b"of this connection"),
    (b"Keep-Alive", b"timeout=5"), (b"Transfer-Encoding", b"chunked"), (b"Trailer", b"X-T"), (b"Upgrade", b"h2c"),
    (b"Date", b"Fri, 20 Nov 2026 00:00:00 GMT"), (b"Age", b"3"), (b"RateLimit", b"limit=1"),
    (b"RateLimit-Remaining", b"1"), (b"X-RateLimit-Limit", b"1"), (b"Set-Cookie", b"session=1"),
    (b"Set-Cookie", b"b=2"), (b"WWW-Authenticate", b"Basic"), (b"Idempotency-Status", b"stored"),
    (b"Idempotent-Replayed", b"true"), (b"Idempotency-Expires", b"Sat, 21 Nov 2026 00:00:00 GMT"),
    (b"Idempotency-Outcome", b"final"), (b"Idempotency-Retention", b"60"),
)  # fmt: skip
FIELDS: Headers = (KEPT[0], *DROPPED[:1], *KEPT[1:4], *DROPPED[1:], *KEPT[4:])


def kept(method: bytes = b"POST", status: int = 200, policy: KeepPolicy | None = None) -> Headers:
    return (policy or KeepPolicy()).kept_headers(method, ResponseHead(status, b"", IndexedHeaders(FIELDS)))


def test_kept_in_order_and_to_the_byte() -> None:
    """End-to-end fields stay in order, with repeats, spelling and bytes; what belongs to a moment or a caller goes."""
    assert kept() == KEPT


def test_route_keeps_and_strips() -> None:
    """A route may keep personal fields, each line of them, and leave out more; fields stay where no body is kept."""
    policy = KeepPolicy(strip=frozenset({b"x-internal"}), keep=frozenset({b"set-cookie"}))
    names = [name for name, _ in kept(policy=policy)]
    assert names.count(b"Set-Cookie") == 2
    assert not {b"WWW-Authenticate", b"X-Internal"} & set(names)
    stored = stored_response(b"POST", ResponseHead(201, b"Made", FIELDS), None, KeepPolicy())
    assert (stored.status, stored.reason, stored.body) == (201, b"Made", None)
    assert (b"Location", b"/charges/1") in stored.headers


def test_content_length() -> None:
    """The length is kept only where it speaks of a body that is not sent; elsewhere it is computed anew."""
    keeping = {(b"HEAD", 200), (b"GET", 304)}
    answers = {*keeping, (b"POST", 204), (b"POST", 200)}
    assert {each for each in answers if (b"content-length", b"2") in kept(*each)} == keeping


@pytest.mark.parametrize("name", [b"X-Should-Retry", b"stripe-should-retry"], ids=["usual", "stripe"])
def test_an_answer_that_is_repeated_does_not_ask_for_another_try(name: bytes) -> None:
    """What is stored may say that a retry is useless, never that it is of use; who shares an answer is told both."""
    sent = ((name, b"true"), (name, b" False"), (name, b""))
    head = ResponseHead(400, b"", IndexedHeaders(sent))
    assert stored_response(b"POST", head, b"", KeepPolicy()).headers == sent[1:2]
    assert KeepPolicy().kept_headers(b"POST", head) == sent


@pytest.mark.parametrize(
    ("values", "coding", "accepted"),
    [
        ([], b"gzip", True),
        ([b""], b"gzip", False),
        ([b"br, GZIP;q=0.5"], b"gzip", True),
        ([b"gzip;q=0"], b"gzip", False),
        ([b"gzip; q=0.001"], b"gzip", True),
        ([b"*"], b"br", True),
        ([b"*;q=0, gzip"], b"br", False),
        ([b"br", b"gzip"], b"gzip", True),
        ([b"gzip"], b"x-gzip", True),
        # What is beyond what anybody names or gives is not looked at: every replay of a coded answer reads it anew.
        ([b"x," * 63 + b"gzip"], b"gzip", True),
        ([b"x," * 64 + b"gzip"], b"gzip", False),
        ([b"gzip" + b";x" * 3 + b";q=0"], b"gzip", False),
        ([b"gzip" + b";x" * 4 + b";q=0"], b"gzip", True),
    ],
    ids=lambda value: str(value)[:40],
)
def test_accepts(values: list[bytes], coding: bytes, accepted: bool) -> None:
    """RFC 9110 section 12.5.3: an absent field accepts anything, an empty one nothing but identity."""
    assert accepts(coding, accepted_codings(values)) is accepted
