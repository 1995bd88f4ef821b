"""JSON Pointers (RFC 6901): read a value of a document, add a member to it, drop values from it.

A token names a member of an object or, as an index without leading zeros, an element of an array. There are no
wildcards. `-` never resolves: it stands for the element after the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

Pointer = tuple[str, ...]


class _Missing:
    __slots__ = ()


MISSING: Final = _Missing()
"""What `resolve` returns where the document has no such value; `null` is a value."""

_BAD_ESCAPE = re.compile(r"~(?![01])")
# Nine digits are more elements than any document that is parsed here can have.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def parse_pointer(text: str) -> Pointer:
    """The unescaped tokens of a pointer. ValueError for a malformed one, and for the empty one (the whole document)."""
    if not text.startswith("/"):
        raise ValueError("a JSON pointer begins with '/'")
    if _BAD_ESCAPE.search(text):
        raise ValueError("'~' in a JSON pointer is written '~0', and '/' within a name '~1'")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


def format_pointer(pointer: Pointer) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in pointer)


def resolve(document: Any, pointer: Pointer) -> Any:
    """The value that the pointer names, or `MISSING`."""
    value = document
    for token in pointer:
        value = _child(value, token)
        if value is MISSING:
            break
    return value


def drop(document: Any, pointers: Iterable[Pointer]) -> None:
    """Remove, in place, what the pointers name. Indices refer to the arrays before anything is removed."""
    elements: dict[int, tuple[list[Any], set[int]]] = {}
    for pointer in pointers:
        parent, last = resolve(document, pointer[:-1]), pointer[-1]
        if isinstance(parent, dict):
            parent.pop(last, None)
        elif isinstance(parent, list) and (index := _index(parent, last)) is not None:
            elements.setdefault(id(parent), (parent, set()))[1].add(index)
    for array, indices in elements.values():
        array[:] = [element for index, element in enumerate(array) if index not in indices]


def fill(document: Any, pointer: Pointer, value: Any) -> None:
    """Add, in place, the member that the pointer names if it is absent, within new objects where those are absent too.

    Adds nothing where the pointer leads through anything but objects and elements that are there.
    """
    parent = document
    for token in pointer[:-1]:
        child = _child(parent, token)
        if child is MISSING and isinstance(parent, dict):
            child = parent[token] = {}
        parent = child
    if isinstance(parent, dict):
        parent.setdefault(pointer[-1], value)


def _child(value: Any, token: str) -> Any:
    if isinstance(value, dict):
        return value.get(token, MISSING)
    if isinstance(value, list) and (index := _index(value, token)) is not None:
        return value[index]
    return MISSING


def _index(array: list[Any], token: str) -> int | None:
    if _INDEX.fullmatch(token) is None:
        return None
    index = int(token)
    return index if index < len(array) else None
