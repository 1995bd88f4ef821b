"""Upgrades: bytes both ways, until both sides have said all they had."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.http.edge.harness import HOST, Accept, serving, serving_before
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange, read_head
from tests.support.relay import reset
from tests.support.upstream import RecordingUpstream

HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\n"
    + HOST
    + b"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzhZRbK+xOo=\r\n\r\n"
)


@asynccontextmanager
async def tunnelled(script: Accept) -> AsyncIterator[Connection]:
    """A client that has switched, before an upstream that does as scripted then. Nothing is left in flight."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED)
        await script(reader, writer)

    async with serving_before(accept) as edge:
        async with Connection(edge.port) as connection:
            await connection.send(HANDSHAKE)
            await read_head(connection.reader)
            yield connection
        await eventually(lambda: edge.edge.in_flight == 0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_a_handshake_goes_through() -> None:
    """With its headers, both ways."""
    heads: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SWITCHED)

    async with serving_before(accept) as edge, Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        version, status, reason, headers = await read_head(connection.reader)
    assert (version, status, reason) == (b"HTTP/1.1", 101, b"Switching Protocols")
    assert headers == [
        (b"upgrade", b"websocket"),
        (b"Sec-WebSocket-Accept", b"s3pPLMBiTxaQ9kYGzhZRbK+xOo="),
        (b"Connection", b"Upgrade"),
    ]
    assert b"\r\nUpgrade: WebSocket\r\n" in heads[0]
    assert b"\r\nConnection: Upgrade\r\n" in heads[0]
    assert b"\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" in heads[0]


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_one_direction_may_end_before_the_other(who: str) -> None:
    """An end is passed on as an end, and the other direction goes on."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if who == "upstream":
            writer.write(b"bye")
            writer.write_eof()
        heard.append(await reader.read(-1))
        if who == "client":
            writer.write(b"bye")
        done.set()

    heard: list[bytes] = []
    done = asyncio.Event()
    async with tunnelled(script) as connection:
        assert who == "client" or await connection.read_rest() == b"bye"
        await connection.send(b"still here")
        connection.finish_sending()
        assert who == "upstream" or await connection.read_rest() == b"bye"
        await done.wait()
    assert heard == [b"still here"]


def kernel_timer(port: int, peer_port: int) -> tuple[int, float]:
    """Which timer the kernel runs for the connection of these ports (2: keepalive), and when it is due, in seconds."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if (local.split(":")[1], remote.split(":")[1]) == (f"{port:04X}", f"{peer_port:04X}"):
            kind, due = timer.split(":")
            return int(kind, 16), int(due, 16) / os.sysconf("SC_CLK_TCK")
    raise AssertionError("there is no such connection")


async def test_a_silent_client_is_asked_whether_it_is_there() -> None:
    """One that vanished from a socket on which nothing is said is found out within a minute, not after hours."""
    async with tunnelled(echo) as connection:
        ports = [connection.writer.get_extra_info(name)[1] for name in ("peername", "sockname")]
        await eventually(lambda: kernel_timer(*ports)[0] == 2)
        assert kernel_timer(*ports)[1] <= 30


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_who_breaks_off_breaks_the_other_off(who: str) -> None:
    """The other side sees an RST, not an end."""
    broken = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if who == "upstream":
            await reader.readexactly(2)
            reset(writer)
            return
        try:
            await reader.read(-1)
        except ConnectionResetError:
            broken.set()

    async with tunnelled(script) as connection:
        if who == "upstream":
            await connection.send(b"go")
            with pytest.raises(ConnectionError):
                await connection.read_rest()
        else:
            connection.reset()
            await broken.wait()


async def test_much_goes_through_at_the_pace_of_the_reader() -> None:
    """More than is held in between, echoed as it comes."""
    piece = bytes(range(256)) * 4096

    async def upload(connection: Connection) -> None:
        for _ in range(20):
            await connection.send(piece)
        connection.finish_sending()

    async with tunnelled(echo) as connection:
        sending = asyncio.ensure_future(upload(connection))
        assert await connection.read_rest() == piece * 20
        await sending


@pytest.mark.parametrize(
    "handshake",
    [
        HANDSHAKE.replace(b"WebSocket\r\n", b"h2c\r\n"),
        HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HANDSHAKE[:-2] + b"Content-Length: 5\r\n\r\nhello\x81\x00",
        HANDSHAKE[:-2] + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n\x81\x00",
    ],
    ids=["http-2", "http-1.0", "body", "chunks"],
)
async def test_what_is_not_switched(handshake: bytes) -> None:
    """A tunnel for HTTP/2 would lead past every route, and Upgrade means nothing in 1.0 (RFC 9110 section 7.8). Where
    there is a body, its rest would be torn between request and tunnel. Java's client always offers HTTP/2, and goes on
    on its connection."""
    async with RecordingUpstream() as upstream, serving(to=upstream.port) as edge:
        response = await exchange(edge.port, handshake)
        assert response.status == 200
        (received,) = upstream.requests
        assert (received.values("upgrade"), received.values("connection")) == ([], [])
        assert response.header("connection") == (None if b"h2c" in handshake else "close")
        assert received.body == (b"hello" if b"hello" in handshake else b"")


async def test_a_tunnel_ends_with_the_edge() -> None:
    """Draining waits for it as long as it waits for anything, and then breaks it off."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED)
        await reader.read(-1)

    async with serving_before(accept) as edge, Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        await read_head(connection.reader)
        assert await edge.edge.close(0.05) == 1
        with pytest.raises(ConnectionError):
            await connection.read_rest()
