"""Replaces values of a response before it is kept: what was named is nowhere but in the response to the first request.

A body is redacted as text: each value is cut out and `REDACTED` put in, so that it stays valid JSON, and equal to what
was received byte for byte elsewhere. It is parsed strictly first. A body that parsers could read in two ways may have a
value where this one does not look, so that it is not redacted at all, and not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.core.identity.canonical import parse_json
from gateway.core.identity.pointer import MISSING, Pointer
from gateway.core.message import Headers, header_values

REDACTED: Final = "[redacted]"
"""What stands in the place of a value: in a body as a JSON string."""
REDACTED_HEADER: Final = (b"Idempotency-Redacted", b"true")
"""Kept with a response of which a value was replaced, and replayed with it."""

# Digests of the body: they would show whether a guess of a value is right (RFC 9530; RFC 9110 section 8.8.3).
_OF_BODY: Final = frozenset((b"content-digest", b"repr-digest", b"digest", b"content-md5", b"etag"))
_REPLACEMENT: Final = json.dumps(REDACTED)

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers are passed over and never converted: an int of a million digits would take minutes.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str)


class _Wanted(dict[str, "_Wanted"]):
    """The values to replace below a value, by the next token of their pointers. `is_whole`: this value itself."""

    is_whole = False


@dataclass(frozen=True, slots=True)
class Redaction:
    """What is replaced in the responses of a route: values of JSON bodies, and headers by their name in lower case."""

    pointers: tuple[Pointer, ...] = ()
    headers: frozenset[bytes] = frozenset()
    _wanted: _Wanted = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted = _Wanted()
        for pointer in self.pointers:
            place = wanted
            for token in pointer:
                place = place.setdefault(token, _Wanted())
            place.is_whole = True
        object.__setattr__(self, "_wanted", wanted)

    @classmethod
    def of_all(cls, several: Iterable[Redaction | None]) -> Redaction | None:
        """What any of them replaces; None where none replaces anything."""
        found = [each for each in several if each is not None]
        pointers = {pointer: None for each in found for pointer in each.pointers}
        return cls(tuple(pointers), frozenset().union(*(each.headers for each in found))) if found else None

    def redacted(self, headers: Headers, body: bytes | None) -> tuple[Headers, bytes | None]:
        """Headers and body as they may be kept; the body is None where it may not be kept, or is not to be."""
        kept = tuple(
            [(name, REDACTED.encode()) if name.lower() in self.headers else (name, value) for name, value in headers]
        )
        is_replaced = kept != headers
        if self.pointers and body != b"":
            found = None if body is None else self._redacted_body(headers, body)
            is_replaced |= found != body and found is not None
            if found is None or found != body:
                kept = tuple([header for header in kept if header[0].lower() not in _OF_BODY])
            body = found
        return ((*kept, REDACTED_HEADER) if is_replaced else kept), body

    def _redacted_body(self, headers: Headers, body: bytes) -> bytes | None:
        if any(coding.strip(b" \t").lower() != b"identity" for coding in header_values(headers, b"content-encoding")):
            return None
        if parse_json(body) is MISSING:
            return None
        text = body.decode("utf-8")
        spans: list[tuple[int, int]] = []
        _find(text, _skip(text, 0), self._wanted, spans)
        return "".join(_replaced(text, spans)).encode("utf-8")


def _replaced(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[str]:
    done = 0
    for start, end in spans:
        yield text[done:start]
        yield _REPLACEMENT
        done = end
    yield text[done:]


def _find(text: str, start: int, wanted: _Wanted, spans: list[tuple[int, int]]) -> int:
    """Add the spans of what is wanted of the valid JSON value that begins at `start`; returns where the value ends.

    Tokens as in `pointer`. Recurses as deep as the deepest pointer, within the depth of a document that was parsed.
    """
    opening = text[start]
    if wanted.is_whole or not wanted or opening not in "{[":
        _, end = _DECODER.raw_decode(text, start)
        if wanted.is_whole:
            spans.append((start, end))
        return end
    closing = "}" if opening == "{" else "]"
    place, index = _skip(text, start + 1), 0
    while text[place] != closing:
        if opening == "{":
            name, place = _DECODER.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        else:
            name = str(index)
            index += 1
        place = _skip(text, _find(text, place, wanted.get(name, _NOTHING), spans))
        if text[place] == ",":
            place = _skip(text, place + 1)
    return place + 1


_NOTHING: Final = _Wanted()


def _skip(text: str, place: int) -> int:
    """Where the white space from `place` on ends."""
    found = _SPACE.match(text, place)
    return place if found is None else found.end()
