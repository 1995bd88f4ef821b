"""Media types (RFC 9110 section 8.3) by value, whatever the spelling of `Content-Type`.

Type, subtype, parameter names and the charset are case-insensitive; quoting and the order of parameters are irrelevant;
every other parameter value is kept to the byte. A header that does not follow the grammar has no value, and the caller
compares its bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_ESSENCE = re.compile(_TOKEN + rb"/" + _TOKEN)
# Empty parameters ("a/b;; c=d") are allowed by the grammar.
_PARAMETER = re.compile(
    rb"[ \t]*+;[ \t]*+(?:(%b)=(?:(%b)|\"(%b)\"))?"
    % (_TOKEN, _TOKEN, rb'(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\t -\x7e\x80-\xff])*+')
)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
# A service receives the same few types again and again, and they are short.
_KNOWN_BYTES_MAX = 64

# RFC 8259 section 8.1; the URL standard, `application/x-www-form-urlencoded`.
_UTF8 = ((b"charset", b"utf-8"), (b"charset", b"utf8"))

# RFC 2046 section 5.1.1; a boundary never ends with a space.
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


@dataclass(frozen=True, slots=True)
class MediaType:
    """`essence` is type and subtype in lower case; `parameters` are unquoted and sorted by name."""

    essence: bytes
    parameters: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_json(self) -> bool:
        return self.essence == b"application/json" or self.essence.endswith(b"+json")

    @property
    def is_form(self) -> bool:
        return self.essence == b"application/x-www-form-urlencoded"

    @property
    def is_form_data(self) -> bool:
        return self.essence == b"multipart/form-data"

    @property
    def meaning(self) -> tuple[tuple[bytes, bytes], ...]:
        """The parameters without those that mean nothing: JSON and forms are UTF-8, whether or not that is said."""
        if not (self.is_json or self.is_form):
            return self.parameters
        return tuple(pair for pair in self.parameters if pair not in _UTF8)

    @property
    def boundary(self) -> bytes | None:
        """The boundary between the parts of a multipart body, None where there is none that RFC 2046 allows."""
        boundary = dict(self.parameters).get(b"boundary")
        return boundary if boundary is not None and _BOUNDARY.fullmatch(boundary) else None


def parse_media_type(value: bytes) -> MediaType | None:
    """The media type of one header value; None where it is malformed or repeats a parameter."""
    return _parse_known(value) if len(value) <= _KNOWN_BYTES_MAX else _parse(value)


@lru_cache(256)
def _parse_known(value: bytes) -> MediaType | None:
    return _parse(value)


def _parse(value: bytes) -> MediaType | None:
    if (essence := _ESSENCE.match(value)) is None:
        return None
    parameters: dict[bytes, bytes] = {}
    position, end = essence.end(), len(value.rstrip(b" \t"))
    while position < end:
        if (match := _PARAMETER.match(value, position, end)) is None:
            return None
        position = match.end()
        if match[1] is None:
            continue
        name = match[1].lower()
        if name in parameters:
            return None
        content = match[2] if match[2] is not None else _ESCAPED.sub(rb"\1", match[3])
        parameters[name] = content.lower() if name == b"charset" else content
    return MediaType(essence[0].lower(), tuple(sorted(parameters.items())))
