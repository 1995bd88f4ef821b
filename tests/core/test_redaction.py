"""Values of a response that are replaced before it is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import Pointer, parse_pointer
from gateway.core.message import Headers, IndexedHeaders, ResponseHead, StoredResponse
from gateway.core.outcome import REDACTED, REDACTED_HEADER, KeepPolicy, Redaction, stored_response
from tests.core.rows import rows

JSON = (b"Content-Type", b"application/json")
names = st.sampled_from(["a", "b", "", "0", "1", "/", "~", "\ud800", "\u00e9", '"'])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=3) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
pointers = st.lists(st.lists(names, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)


def stored(
    body: bytes | None, *pointers: str, headers: Headers = (JSON,), redact: frozenset[bytes] = frozenset()
) -> StoredResponse:
    redaction = Redaction(tuple(parse_pointer(pointer) for pointer in pointers), redact)
    return stored_response(
        b"POST", ResponseHead(201, b"", IndexedHeaders(headers)), body, KeepPolicy(redaction=redaction)
    )


def body_of(body: bytes, *pointers: str) -> bytes | None:
    return stored(body, *pointers).body


def test_values_are_cut_out_and_all_else_stays() -> None:
    """Byte for byte: white space, the order of members, how numbers and strings are written."""
    body = (
        b' { "id" : 1.50e+02, "card": {"number":"4242\\u0034","exp" :[ 1, {"cvc": 123} ]},\r\n"\\u0061":"\xc3\xa9" }\n'
    )
    assert body_of(body, "/card/number", "/card/exp/1/cvc", "/a", "/absent/too", "/id/no") == (
        b' { "id" : 1.50e+02, "card": {"number":"[redacted]","exp" :[ 1, {"cvc": "[redacted]"} ]},\r\n'
        b'"\\u0061":"[redacted]" }\n'
    )
    assert body_of(b'[0,{"a":[{}]},2]', "/1", "/1/a", "/02") == b'[0,"[redacted]",2]'


@given(document=documents, pointers=pointers, indent=st.sampled_from([None, 1]))
def test_what_is_named_is_gone_and_nothing_else(document: Any, pointers: list[Pointer], indent: int | None) -> None:
    """The same document, but for what the pointers name."""
    body = json.dumps(document, indent=indent).encode()
    redaction = Redaction(tuple(pointers))
    headers, found = redaction.redacted((), body)
    assert found is not None
    expected = _replaced(document, pointers)
    assert json.loads(found) == expected
    assert (REDACTED_HEADER in headers) == (found != body)
    if expected == document:
        assert found == body or REDACTED in json.dumps(document)


def _replaced(document: Any, pointers: list[Pointer]) -> Any:
    """The simplest way: an outer value is replaced with all that is in it."""
    if () in pointers:
        return REDACTED
    if isinstance(document, dict):
        return {
            name: _replaced(value, [p[1:] for p in pointers if p[:1] == (name,)]) for name, value in document.items()
        }
    if isinstance(document, list):
        return [_replaced(value, [p[1:] for p in pointers if p[:1] == (str(n),)]) for n, value in enumerate(document)]
    return document


@rows(
    "body, headers",
    html=(b"<html>4242</html>", ()),
    twice=(b'{"a":1,"a":2}', (JSON,)),
    cut=(b'{"a":1', (JSON,)),
    constant=(b'{"a":NaN}', (JSON,)),
    utf_16=('{"a":1}'.encode("utf-16"), (JSON,)),
    too_long=(b'{"a":"' + b"x" * (1 << 20) + b'"}', (JSON,)),
    too_deep=(b"[" * 200 + b"]" * 200, (JSON,)),
    encoded=(b'{"a":1}', (JSON, (b"content-encoding", b"gzip"))),
    streamed=(None, (JSON,)),
)
def test_what_cannot_be_looked_into_is_not_kept(body: bytes | None, headers: Headers) -> None:
    """Neither the body nor a digest of it; without a pointer it would be."""
    digests = ((b"ETag", b'"1"'), (b"Content-MD5", b"1"), (b"Repr-Digest", b"1"))
    assert stored(body, "/a", headers=headers + digests) == StoredResponse(201, b"", headers, None)
    plain = stored(body, headers=headers + digests, redact=frozenset({b"x"}))
    assert plain == StoredResponse(201, b"", headers + digests, body)


def test_headers_by_name() -> None:
    """Each line of them, in any case; the body and its digests stay."""
    sent = ((b"x-TOKEN", b"s3cret"), JSON, (b"X-Token", b"s3cret2"), (b"ETag", b"1"))
    kept = ((b"x-TOKEN", b"[redacted]"), JSON, (b"X-Token", b"[redacted]"), (b"ETag", b"1"), REDACTED_HEADER)
    assert stored(b"4242", headers=sent, redact=frozenset({b"x-token"})) == StoredResponse(201, b"", kept, b"4242")


@pytest.mark.parametrize(
    ("body", "sent", "kept"),
    [
        (b'{"a":1}', ((b"etag", b"1"), (b"Digest", b"1"), (b"X-Other", b"1")), ((b"X-Other", b"1"), REDACTED_HEADER)),
        (b'{"b": 1}', ((b"Content-Digest", b"sha-256=:AA==:"),), ((b"Content-Digest", b"sha-256=:AA==:"),)),
        (b"", ((b"Content-Digest", b"sha-256=:AA==:"),), ((b"Content-Digest", b"sha-256=:AA==:"),)),
        (b"{}", (REDACTED_HEADER,), ()),
    ],
    ids=["replaced", "nothing-to-replace", "empty", "said-by-the-service"],
)
def test_a_digest_of_what_was_replaced_is_a_guess_away(body: bytes, sent: Headers, kept: Headers) -> None:
    """With a value, the digests of the body go, and the gateway alone says so; nothing else changes anything."""
    found = stored(body, "/a", headers=(JSON, *sent))
    assert found.headers == (JSON, *kept)
    assert (found.body == body) is (REDACTED_HEADER not in kept)
