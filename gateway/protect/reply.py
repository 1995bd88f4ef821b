"""What goes between the edge and the coordinator: a request as it came in, and the reply as it goes out.

Both are values but for their bodies. The edge makes the one and writes the other; nothing here knows sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.utils import formatdate
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from gateway.core.immutable import immutable
from gateway.core.message import Headers, RequestHead
from gateway.core.verdict import Verdict
from gateway.protect.hop import Hop


class Cut(StrEnum):
    """Why a body is not whole."""

    GONE = "gone"  # the client went, or the exchange is over
    MALFORMED = "malformed"  # not valid chunked coding
    SLOW = "slow"  # nothing came for too long
    CROWDED_OUT = "crowded-out"  # it came slowly, and others wanted its place


class RequestCut(Exception):
    """The body of a request did not arrive whole: nothing may be done for it."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"the request body is not whole: {cut}")
        self.cut = cut


class RequestBody(Protocol):
    """The body of a request that is still on the wire."""

    length: int | None
    """Bytes announced by `Content-Length`; None when it comes in chunks; 0 when there is none."""

    def whole(self) -> bytes | None:
        """All of its bytes, if they are here; then `stream` gives none. None takes nothing away."""

    def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come, not decoded. Once only. A body that is cut short raises, and never just ends."""

    def crowd_out(self) -> bool:
        """Cut it short if it comes so slowly that it must not keep others out; whether it was."""

    def close(self) -> None:
        """Let go of what holds it, read or not. Harmless when repeated."""


@immutable
class Incoming:
    """A request at the edge, and the hop that it came over. `upgrades`: it asks to leave HTTP, and may."""

    head: RequestHead
    body: RequestBody
    hop: Hop
    upgrades: bool = False


class ResponseStream(Protocol):
    """A response body that is passed on as it comes."""

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut` when the body is cut short."""

    def abort(self) -> None:
        """Give the rest up. Harmless after the end."""


class BodyCut(Exception):
    """A response body ended before its end: whoever was being given it must not take it for whole."""


@immutable
class Reply:
    """What the client gets.

    `headers` are end-to-end fields; framing, `Date` and `Connection` are the edge's. `length` is the number of bytes
    that a stream will give, None when it is not known. `verdict` is None where nothing protected the request. With
    `decode_for`, the body is in a coding that these `Accept-Encoding` values do not accept: it is decoded before it
    goes out. `why` is for the log alone: why nothing could be sent to the upstream, or compared with the record.
    """

    status: int
    reason: bytes
    headers: Headers
    body: bytes | ResponseStream
    verdict: Verdict | None = None
    length: int | None = None
    decode_for: tuple[bytes, ...] | None = None
    why: str | None = None


@immutable
class Untouched:
    """What the coordinator says of a request that nothing protects: forward it as it is, streamed.

    `incoming` is the request to forward, whose body may have been read already; `verdict` says why it is not protected.
    """

    incoming: Incoming
    verdict: Verdict


def reason_phrase(status: int) -> bytes:
    """The registered phrase of a status, empty for one that nobody registered."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@lru_cache(1024)
def http_date(unix_seconds: int) -> bytes:
    """An IMF-fixdate (RFC 9110 section 5.6.7)."""
    return formatdate(unix_seconds, usegmt=True).encode()
