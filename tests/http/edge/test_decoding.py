"""Stored codings for those who do not accept them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from gateway.core.message import Headers
from gateway.protect.decoding import DECODED_BYTES_MAX, decode_unaccepted

TEXT = b'{"amount": "10.00"}' * 50


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


ENCODERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "gzip-in-capitals": (b"GZip", gzip.compress),
    "gzip-of-two-members": (b"gzip", lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:])),
    "deflate": (b"deflate", zlib.compress),
    "deflate-without-its-wrapper": (b"deflate", raw_deflate),
    "br": (b"br", brotli.compress),
    "zstd": (b"zstd", zstd),
    "zstd-of-two-frames": (b"zstd", lambda data: zstd(data[:7]) + zstd(data[7:])),
}


def headers_of(coding: bytes, *more: tuple[bytes, bytes]) -> Headers:
    return ((b"Content-Type", b"application/json"), (b"Content-Encoding", coding), *more)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_coding_that_is_not_accepted_is_decoded(name: str) -> None:
    """The body comes out as it was before it was coded, and the field is gone."""
    coding, encode = ENCODERS[name]
    headers, body = decode_unaccepted(headers_of(coding), encode(TEXT), [b"identity"])
    assert body == TEXT
    assert headers == ((b"Content-Type", b"application/json"),)


@pytest.mark.parametrize(
    "accepted",
    [[], [b"gzip"], [b"br, GZIP;q=0.5"], [b"*"], [b"br", b"gzip"]],
    ids=["no-field", "named", "named-with-weight", "any", "on-another-line"],
)
def test_an_accepted_coding_stays_byte_for_byte(accepted: list[bytes]) -> None:
    """What the retry accepts is not touched."""
    stored = gzip.compress(TEXT)
    headers = headers_of(b"gzip", (b"ETag", b'"1"'))
    assert decode_unaccepted(headers, stored, accepted) == (headers, stored)


@pytest.mark.parametrize(
    "accepted",
    [[b""], [b"gzip;q=0"], [b"br"], [b"gzip;q=0, *"], [b"*;q=0, identity"]],
    ids=["empty-field", "refused", "another", "refused-among-any", "nothing-but-identity"],
)
def test_a_coding_that_is_refused_is_decoded(accepted: list[bytes]) -> None:
    """Not to name a coding and to give it no weight are the same (RFC 9110 section 12.5.3)."""
    assert decode_unaccepted(headers_of(b"gzip"), gzip.compress(TEXT), accepted)[1] == TEXT


def test_several_codings_are_decoded_as_far_as_needed() -> None:
    """The outermost goes first; what is accepted below it stays."""
    inner = gzip.compress(TEXT)
    headers, body = decode_unaccepted(headers_of(b"gzip, br"), brotli.compress(inner), [b"gzip"])
    assert body == inner
    assert (b"Content-Encoding", b"gzip") in headers
    headers, body = decode_unaccepted(headers_of(b"gzip, br"), brotli.compress(inner), [b"identity"])
    assert body == TEXT
    assert headers == ((b"Content-Type", b"application/json"),)


def test_codings_on_two_lines_are_one_list() -> None:
    """Repeated fields are read in order and replaced by one."""
    headers = (*headers_of(b"gzip"), (b"content-encoding", b"br"))
    changed, body = decode_unaccepted(headers, brotli.compress(gzip.compress(TEXT)), [b"gzip"])
    assert gzip.decompress(body) == TEXT
    assert changed == ((b"Content-Type", b"application/json"), (b"Content-Encoding", b"gzip"))


def test_what_speaks_of_the_coded_bytes_goes_and_the_validator_is_weak() -> None:
    """Digests and lengths of the coded body would be wrong of the decoded one (RFC 9530, RFC 9110 section 8.8.1)."""
    gone = (
        (b"Content-Digest", b"sha-256=:x:"),
        (b"Repr-Digest", b"sha-256=:x:"),
        (b"Digest", b"sha-256=x"),
        (b"Content-MD5", b"x"),
        (b"Content-Length", b"9"),
    )
    headers = headers_of(b"gzip", *gone, (b"ETag", b'"1"'), (b"X", b"\xff"))
    changed, _ = decode_unaccepted(headers, gzip.compress(TEXT), [b"identity"])
    assert changed == ((b"Content-Type", b"application/json"), (b"ETag", b'W/"1"'), (b"X", b"\xff"))
    weak = headers_of(b"gzip", (b"ETag", b'W/"1"'))
    assert (b"ETag", b'W/"1"') in decode_unaccepted(weak, gzip.compress(TEXT), [b"identity"])[0]


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(TEXT)[:-1]),
        (b"gzip", gzip.compress(TEXT) + b"more"),
        (b"gzip", b"not gzip at all"),
        (b"deflate", zlib.compress(TEXT)[:-1]),
        (b"deflate", zlib.compress(TEXT) + b"more"),
        (b"br", brotli.compress(TEXT)[:-1]),
        (b"br", b"\xff\xff\xff"),
        (b"zstd", zstd(TEXT)[:-1]),
        (b"zstd", zstd(TEXT) + b"more"),
        (b"zstd", b"not zstd"),
        (b"unheard-of", TEXT),
        (b"gzip, unheard-of", TEXT),
        (b"gzip", gzip.compress(b"") * 1000),
        (b"gzip, " * 9 + b"gzip", gzip.compress(TEXT)),
    ],
    ids=[
        "gzip-cut",
        "gzip-with-more-behind",
        "no-gzip",
        "deflate-cut",
        "deflate-with-more-behind",
        "br-cut",
        "no-br",
        "zstd-cut",
        "zstd-with-more-behind",
        "no-zstd",
        "unknown",
        "unknown-outermost",
        "gzip-of-a-thousand-members",
        "ten-codings",
    ],
)
def test_what_cannot_be_decoded_whole_stays_as_it_is(coding: bytes, body: bytes) -> None:
    """Half a body is worse than one in a coding that was not asked for."""
    headers = headers_of(coding, (b"ETag", b'"1"'))
    assert decode_unaccepted(headers, body, [b"identity"]) == (headers, body)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_is_sent_as_it_is_stored(name: str) -> None:
    """A body that would grow over the bound is not decoded; one that just fits is."""
    coding, encode = ENCODERS[name]
    bomb = encode(bytes(DECODED_BYTES_MAX + 1))
    assert decode_unaccepted(headers_of(coding), bomb, [b"identity"]) == (headers_of(coding), bomb)
    whole = decode_unaccepted(headers_of(coding), encode(bytes(DECODED_BYTES_MAX)), [b"identity"])[1]
    assert whole == bytes(DECODED_BYTES_MAX)


@pytest.mark.parametrize(
    "more",
    [((b"Content-Range", b"bytes 0-9/100"),), ((b"Cache-Control", b"private, No-Transform"),)],
    ids=["a-range", "no-transform"],
)
def test_what_must_not_be_transformed_is_not(more: Headers) -> None:
    """A range of a coded representation is no coding by itself, and no-transform means this (RFC 9110 section 7.7)."""
    headers = headers_of(b"gzip", *more)
    stored = gzip.compress(TEXT)
    assert decode_unaccepted(headers, stored, [b"identity"]) == (headers, stored)


def test_a_request_that_refuses_everything_gets_what_is_stored() -> None:
    """There is nothing better to give to one that refuses identity as well."""
    stored = gzip.compress(TEXT)
    headers = headers_of(b"gzip")
    assert decode_unaccepted(headers, stored, [b"identity;q=0, gzip;q=0"]) == (headers, stored)


def test_an_empty_body_is_left_alone() -> None:
    """HEAD and 304 keep what they say of the body that they do not have."""
    headers = headers_of(b"gzip", (b"Content-Length", b"70"))
    assert decode_unaccepted(headers, b"", [b"identity"]) == (headers, b"")
