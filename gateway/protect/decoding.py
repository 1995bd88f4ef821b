"""Decodes a body: a stored one for a retry that does not accept its coding, or one that is read for what it says.

A small body can take tens of milliseconds to decode. So `is_unaccepted`, which is cheap, is separate from the decoding,
which must not run on the event loop.

Owns which codings are known and how far a body may grow. It never fails: a body that cannot be decoded completely and
within the limit goes out as it is stored, because a client can recognise a wrong coding, but not half a body.
Invariant: the headers that come out describe the bytes that come out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import brotli  # type: ignore[import-untyped]
import zstandard

from gateway.core.identity.body import MISSING, parse_json
from gateway.core.message import Headers, header_values, list_members
from gateway.core.outcome import accepted_codings, accepts

# The longest decoded body. By default up to 1 MiB is stored; a decompression bomb grows a thousandfold.
DECODED_BYTES_MAX: Final = 16 * 1024 * 1024
# A document that is parsed faster than a thread starts.
_INLINE_BYTES_MAX: Final = 16 * 1024
# More codings than are ever stacked; each could grow the body to the limit.
_CODINGS_MAX: Final = 4

# Headers that describe the coded bytes (RFC 9530 sections 2 and 3; RFC 3230; RFC 1864).
_OF_CODED_BYTES: Final = frozenset(
    (b"content-encoding", b"content-length", b"content-digest", b"repr-digest", b"digest", b"content-md5")
)
# Each member costs a copy of all that follows it.
_GZIP_MEMBERS_MAX: Final = 64
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
# Window sizes above it need not be supported (RFC 8878 section 3.1.1.1.2).
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
# A zstd block of four bytes can decode to 128 KiB, so one slice exceeds the limit by 8 MiB at most.
_ZSTD_SLICE_BYTES: Final = 256


class _Undecodable(Exception):
    """The body is not whole in this coding, or grows too long."""


def decode_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[Headers, bytes]:
    """The headers and the body, decoded as far as a request with these `Accept-Encoding` values needs.

    Undoes the outermost codings first, until the rest are accepted. Returns both unchanged where nothing needs to or
    can be undone: an unknown coding, a part of a representation, `no-transform`, a request that refuses `identity` too.
    """
    kept, unaccepted = _split_codings(headers, body, accept_encoding)
    if not unaccepted:
        return headers, body
    decoded = _undone(unaccepted, body)
    return (headers, body) if decoded is None else (_describe(headers, kept), decoded)


def document_in(headers: Headers, body: bytes, *, takes_text: bool = False) -> Any:
    """The JSON document in the body of a response; `MISSING` where it cannot be read: it has an unknown coding, or is
    not complete. Takes time like the above.

    With `takes_text`, what is not JSON is one text.
    """
    codings = _codings(headers)
    if len(codings) > _CODINGS_MAX or (codings and header_values(headers, b"content-range")):
        return MISSING
    plain = _undone(codings, body)
    document = MISSING if plain is None else parse_json(plain)
    return plain.decode("latin-1") if takes_text and plain is not None and document is MISSING else document


async def read_document(headers: Headers, body: bytes, *, takes_text: bool = False) -> Any:
    """As `document_in`, without blocking the event loop: of a long or coded body, in a thread."""
    read = partial(document_in, headers, body, takes_text=takes_text)
    if len(body) <= _INLINE_BYTES_MAX and not header_values(headers, b"content-encoding"):
        return read()
    return await asyncio.to_thread(read)


def is_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> bool:
    """Whether `decode_unaccepted` has anything to decode, by the headers alone."""
    return bool(header_values(headers, b"content-encoding")) and bool(_split_codings(headers, body, accept_encoding)[1])


def _codings(headers: Headers) -> list[bytes]:
    """In the order in which they were applied."""
    return [coding for coding in list_members(header_values(headers, b"content-encoding")) if coding != b"identity"]


def _split_codings(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The codings that stay and those to be undone, each in the order in which they were applied."""
    codings = _codings(headers)
    if not codings or not body:
        return codings, []
    allowed = accepted_codings(accept_encoding)
    kept = len(codings)
    while not all(accepts(coding, allowed) for coding in codings[:kept]):
        kept -= 1
    # No coding at all is acceptable unless it is refused by name or by `*` (RFC 9110 section 12.5.3).
    is_identity_accepted = allowed is None or allowed.get(b"identity", allowed.get(b"*", True))
    may_undo = len(codings) <= _CODINGS_MAX and _may_transform(headers) and (kept > 0 or is_identity_accepted)
    return (codings[:kept], codings[kept:]) if may_undo else (codings, [])


def _may_transform(headers: Headers) -> bool:
    """RFC 9111 section 5.2.2.6; and a byte range of a coded representation cannot be decoded alone."""
    if header_values(headers, b"content-range"):
        return False
    return b"no-transform" not in list_members(header_values(headers, b"cache-control"))


def _describe(headers: Headers, codings: list[bytes]) -> Headers:
    """The headers of the decoded representation. It differs from the recorded one, so its `ETag` becomes weak."""
    described: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        match name.lower():
            case b"content-encoding":
                if codings:
                    described.append((name, b", ".join(codings)))
                    codings = []
            case lower if lower in _OF_CODED_BYTES:
                continue
            case b"etag":
                described.append((name, value if value.startswith(b"W/") else b"W/" + value))
            case _:
                described.append((name, value))
    return tuple(described)


def _undone(codings: list[bytes], body: bytes) -> bytes | None:
    """The body without these codings; None where one is unknown, or the body is not whole in it or grows too long."""
    try:
        for coding in reversed(codings):
            if (decode := _DECODERS.get(coding)) is None:
                return None
            body = decode(body)
    except _Undecodable:
        return None
    return body


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


_DECODERS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"gzip": _gunzip, b"x-gzip": _gunzip, b"deflate": _inflate, b"br": _unbrotli, b"zstd": _unzstd,
}  # fmt: skip
