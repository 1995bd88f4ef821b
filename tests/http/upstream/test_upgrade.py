"""Leaving HTTP: both directions after a 101, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream import Framing, UpstreamResponse
from gateway.upstream.connection import UpstreamConnection
from tests.http.upstream.wire import Server, all_closed, answer, request, send, serving, upstream_to
from tests.support.eventually import eventually

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
ASKING = request(b"GET", b"/chat", (b"Connection", b"upgrade"), (b"Upgrade", b"echo"))


async def echo(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switches, says hello in the same segment, and gives back what it gets."""
    head, _ = await server.read_request(reader)
    assert b"Upgrade: echo\r\nConnection: Upgrade\r\n" in head
    writer.write(SWITCH + b"hello")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")


async def write(upstream: UpstreamConnection, data: bytes) -> bool:
    return upstream.write_body(data) and await upstream.wait_writable()


async def test_bytes_go_both_ways() -> None:
    """What came with the head comes first; silence between reads ends nothing; half-closed it still brings the rest."""
    loop = asyncio.get_running_loop()
    async with serving(echo) as server, upstream_to(server.port, response_timeout_seconds=0.2) as client:
        got = await answer(client, ASKING, b"")
        assert (got.head.status, got.framing) == (101, Framing.UPGRADE)
        duplex, until = got.upgraded, loop.time() + 0.3
        assert duplex is not None
        await eventually(lambda: loop.time() > until)
        assert await got.body.read() == b"hello"
        assert await write(duplex, b"\x00\xff")
        assert await got.body.read() == b"\x00\xff"
        duplex.write_eof()
        assert (await got.body.read(), await got.body.read()) == (b"bye", b"")
        duplex.discard()
        assert not await write(duplex, b"too late")
        await all_closed(client)


async def test_both_directions_have_flow_control() -> None:
    """A megabyte-wise echo neither overflows nor deadlocks."""
    total, piece = 32 * 1024 * 1024, bytes(range(256)) * 1024
    async with serving(echo) as server, upstream_to(server.port) as client:
        with await answer(client, ASKING, b"") as got:
            duplex = got.upgraded
            assert duplex is not None

            async def write_all() -> None:
                for _ in range(total // len(piece)):
                    assert await write(duplex, piece)
                duplex.write_eof()

            writing = asyncio.create_task(write_all())
            await eventually(lambda: got.body.is_unread_for(0.0))
            assert not writing.done()
            received = bytearray()
            while data := await got.body.read():
                assert isinstance(data, bytes)
                received += data
            await writing
            assert received == b"hello" + piece * (total // len(piece)) + b"bye"


@pytest.mark.parametrize("closes", ["answer", "client"])
async def test_closing_ends_an_upgraded_connection(closes: str) -> None:
    """Also when the caller has forgotten about it."""
    async with serving(echo) as server, upstream_to(server.port) as client:
        got = await send(client, ASKING, b"")
        assert isinstance(got, UpstreamResponse)
        if closes == "answer":
            got.close()
            await all_closed(client)
