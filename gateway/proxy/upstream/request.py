"""A request head as bytes on the wire: the framing is ours, everything else is as given.

Pure. Owns which fields a hop writes for itself and the refusal of anything that two parsers could read in two ways.
"""

from __future__ import annotations

import re

from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, RequestHead, asks_upgrade
from gateway.proxy.upstream.result import FileBody, RequestBody, StreamBody

# Written here or not at all. `Expect` is dropped because nothing waits for a 100: it would only be a second clock.
_OWN = HOP_BY_HOP | {b"content-length", b"expect"}

# Methods for which no content is the ordinary case need no `Content-Length: 0` (RFC 9110 section 8.6).
_BODILESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"))

_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~\x80-\xff]+ HTTP/1\.1\r\n")
_NAMES = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++(?:\n|\Z))*+")
_FIELD_LINES = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[^\x00\r\n]*+\r\n)*+")


@immutable
class RequestBytes:
    """The head up to and with its empty line, and whether it asks to leave HTTP."""

    head: bytes
    wants_upgrade: bool


def request_bytes(request: RequestHead, body: RequestBody) -> RequestBytes | None:
    """The head as it is sent; None when it cannot be written unambiguously.

    Hop-by-hop fields are left out, but for `Upgrade` where the request asks for one. CONNECT is refused: its answer has
    a framing of its own.
    """
    names = [name.lower() for name, _ in request.headers]
    upgrade = b"upgrade" in names and asks_upgrade(request.headers)
    lines = [
        b"%b: %b\r\n" % field
        for name, field in zip(names, request.headers, strict=True)
        if name not in _OWN or (upgrade and name == b"upgrade")
    ]
    if upgrade:
        lines.append(b"Connection: Upgrade\r\n")
    match body:
        case bytes():
            if body or request.method not in _BODILESS:
                lines.append(b"Content-Length: %d\r\n" % len(body))
        case FileBody(length=length) | StreamBody(length=int(length)):
            lines.append(b"Content-Length: %d\r\n" % length)
        case StreamBody():
            lines.append(b"Transfer-Encoding: chunked\r\n")
    request_line = b"%b %b HTTP/1.1\r\n" % (request.method, request.target)
    fields = b"".join(lines)
    # A name with a colon in it would make a field of another name, which shows only before the colons are there. A
    # value that smuggles a line would leave the block well formed, with one line more than there are fields.
    if (
        not _REQUEST_LINE.fullmatch(request_line)
        or not _NAMES.fullmatch(b"\n".join(names))
        or not _FIELD_LINES.fullmatch(fields)
        or fields.count(b"\n") != len(lines)
        or request.method == b"CONNECT"
    ):
        return None
    return RequestBytes(b"%b%b\r\n" % (request_line, fields), upgrade)
