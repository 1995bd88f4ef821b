"""The results of an exchange with the upstream, as values.

The names state what is *known*: `SentNothing` is definite (no byte of the request was written to the network),
`Unknown` is not (a byte may have left, and no complete response arrived). This module knows neither how that is found
out nor what follows, except for the status that a client gets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Final

from gateway.core.immutable import immutable


class SentNothing(StrEnum):
    """Why no byte of the request was written to the network."""

    REQUEST_INVALID = "request_invalid"  # the head cannot be written without ambiguity
    CLOSED = "closed"  # this client was closed
    POOL_TIMEOUT = "pool_timeout"  # no connection became free in time
    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # also: the connection was accepted and closed before a request
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    LOCAL = "local"  # this host lacks descriptors or memory
    LEASE_LOST = "lease_lost"  # the caller's `may_send` returned False


class Unknown(StrEnum):
    """Why it is not known what the upstream did with a request of which a byte may have left."""

    TIMEOUT = "timeout"
    RESET = "reset"  # the transport broke: RST, an acknowledgement that never came, a broken TLS record
    CLOSED = "closed"  # a clean end before the first byte of a response
    TRUNCATED = "truncated"  # an end inside a response
    MALFORMED = "malformed"
    HEADERS_TOO_LONG = "headers_too_long"
    INTERIM_FLOOD = "interim_flood"  # too many 1xx responses
    REQUEST_ABORTED = "request_aborted"  # the source of the request's body failed or had another length
    ABORTED = "aborted"  # aborted on this side


# The cause is in this host or this gateway, not in the upstream.
_OUR_OWN_FAULT: Final = frozenset(
    (SentNothing.LEASE_LOST, SentNothing.POOL_TIMEOUT, SentNothing.LOCAL, SentNothing.CLOSED)
)


def status_of(reason: SentNothing | Unknown) -> int:
    """The status for a client that gets no response of the upstream, whether its request was protected or not."""
    # First, because members of the two enumerations with equal values are equal.
    if isinstance(reason, Unknown):
        return 504 if reason is Unknown.TIMEOUT else 502
    return 503 if reason in _OUR_OWN_FAULT else 502


@immutable
class NotSent:
    """Definite: the upstream cannot have seen this request. `detail` is for logs, never for a client."""

    reason: SentNothing
    detail: str


@immutable
class Lost:
    """Indefinite: a byte may have left and no head of a response arrived. The connection has been aborted."""

    reason: Unknown
    detail: str


@immutable
class BodyLost:
    """The response's head arrived, but not the proven end of its body. The connection has been aborted."""

    reason: Unknown
    detail: str


@immutable
class TooLong:
    """The body exceeds the limit; `prefix` is what was read so far, the rest can still be read."""

    prefix: bytes


class Framing(StrEnum):
    """How the end of a response's body is known (RFC 9112 section 6.3)."""

    NONE = "none"  # HEAD, 204, 304: there is no body, whatever the headers say
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"  # ends with the connection: FIN, over TLS close_notify
    UPGRADE = "upgrade"  # 101: no longer HTTP


@immutable
class FileBody:
    """A request body in a file: its first `length` bytes, read by offset.

    `descriptor` stays the caller's and may be closed as soon as `exchange` has returned: a duplicate is read. Where the
    file is encrypted, `decrypt` gets the bytes that were read and their offset.
    """

    descriptor: int
    length: int
    decrypt: Callable[[bytes, int], bytes] | None = None


@immutable
class StreamBody:
    """A request body that is still arriving. Without a `length` it is sent chunked.

    An exception from `chunks`, or more or fewer bytes than declared, aborts the connection, so that the upstream never
    sees a complete request. `crowd_out` ends it if it arrives too slowly to keep its place, and returns whether it did.
    """

    chunks: AsyncIterator[bytes]
    length: int | None
    crowd_out: Callable[[], bool] | None = None


OutboundBody = bytes | FileBody | StreamBody
