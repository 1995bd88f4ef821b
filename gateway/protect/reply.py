"""The values between the edge and the coordinator: the body of a request as it comes, and the reply as it goes out.

Replies are immutable, except for their bodies. The edge makes bodies and writes replies; nothing here knows sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import field
from email.utils import formatdate
from enum import Enum, StrEnum
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.message import Headers
from gateway.core.operation import Record
from gateway.core.verdict import Verdict

REPLAYED_HEADER: Final = (b"Idempotent-Replayed", b"true")


class Cut(StrEnum):
    """Why a body is incomplete."""

    GONE = "gone"  # the client left, or the exchange is over
    MALFORMED = "malformed"  # not valid chunked coding
    SLOW = "slow"  # nothing came for too long
    CROWDED_OUT = "crowded-out"  # it came slowly, and another request needed its slot


class RequestCut(Exception):
    """The body of a request did not arrive completely: the request must not have an effect."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"the request body is not whole: {cut}")
        self.cut = cut


class RequestBody(Protocol):
    """The body of a request that is still on the wire."""

    length: int | None
    """Bytes announced by `Content-Length`; None when it comes in chunks; 0 when there is none."""

    def whole(self) -> bytes | None:
        """All of its bytes, if they are here; then `stream` yields none. None consumes nothing."""

    def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come, not decoded. Call it once. A body that is cut short raises, and never just ends."""

    def crowd_out(self) -> bool:
        """Cut it short if it comes too slowly to keep its slot; returns whether it was cut."""

    def close(self) -> None:
        """Release what holds it, read or not. Safe to repeat."""


class ResponseStream(Protocol):
    """A response body that is passed on as it comes."""

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut` when the body is cut short."""

    def abort(self) -> None:
        """Give up the rest. Harmless after the end."""


class BodyCut(Exception):
    """A response body broke off: the client must not take it for complete."""


@immutable
class ToFetch:
    """What a reply is to be fetched from: the target at the service, and the record that names it."""

    target: bytes
    record: Record


class Source(Enum):
    """Who decided on the headers of a reply."""

    GATEWAY = "gateway"  # the gateway itself
    SERVICE = "service"  # the service, for this very request
    RECORD = "record"  # the service, for an earlier request


@immutable
class Reply:
    """What the client gets.

    `headers` are end-to-end; the edge adds framing, `Date` and `Connection`. `length` is the number of bytes in a
    stream, None if unknown. `verdict` is None where the request was not protected. With `decode_for`, the body has a
    coding that these `Accept-Encoding` values do not accept, and is decoded before it goes out. `why` is for the log
    alone: why nothing could be sent to the upstream, or compared with the record; so are `differs` and
    `first_operation`, which a refusal also has for its caller. With `to_fetch`, the coordinator replaces it by what the
    service says of that. `would` is the verdict that an observed request would have had, where
    clients are shown it.
    """

    status: int
    reason: bytes
    headers: Headers
    body: bytes | ResponseStream
    verdict: Verdict | None = None
    length: int | None = None
    decode_for: tuple[bytes, ...] | None = None
    why: str | None = None
    to_fetch: ToFetch | None = None
    differs: tuple[str, ...] = ()
    first_operation: UUID | None = None
    source: Source = Source.GATEWAY
    would: str | None = None
    lines: tuple[bytes, bool] | None = field(init=False, default=None, compare=False, repr=False)
    """Of a reply that was written: its status line with the headers, and whether `Date` is one of them."""


def reason_phrase(status: int) -> bytes:
    """The registered phrase of a status, empty for an unregistered one."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@lru_cache(1024)
def http_date(unix_seconds: int) -> bytes:
    """An IMF-fixdate (RFC 9110 section 5.6.7)."""
    return formatdate(unix_seconds, usegmt=True).encode()
