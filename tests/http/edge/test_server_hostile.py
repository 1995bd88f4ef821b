"""Clients that send garbage, never end, or do not read: they are given up, and leave nothing behind."""

from __future__ import annotations

import asyncio

from gateway.http.connection import EdgeSettings
from tests.http.edge.harness import PROTECTED, post, serving
from tests.support.http import Connection, exchange

P = PROTECTED.encode()


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


async def test_many_garbage_connections_leave_nothing_behind() -> None:
    """Each ends with its answer."""
    async with serving() as edge:
        await asyncio.gather(*(exchange(edge.port, b"\x00\r\n\r\n") for _ in range(100)))
        assert (await exchange(edge.port, post())).status == 200
