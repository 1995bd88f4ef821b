"""The bytes of what the durable store on Redis keeps: a revision, the version of the packing, and values.

The values of a record are the columns that the relational stores have. The revision is random: two values with one
revision are the same write.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from gateway.core.operation import Record
from gateway.store.base import Unreadable
from gateway.store.relational.rows import decode_whole, encode_whole

REVISION_BYTES: Final = 16
"""As in `lua/change.lua`."""
PACKING: Final = 1

_HEAD: Final = REVISION_BYTES + 1
_NONE, _FALSE, _TRUE, _INTEGER, _TEXT, _BYTES = range(6)
_NUMBER: Final = struct.Struct(">Bq")
_SIZE: Final = struct.Struct(">BI")


def packed(values: tuple[Any, ...]) -> bytes:
    """A new value, with a revision of its own."""
    found = [os.urandom(REVISION_BYTES), bytes((PACKING,))]
    for value in values:
        if value is None:
            found.append(b"\x00")
        elif isinstance(value, bool):
            found.append(b"\x02" if value else b"\x01")
        elif isinstance(value, int):
            found.append(_NUMBER.pack(_INTEGER, value))
        elif isinstance(value, str):
            text = value.encode()
            found += (_SIZE.pack(_TEXT, len(text)), text)
        else:
            found += (_SIZE.pack(_BYTES, len(value)), value)
    return b"".join(found)


def unpacked(value: bytes) -> tuple[Any, ...]:
    """Undo `packed`. Raises `Unreadable` for what this program has not packed."""
    found: list[Any] = []
    at, end = _HEAD, len(value)
    try:
        if value[REVISION_BYTES] != PACKING:
            raise ValueError
        while at < end:
            kind = value[at]
            if kind == _INTEGER:
                found.append(_NUMBER.unpack_from(value, at)[1])
                at += _NUMBER.size
            elif kind in (_TEXT, _BYTES):
                size = _SIZE.unpack_from(value, at)[1]
                at += _SIZE.size + size
                part = value[at - size : at]
                if len(part) != size:
                    raise ValueError
                found.append(part.decode() if kind == _TEXT else part)
            else:
                found.append((None, False, True)[kind])
                at += 1
    except (IndexError, ValueError, struct.error):
        raise Unreadable("a value in Redis was written by another version of this program, or is damaged") from None
    return tuple(found)


def revision(value: bytes | None) -> bytes:
    """What the value begins with; empty where there is none."""
    return b"" if value is None else value[:REVISION_BYTES]


def packed_record(record: Record) -> bytes:
    """Without the body of the response, which has a key of its own."""
    return packed(encode_whole(record))


def unpacked_record(value: bytes, body: bytes | None) -> Record:
    """Raises `Unreadable` where this program cannot read it."""
    return decode_whole(unpacked(value), body)
