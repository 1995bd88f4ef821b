"""A request as it is kept until it was delivered: encoded, and encrypted with the ids that it belongs to.

Owns the encoding. A reader of the store sees its length and nothing else. Operation id and acceptance id are
authenticated with the bytes, so a request that was moved to another row cannot be opened.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from gateway.core.confidential import of_request
from gateway.core.immutable import immutable
from gateway.core.message import RequestHead
from gateway.core.operation import SealedRequest
from gateway.core.sealing import KeyRing, Unopenable
from gateway.protect.hop import Hop, hop_from

__all__ = ["KeptRequest", "Unopenable", "open_sealed", "seal"]

_VERSION: Final = 1
# Version, flags, the number of headers. The lengths of all parts but the body come next, then the parts.
_FIXED: Final = struct.Struct(">BBH")
_IS_SECURE, _HAS_ADDRESS, _HAS_KEY = 1, 2, 4
_HEADERS_MAX: Final = 0xFFFF


@immutable
class KeptRequest:
    """All that a delivery needs of a request. `canonical_key` as in `forwarding.Execution`."""

    head: RequestHead
    hop: Hop
    body: bytes
    canonical_key: bytes | None


def seal(kept: KeptRequest, ring: KeyRing, operation_id: UUID, acceptance_id: UUID) -> SealedRequest:
    """Encode and encrypt the request. Takes about a millisecond for some MiB. Raises ValueError beyond 65535 headers
    or 4 GiB."""
    key_id, sealed = ring.seal(_encode(kept), of_request(operation_id, acceptance_id))
    return SealedRequest(acceptance_id, key_id, sealed)


def open_sealed(sealed: SealedRequest, ring: KeyRing, operation_id: UUID) -> KeptRequest:
    """Decrypt and decode a request. Raises `Unopenable`: its key is not configured, it was changed or belongs to
    another operation or acceptance, or a newer program wrote it."""
    content = ring.open(sealed.key_id, sealed.sealed, of_request(operation_id, sealed.acceptance_id))
    try:
        return _decode(content)
    except (IndexError, ValueError, struct.error):
        # It is authentic, so a newer program wrote it.
        raise Unopenable("its format is unknown to this version of the gateway") from None


def _encode(kept: KeptRequest) -> bytes:
    head, hop = kept.head, kept.hop
    if len(head.headers) > _HEADERS_MAX:
        raise ValueError(f"a request with {len(head.headers)} headers")
    flags = _IS_SECURE if hop.scheme == b"https" else 0
    flags |= 0 if hop.address is None else _HAS_ADDRESS
    flags |= 0 if kept.canonical_key is None else _HAS_KEY
    parts = [head.method, head.target, hop.address or b"", kept.canonical_key or b""]
    for header in head.headers:
        parts += header
    try:
        lengths = struct.pack(f">{len(parts)}I", *map(len, parts))
    except struct.error:
        raise ValueError("a request with a part of more than 4 GiB") from None
    return b"".join((_FIXED.pack(_VERSION, flags, len(head.headers)), lengths, *parts, kept.body))


def _decode(content: bytes) -> KeptRequest:
    """Raises ValueError, IndexError or `struct.error` on anything else than one encoded request."""
    version, flags, headers = _FIXED.unpack_from(content)
    if version != _VERSION or flags & ~(_IS_SECURE | _HAS_ADDRESS | _HAS_KEY):
        raise ValueError("another format")
    parts = []
    lengths = struct.Struct(f">{4 + 2 * headers}I")
    at = _FIXED.size + lengths.size
    for length in lengths.unpack_from(content, _FIXED.size):
        parts.append(content[at : at + length])
        at += length
    if at > len(content):
        raise ValueError("shorter than its parts")
    method, target, address, key, *rest = parts
    peer = address.decode() if flags & _HAS_ADDRESS else None
    return KeptRequest(
        RequestHead(method, target, tuple(zip(rest[::2], rest[1::2], strict=True))),
        hop_from(peer, is_secure=bool(flags & _IS_SECURE)),
        content[at:],
        key if flags & _HAS_KEY else None,
    )
