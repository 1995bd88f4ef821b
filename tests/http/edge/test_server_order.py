"""Several requests on one connection: read in the order in which they came, whenever they come."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import PlainRoute, post, reply, serving
from tests.support.http import Connection


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
