"""Long answers that clients have yet to read: there is a bound for all of them together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from gateway.core.verdict import Word
from gateway.proxy.edge_settings import EdgeSettings
from gateway.proxy.reply import Incoming, Repeatable, Reply
from gateway.proxy.unread import Unread
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
    """The newcomer too, if that is the one."""
    unread = Unread(100)
    first, second, third, largest = clients = [Client() for _ in range(4)]
    with unread.held(first, 40), unread.held(second, 50):
        with unread.held(third, 20):
            assert [client.is_aborted for client in clients] == [False, True, False, False]
            assert unread.held_bytes == 60
        with unread.held(largest, 70):
            assert [client.is_aborted for client in clients] == [False, True, False, True]
        assert unread.held_bytes == 40
    assert unread.held_bytes == 0


def test_a_single_answer_may_be_longer_than_the_bound() -> None:
    """Nobody else pays for it, and its own bound is another."""
    unread, client = Unread(100), Client()
    with unread.held(client, 200):
        assert not client.is_aborted
    assert unread.held_bytes == 0


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
async def test_clients_that_do_not_read_cannot_fill_the_memory(authority: Authority, is_secure: bool) -> None:
    """One of them is broken off for each that is too many; whoever reads gets its answer meanwhile."""
    tls = authority.issue("localhost").server_context() if is_secure else None
    own = authority.client_context() if is_secure else None

    async def answer(incoming: Incoming) -> Reply:
        return reply(b"short" if b"short" in incoming.head.target else bytes(LONG_BYTES))

    settings = EdgeSettings(unread_bytes_max=2 * LONG_BYTES)
    async with serving(answer, settings=settings, tls=tls) as edge, AsyncExitStack() as stack:
        unread = edge.edge._state.unread
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


async def test_a_known_request_with_a_long_answer_is_no_way_around() -> None:
    """It had a short one when it came to be known."""
    answers = [reply(b"short", word=Word.REPLAYED), reply(bytes(LONG_BYTES), word=Word.REPLAYED)]

    def protect(*_: object) -> Any:
        return Repeatable(answers[0], lambda: answers[-1])

    async with serving(protect_now=protect) as edge, Connection(edge.port) as client:
        await client.send(post())
        assert (await client.read_response()).body == b"short"
        answers.pop(0)
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        await client.send(post())
        await eventually(lambda: edge.edge._state.unread.held_bytes == LONG_BYTES)


async def test_an_answer_that_is_broken_off_is_not_taken_for_whole() -> None:
    """The client sees an error, and no end."""
    settings = EdgeSettings(unread_bytes_max=LONG_BYTES)
    async with (
        serving(reply(bytes(LONG_BYTES)), settings=settings) as edge,
        Connection(edge.port) as first,
        Connection(edge.port) as second,
    ):
        cast(asyncio.Transport, first.writer.transport).pause_reading()
        await first.send(post())
        await eventually(lambda: edge.edge._state.unread.held_bytes == LONG_BYTES)
        await second.send(post())
        assert len((await second.read_response()).body) == LONG_BYTES
        cast(asyncio.Transport, first.writer.transport).resume_reading()
        with pytest.raises(ConnectionError):
            await first.read_rest()
