"""Long answers that clients have yet to read, and requests that are here in part: for each a bound for all together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import cast

import pytest

from gateway.http.connection import EdgeSettings, MemoryBudget
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import post, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection
from tests.support.tls import Authority

MIB = 1 << 20
LONG_BYTES = 16 * MIB


class Client:
    """Reads nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_who_holds_the_most_gives_way() -> None:
    """The newcomer too, if that is the one; but a single answer may be longer than the bound."""
    unread = MemoryBudget(100)
    first, second, third, largest = clients = [Client() for _ in range(4)]
    with unread.held(largest, 200):
        assert not largest.is_aborted
    with unread.held(first, 40), unread.held(second, 50):
        with unread.held(third, 20):
            assert [client.is_aborted for client in clients] == [False, True, False, False]
            assert unread.held_bytes == 60
        with unread.held(largest, 70):
            assert [client.is_aborted for client in clients] == [False, True, False, True]
        assert unread.held_bytes == 40
    assert unread.held_bytes == 0


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
async def test_clients_that_do_not_read_cannot_fill_the_memory(authority: Authority, is_secure: bool) -> None:
    """One of them is broken off for each that is too many; whoever reads gets its answer meanwhile."""
    tls = authority.issue("localhost").server_context() if is_secure else None
    own = authority.client_context() if is_secure else None

    async def answer(incoming: Request) -> Reply:
        return reply(b"short" if b"short" in incoming.head.target else bytes(LONG_BYTES))

    settings = EdgeSettings(unread_bytes_max=2 * LONG_BYTES)
    async with serving(answer, settings=settings, tls=tls) as edge, AsyncExitStack() as stack:
        unread = edge.edge.handler.unread
        for count in (1, 2, 2, 2):
            client = await stack.enter_async_context(Connection(edge.port, tls=own))
            cast(asyncio.Transport, client.writer.transport).pause_reading()
            await client.send(post())
            await eventually(lambda count=count: unread.held_bytes == count * LONG_BYTES)  # type: ignore[misc]
            await eventually(lambda count=count: edge.edge.connections == count)  # type: ignore[misc]
        async with Connection(edge.port, tls=own) as reader:
            await reader.send(post(target=b"/pay/short"))
            assert (await reader.read_response()).body == b"short"
            await reader.send(post())
            assert len((await reader.read_response()).body) == LONG_BYTES
    assert unread.held_bytes == 0


def padding(size: int) -> bytes:
    return b"X-Padding: %b\r\n" % (b"x" * size)


def begun(size: int) -> bytes:
    """A head without its end."""
    return post(padding(size), b"").removesuffix(b"\r\n\r\n")


async def test_requests_that_are_begun_and_not_ended_cannot_fill_the_memory() -> None:
    """Whoever sent the most is broken off; the others may go on, and then nothing is held for them."""
    async with (
        serving(settings=EdgeSettings(begun_bytes_max=100_000)) as edge,
        Connection(edge.port) as first,
        Connection(edge.port) as largest,
        Connection(edge.port) as last,
    ):
        held = edge.edge.begun
        await first.send(begun(30_000))
        await eventually(lambda: held.held_bytes > 30_000)
        await largest.send(begun(50_000))
        await eventually(lambda: held.held_bytes > 80_000)
        await last.send(begun(40_000))
        with pytest.raises(ConnectionError):
            await largest.read_rest()
        for client in (first, last):
            await client.send(b"\r\n\r\n")
            assert (await client.read_response()).status == 200
        assert held.held_bytes == 0
