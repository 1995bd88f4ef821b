"""HTTP heads as values: what both sides of the proxy, the store and the rules speak of.

A header field is a pair of bytes, in the order and the spelling in which it arrived; nothing here decodes, joins or
splits a field that is to be forwarded. This module knows names and syntax only, never what a request means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, Self, TypeVar

from gateway.core.immutable import immutable

V = TypeVar("V")

# W3C Trace Context section 3.2: version, trace id, parent id, flags.
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z")

Headers = tuple[tuple[bytes, bytes], ...]

_LOGGED_CHARACTERS_MAX = 128
# What a `NameTable` keeps.
_KNOWN_NAMES_MAX: Final = 1024
_KNOWN_NAME_BYTES_MAX: Final = 64

# RFC 9110 section 7.6.1, plus the two that intermediaries have always treated alike.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


class NameTable(dict[bytes, V]):
    """What `look` finds in the name of a field, or in a status line, kept by its bytes: the same few come all the time.

    For a long one, and once the table is full for a new one, `look` is called each time.
    """

    __slots__ = ("_look",)

    def __init__(self, look: Callable[[bytes], V]) -> None:
        super().__init__()
        self._look = look

    def __missing__(self, name: bytes) -> V:
        found = self._look(name)
        if len(self) < _KNOWN_NAMES_MAX and len(name) <= _KNOWN_NAME_BYTES_MAX:
            self[name] = found
        return found


class IndexedHeaders(tuple[tuple[bytes, bytes], ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """Header fields that are looked up a dozen times: `by_name` has their values by name in lower case, in order.

    Equal to a plain tuple of the same fields; `header_values` is the way in for both.
    """

    by_name: dict[bytes, list[bytes]]

    def __new__(cls, fields: Iterable[tuple[bytes, bytes]]) -> Self:
        self = tuple.__new__(cls, fields)
        by_name = {field.lower(): [value] for field, value in self}
        if len(by_name) < len(self):
            # A name that came again has its last value only.
            by_name = {name: [] for name in by_name}
            for field, value in self:
                by_name[field.lower()].append(value)
        self.by_name = by_name
        return self


@immutable
class RequestHead:
    """A request line and its fields. `target` is the bytes between the two spaces of the request line."""

    method: bytes
    target: bytes
    headers: Headers

    def text(self, name: bytes) -> str | None:
        """The first line of a field as it may be logged: short and printable, else None. `name` is in lower case."""
        values = header_values(self.headers, name)
        if not values:
            return None
        text = values[0][:_LOGGED_CHARACTERS_MAX].decode("latin-1")
        return text if text.isprintable() else None


@immutable
class ResponseHead:
    """A status line and its fields. `reason` may be empty."""

    status: int
    reason: bytes
    headers: Headers


@immutable
class StoredResponse:
    """An answer as it is kept: end-to-end fields only, the body as received (never decoded, never re-serialised).

    `body` is None when the body was not kept (streamed, too large, or retired); an empty body is `b""`.
    """

    status: int
    reason: bytes
    headers: Headers
    body: bytes | None


def trace_id_of(traceparent: str | None) -> str | None:
    """The id of the trace, where the field is well-formed."""
    found = None if traceparent is None else _TRACEPARENT.match(traceparent)
    return None if found is None else found[1]


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of the field, in order. `name` is in lower case. The list is not the caller's to change."""
    if isinstance(headers, IndexedHeaders):
        return headers.by_name.get(name, [])
    return [value for field, value in headers if field.lower() == name]


def values_by_name(headers: Headers) -> dict[bytes, list[bytes]]:
    """The values of every field by its name in lower case, in order. Not the caller's to change."""
    return headers.by_name if isinstance(headers, IndexedHeaders) else IndexedHeaders(headers).by_name


def list_members(values: Iterable[bytes]) -> list[bytes]:
    """The members of a comma-separated list field, in lower case and without empty ones (RFC 9110 section 5.6.1)."""
    return [member for value in values for part in value.split(b",") if (member := part.strip(b" \t").lower())]


def connection_options(headers: Headers) -> frozenset[bytes]:
    """The names that the `Connection` fields list, in lower case."""
    values = header_values(headers, b"connection")
    return frozenset(list_members(values)) if values else frozenset()


def is_forwarding_header(name: bytes) -> bool:
    """Whether a field, in any spelling, says who called, and how: it is believed of a trusted proxy alone.

    A service may prefer others of them to those that the gateway writes, so that leaving them would let anybody speak
    for its callers (RFC 7239 section 8.1). One that cannot tell `_` from `-` reads both alike.
    """
    folded = name.lower().replace(b"_", b"-")
    return folded in (b"forwarded", b"x-real-ip") or folded.startswith(b"x-forwarded-")


def asks_upgrade(headers: Headers) -> bool:
    """Whether the fields ask to leave HTTP, or agree to (RFC 9110 section 7.8): `Upgrade`, named by `Connection`."""
    return bool(header_values(headers, b"upgrade")) and b"upgrade" in connection_options(headers)


def bracketed(host: str) -> str:
    """A host as it stands before a port: an address of IPv6 is in brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]" if ":" in host else host
