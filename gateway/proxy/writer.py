"""A reply as bytes on the wire: the one place where framing is written.

Pure. Owns `Content-Length`, `Transfer-Encoding`, `Connection`, `Date` and `Idempotency-Status`; whatever a reply brings
of them is replaced, for framing is recomputed and never copied. All other fields go out in their order, spelling and
bytes. Invariant: a head has exactly the lines that it was given, whatever their bytes, or it is refused.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, ResponseHead
from gateway.core.replay import has_no_body
from gateway.proxy.reply import Reply

_OWN: Final = HOP_BY_HOP | {b"content-length", b"idempotency-status"}
_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))
_LENGTH_DIGITS_MAX: Final = 18

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


class ReplyInvalid(ValueError):
    """A reply that cannot be written without ambiguity: a defect of whoever made it, never of the client."""


@immutable
class Framed:
    """A head to send, and how its body follows. `length` is what a body that is not chunked must come to, if known.

    `keep_alive` is False where the end of the body is the end of the connection.
    """

    head: bytes
    sends_body: bool
    is_chunked: bool
    length: int | None
    keep_alive: bool


def framed(reply: Reply, *, method: bytes, minor: int, keep_alive: bool, shows_status: bool, date: bytes) -> Framed:
    """Frame a final reply to a request of HTTP/1.`minor` (RFC 9112 section 6). Raises `ReplyInvalid`."""
    is_bytes = isinstance(reply.body, bytes)
    length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
    sends_body = not has_no_body(method, reply.status)
    pieces: list[bytes] = []
    has_date = False
    own_length: bytes | None = None
    for name, value in reply.headers:
        lower = name.lower()
        if lower not in _OWN:
            has_date = has_date or lower == b"date"
            pieces += (name, b": ", value, b"\r\n")
        elif lower == b"content-length":
            own_length = value
    if reply.word is not None and shows_status:
        pieces += (b"Idempotency-Status", b": ", reply.word.encode(), b"\r\n")
    if not has_date:
        pieces += (b"Date", b": ", date, b"\r\n")
    is_chunked = False
    if not sends_body:
        said = _length_of_what_is_not_sent(method, reply.status, own_length, length if is_bytes else None)
        pieces += (b"Content-Length", b": ", said, b"\r\n") if said is not None else ()
    elif length is not None:
        pieces += (b"Content-Length", b": ", b"%d" % length, b"\r\n")
    elif minor > 0:
        is_chunked = True
        pieces += (b"Transfer-Encoding", b": ", b"chunked", b"\r\n")
    else:
        keep_alive = False
    if not keep_alive:
        pieces += (b"Connection", b": ", b"close", b"\r\n")
    elif minor == 0:
        pieces += (b"Connection", b": ", b"keep-alive", b"\r\n")
    return Framed(_head(reply.status, reply.reason, pieces), sends_body, is_chunked, length, keep_alive)


def bare_head(head: ResponseHead) -> bytes:
    """An interim response, or the 101 after which the connection is no longer HTTP. Raises `ReplyInvalid`.

    `head` has what the client is to see; lengths are left out, for no content follows (RFC 9110 section 8.6).
    """
    fields = [field for field in head.headers if field[0].lower() not in _LENGTHS]
    return _head(head.status, head.reason, [piece for name, value in fields for piece in (name, b": ", value, b"\r\n")])


def chunk(data: bytes) -> bytes:
    """One chunk; `data` is not empty, since an empty chunk is the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


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


class DateClock:
    """The `Date` of now, made anew once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def now(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._text = second, http_date(second)
        return self._text


def _length_of_what_is_not_sent(method: bytes, status: int, own: bytes | None, body_bytes: int | None) -> bytes | None:
    """What `Content-Length` says where no body follows: for HEAD and 304 it speaks of the body that GET would get."""
    if not (method == b"HEAD" or status == HTTPStatus.NOT_MODIFIED) or status == HTTPStatus.NO_CONTENT:
        return None
    if own is not None and own.isdigit() and len(own) <= _LENGTH_DIGITS_MAX:
        return own
    return b"%d" % body_bytes if body_bytes else None


def _head(status: int, reason: bytes, pieces: list[bytes]) -> bytes:
    """`pieces` are four for each field: its name, what is between, its value, and the end of its line."""
    head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, b"".join(pieces))
    # A field or reason that smuggles a line would make one line more than there are fields.
    ends = len(pieces) // 4 + 2
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head or not 100 <= status <= 999:
        raise ReplyInvalid("a field or the reason of a reply holds CR, LF or NUL, or its status is none")
    return head
