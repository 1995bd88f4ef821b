"""Values as bytes: what rows have as columns, where there are no tables.

Their number, the kind of each, the numbers and the sizes of the others, and these one after the other. Rows of the same
kinds come again and again, so what is to be done for these is found once.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gateway.store.base import Unreadable

_NONE, _TRUTH, _INTEGER, _TEXT, _BYTES = range(5)
_COUNT: Final = struct.Struct(">I")
_LAYOUTS_MAX: Final = 256
# What is found begins with these: None is of a place that has nothing, and an `itemgetter` of one returns no tuple.
_PADDING: Final = (None, None)
# Of a value that is a text and more, as a state is, what it is first.
_KINDS: Final[dict[type, int]] = {type(None): _NONE, bool: _TRUTH, int: _INTEGER, str: _TEXT, bytes: _BYTES}


class _Layout(NamedTuple):
    """What is where, for values of these kinds."""

    texts: int
    """How many there are."""
    parts: int
    """Likewise of texts and bytes."""
    sorted: itemgetter[Any]
    """Takes texts, bytes and numbers, in this order, out of `_PADDING` and the values."""
    fixed: struct.Struct
    """The sizes, and the numbers."""
    sized: str
    ordered: itemgetter[Any]
    """Takes the values out of what `sorted` has taken."""


@lru_cache(_LAYOUTS_MAX)
def _layout(kinds: bytes) -> _Layout:
    """Raises ValueError for a kind that there is not."""
    if any(kind > _BYTES for kind in kinds):
        raise ValueError("no value has this kind")
    texts, blobs, numbers = (
        [place for place, kind in enumerate(kinds, len(_PADDING)) if kind in wanted]
        for wanted in ((_TEXT,), (_BYTES,), (_TRUTH, _INTEGER))
    )
    there = [*range(len(_PADDING)), *texts, *blobs, *numbers]
    back = [there.index(place) if kinds[place - len(_PADDING)] else 0 for place in range(2, len(kinds) + 2)]
    formats = ("?" if kinds[place - len(_PADDING)] == _TRUTH else "q" for place in numbers)
    parts = len(texts) + len(blobs)
    fixed = struct.Struct(f">{parts}I{''.join(formats)}")
    return _Layout(len(texts), parts, itemgetter(*there), fixed, "%ds" * parts, itemgetter(0, 1, *back))


@lru_cache(_LAYOUTS_MAX)
def _kinds(types: tuple[type, ...]) -> bytes:
    return bytes(next(_KINDS[base] for base in each.__mro__ if base in _KINDS) for each in types)


def pack(values: tuple[Any, ...]) -> bytes:
    """None, booleans, integers, texts and bytes."""
    kinds = _kinds(tuple(map(type, values)))
    layout = _layout(kinds)
    first, last = len(_PADDING) + layout.texts, len(_PADDING) + layout.parts
    found = layout.sorted((*_PADDING, *values))
    parts = (*map(str.encode, found[len(_PADDING) : first]), *found[first:last])
    fixed = layout.fixed.pack(*map(len, parts), *found[last:])
    return b"".join((_COUNT.pack(len(kinds)), kinds, fixed, *parts))


def unpack(packed: bytes, at: int = 0) -> tuple[Any, ...]:
    """Undo `pack`, from this byte on. Raises `Unreadable` for what was not packed so."""
    try:
        (count,) = _COUNT.unpack_from(packed, at)
        kinds_end = at + _COUNT.size + count
        layout = _layout(packed[at + _COUNT.size : kinds_end])
        found = layout.fixed.unpack_from(packed, kinds_end)
        sizes, begin = found[: layout.parts], kinds_end + layout.fixed.size
        if begin + sum(sizes) != len(packed):
            raise ValueError
        parts = struct.unpack_from(layout.sized % sizes, packed, begin)
        texts = map(bytes.decode, parts[: layout.texts])
        values: tuple[Any, ...] = layout.ordered((*_PADDING, *texts, *parts[layout.texts :], *found[layout.parts :]))
    except (ValueError, struct.error):
        raise Unreadable("a value was written by another version of this program, or is damaged") from None
    return values[len(_PADDING) :]
