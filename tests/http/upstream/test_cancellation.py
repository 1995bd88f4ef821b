"""A cancellation in every phase: nothing is left behind, and nothing that may be half-used is used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import StreamBody, UpstreamResponse, tls_context
from tests.http.upstream.wire import DONE, Server, all_closed, answer, answering, request, send, serving, upstream_to
from tests.support.eventually import eventually
from tests.support.tls import Authority


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


async def test_at_the_moment_in_which_its_handshake_ends(authority: Authority) -> None:
    """The descriptor of a connection that is given up then may be the next one's: nothing of the old one uses it."""
    made, tls = asyncio.Event(), tls_context(ca=authority.ca_file)

    class Watched(ssl.SSLObject):
        """Tells when the handshake has ended, in that very step of the loop."""

        def do_handshake(self) -> None:
            super().do_handshake()
            running.cancel()
            made.set()

    tls.sslobject_class = Watched
    async with (
        serving(answering(DONE), authority.issue().server_context()) as server,
        upstream_to(server.port, tls=tls) as client,
    ):
        running = asyncio.create_task(send(client))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert made.is_set()
        tls.sslobject_class = ssl.SSLObject
        assert await (await answer(client)).body.read_all(10) == b"done"


async def test_while_it_sends() -> None:
    """The source is closed, what was not sent stays unsent."""
    closed = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            closed.set()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(handler) as server, upstream_to(server.port) as client:
        running = asyncio.create_task(send(client, request(), StreamBody(source(), None)))
        await eventually(lambda: any(connection._is_writing_paused for connection in client._pool._connections))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await closed.wait()
        await all_closed(client)


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
