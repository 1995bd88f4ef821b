"""Requests as bytes: framing is ours, the rest is as given, and what could be read in two ways is not sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.core.message import IndexedHeaders, RequestHead
from gateway.upstream.client import request_bytes
from gateway.upstream.result import FileBody, OutboundBody, StreamBody


async def nothing() -> AsyncIterator[bytes]:
    """A source that is never asked."""
    return
    yield


def head_of(
    *fields: tuple[bytes, bytes], method: bytes = b"POST", target: bytes = b"/", body: OutboundBody = b""
) -> bytes:
    """The bytes of a request that can be sent."""
    wire = request_bytes(RequestHead(method, target, IndexedHeaders(fields)), body)
    assert wire is not None
    return wire[0]


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        (b"POST", b"abc", b"Content-Length: 3\r\n"),
        (b"POST", b"", b"Content-Length: 0\r\n"),
        (b"GET", b"", b""),
        (b"DELETE", b"", b""),
        (b"DELETE", b"abc", b"Content-Length: 3\r\n"),
        (b"POST", FileBody(0, 7), b"Content-Length: 7\r\n"),
        (b"POST", StreamBody(nothing(), 0), b"Content-Length: 0\r\n"),
        (b"POST", StreamBody(nothing(), None), b"Transfer-Encoding: chunked\r\n"),
    ],
    ids=["bytes", "no-bytes", "get", "delete", "delete-with-body", "file", "stream-declared", "stream-chunked"],
)
def test_framing_is_recomputed(method: bytes, body: OutboundBody, framing: bytes) -> None:
    """What the caller says of framing and of its connection is replaced by what is true here."""
    copied = (
        (b"content-LENGTH", b"99"), (b"Transfer-Encoding", b"gzip"), (b"Connection", b"close, Upgrade"),
        (b"Keep-Alive", b"timeout=1"), (b"Expect", b"100-continue"), (b"TE", b"trailers"), (b"Trailer", b"x"),
    )  # fmt: skip
    assert head_of(*copied, method=method, body=body) == method + b" / HTTP/1.1\r\n" + framing + b"\r\n"


@pytest.mark.parametrize(
    "request_head",
    [
        RequestHead(b"POST", b"/a b", IndexedHeaders()),
        RequestHead(b"POST", b"/a\r\nX: y", IndexedHeaders()),
        RequestHead(b"POST", b"/\x00", IndexedHeaders()),
        RequestHead(b"POST", b"", IndexedHeaders()),
        RequestHead(b"PO ST", b"/", IndexedHeaders()),
        RequestHead(b"", b"/", IndexedHeaders()),
        RequestHead(b"CONNECT", b"host:1", IndexedHeaders()),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A", b"b\r\nC: d"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A", b"b\r\n"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A", b"b\nc"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A", b"b\rc"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A", b"b\x00"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A b", b"c"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A:", b"c"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"", b"c"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A: b\r\nC", b"d"),))),
        RequestHead(b"POST", b"/", IndexedHeaders(((b"A\nB", b"c"),))),
    ],
    ids=[
        "target-space", "target-line", "target-nul", "target-empty", "method-space", "method-empty", "connect",
        "value-line", "value-line-end", "value-lf", "value-cr", "value-nul", "name-space", "name-colon", "name-empty",
        "name-line", "name-lf",
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_not_sent(request_head: RequestHead) -> None:
    """A method, target or field that would change the message is refused."""
    assert request_bytes(request_head, b"") is None
