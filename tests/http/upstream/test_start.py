"""The beginning of an exchange that waits for nothing, and the news of its end."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.message import ResponseHead
from gateway.upstream import Answer, FileBody, Lost, NotSent, SentNothing, UnderWay, Unknown, Upstream
from tests.http.upstream.wire import DONE, Server, all_closed, answer, answering, request, serving, upstream_to
from tests.support.eventually import eventually


def yes() -> bool:
    return True


def start(client: Upstream, interims: list[ResponseHead] | None = None) -> UnderWay:
    """What is begun on an idle connection, which must be there."""
    on_interim = None if interims is None else interims.append
    begun = client.start(request(), b"{}", protected=False, may_send=yes, on_interim=on_interim)
    assert isinstance(begun, UnderWay)
    return begun


async def test_without_an_idle_connection_nothing_is_done() -> None:
    """Neither is the permission asked for, nor a connection opened, nor anything counted."""
    asked: list[bool] = []

    def may_send() -> bool:
        asked.append(True)
        return True

    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        assert client.start(request(), b"", protected=False, may_send=may_send) is None
        assert (asked, client.stats.opened, client.stats.not_sent) == ([], 0, 0)


async def test_a_head_and_its_body_are_told_of_once() -> None:
    """When both are there; the connection is free by then, and serves the next request."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        await (await answer(client)).body.read_all(10)
        for _ in range(2):
            begun = start(client)
            told: list[bytes | None] = []
            ended = asyncio.Event()

            def look(begun: UnderWay = begun, told: list[bytes | None] = told, ended: asyncio.Event = ended) -> None:
                result = begun.result()
                assert isinstance(result, Answer)
                told.append(result.body.whole())
                ended.set()

            assert begun.result() is None
            begun.on_news(look)
            await ended.wait()
            assert told == [b"done"]
        assert (client.stats.opened, client.stats.answered) == (1, 3)


async def test_interim_answers_are_news() -> None:
    """Who was told listens anew, until the final answer comes."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    go_on = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await server.read_request(reader)
        writer.write(hints)
        await go_on.wait()
        writer.write(DONE)

    async with serving(handler) as server, upstream_to(server.port) as client:
        await (await answer(client)).body.read_all(10)
        interims: list[ResponseHead] = []
        begun = start(client, interims)
        await begun.next_news()
        assert begun.result() is None
        assert [head.status for head in interims] == [103]
        go_on.set()
        await begun.next_news()
        assert isinstance(begun.result(), Answer)


async def test_a_loss_is_news() -> None:
    """And counted as one."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await server.read_request(reader)
        writer.close()

    async with serving(handler) as server, upstream_to(server.port) as client:
        await (await answer(client)).body.read_all(10)
        begun = start(client)
        told = asyncio.Event()
        begun.on_news(told.set)
        await told.wait()
        result = begun.result()
        assert isinstance(result, Lost)
        assert result.reason is Unknown.CLOSED
        assert (client.stats.lost, client.stats.died_on_reuse) == (1, 1)


async def test_what_is_given_up_tells_nobody() -> None:
    """The upstream hears a reset."""
    heard: list[str] = []

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await server.read_request(reader)
        try:
            heard.append(repr(await reader.read()))
        except ConnectionResetError:
            heard.append("reset")

    async with serving(handler) as server, upstream_to(server.port) as client:
        await (await answer(client)).body.read_all(10)
        begun = start(client)
        told: list[str] = []
        begun.on_news(lambda: told.append("news"))
        await eventually(lambda: len(server.requests) == 2)
        begun.give_up()
        await eventually(lambda: heard)
        await all_closed(client)
        assert (told, heard) == ([], ["reset"])
        assert (client.stats.answered, client.stats.lost) == (1, 0)


@pytest.mark.parametrize("is_acquired", [False, True], ids=["idle", "acquired"])
@pytest.mark.parametrize("body", [b"{}", FileBody(-1, 5)], ids=["not-allowed", "not-readable"])
async def test_what_is_not_sent_leaves_the_connection_idle(body: bytes | FileBody, is_acquired: bool) -> None:
    """It serves the next request, whether it would have been taken or was acquired before."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        await (await answer(client)).body.read_all(10)
        connection = await client._pool.acquire(protected=False) if is_acquired else None
        assert not isinstance(connection, NotSent)
        result = client.start(request(), body, protected=False, may_send=lambda: False, connection=connection)
        assert isinstance(result, NotSent)
        assert result.reason is (SentNothing.LEASE_LOST if isinstance(body, bytes) else SentNothing.LOCAL)
        await (await answer(client)).body.read_all(10)
        assert (client.stats.opened, client.stats.not_sent, len(server.requests)) == (1, 1, 2)
