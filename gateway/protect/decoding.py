"""Decodes a stored body for a retry that does not accept the coding in which it was recorded.

A small body may stand for one that takes tens of milliseconds to decode, so whether there is something to decode
(`is_unaccepted`) and the decoding are two questions: the second is not for the event loop.

Owns which codings are known and how far a body may grow. It never fails: what cannot be decoded whole, exactly and
within the bound goes out as it is stored, for a body in the wrong coding can still be recognised, and half of one
cannot. Invariant: the fields that come out describe the bytes that come out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Final

import brotli  # type: ignore[import-untyped]
import zstandard

from gateway.core.message import Headers, header_values, list_members
from gateway.core.replay import accepted_codings, accepts

# The longest body that comes out of decoding. What is stored is 1 MiB by default; a bomb grows a thousandfold.
DECODED_BYTES_MAX: Final = 16 * 1024 * 1024
# More codings than anybody stacks; each one could grow the body to the bound.
_CODINGS_MAX: Final = 4

# What speaks of the coded bytes (RFC 9530 sections 2 and 3; RFC 3230; RFC 1864).
_OF_CODED_BYTES: Final = frozenset(
    (b"content-encoding", b"content-length", b"content-digest", b"repr-digest", b"digest", b"content-md5")
)
# Each member costs a copy of all that follows it.
_GZIP_MEMBERS_MAX: Final = 64
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
# Window sizes above it need not be supported (RFC 8878 section 3.1.1.1.2).
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
# One zstd block of four bytes can stand for 128 KiB, so this much input exceeds the bound by 8 MiB at most.
_ZSTD_SLICE_BYTES: Final = 256


class _Undecodable(Exception):
    """The body is not whole in this coding, or grows too long."""


def decode_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[Headers, bytes]:
    """The fields and the body, decoded as far as a request with these `Accept-Encoding` values needs.

    The outermost codings go first, until those that are left are accepted. Unchanged where nothing need or can be done:
    an unknown coding, a part of a representation, `no-transform`, a request that refuses `identity` too.
    """
    kept, unaccepted = _parted(headers, body, accept_encoding)
    if not unaccepted:
        return headers, body
    decoded = body
    try:
        for coding in reversed(unaccepted):
            decoded = _decoder(coding)(decoded)
    except _Undecodable:
        return headers, body
    return _described(headers, kept), decoded


def is_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> bool:
    """Whether `decode_unaccepted` has anything to decode; asked of the fields alone."""
    return bool(header_values(headers, b"content-encoding")) and bool(_parted(headers, body, accept_encoding)[1])


def _parted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The codings that stay and those to be undone, each in the order in which they were applied."""
    codings = [coding for coding in list_members(header_values(headers, b"content-encoding")) if coding != b"identity"]
    if not codings or not body:
        return codings, []
    allowed = accepted_codings(accept_encoding)
    kept = len(codings)
    while not all(accepts(coding, allowed) for coding in codings[:kept]):
        kept -= 1
    may_undo = len(codings) <= _CODINGS_MAX and _may_transform(headers) and (kept > 0 or _accepts_identity(allowed))
    return (codings[:kept], codings[kept:]) if may_undo else (codings, [])


def _may_transform(headers: Headers) -> bool:
    """RFC 9111 section 5.2.2.6; and a byte range of a coded representation cannot be decoded alone."""
    if header_values(headers, b"content-range"):
        return False
    return b"no-transform" not in list_members(header_values(headers, b"cache-control"))


def _accepts_identity(allowed: dict[bytes, bool] | None) -> bool:
    """No coding at all is acceptable unless it is refused by name or by `*` (RFC 9110 section 12.5.3)."""
    if allowed is None:
        return True
    return allowed.get(b"identity", allowed.get(b"*", True))


def _described(headers: Headers, codings: list[bytes]) -> Headers:
    """The fields of the decoded representation: another one than was recorded, so its validator is a weak one."""
    fields: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        match name.lower():
            case b"content-encoding":
                if codings:
                    fields.append((name, b", ".join(codings)))
                    codings = []
            case lower if lower in _OF_CODED_BYTES:
                continue
            case b"etag":
                fields.append((name, value if value.startswith(b"W/") else b"W/" + value))
            case _:
                fields.append((name, value))
    return tuple(fields)


def _decoder(coding: bytes) -> Callable[[bytes], bytes]:
    match coding:
        case b"gzip" | b"x-gzip":
            return _gunzip
        case b"deflate":
            return _inflate
        case b"br":
            return _unbrotli
        case b"zstd":
            return _unzstd
        case _:
            raise _Undecodable


def _gunzip(data: bytes) -> bytes:
    """All members of a gzip file, one after the other (RFC 1952 section 2.2)."""
    decoded = b""
    for _ in range(_GZIP_MEMBERS_MAX):
        member, data = _zlib(data, _GZIP_WINDOW, DECODED_BYTES_MAX - len(decoded))
        decoded += member
        if not data:
            return decoded
    raise _Undecodable


def _inflate(data: bytes) -> bytes:
    """A zlib stream, or the raw deflate data that some servers send under this name (RFC 9110 section 8.4.1.2)."""
    for window in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        try:
            decoded, rest = _zlib(data, window, DECODED_BYTES_MAX)
        except _Undecodable:
            continue
        if not rest:
            return decoded
    raise _Undecodable


def _zlib(data: bytes, window: int, bytes_max: int) -> tuple[bytes, bytes]:
    """One whole stream, and the bytes behind it."""
    decompressor = zlib.decompressobj(window)
    try:
        # One byte more than allowed, since a limit of 0 would be none.
        decoded = decompressor.decompress(data, bytes_max + 1)
    except zlib.error:
        raise _Undecodable from None
    if len(decoded) > bytes_max or not decompressor.eof:
        raise _Undecodable
    return decoded, decompressor.unused_data


def _unbrotli(data: bytes) -> bytes:
    decompressor = brotli.Decompressor()
    parts: list[bytes] = []
    length = 0
    try:
        while not decompressor.is_finished():
            part = decompressor.process(data, output_buffer_limit=DECODED_BYTES_MAX + 1)
            data = b""
            parts.append(part)
            length += len(part)
            if length > DECODED_BYTES_MAX or (not part and not decompressor.is_finished()):
                raise _Undecodable
    except brotli.error:
        raise _Undecodable from None
    return b"".join(parts)


def _unzstd(data: bytes) -> bytes:
    """All frames, one after the other (RFC 8878 section 3)."""
    parts: list[bytes] = []
    length = 0
    frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    decompressor = frames.decompressobj()
    try:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = data[start : start + _ZSTD_SLICE_BYTES]
            while rest:
                if decompressor.eof:
                    decompressor = frames.decompressobj()
                parts.append(decompressor.decompress(rest))
                rest = decompressor.unused_data if decompressor.eof else b""
                length += len(parts[-1])
                if length > DECODED_BYTES_MAX:
                    raise _Undecodable
    except zstandard.ZstdError:
        raise _Undecodable from None
    if not decompressor.eof:
        raise _Undecodable
    return b"".join(parts)
