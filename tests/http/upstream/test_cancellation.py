"""A cancellation in every phase: nothing is left behind, and nothing that may be half-used is used again."""

from __future__ import annotations

import asyncio

from gateway.upstream import UpstreamResponse
from tests.http.upstream.wire import DONE, answer, answering, send, serving, upstream_to
from tests.support.eventually import eventually


async def test_at_every_step_of_a_fresh_exchange() -> None:
    """However many steps of the loop it got, it leaves no connection that is neither idle nor closed."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        for steps in range(40):
            running = asyncio.create_task(send(client, protected=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await eventually(lambda: len(client._pool._connections) == len(client._pool._idle))
            assert client._pool._opening == 0
        # The pool is as good as new.
        assert await (await answer(client)).body.read_all(10) == b"done"


async def test_at_the_moment_in_which_the_answer_ended() -> None:
    """A connection that has gone back, and serves another, is not harmed by a late cancellation."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        await answer(client)
        for _ in range(50):
            first = asyncio.create_task(send(client))
            await asyncio.sleep(0)
            for _ in range(100_000):
                if client._pool._idle:
                    break
                await asyncio.sleep(0)
            second = asyncio.create_task(send(client))
            first.cancel()
            result = await second
            assert isinstance(result, UpstreamResponse)
            assert await result.body.read_all(10) == b"done"
            await asyncio.gather(first, return_exceptions=True)
        assert client.stats.opened == 1
