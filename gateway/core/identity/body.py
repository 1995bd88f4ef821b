"""Bytes by what they say: digests over parts, media types, JSON Pointers, and canonical forms of bodies.

What has no certain value has none here, and the caller compares its bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import Any, Final, NoReturn, Protocol

# -- digests -----------------------------------------------------------------------------------------------------------
#
# Over length-prefixed parts. The length before each part makes the encoding injective: no delimiter, spelling or
# boundary moves a byte from one part to the next. Every digest begins with a domain tag, so that digests of different
# kinds never collide.

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


# -- media -------------------------------------------------------------------------------------------------------------
#
# Media types (RFC 9110 section 8.3) by value, whatever the spelling of `Content-Type`.
#
# Type, subtype, parameter names and the charset are case-insensitive; quoting and the order of parameters are
# irrelevant; every other parameter value is kept to the byte. A header that does not follow the grammar has no value,
# and the caller compares its bytes.

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


# -- pointer -----------------------------------------------------------------------------------------------------------
#
# JSON Pointers (RFC 6901): read a value of a document, add a member to it, drop values from it.
#
# A token names a member of an object or, as an index without leading zeros, an element of an array. There are no
# wildcards. `-` never resolves: it stands for the element after the last.

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


# -- canonical ---------------------------------------------------------------------------------------------------------
#
# Canonical forms of request bodies: equal bytes for spellings that mean the same, and never for two that do not.
#
# A body without a certain form is refused (None), and the caller compares its bytes as they came. The form depends on
# the body alone: constants bound size and depth, so that the same bytes have the same form on every gateway and under
# every version of the interpreter. A change that alters a form, other than refusing it, needs a new
# `fingerprint.ALGORITHM`.

CANONICAL_BYTES_MAX: Final = 1 << 20
"""Longer documents and forms have no canonical form."""
VALUES_MAX: Final = 1 << 15
"""Documents with more commas and opening brackets have no canonical form: the values decide time and memory."""
QUOTES_MAX: Final = 4 * VALUES_MAX
"""Documents with more quotes, escaped ones included, have no canonical form. A string member has four."""
PAIRS_MAX: Final = 1 << 12
"""Forms with more pairs have no canonical form."""
DEPTH_MAX: Final = 100
"""Deeper documents have no canonical form. Far below every recursion limit, whatever the caller's own depth."""


# Small enough for a thread that digests a large body to let others run between two windows.
_WINDOW_BYTES: Final = 256 << 10


class Body(Protocol):
    """A body in memory or mapped from a file: slices of it are bytes."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> bytes: ...


def sha256_of(body: Body, start: int = 0, end: int | None = None) -> bytes:
    """The plain SHA-256 of a body, the same as from a `hashlib.sha256` updated with its chunks as they arrived."""
    hashed, end = sha256(), len(body) if end is None else end
    for window_start in range(start, end, _WINDOW_BYTES):
        hashed.update(body[window_start : min(window_start + _WINDOW_BYTES, end)])
    return hashed.digest()


# A number is kept as its lexeme after a lone low surrogate. No string of a parsed document begins with one: UTF-8
# cannot encode a lone surrogate, and a document that escapes this one at the start of a string is refused before
# parsing. So the fast standard encoder never writes a number and a string alike.
_NUMBER_MARK: Final = "\udfff"
_MARK_AT_START = re.compile(rb'"\\u[dD][fF]{3}')

# Strings, closed or not: an open one extends to the end, so that no quote is scanned twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class _Refused(ValueError):
    pass


# The hooks of a strict parser, here and of tokens.


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused("duplicate member name")
    return members


def refuse_constant(name: str) -> NoReturn:
    raise _Refused(name)


# Numbers are never converted: a float would lose digits, and an int of a million digits would take minutes.
_mark_number: Callable[[str], str] = _NUMBER_MARK.__add__
_DECODER = json.JSONDecoder(
    object_pairs_hook=unrepeated, parse_float=_mark_number, parse_int=_mark_number, parse_constant=refuse_constant
)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def parse_json(body: Body) -> Any:
    """The document, for `number_lexeme` and `resolve`; `MISSING` where parsers could differ on it.

    Accepted is strict RFC 8259 in UTF-8 without a byte order mark, without duplicate member names or `NaN`, within
    `CANONICAL_BYTES_MAX`, `VALUES_MAX`, `QUOTES_MAX` and `DEPTH_MAX`.
    """
    if len(body) > CANONICAL_BYTES_MAX:
        return MISSING
    content = body[:]
    if _MARK_AT_START.search(content) or not _is_moderate(content):
        return MISSING
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except ValueError:
        return MISSING


def encode_json(document: Any) -> bytes:
    """A parsed document, or a value in one, in its canonical form."""
    return _ENCODER.encode(document).encode("ascii")


def number_lexeme(value: str) -> str | None:
    """A parsed number as it was written; None for a string."""
    return value[1:] if value.startswith(_NUMBER_MARK) else None


def _is_moderate(content: bytes) -> bool:
    """Whether the document is within the bounds of values, quotes (those in strings included) and depth."""
    openings = content.count(b"[") + content.count(b"{")
    if openings + content.count(b",") > VALUES_MAX or content.count(b'"') > QUOTES_MAX:
        return False
    if openings <= DEPTH_MAX:
        return True
    brackets = _STRING.sub(b"", content).translate(None, _NO_BRACKET)
    # A valid document closes no more brackets than it opens; do not walk through others.
    if len(brackets) > 2 * openings:
        return False
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) <= DEPTH_MAX


def canonical_document(
    document: Any,
    *,
    ignore: Sequence[Pointer] = (),
    only: Sequence[Pointer] = (),
    defaults: Sequence[tuple[Pointer, str]] = (),
) -> bytes:
    """A parsed document with sorted members, without white space, strings by value and numbers as written.

    The document is changed. `defaults` adds the named members where they are absent, given as JSON texts of values
    without parts. `only` keeps the named values, in the order given, and marks the absent ones; `ignore` removes
    values.
    """
    for pointer, text in defaults:
        fill(document, pointer, parse_json(text.encode()))
    if ignore:
        drop(document, ignore)
    if only:
        values = [resolve(document, pointer) for pointer in only]
        document = [[] if value is MISSING else [value] for value in values]
    return encode_json(document)


_ESCAPED_BYTE = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_LIST = re.compile(rb"\[\s*\]")
# Names that are one to some services: PHP reads these characters as `_`, and ASP.NET does not distinguish case.
_ONE_TO_SOME = bytes.maketrans(b" .[", b"___")
_NAME_LEVELS_MAX: Final = 32


def canonical_form(body: Body) -> bytes | None:
    """`application/x-www-form-urlencoded` pairs by value; None where it is too long or ambiguous.

    A percent sign that escapes nothing is ambiguous, and so is a semicolon, which parts pairs for some servers. Order
    counts where servers see it (`in_any_order`).
    """
    if len(body) > CANONICAL_BYTES_MAX:
        return None
    content = body[:]
    if content.count(b"&") >= PAIRS_MAX or b";" in content or _BAD_PERCENT.search(content):
        return None
    # The equals sign stays with the value, because `a` and `a=` are two things to some servers.
    split = [pair.partition(b"=") for pair in content.replace(b"+", b" ").split(b"&")]
    pairs = [(percent_decoded(name), sign + percent_decoded(value)) for name, sign, value in split]
    return framed(*[part for pair in in_any_order(pairs) for part in pair])


def in_any_order(pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The members of a form, with their names, in the one order that stands for all that mean the same.

    Libraries write members from maps without an order, and a retry may write them anew. Order counts among members of
    equal names; below a name with `[]`, because services build lists from it (`items[][id]=1&items[][qty]=2&
    items[][id]=3`); and between a name and one within it (`a`, `a[b]`), of which the last one counts. It counts
    everywhere where two names are one to some services.
    """
    names = {name for name, _ in pairs}
    if len({name.lower().translate(_ONE_TO_SOME) for name in names}) < len(names):
        return list(pairs)
    # Nothing is found by order above these.
    tops = {name[: found.start()] if (found := _LIST.search(name)) else name for name in names}
    return sorted(pairs, key=lambda pair: _top(pair[0], tops))


def _top(name: bytes, tops: Collection[bytes]) -> bytes:
    """The shortest of these that the name is, or is within."""
    end = -1
    for _ in range(_NAME_LEVELS_MAX):
        end = name.find(b"[", end + 1)
        if end < 0:
            return name
        if name[:end] in tops:
            break
    return name[:end]


def percent_decoded(value: bytes) -> bytes:
    """The value with its escapes decoded, once. A percent sign that escapes nothing stays."""
    return _ESCAPED_BYTE.sub(lambda escaped: bytes((int(escaped[1], 16),)), value) if b"%" in value else value


# Multipart bodies (RFC 2046, RFC 7578).
PARTS_MAX: Final = 1000
PART_HEAD_BYTES_MAX: Final = 16 << 10
PART_HEADERS_MAX: Final = 32

_PART_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\x00\r\n]*+)")
# A name that every parser reads alike: given once, without escapes, beside nothing but a file's name.
_TEXT = rb"(?:\"[^\"\\%]*+\"|[^\"\\%;\s]++)"
_PART_NAME = re.compile(
    rb"form-data\s*;\s*name=(%b)(?:\s*;\s*filename\*?=(?:%b|[^\";\s]++))*+" % (_TEXT, _TEXT), re.IGNORECASE
)


def canonical_multipart(body: Body, boundary: bytes) -> bytes | None:
    """The parts of a multipart body, each its headers and the digest of its content; None where the body is refused.

    The boundary is left out, because clients draw it anew for a retry. The body may be a mapped file of any size; it is
    read in windows.

    Order counts as it does in a form, and everywhere where a part has no name that every parser reads alike.

    Refused are a preamble or epilogue, bare CR or LF in a part's head, a boundary that is not a line of its own, more
    than `PARTS_MAX` parts, and a part with more than `PART_HEADERS_MAX` headers or `PART_HEAD_BYTES_MAX` of head.
    """
    try:
        parts = _parts(body, b"--" + boundary)
    except _Refused:
        return None
    named = [(name, part) for name, part in parts if name is not None]
    return framed(*[part for _, part in (in_any_order(named) if len(named) == len(parts) else parts)])


def _parts(body: Body, dash_boundary: bytes) -> list[tuple[bytes | None, bytes]]:
    """The parts as they are compared, with their names where those are certain."""
    if body[: len(dash_boundary)] != dash_boundary:
        raise _Refused
    position, is_last = _after_boundary(body, len(dash_boundary))
    parts: list[tuple[bytes | None, bytes]] = []
    while not is_last:
        if len(parts) == PARTS_MAX:
            raise _Refused
        name, head, content_start = _part_head(body, position, dash_boundary)
        boundary_start = _find(body, dash_boundary, content_start)
        content_end = boundary_start - 2
        # After a bare line feed, or right after the head, a boundary ends the part for some parsers only.
        if content_end < content_start or body[content_end:boundary_start] != b"\r\n":
            raise _Refused
        parts.append((name, framed(head, sha256_of(body, content_start, content_end))))
        position, is_last = _after_boundary(body, boundary_start + len(dash_boundary))
    if body[position : position + 3] not in (b"", b"\r\n"):
        raise _Refused
    return parts


def _after_boundary(body: Body, position: int) -> tuple[int, bool]:
    """Where the boundary's line ends, and whether it is the closing one."""
    match body[position : position + 2]:
        case b"--":
            return position + 2, True
        case b"\r\n":
            return position + 2, False
        case _:
            raise _Refused


def _part_head(body: Body, position: int, dash_boundary: bytes) -> tuple[bytes | None, bytes, int]:
    """The name of a part, its headers, sorted by name (stably), and where its content begins."""
    window = body[position : position + PART_HEAD_BYTES_MAX]
    if window.startswith(b"\r\n"):
        return None, b"", position + 2
    end = window.find(b"\r\n\r\n")
    if end < 0 or dash_boundary in window[:end]:
        raise _Refused
    lines = window[:end].split(b"\r\n")
    if len(lines) > PART_HEADERS_MAX:
        raise _Refused
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        if (match := _PART_HEADER.fullmatch(line)) is None:
            raise _Refused
        headers.append((match[1].lower(), match[2].strip(b" \t")))
    headers.sort(key=lambda header: header[0])
    said = [value for name, value in headers if name == b"content-disposition"]
    found = _PART_NAME.fullmatch(said[0]) if len(said) == 1 else None
    return found and found[1].strip(b'"'), framed(*[part for header in headers for part in header]), position + end + 4


def _find(body: Body, needle: bytes, start: int) -> int:
    """As `bytes.find`, in windows that overlap enough for a needle across two of them."""
    for window_start in range(start, len(body), _WINDOW_BYTES):
        found = body[window_start : window_start + _WINDOW_BYTES + len(needle) - 1].find(needle)
        if found >= 0:
            return window_start + found
    return -1
