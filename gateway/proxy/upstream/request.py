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
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")

# What is done with a field, by its name: sent, left out, or no name at all.
_SENT, _LEFT_OUT, _UPGRADE, _INVALID = range(4)
# Names as they come, which are the same few all the time; more, and longer ones, are looked at each time.
_KINDS: dict[bytes, int] = {}
_KINDS_MAX = 1024
_KNOWN_NAME_BYTES_MAX = 64


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
    pieces: list[bytes] = []
    upgrade = False
    for field in request.headers:
        name, value = field
        kind = _KINDS.get(name)
        if kind is None:
            kind = _kind_of(name)
        if kind == _SENT:
            pieces += (name, b": ", value, b"\r\n")
        elif kind == _UPGRADE and asks_upgrade(request.headers):
            upgrade = True
            pieces += (name, b": ", value, b"\r\n")
        elif kind == _INVALID:
            return None
    if upgrade:
        pieces += (b"Connection", b": ", b"Upgrade", b"\r\n")
    match body:
        case bytes():
            if body or request.method not in _BODILESS:
                pieces += (b"Content-Length", b": ", b"%d" % len(body), b"\r\n")
        case FileBody(length=length) | StreamBody(length=int(length)):
            pieces += (b"Content-Length", b": ", b"%d" % length, b"\r\n")
        case StreamBody():
            pieces += (b"Transfer-Encoding", b": ", b"chunked", b"\r\n")
    request_line = b"%b %b HTTP/1.1\r\n" % (request.method, request.target)
    fields = b"".join(pieces)
    lines = len(pieces) // 4
    # A value that smuggles a line would leave the block well formed, with one line more than there are fields.
    if (
        not _REQUEST_LINE.fullmatch(request_line)
        or fields.count(b"\n") != lines
        or fields.count(b"\r") != lines
        or b"\0" in fields
        or request.method == b"CONNECT"
    ):
        return None
    return RequestBytes(b"%b%b\r\n" % (request_line, fields), upgrade)


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if not _NAME.fullmatch(name):
        # Also one with a colon in it, which would make a field of another name.
        kind = _INVALID
    elif lower == b"upgrade":
        kind = _UPGRADE
    else:
        kind = _LEFT_OUT if lower in _OWN else _SENT
    if len(name) <= _KNOWN_NAME_BYTES_MAX and len(_KINDS) < _KINDS_MAX:
        _KINDS[name] = kind
    return kind
