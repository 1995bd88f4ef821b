"""Clients that send garbage, never end, or do not read: they are given up, and leave nothing behind."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.http.connection import EdgeSettings
from tests.http.edge.harness import PROTECTED, post, reply, serving, taken_by
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange

P = PROTECTED.encode()
# More than the buffers of the system take.
LONG_BYTES = 16 << 20


async def test_garbage_behind_a_request_in_one_piece() -> None:
    """The whole piece is refused: the request before the garbage is not handed on."""
    async with serving() as edge:
        response = await exchange(edge.port, post() + b"garbage\r\n\r\n")
        assert response.status == 400
        assert edge.taken == []


async def test_a_head_that_never_ends_is_given_up() -> None:
    """A client that sends its head byte by byte has as long as one that is idle."""
    async with serving(settings=EdgeSettings(keepalive_seconds=0.2)) as edge, Connection(edge.port) as connection:
        await connection.send(b"POST " + P + b" HTTP/1.1\r\nHost:")
        assert await connection.read_rest() == b""


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"], ids=["kept-alive", "to-be-closed"])
async def test_a_client_that_does_not_read_its_answer_is_broken_off(fields: bytes) -> None:
    """Also where the answer was written at once and nobody waits for it to leave."""
    settings = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.1)
    async with serving(protect_now=lambda *_: reply(b"x" * LONG_BYTES), settings=settings) as edge:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", edge.port))
            client.sendall(post(fields))
            await eventually(lambda: edge.edge.connections == 1)
            await eventually(lambda: edge.edge.connections == 0, what="the connection is broken off")


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"], ids=["kept-alive", "to-be-closed"])
async def test_a_client_that_reads_slowly_gets_all_of_its_answer(fields: bytes) -> None:
    """It may take longer than a connection may be idle, as long as it reads."""
    settings = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.5, bytes_per_second_min=1.0)
    async with serving(protect_now=lambda *_: reply(b"x" * LONG_BYTES), settings=settings) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=4096)
        writer.write(post(fields))
        (connection,) = await eventually(lambda: list(edge.edge._clients))
        got = 0
        # Some of it between any two looks of the edge at its reader, and the rest after a few of them.
        for _ in range(3):
            due, taken = connection._reader.due, taken_by(connection)
            while taken_by(connection) == taken:
                got += len(await reader.read(1 << 16))
            await eventually(lambda due=due: connection._reader.due != due)  # type: ignore[misc]
        assert got + len(await reader.read()) > LONG_BYTES
        writer.close()
        await writer.wait_closed()


async def test_many_garbage_connections_leave_nothing_behind() -> None:
    """Each ends with its answer."""
    async with serving() as edge:
        await asyncio.gather(*(exchange(edge.port, b"\x00\r\n\r\n") for _ in range(100)))
        assert (await exchange(edge.port, post())).status == 200
