"""A request head as bytes on the wire: the framing is ours, everything else is as given.

Pure. Owns which fields a hop writes for itself and the refusal of anything that two parsers could read in two ways.
"""

from __future__ import annotations

import re

from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, NameTable, RequestHead, asks_upgrade
from gateway.upstream.result import FileBody, OutboundBody, StreamBody

# Written here or not at all. `Expect` is dropped because nothing waits for a 100: it would only be a second clock.
_OWN = HOP_BY_HOP | {b"content-length", b"expect"}

# Methods for which no content is the ordinary case need no `Content-Length: 0` (RFC 9110 section 8.6).
_BODILESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"))

_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~\x80-\xff]+ HTTP/1\.1")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")

# What is done with a field, by its name: sent, left out, or no name at all.
_SENT, _LEFT_OUT, _UPGRADE, _INVALID = range(4)


@immutable
class RequestBytes:
    """The head up to and with its empty line, and whether it asks to leave HTTP."""

    head: bytes
    wants_upgrade: bool


def request_bytes(request: RequestHead, body: OutboundBody) -> RequestBytes | None:
    """The head as it is sent; None when it cannot be written unambiguously.

    Hop-by-hop fields are left out, but for `Upgrade` where the request asks for one. CONNECT is refused: its answer has
    a framing of its own.
    """
    fields: list[tuple[bytes, bytes]] = []
    upgrade = False
    for field in request.headers:
        kind = _KINDS[field[0]]
        if kind == _SENT:
            fields.append(field)
        elif kind == _UPGRADE and asks_upgrade(request.headers):
            upgrade = True
            fields.append(field)
        elif kind == _INVALID:
            return None
    if upgrade:
        fields.append((b"Connection", b"Upgrade"))
    match body:
        case bytes():
            if body or request.method not in _BODILESS:
                fields.append((b"Content-Length", b"%d" % len(body)))
        case FileBody(length=length) | StreamBody(length=int(length)):
            fields.append((b"Content-Length", b"%d" % length))
        case StreamBody():
            fields.append((b"Transfer-Encoding", b"chunked"))
    request_line = b"%b %b HTTP/1.1" % (request.method, request.target)
    head = b"\r\n".join((request_line, *map(b": ".join, fields), b"", b""))
    lines = len(fields) + 2
    # A value that smuggles a line would leave the head well formed, with one line more than there are fields.
    if (
        not _REQUEST_LINE.fullmatch(request_line)
        or head.count(b"\n") != lines
        or head.count(b"\r") != lines
        or b"\0" in head
        or request.method == b"CONNECT"
    ):
        return None
    return RequestBytes(head, upgrade)


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if not _NAME.fullmatch(name):
        # Also one with a colon in it, which would make a field of another name.
        kind = _INVALID
    elif lower == b"upgrade":
        kind = _UPGRADE
    else:
        kind = _LEFT_OUT if lower in _OWN else _SENT
    return kind


_KINDS = NameTable(_kind_of)
