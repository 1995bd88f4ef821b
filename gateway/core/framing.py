"""Digests over length-prefixed parts.

The length before each part makes the encoding injective: no delimiter, spelling or boundary moves a byte from one part
to the next. Every digest begins with a domain tag, so that digests of different kinds never collide.
"""

from __future__ import annotations

from hashlib import sha256

# Nearly all parts are this short: their lengths are encoded once.
_LENGTHS = tuple(length.to_bytes(8, "big") for length in range(512))


def framed(*parts: bytes) -> bytes:
    """Concatenate the parts, each after its length in eight bytes; injective over sequences of any number of parts."""
    pieces = []
    for part in parts:
        length = len(part)
        pieces.append(_LENGTHS[length] if length < len(_LENGTHS) else length.to_bytes(8, "big"))
        pieces.append(part)
    return b"".join(pieces)


def digest(tag: bytes, *parts: bytes) -> bytes:
    return sha256(framed(tag, *parts)).digest()
