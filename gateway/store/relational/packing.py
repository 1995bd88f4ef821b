"""Values as bytes: what rows have as columns, where there are no tables."""

from __future__ import annotations

import struct
from typing import Any, Final

from gateway.store.base import Unreadable

_NONE, _FALSE, _TRUE, _INTEGER, _TEXT, _BYTES = range(6)
_NUMBER: Final = struct.Struct(">Bq")
_SIZE: Final = struct.Struct(">BI")


def pack(values: tuple[Any, ...]) -> bytes:
    """None, booleans, integers, texts and bytes, one after the other."""
    found = []
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


def unpack(packed: bytes, at: int = 0) -> tuple[Any, ...]:
    """Undo `pack`, from this byte on. Raises `Unreadable` for what was not packed so."""
    found: list[Any] = []
    end = len(packed)
    try:
        while at < end:
            kind = packed[at]
            if kind == _INTEGER:
                found.append(_NUMBER.unpack_from(packed, at)[1])
                at += _NUMBER.size
            elif kind in (_TEXT, _BYTES):
                size = _SIZE.unpack_from(packed, at)[1]
                at += _SIZE.size + size
                part = packed[at - size : at]
                if len(part) != size:
                    raise ValueError
                found.append(part.decode() if kind == _TEXT else part)
            else:
                found.append((None, False, True)[kind])
                at += 1
    except (IndexError, ValueError, struct.error):
        raise Unreadable("a value was written by another version of this program, or is damaged") from None
    return tuple(found)
