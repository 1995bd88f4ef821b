"""Bodies on their way in and out: their pace, their limits, and what becomes of those that break off."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.connection import EdgeSettings
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, post, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection
from tests.support.upstream import RecordingUpstream

P = PROTECTED.encode()
MIB = 1024 * 1024


LENGTH_HEAD = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n"
CHUNKED_HEAD = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


async def test_a_body_that_breaks_off_is_never_whole() -> None:
    """Whoever reads it gets an error, and nobody an answer."""
    async with serving() as edge:
        async with Connection(edge.port) as connection:
            await connection.send(LENGTH_HEAD + b"12345")
            await eventually(lambda: edge.edge.in_flight)
            connection.reset()
        await eventually(lambda: edge.edge.in_flight == edge.edge.connections == 0)
        assert edge.taken == []


@pytest.mark.parametrize(
    "bad",
    [b"ZZ\r\n", b"1;" + b"e" * 100_000, b"0\r\n" + b"T: 1\r\n" * 20_000],
    ids=["no-size", "endless-extension", "endless-trailers"],
)
async def test_chunks_that_are_none_are_refused_in_the_middle(bad: bytes) -> None:
    """What stands around them has the limit of a head: a body that brings none of its bytes is no body."""
    async with serving() as edge, Connection(edge.port) as connection:
        await connection.send(CHUNKED_HEAD + b"2\r\n12\r\n")
        await eventually(lambda: edge.edge.in_flight)
        for start in range(0, len(bad), 10_000):
            await connection.send(bad[start : start + 10_000])
        response = await connection.read_response()
        assert (response.status, response.values("idempotency-status")) == (400, [b"request-invalid"])
        assert edge.taken == []


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "too-slow"])
async def test_a_body_that_does_not_come_is_given_up(drips: bool) -> None:
    """A byte now and then is no silence, and still takes the place of another request."""
    settings = EdgeSettings(silence_seconds=1.0, bytes_per_second_min=1000.0)
    async with serving(settings=settings) as edge, Connection(edge.port) as connection:
        await connection.send(LENGTH_HEAD.replace(b"10", b"1000"))
        answer = asyncio.create_task(connection.read_response())
        while not answer.done():
            await connection.send(b"x" if drips else b"")
            await asyncio.wait((answer,), timeout=0.05)
        response = await answer
        assert (response.status, response.header("connection")) == (408, "close")
        assert edge.taken == []


async def test_a_slow_upload_that_takes_no_place_goes_on() -> None:
    """What is passed through is streamed at the client's pace, and the service is waited for when it is whole."""
    settings = EdgeSettings(silence_seconds=2.0, bytes_per_second_min=1e9)
    async with (
        RecordingUpstream() as upstream,
        serving(settings=settings, to=upstream.port, response_timeout_seconds=1.0) as edge,
        Connection(edge.port) as connection,
    ):
        await connection.send(b"PUT /files/1 HTTP/1.1\r\n" + HOST + b"Content-Length: 25\r\n\r\n")
        for _ in range(25):
            with pytest.raises(TimeoutError):
                await connection.read_response(deadline_seconds=0.1)
            await connection.send(b"x")
        assert (await connection.read_response()).status == 200
        assert upstream.requests[0].body == b"x" * 25


async def test_continue_is_sent_when_the_body_is_asked_for() -> None:
    """Not before: what is decided by the head alone is decided without the body."""
    begun, asked = asyncio.Event(), asyncio.Event()

    async def answer(incoming: Request) -> Reply:
        begun.set()
        await asked.wait()
        return reply(b"".join([chunk async for chunk in incoming.body.stream()]))

    async with serving(answer) as edge, Connection(edge.port) as connection:
        await connection.send(LENGTH_HEAD[:-2] + b"Expect: 100-Continue\r\n\r\n")
        await begun.wait()
        with pytest.raises(TimeoutError):
            await connection.read_response(deadline_seconds=0.05)
        asked.set()
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(b"0123456789")
        response = await connection.read_response()
        assert (response.status, response.body, response.interim) == (200, b"0123456789", [])


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_continue_is_not_sent_where_it_is_not_due(version: bytes) -> None:
    """To HTTP/1.0, or where the body is there (RFC 9110 section 10.1.1)."""
    head = LENGTH_HEAD.replace(b"1.1", version)[:-2] + b"Expect: 100-continue\r\n\r\n"
    body = b"0123456789"
    async with serving() as edge, Connection(edge.port) as connection:
        await connection.send(head + body if version == b"1.1" else head)
        if version == b"1.0":
            await eventually(lambda: edge.edge.in_flight)
            await connection.send(body)
        response = await connection.read_response()
        assert (response.status, response.interim) == (200, [])


async def test_an_answer_before_the_body_reaches_a_client_that_still_sends() -> None:
    """What is left of the body is thrown away, so that no RST overtakes the answer, and none of it is a request. The
    answer comes instead of a 100."""
    calls: list[Request] = []

    async def answer(incoming: Request) -> Reply:
        calls.append(incoming)
        return reply(b"too large", status=413)

    requests = post() * (16 * MIB // len(post()))
    head = LENGTH_HEAD.replace(b"10", b"%d" % len(requests))[:-2]
    async with serving(answer) as edge:
        for expects in (b"", b"Expect: 100-continue\r\n"):
            async with Connection(edge.port) as connection:
                await connection.send(head + expects + b"\r\n")
                if not expects:
                    await connection.send(requests)
                response = await connection.read_response()
                assert (response.status, response.body, response.interim) == (413, b"too large", [])
                assert response.header("connection") == "close"
                assert await connection.read_rest() == b""
    assert len(calls) == 2


async def test_little_is_read_of_a_body_that_nobody_has_asked_for() -> None:
    """Whoever takes it gets all of it."""
    go_on = asyncio.Event()

    async def answer(incoming: Request) -> Reply:
        await go_on.wait()
        return reply(b"%d" % sum([len(data) async for data in incoming.body.stream()]))

    async with serving(answer) as edge, Connection(edge.port) as connection:
        sending = asyncio.ensure_future(
            connection.send(LENGTH_HEAD.replace(b"10", b"%d" % (16 * MIB)) + bytes(16 * MIB))
        )
        (client,) = await eventually(lambda: list(edge.edge._clients))
        await eventually(lambda: client._reading_paused)
        # One read of a loop, and what it is about to read is none.
        assert client._newest.total_bytes <= 256 * 1024
        go_on.set()
        assert (await connection.read_response()).body == b"%d" % (16 * MIB)
        await sending
