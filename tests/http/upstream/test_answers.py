"""Exchanges that are answered: every framing, interim answers, early answers, slow readers."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import Framing, Lost, StreamBody, Unknown
from gateway.upstream.connection import BUFFER_BYTES_MAX
from tests.http.upstream.wire import (
    DONE,
    Server,
    all_closed,
    answer,
    answering,
    not_sent,
    request,
    send,
    serving,
    upstream_to,
)
from tests.support.eventually import eventually

HEAD = b"HTTP/1.1 200 OK\r\n"
BODY = b"0123456789"
WIRES = {
    Framing.LENGTH: HEAD + b"Content-Length: 10\r\n\r\n" + BODY,
    Framing.CHUNKED: HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n",
    Framing.CLOSE: HEAD + b"\r\n" + BODY,
}


async def test_an_answer_that_the_kernel_holds_is_heard_although_writing_failed() -> None:
    """When the next write meets the reset of an early answer, the answer is read before the connection is given up."""
    answered = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        writer.close()  # with the body unread: RST
        answered.set()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await answered.wait()
        for _ in range(100):
            yield b"x" * 100_000

    async with serving(handler) as server, upstream_to(server.port) as client:
        got = await answer(client, request(), StreamBody(chunks(), None))
        assert got.head.status == 413
        assert await got.body.read_all(10) == b"big"


@pytest.mark.parametrize("length", [10, BUFFER_BYTES_MAX + 1], ids=["short", "as-long-as-may-be"])
async def test_a_whole_answer_is_read_after_its_connection_has_served_others(length: int) -> None:
    """And to close it does that connection no harm."""
    sent = [b"%d" % n * length for n in range(3)]
    wires = [HEAD + b"Content-Length: %d\r\n\r\n" % length + body for body in sent]
    async with serving(answering(*wires)) as server, upstream_to(server.port) as client:
        answers = []
        for _ in sent:
            answers.append(await answer(client))
            await eventually(lambda: len(client._pool._idle) == 1)
        assert [await got.body.read_all(length) for got in reversed(answers)] == sent[::-1]
        answers[0].close()
        await answer(client)
        assert client.stats.opened == server.accepted == 1


@pytest.mark.parametrize("is_recorded", [True, False], ids=["body", "rest-of-a-stream"])
async def test_what_does_not_come_in_time_is_given_up(is_recorded: bool) -> None:
    """The clock covers the recorded body, and every silence in a stream."""

    async def begin(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(HEAD + b"\r\n0123")
        await reader.read()

    async with serving(begin) as server, upstream_to(server.port, response_timeout_seconds=0.3) as client:
        body = (await answer(client)).body
        assert is_recorded or await body.read() == b"0123"
        loss = await (body.read_all(100) if is_recorded else body.read())
        assert loss == Lost(Unknown.TIMEOUT, "nothing arrived in time")
        await all_closed(client)


async def test_exchanges_of_one_client_end_each_at_its_own_time() -> None:
    """Whichever began first, and whatever was idle or has ended before: none earlier, and each for itself."""
    seconds = {b"/c": 0.9, b"/a": 0.3, b"/d": 60.0, b"/b": 0.6}
    ends: dict[bytes, float] = {}

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await server.read_request(reader)
            if b"/now" in head:
                writer.write(DONE)

    async def give_up(target: bytes) -> None:
        began = loop.time()
        result = await send(client, request(target=target), response_timeout_seconds=seconds[target])
        assert result == Lost(Unknown.TIMEOUT, "nothing arrived in time")
        ends[target] = loop.time() - began

    loop = asyncio.get_running_loop()
    async with serving(handler) as server, upstream_to(server.port, keepalive_seconds=0.2) as client:
        await answer(client, request(target=b"/now"))
        waiting = [asyncio.create_task(give_up(target)) for target in seconds]
        await eventually(lambda: len(ends) == 3)
        assert list(ends) == [b"/a", b"/b", b"/c"]
        # The clock of a loop may be as coarse as a millisecond.
        assert all(ends[target] > seconds[target] - 0.005 for target in ends)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_permission_is_asked_right_before_the_first_byte() -> None:
    """Without permission, or with an error in asking, nothing is sent, and the connection serves the next request."""
    allowed: bool | None = False
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:

        def may_send() -> bool:
            assert client.stats.opened == 1
            if allowed is None:
                raise ZeroDivisionError
            return allowed

        assert (await not_sent(client, may_send=may_send, protected=True)).reason == "lease_lost"
        allowed = None
        with pytest.raises(ZeroDivisionError):
            await send(client, may_send=may_send)
        assert not server.requests
        allowed = True
        await answer(client, may_send=may_send)
        assert server.accepted == 1
        assert (client.stats.not_sent, client.stats.answered) == (1, 1)


async def test_the_first_byte_leaves_in_the_step_that_asked_for_permission() -> None:
    """A process that is killed a moment later has sent what it marked as sent."""
    peers: list[socket.socket] = []

    async def keep(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("socket"))
        await answering(DONE)(server, reader, writer)

    async with serving(keep) as server, upstream_to(server.port) as client:
        await answer(client)
        arrivals = select.poll()
        arrivals.register(peers[0].fileno(), select.POLLIN)
        exchange = client.exchange(request(), b"{}", protected=True, may_send=lambda: not arrivals.poll(0))
        exchange.send(None)
        assert arrivals.poll(0)
        exchange.close()
