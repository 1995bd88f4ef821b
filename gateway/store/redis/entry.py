"""The bytes of what the durable store on Redis keeps: a revision, the version of the packing, and values.

The values of a record are the columns that the relational stores have. The revision is random: two values with one
revision are the same write.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gateway.core.operation import Record
from gateway.store.base import Unreadable
from gateway.store.relational.packing import pack, unpack
from gateway.store.relational.rows import decode_whole, encode_whole

REVISION_BYTES: Final = 16
"""As in `lua/change.lua`."""
PACKING: Final = 1

_HEAD: Final = REVISION_BYTES + 1


def packed(values: tuple[Any, ...]) -> bytes:
    """A new value, with a revision of its own."""
    return os.urandom(REVISION_BYTES) + bytes((PACKING,)) + pack(values)


def unpacked(value: bytes) -> tuple[Any, ...]:
    """Undo `packed`. Raises `Unreadable` for what this program has not packed."""
    if len(value) < _HEAD or value[REVISION_BYTES] != PACKING:
        raise Unreadable("a value in Redis was written by another version of this program, or is damaged")
    return unpack(value, _HEAD)


def revision(value: bytes | None) -> bytes:
    """What the value begins with; empty where there is none."""
    return b"" if value is None else value[:REVISION_BYTES]


def packed_record(record: Record) -> bytes:
    """Without the body of the response, which has a key of its own."""
    return packed(encode_whole(record))


def unpacked_record(value: bytes, body: bytes | None) -> Record:
    """Raises `Unreadable` where this program cannot read it."""
    return decode_whole(unpacked(value), body)
