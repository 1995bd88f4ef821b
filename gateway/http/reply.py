"""A reply as bytes on the wire: the only module that writes framing.

Pure. Owns `Content-Length`, `Transfer-Encoding`, `Connection`, `Date` and `Idempotency-Status`. Framing is recomputed,
never copied from a reply. All other headers go out in their order, spelling and bytes. Invariant: a head has exactly
the lines that it was given, whatever their bytes, or it is refused.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, NameTable, ResponseHead, header_values
from gateway.core.replay import has_no_body
from gateway.core.verdict import Verdict
from gateway.protect.reply import Reply

_OWN: Final = HOP_BY_HOP | {b"content-length", b"idempotency-status"}
_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))
_LENGTH_DIGITS_MAX: Final = 18
# The kinds of reply headers to framing, by name.
_PLAIN, _DATE, _REPLACED = range(3)

_STATUS_LINES: Final = {verdict: b"Idempotency-Status: " + verdict.encode() for verdict in Verdict}
_BODILESS: Final = frozenset(status for status in range(100, 1000) if has_no_body(b"GET", status))

LAST_CHUNK: Final = b"0\r\n\r\n"


class ReplyInvalid(ValueError):
    """A reply that cannot be written without ambiguity: a bug of its maker, never the client's fault."""


@immutable
class Framed:
    """A head to send, and how its body follows. `length` is that of a body that is not chunked, if known.

    `keep_alive` is False where the end of the connection ends the body.
    """

    head: bytes
    sends_body: bool
    is_chunked: bool
    length: int | None
    keep_alive: bool


def framed(reply: Reply, *, method: bytes, minor: int, keep_alive: bool, shows_status: bool, date: bytes) -> Framed:
    """Frame a final reply to a request of HTTP/1.`minor` (RFC 9112 section 6). Raises `ReplyInvalid`.

    `date` is the line for a reply without one.
    """
    status, is_bytes = reply.status, isinstance(reply.body, bytes)
    length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
    lines, has_date = [b"HTTP/1.1 %d %b" % (status, reply.reason)], False
    for header in reply.headers:
        kind = _KINDS[header[0]]
        if kind != _REPLACED:
            lines.append(b": ".join(header))
            if kind == _DATE:
                has_date = True
    if reply.verdict is not None and shows_status:
        lines.append(_STATUS_LINES[reply.verdict])
    elif reply.would is not None:
        lines.append(b"Idempotency-Status: observed;would=" + reply.would.encode())
    if not has_date:
        lines.append(date)
    sends_body, is_chunked = method != b"HEAD" and status not in _BODILESS, False
    if not sends_body:
        said = _length_of_what_is_not_sent(method, reply, length if is_bytes else None)
        if said is not None:
            lines.append(b"Content-Length: " + said)
    elif length is not None:
        lines.append(b"Content-Length: %d" % length)
    elif minor > 0:
        is_chunked = True
        lines.append(b"Transfer-Encoding: chunked")
    else:
        keep_alive = False
    if not keep_alive or minor == 0:
        lines.append(b"Connection: keep-alive" if keep_alive else b"Connection: close")
    return Framed(_head(status, lines), sends_body, is_chunked, length, keep_alive)


def bare_head(head: ResponseHead) -> bytes:
    """An interim response, or the 101 after which the connection is no longer HTTP. Raises `ReplyInvalid`.

    `head` has the headers for the client. Lengths are left out, because no content follows (RFC 9110 section 8.6).
    """
    kept = [header for header in head.headers if header[0].lower() not in _LENGTHS]
    return _head(head.status, [b"HTTP/1.1 %d %b" % (head.status, head.reason), *map(b": ".join, kept)])


def chunk(data: bytes) -> bytes:
    """One chunk; `data` is not empty, since an empty chunk is the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _length_of_what_is_not_sent(method: bytes, reply: Reply, body_bytes: int | None) -> bytes | None:
    """The `Content-Length` where no body follows: for HEAD and 304, the length of the body that GET would get."""
    status = reply.status
    if not (method == b"HEAD" or status == HTTPStatus.NOT_MODIFIED) or status == HTTPStatus.NO_CONTENT:
        return None
    own = next(reversed(header_values(reply.headers, b"content-length")), None)
    if own is not None and own.isdigit() and len(own) <= _LENGTH_DIGITS_MAX:
        return own
    return b"%d" % body_bytes if body_bytes else None


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if lower == b"date":
        return _DATE
    return _REPLACED if lower in _OWN else _PLAIN


_KINDS: Final = NameTable(_kind_of)


def _head(status: int, lines: list[bytes]) -> bytes:
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    # A header or reason that smuggles a line would add a line.
    ends = len(lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head or not 100 <= status <= 999:
        raise ReplyInvalid("a header or the reason of a reply holds CR, LF or NUL, or its status is not valid")
    return head
