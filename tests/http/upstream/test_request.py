"""Requests as bytes: framing is ours, the rest is as given, and what could be read in two ways is not sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.core.message import IndexedHeaders, RequestHead
from gateway.upstream.client import request_bytes
from gateway.upstream.connection import FileBody, OutboundBody, StreamBody


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


def odd(method: bytes = b"POST", target: bytes = b"/", *fields: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(method, target, IndexedHeaders(fields))


ODD = {
    **{f"target {target!r}": odd(target=target) for target in (b"/a b", b"/a\r\nX: y", b"/\x00", b"")},
    **{f"method {method!r}": odd(method) for method in (b"PO ST", b"")},
    "connect": odd(b"CONNECT", b"host:1"),
    **{
        f"value {value!r}": odd(b"POST", b"/", (b"A", value))
        for value in (b"b\r\nC: d", b"b\r\n", b"b\nc", b"b\rc", b"b\x00")
    },
    **{f"name {name!r}": odd(b"POST", b"/", (name, b"c")) for name in (b"A b", b"A:", b"", b"A: b\r\nC", b"A\nB")},
}


@pytest.mark.parametrize("request_head", ODD.values(), ids=ODD)
def test_what_could_be_read_in_two_ways_is_not_sent(request_head: RequestHead) -> None:
    """A method, target or field that would change the message is refused."""
    assert request_bytes(request_head, b"") is None
