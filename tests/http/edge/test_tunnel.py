"""Upgrades: bytes both ways, until both sides have said all they had."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.upstream import UpstreamSettings
from tests.http.edge.harness import HOST, RunningEdge, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, read_head
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
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tunnelled(script: Script) -> AsyncIterator[tuple[RunningEdge, list[bytes]]]:
    """An edge before an upstream that switches and then does as scripted; the heads that the upstream got."""
    heads: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SWITCHED)
        try:
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, serving(upstream_settings=UpstreamSettings(host="127.0.0.1", port=port)) as edge:
        yield edge, heads


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def frame(payload: bytes) -> bytes:
    """A masked text frame of a client (RFC 6455 section 5.2)."""
    mask = os.urandom(4)
    return bytes((0x81, 0x80 | len(payload))) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


async def test_a_websocket_goes_through() -> None:
    """The handshake with its fields, then frames both ways, then the end."""
    async with tunnelled(echo) as (edge, heads), Connection(edge.port) as connection:
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
        for text in (b"hello", b"", b"x" * 125):
            sent = frame(text)
            await connection.send(sent)
            assert await connection.reader.readexactly(len(sent)) == sent
        connection.finish_sending()
        assert await connection.read_rest() == b""
        await eventually(lambda: edge.edge.in_flight == 0)


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_one_direction_may_end_before_the_other(who: str) -> None:
    """An end is passed on as an end, and the other direction goes on."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if who == "client":
            heard.append(await reader.read(-1))
            writer.write(b"still here")
            await writer.drain()
        else:
            writer.write(b"bye")
            writer.write_eof()
            heard.append(await reader.read(-1))
        done.set()

    heard: list[bytes] = []
    done = asyncio.Event()
    async with tunnelled(script) as (edge, _), Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        await read_head(connection.reader)
        if who == "client":
            await connection.send(b"bye")
            connection.finish_sending()
            assert await connection.read_rest() == b"still here"
        else:
            assert await connection.read_rest() == b"bye"
            await connection.send(b"still here")
            connection.finish_sending()
        await done.wait()
        assert heard == [b"bye" if who == "client" else b"still here"]
        await eventually(lambda: edge.edge.in_flight == 0)


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
    async with tunnelled(echo) as (edge, _), Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        await read_head(connection.reader)
        client_port = connection.writer.get_extra_info("sockname")[1]
        await eventually(lambda: kernel_timer(edge.port, client_port)[0] == 2)
        assert kernel_timer(edge.port, client_port)[1] <= 30


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

    async with tunnelled(script) as (edge, _):
        async with Connection(edge.port) as connection:
            await connection.send(HANDSHAKE)
            await read_head(connection.reader)
            if who == "upstream":
                await connection.send(b"go")
                with pytest.raises(ConnectionError):
                    await connection.read_rest()
            else:
                connection.reset()
                await broken.wait()
        await eventually(lambda: edge.edge.in_flight == 0)


async def test_much_goes_through_at_the_pace_of_the_reader() -> None:
    """A megabyte a hundred times over, echoed, is not held in memory at once."""
    piece = bytes(range(256)) * 4096

    async def upload(connection: Connection) -> None:
        for _ in range(20):
            await connection.send(piece)
        connection.finish_sending()

    async with tunnelled(echo) as (edge, _), Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        await read_head(connection.reader)
        sending = asyncio.ensure_future(upload(connection))
        assert await connection.read_rest() == piece * 20
        await sending


async def test_an_upgrade_that_is_declined_leaves_http() -> None:
    """The answer is an ordinary one, and the next request on the connection is served."""
    async with RecordingUpstream() as upstream, serving(upstream=upstream) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(HANDSHAKE)
            response = await connection.read_response()
            assert (response.status, response.body) == (200, b"done")
        await connection.send(HANDSHAKE + HANDSHAKE)
        for _ in range(2):
            assert (await connection.read_response()).status == 200


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"WebSocket\r\n", token + b"\r\n") for token in (b"h2c", b"TLS/1.0", b"websocket, h2c", b"foo")]
    + [(b"HTTP/1.1", b"HTTP/1.0")],
)
async def test_other_protocols_are_not_switched_to(old: bytes, new: bytes) -> None:
    """A tunnel for HTTP/2 would lead past every route, and Upgrade means nothing in 1.0 (RFC 9110 section 7.8)."""
    async with RecordingUpstream() as upstream, serving(upstream=upstream) as edge, Connection(edge.port) as connection:
        await connection.send(HANDSHAKE.replace(old, new))
        response = await connection.read_response()
        assert response.status == 200
        if old != b"HTTP/1.1":
            assert response.header("connection") == (None if new == b"h2c\r\n" else "close")
        assert upstream.requests[0].values("upgrade") == []


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
    ids=["length", "chunks"],
)
async def test_a_handshake_with_a_body_is_not_switched(body: bytes) -> None:
    """An upstream that switched before the body's end would have its rest torn between request and tunnel."""
    async with RecordingUpstream() as upstream, serving(upstream=upstream) as edge, Connection(edge.port) as connection:
        await connection.send(HANDSHAKE[:-2] + body + b"\x81\x00")
        response = await connection.read_response()
        assert (response.status, response.header("connection")) == (200, "close")
        assert await connection.read_rest() == b""
        (received,) = upstream.requests
        assert (received.body, received.values("upgrade"), received.values("connection")) == (b"hello", [], [])


async def test_a_tunnel_ends_with_the_edge() -> None:
    """Draining waits for it as long as it waits for anything, and then breaks it off."""
    async with tunnelled(echo) as (edge, _), Connection(edge.port) as connection:
        await connection.send(HANDSHAKE)
        await read_head(connection.reader)
        await connection.send(b"ping")
        assert await connection.reader.readexactly(4) == b"ping"
        assert await edge.edge.close(0.05) == 1
        with pytest.raises(ConnectionError):
            await connection.read_rest()
