"""Digests over parts that cannot run into one another.

Each part is preceded by its length, so that a sequence of parts can be read back from the bytes in one way only: no
delimiter, spelling or boundary moves a byte from one part to the next. Whoever digests names the kind of thing first (a
domain tag), so that digests of different kinds never meet.
"""

from __future__ import annotations

from hashlib import sha256

# The lengths of nearly all parts, as they are written.
_LENGTHS = tuple(length.to_bytes(8, "big") for length in range(512))


def framed(*parts: bytes) -> bytes:
    """The parts, each behind its length in eight bytes; injective over sequences of any number of parts."""
    pieces = []
    for part in parts:
        length = len(part)
        pieces.append(_LENGTHS[length] if length < len(_LENGTHS) else length.to_bytes(8, "big"))
        pieces.append(part)
    return b"".join(pieces)


def digest(tag: bytes, *parts: bytes) -> bytes:
    """SHA-256 over the domain tag and the parts."""
    return sha256(framed(tag, *parts)).digest()
