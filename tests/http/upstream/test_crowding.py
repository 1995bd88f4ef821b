"""Who gives way when all connections that others than operations may have are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.upstream import Lost, SentNothing, StreamBody, UpstreamResponse
from tests.http.upstream.wire import DONE, Server, answer, answering, not_sent, request, send, serving, upstream_to
from tests.support.eventually import eventually

LONG_BYTES = 16 << 20


def uploading() -> StreamBody:
    """A body of which nothing comes, and that gives way to nobody."""

    async def chunks() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    return StreamBody(chunks(), None)


def lasting() -> Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """An upstream whose answers are long at /long, and short elsewhere."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await server.read_request(reader)
            if b"/long" not in head:
                writer.write(DONE)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LONG_BYTES)
            for _ in range(LONG_BYTES >> 16):
                writer.write(bytes(1 << 16))
                await writer.drain()

    return handler


def is_unread(got: UpstreamResponse) -> bool:
    return got.body.is_unread_for(0.0)


@pytest.mark.parametrize("gives", [True, False], ids=["left-alone-for-long", "not-for-long"])
async def test_an_answer_that_nobody_takes_gives_its_connection_to_a_newcomer(gives: bool) -> None:
    """Whoever was to take it finds it cut short; before it was left alone for long, the newcomer waits, and gives up in
    time."""
    connect_seconds, unread_seconds = (30.0, 0.0) if gives else (0.1, 60.0)
    limits = {"connect_timeout_seconds": connect_seconds, "unread_seconds": unread_seconds}
    async with serving(lasting()) as server, upstream_to(server.port, connections_max=1, **limits) as client:
        unread = await answer(client, request(target=b"/long"))
        await eventually(lambda: is_unread(unread))
        if gives:
            assert await (await answer(client)).body.read_all(4) == b"done"
        else:
            assert (await not_sent(client)).reason is SentNothing.POOL_TIMEOUT
        body = await unread.body.read_all(LONG_BYTES)
        assert isinstance(body, Lost) is gives
        assert gives or body == bytes(LONG_BYTES)


async def test_answers_that_outlast_their_operations_give_way_to_each_other() -> None:
    """Those that nobody takes do not add up, although operations are never kept out."""
    limits = {"connections_max": 1, "connections_reserved": 1, "connect_timeout_seconds": 30, "unread_seconds": 0.0}
    async with serving(lasting()) as server, upstream_to(server.port, **limits) as client:
        unread: list[UpstreamResponse] = []
        for _ in range(3):
            unread.append(await answer(client, request(target=b"/long"), protected=True))
            unread[-1].body.allow_to_outlast()
            await eventually(lambda: client._pool._passing == 1 and any(is_unread(each) for each in unread))
        assert client.stats.opened == 3


async def test_bodies_of_requests_that_wait_for_a_connection_cannot_fill_the_memory() -> None:
    """One that is too much is refused at once, and none that is short or protected; room comes back with each end."""
    long = bytes(8 << 20)
    async with (
        serving(answering(DONE)) as server,
        upstream_to(server.port, connections_max=1, connections_reserved=1, connect_timeout_seconds=30) as client,
    ):
        steady = asyncio.create_task(send(client, body=uploading()))
        await eventually(lambda: server.accepted == 1)
        waiting = [asyncio.create_task(send(client, body=long)) for _ in range(8)]
        waiting.append(asyncio.create_task(send(client, body=b"short")))
        await eventually(lambda: len(client._pool._waiting_others) == 9)
        async with asyncio.timeout(10):
            for body in (bytes(100_000), uploading()):
                assert (await not_sent(client, body=body)).reason is SentNothing.POOL_TIMEOUT
            await answer(client, body=long, protected=True)
        for task in (waiting[0], steady):
            task.cancel()
            await asyncio.wait((task,))
        assert all(isinstance(result, UpstreamResponse) for result in await asyncio.gather(*waiting[1:]))
        assert client._pool._waiting_bytes == 0
