"""Request bodies: in memory, in a file, still arriving; and what becomes of one that breaks off."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from gateway.core.message import IndexedHeaders, RequestHead
from gateway.upstream import FileBody, SentNothing, StreamBody, Unknown
from gateway.upstream.client import request_bytes
from gateway.upstream.connection import OutboundBody
from tests.http.upstream.wire import (
    DONE,
    Server,
    all_closed,
    answer,
    answering,
    lost,
    not_sent,
    request,
    send,
    serving,
    upstream_to,
)
from tests.support.eventually import eventually

MEBIBYTE = 1024 * 1024


@pytest.fixture
def spooled() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        yield file


async def pieces(*parts: bytes | Exception) -> AsyncIterator[bytes]:
    """Bytes to give, an error to end with."""
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


@pytest.mark.parametrize("size", [0, 1, 3 * MEBIBYTE + 1])
async def test_a_body_in_a_file_arrives_as_it_is(size: int, spooled: BinaryIO) -> None:
    """From its first byte, wherever the file is positioned, and the connection can be used again."""
    body = os.urandom(size)
    spooled.write(body + b"what follows is not the body's")
    spooled.flush()
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        for _ in range(2):
            await answer(client, request(), FileBody(spooled.fileno(), size))
        assert [received for _, received in server.requests] == [body, body]
        assert server.accepted == 1


async def test_a_file_that_is_shorter_than_declared_is_never_a_complete_request(spooled: BinaryIO) -> None:
    """The connection is aborted before the upstream could take it for whole; one that cannot be read is not sent."""
    spooled.write(b"short")
    spooled.flush()
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        result = await lost(client, request(), FileBody(spooled.fileno(), 6), protected=True)
        assert result.reason is Unknown.REQUEST_ABORTED
        assert (await not_sent(client, request(), FileBody(-1, 5))).reason is SentNothing.LOCAL
        await all_closed(client)
        assert not server.requests


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_file_may_be_closed_when_the_exchange_has_returned(spooled: BinaryIO) -> None:
    """Its duplicate goes with the exchange, also after an early answer, a refusal, a cancellation."""
    spooled.truncate(64 * MEBIBYTE)
    body = FileBody(spooled.fileno(), 64 * MEBIBYTE)

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        if early:
            writer.write(DONE)
        await gone.wait()

    arrived, gone, early = asyncio.Event(), asyncio.Event(), True
    before = descriptors()
    async with serving(handler) as server:
        async with upstream_to(server.port) as client:
            assert (await answer(client, request(), body)).head.status == 200
            await not_sent(client, request(), body, may_send=lambda: False)
            arrived.clear()
            early = False
            for waits_for_arrival in (True, False):
                running = asyncio.create_task(send(client, request(), body))
                await (arrived.wait() if waits_for_arrival else asyncio.sleep(0))
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            await all_closed(client)
        gone.set()
    await eventually(lambda: descriptors() <= before + 3, what="descriptors of the loop and the threads only")


@pytest.mark.parametrize(
    ("parts", "length"),
    [
        ((b"01234",), 10), ((b"01234", b"567890"), 10), ((b"01234", ConnectionResetError()), 10),
        ((b"01234", ValueError()), None), ((ValueError(),), None),
    ],
    ids=["too-short", "too-long", "source-fails-declared", "source-fails-chunked", "source-fails-at-once"],
)  # fmt: skip
async def test_a_body_that_breaks_off_is_never_a_complete_request(
    parts: tuple[bytes | Exception, ...], length: int | None
) -> None:
    """The connection is aborted, so what arrived has no end."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        result = await lost(client, request(), StreamBody(pieces(*parts), length))
        assert result.reason is Unknown.REQUEST_ABORTED
        await all_closed(client)
        assert not server.requests


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        (b"POST", b"abc", b"Content-Length: 3\r\n"),
        (b"POST", b"", b"Content-Length: 0\r\n"),
        (b"GET", b"", b""),
        (b"DELETE", b"", b""),
        (b"DELETE", b"abc", b"Content-Length: 3\r\n"),
        (b"POST", FileBody(0, 7), b"Content-Length: 7\r\n"),
        (b"POST", StreamBody(pieces(), 0), b"Content-Length: 0\r\n"),
        (b"POST", StreamBody(pieces(), None), b"Transfer-Encoding: chunked\r\n"),
    ],
    ids=["bytes", "no-bytes", "get", "delete", "delete-with-body", "file", "stream-declared", "stream-chunked"],
)
def test_framing_is_recomputed(method: bytes, body: OutboundBody, framing: bytes) -> None:
    """What the caller says of framing and of its connection is replaced by what is true here."""
    copied = (
        (b"content-LENGTH", b"99"), (b"Transfer-Encoding", b"gzip"), (b"Connection", b"close, Upgrade"),
        (b"Keep-Alive", b"timeout=1"), (b"Expect", b"100-continue"), (b"TE", b"trailers"), (b"Trailer", b"x"),
    )  # fmt: skip
    wire = request_bytes(RequestHead(method, b"/", IndexedHeaders(copied)), body)
    assert wire is not None
    assert wire[0] == method + b" / HTTP/1.1\r\n" + framing + b"\r\n"


def odd(method: bytes = b"POST", target: bytes = b"/", *fields: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(method, target, IndexedHeaders(fields))


ODD = {
    **{f"target {target!r}": odd(target=target) for target in (b"/a b", b"/\x00", b"")},
    **{f"method {method!r}": odd(method) for method in (b"PO ST", b"")},
    "connect": odd(b"CONNECT", b"host:1"),
    **{f"value {value!r}": odd(b"POST", b"/", (b"A", value)) for value in (b"b\r\nC: d", b"b\nc", b"b\rc", b"b\x00")},
    **{f"name {name!r}": odd(b"POST", b"/", (name, b"c")) for name in (b"A:", b"", b"A: b\r\nC")},
}


@pytest.mark.parametrize("request_head", ODD.values(), ids=ODD)
def test_what_could_be_read_in_two_ways_is_not_sent(request_head: RequestHead) -> None:
    """A method, target or field that would change the message is refused."""
    assert request_bytes(request_head, b"") is None
