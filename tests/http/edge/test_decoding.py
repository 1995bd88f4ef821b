"""Stored codings for those who do not accept them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from gateway.core.message import Headers
from gateway.protect.reply import DECODED_BYTES_MAX, decode_unaccepted

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
    ("accepted", "is_decoded"),
    [
        ([], False), ([b"gzip"], False), ([b"br, GZIP;q=0.5"], False), ([b"*"], False), ([b"br", b"gzip"], False),
        ([b"identity;q=0, gzip;q=0"], False), ([b""], True), ([b"gzip;q=0"], True), ([b"br"], True),
        ([b"gzip;q=0, *"], True), ([b"*;q=0, identity"], True),
    ],
    ids=str,
)  # fmt: skip
def test_a_coding_that_is_refused_is_decoded(accepted: list[bytes], is_decoded: bool) -> None:
    """Not to name a coding and to give it no weight are the same (RFC 9110 section 12.5.3); what is accepted, or where
    everything is refused, stays byte for byte."""
    coded, headers = gzip.compress(TEXT), headers_of(b"gzip", (b"X", b"\xff"))
    found = decode_unaccepted(headers, coded, accepted)
    assert found == ((headers[:1] + headers[2:], TEXT) if is_decoded else (headers, coded))


@pytest.mark.parametrize("named", [((b"gzip, br"),), (b"gzip", b"br")], ids=["one-line", "two-lines"])
def test_several_codings_are_decoded_as_far_as_needed(named: tuple[bytes, ...]) -> None:
    """The outermost goes first; what is accepted below it stays. Repeated fields are read in order."""
    inner = gzip.compress(TEXT)
    kind = (b"Content-Type", b"application/json")
    headers = (kind, *((b"Content-Encoding", coding) for coding in named))
    for accepted, body, left in ((b"gzip", inner, ((b"Content-Encoding", b"gzip"),)), (b"identity", TEXT, ())):
        assert decode_unaccepted(headers, brotli.compress(inner), [accepted]) == ((kind, *left), body)


def test_what_speaks_of_the_coded_bytes_goes_and_the_validator_is_weak() -> None:
    """Digests and lengths of the coded body would be wrong of the decoded one (RFC 9530, RFC 9110 section 8.8.1)."""
    gone = (
        (b"Content-Digest", b"sha-256=:x:"), (b"Repr-Digest", b"sha-256=:x:"), (b"Digest", b"sha-256=x"),
        (b"Content-MD5", b"x"), (b"Content-Length", b"9"),
    )  # fmt: skip
    headers = headers_of(b"gzip", *gone, (b"ETag", b'"1"'), (b"X", b"\xff"))
    changed, _ = decode_unaccepted(headers, gzip.compress(TEXT), [b"identity"])
    assert changed == ((b"Content-Type", b"application/json"), (b"ETag", b'W/"1"'), (b"X", b"\xff"))
    weak = headers_of(b"gzip", (b"ETag", b'W/"1"'))
    assert (b"ETag", b'W/"1"') in decode_unaccepted(weak, gzip.compress(TEXT), [b"identity"])[0]


LEFT_ALONE: dict[str, tuple[bytes, bytes, Headers]] = {
    "gzip-cut": (b"gzip", gzip.compress(TEXT)[:-1], ()),
    "gzip-with-more-behind": (b"gzip", gzip.compress(TEXT) + b"more", ()),
    "no-gzip": (b"gzip", b"not gzip at all", ()),
    "deflate-cut": (b"deflate", zlib.compress(TEXT)[:-1], ()),
    "deflate-with-more-behind": (b"deflate", zlib.compress(TEXT) + b"more", ()),
    "br-cut": (b"br", brotli.compress(TEXT)[:-1], ()),
    "no-br": (b"br", b"\xff\xff\xff", ()),
    "zstd-cut": (b"zstd", zstd(TEXT)[:-1], ()),
    "zstd-with-more-behind": (b"zstd", zstd(TEXT) + b"more", ()),
    "no-zstd": (b"zstd", b"not zstd", ()),
    "unknown": (b"unheard-of", TEXT, ()),
    "unknown-outermost": (b"gzip, unheard-of", TEXT, ()),
    "gzip-of-a-thousand-members": (b"gzip", gzip.compress(b"") * 1000, ()),
    "ten-codings": (b"gzip, " * 9 + b"gzip", gzip.compress(TEXT), ()),
    # HEAD and 304 keep what they say of the body that they do not have.
    "empty": (b"gzip", b"", ((b"Content-Length", b"70"),)),
    # A range is no coding by itself, and no-transform means this (RFC 9110 section 7.7).
    "a-range": (b"gzip", gzip.compress(TEXT), ((b"Content-Range", b"bytes 0-9/100"),)),
    "no-transform": (b"gzip", gzip.compress(TEXT), ((b"Cache-Control", b"private, No-Transform"),)),
}


@pytest.mark.parametrize(("coding", "body", "more"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_cannot_be_decoded_whole_stays_as_it_is(coding: bytes, body: bytes, more: Headers) -> None:
    """Half a body is worse than one in a coding that was not asked for."""
    headers = headers_of(coding, (b"ETag", b'"1"'), *more)
    assert decode_unaccepted(headers, body, [b"identity"]) == (headers, body)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_is_sent_as_it_is_stored(name: str) -> None:
    """A body that would grow over the bound is not decoded; one that just fits is."""
    coding, encode = ENCODERS[name]
    bomb = encode(bytes(DECODED_BYTES_MAX + 1))
    assert decode_unaccepted(headers_of(coding), bomb, [b"identity"]) == (headers_of(coding), bomb)
    whole = decode_unaccepted(headers_of(coding), encode(bytes(DECODED_BYTES_MAX)), [b"identity"])[1]
    assert whole == bytes(DECODED_BYTES_MAX)
