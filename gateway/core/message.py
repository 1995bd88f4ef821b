"""HTTP heads as values, shared by both sides of the proxy, the store and the rules.

A header is a pair of bytes, in the order and the spelling in which it arrived; nothing here decodes, joins or splits a
header that is to be forwarded. This module knows names and syntax only, never what a request means.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from gateway.core import immutable

V = TypeVar("V")

# W3C Trace Context section 3.2: version, trace id, parent id, flags.
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z")

Headers = tuple[tuple[bytes, bytes], ...]
Values = Mapping[bytes, Sequence[bytes]]
"""The values of headers, in order, by their names in lower case (`IndexedHeaders.by_name`)."""

_LOGGED_CHARACTERS_MAX = 128
_NOT_ALPHANUMERIC: Final = re.compile(rb"[^0-9a-z]")
_LENGTH: Final = struct.Struct(">I")
# Bounds of a `NameTable`.
_KNOWN_NAMES_MAX: Final = 1024
_KNOWN_NAME_BYTES_MAX: Final = 64

# RFC 9110 section 7.6.1, plus the two that intermediaries have always treated alike.
HOP_BY_HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
))  # fmt: skip

METHOD_OVERRIDES: Final = (b"x-http-method", b"x-http-method-override", b"x-method-override")
"""Headers that mean another method to the services that know them."""
TARGET_OVERRIDES: Final = (b"x-original-url", b"x-rewrite-url")
"""Likewise another target: IIS puts the original there when it rewrites one, and some frameworks read it from there."""


def pack_headers(headers: Headers) -> bytes:
    """Headers, or other pairs, as one value: all lengths, their number first, and then all names and values."""
    parts = list(chain.from_iterable(headers))
    return struct.pack(f">{len(parts) + 1}I", len(parts), *map(len, parts)) + b"".join(parts)


def unpack_headers(packed: bytes) -> Headers:
    """Undo `pack_headers`. Raises ValueError for what was cut, or packed otherwise."""
    try:
        (number,) = _LENGTH.unpack_from(packed)
        lengths = struct.unpack_from(f">{number}I", packed, _LENGTH.size)
        begin = _LENGTH.size * (number + 1)
        if begin + sum(lengths) != len(packed):
            raise ValueError("packed headers end elsewhere than they say")
        parts = struct.unpack_from("%ds" * number % lengths, packed, begin)
    except struct.error:
        raise ValueError("packed headers end too early") from None
    return tuple(zip(parts[::2], parts[1::2], strict=True))


class NameTable(dict[bytes, V]):
    """Caches `compute` by a header name or a status line, because the same few come again and again.

    Long names, and new ones once the table is full, are computed each time.
    """

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[bytes], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, name: bytes) -> V:
        found = self._compute(name)
        if len(self) < _KNOWN_NAMES_MAX and len(name) <= _KNOWN_NAME_BYTES_MAX:
            self[name] = found
        return found


# The marks of `IndexedHeaders`: a name is repeated; has other characters than letters, digits and `-`, so that it may
# be another one to `folded_name`; names another method or target; is one of these. `Connection` is marked where it
# says more than whether the connection stays.
REPEATED, ODD, OVERRIDE, CONNECTION, EXPECT, TRANSFER_ENCODING = (1 << bit for bit in range(6))
_MARKS: Final = {
    b"connection": CONNECTION,
    b"expect": EXPECT,
    b"transfer-encoding": TRANSFER_ENCODING,
    **dict.fromkeys((*METHOD_OVERRIDES, *TARGET_OVERRIDES), OVERRIDE),
}
STAYS_OR_NOT: Final = frozenset((b"keep-alive", b"Keep-Alive", b"close"))


def _marked(name: bytes) -> tuple[bytes, int]:
    lower = name.lower()
    odd = 0 if lower.replace(b"-", b"").isalnum() else ODD
    return lower, odd | _MARKS.get(folded_name(lower) if odd else lower, 0)


MARKED: Final = NameTable(_marked)
"""Names in lower case, with their marks."""


class IndexedHeaders(tuple[tuple[bytes, bytes], ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """Headers for many look-ups: `by_name` has the values, in order, by name in lower case, and `marks` what is unusual
    about the names. Mostly nothing is. Both are found at the first look-up; do not modify them.

    Equal to a plain tuple of the same headers.
    """

    by_name: dict[bytes, list[bytes]]
    marks: int

    def __getattr__(self, name: str) -> Any:
        if name not in ("by_name", "marks"):
            raise AttributeError(name)
        by_name: dict[bytes, list[bytes]] = {}
        marks = 0
        for spelling, value in self:
            lower, mark = MARKED[spelling]
            if mark:
                marks |= mark
            by_name[lower] = [value]
        if len(by_name) < len(self):
            # Some name is repeated, and has its last value only.
            marks |= REPEATED
            by_name = {lower: [] for lower in by_name}
            for spelling, value in self:
                by_name[spelling.lower()].append(value)
        elif marks & CONNECTION and by_name[b"connection"][0] in STAYS_OR_NOT:
            marks -= CONNECTION
        self.by_name = by_name
        self.marks = marks
        return by_name if name == "by_name" else marks


@immutable
class RequestHead:
    """A request line and its headers. `target` is the bytes between the two spaces of the request line."""

    method: bytes
    target: bytes
    headers: IndexedHeaders

    def text(self, name: bytes) -> str | None:
        """The first value of a header, cut to a length for logs; None if not printable. `name` is in lower case."""
        values = header_values(self.headers, name)
        return logged(values[0]) if values else None


@immutable
class ResponseHead:
    """A status line and its headers. `reason` may be empty."""

    status: int
    reason: bytes
    headers: IndexedHeaders


@immutable
class StoredResponse:
    """A response as it is stored: end-to-end headers only, the body as received (never decoded or re-serialised).

    `body` is None when the body was not stored (streamed, too large) or is retired; an empty body is `b""`. `version`
    is a digest of the version of the API that the response is in, empty where none is known.
    """

    status: int
    reason: bytes
    headers: Headers
    body: bytes | None
    version: bytes = b""

    @property
    def status_alone(self) -> StoredResponse:
        """What is left of it where its content is not kept: its status, and the version that it is in."""
        return StoredResponse(self.status, b"", (), None, self.version)


def logged(value: bytes) -> str | None:
    """A header's value, cut to a length for logs; None if not printable."""
    text = value[:_LOGGED_CHARACTERS_MAX].decode("latin-1")
    return text if text.isprintable() else None


def trace_id_of(traceparent: str | None) -> str | None:
    found = None if traceparent is None else _TRACEPARENT.match(traceparent)
    return None if found is None else found[1]


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of the header, in order. `name` is in lower case. Do not modify the list."""
    if isinstance(headers, IndexedHeaders):
        return headers.by_name.get(name, [])
    return [value for spelling, value in headers if spelling.lower() == name]


def list_members(values: Iterable[bytes]) -> list[bytes]:
    """The members of a comma-separated list, in lower case and without empty ones (RFC 9110 section 5.6.1)."""
    return [member for value in values for part in value.split(b",") if (member := part.strip(b" \t").lower())]


def connection_options(headers: Headers) -> frozenset[bytes]:
    """The names that the `Connection` headers list, in lower case."""
    values = header_values(headers, b"connection")
    return frozenset(list_members(values)) if values else frozenset()


def folded_name(name: bytes) -> bytes:
    """A header's name as a service reads it that knows letters and digits alone, as in the variables of CGI, WSGI, Rack
    and PHP. Two names that fold alike are one header to it.
    """
    return _NOT_ALPHANUMERIC.sub(b"-", name.lower())


def is_forwarding_header(name: bytes) -> bool:
    """Whether a header, in any spelling, names the caller or how it connected: only a trusted proxy may send it.

    A service may prefer other such headers to those that the gateway writes, so forwarding them would let any client
    forge its address (RFC 7239 section 8.1).
    """
    folded = folded_name(name)
    return folded in (b"forwarded", b"x-real-ip") or folded.startswith(b"x-forwarded-")


def asks_upgrade(headers: Headers) -> bool:
    """Whether the headers ask for, or accept, an upgrade (RFC 9110 section 7.8): `Upgrade`, named by `Connection`."""
    return bool(header_values(headers, b"upgrade")) and b"upgrade" in connection_options(headers)


def bracketed(host: str) -> str:
    """A host as it is written before a port: an IPv6 address is in brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]" if ":" in host else host
