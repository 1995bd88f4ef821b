"""Several requests on one connection: read in the order in which they came, whenever they come."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise

import pytest

from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, PlainRoute, post, reply, serving
from tests.support.http import Connection, exchange

P = PROTECTED.encode()


@pytest.mark.parametrize("at", [1, 30, -3], ids=["request-line", "fields", "body"])
async def test_what_comes_as_an_answer_ends_is_read_after_what_waits(at: int) -> None:
    """The rest of a pipelined request may come in the very turn in which the answer before it is done."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    bodies: list[bytes] = []

    async def answer(incoming: Request) -> Reply:
        bodies.append(b"".join([data async for data in incoming.body.stream()]))
        begun.set()
        await go_on.wait()
        return reply(bodies[-1])

    async with serving(answer) as edge, Connection(edge.port) as connection:
        second = post(body=b"second")
        await connection.send(post(body=b"first") + second[:at])
        await begun.wait()
        # Sent at once, by the kernel.
        assert os.write(connection.writer.get_extra_info("socket").fileno(), second[at:]) == len(second[at:])
        go_on.set()
        assert (await connection.read_response()).body == b"first"
        assert (await connection.read_response()).body == b"second"
        assert bodies == [b"first", b"second"]


async def test_a_body_that_nobody_took_does_not_stop_the_connection() -> None:
    """Here whole, and then not wanted."""

    async def answer(incoming: Request) -> Reply:
        return reply(b"not wanted", status=400)

    async with serving(answer) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(post(body=bytes(16_000)))
            response = await connection.read_response()
            assert (response.status, response.header("connection")) == (400, None)


async def test_a_long_line_of_requests_leaves_room_for_others() -> None:
    """Answers that need no waiting are not all given in one turn of the loop."""
    answered = 0
    turns: list[int] = []

    def answer(_: Request, __: PlainRoute) -> Reply:
        nonlocal answered
        answered += 1
        return reply()

    def look() -> None:
        turns.append(answered)
        if answered < 500:
            asyncio.get_running_loop().call_soon(look)

    async with serving(protect_now=answer) as edge, Connection(edge.port) as connection:
        look()
        await connection.send(post() * 500)
        for _ in range(500):
            assert (await connection.read_response()).status == 200
    assert max(after - before for before, after in pairwise(turns)) <= 2


async def test_a_long_line_of_small_chunks_leaves_room_for_others() -> None:
    """They are read a few at a time, in their order."""
    pieces: list[bytes] = []

    async def answer(incoming: Request) -> Reply:
        pieces.extend([piece async for piece in incoming.body.stream()])
        return reply(b"taken")

    chunked = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    body = bytes(range(97, 122)) * 1000
    async with serving(answer) as edge, Connection(edge.port) as connection:
        chunks = b"".join([b"1\r\n%c\r\n" % byte for byte in body])
        await connection.send(chunked + chunks + b"0\r\n\r\n")
        assert (await connection.read_response()).body == b"taken"
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 1024


async def test_a_long_line_of_small_chunks_that_ends_badly_is_refused() -> None:
    """What comes behind the first of them is looked at like the first."""
    chunked = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving() as edge:
        response = await exchange(edge.port, chunked + b"1\r\nx\r\n" * 5000 + b"zz\r\n")
        assert (response.status, response.header("connection")) == (400, "close")
        assert edge.taken == []
