"""Bodies on their way in and out: their pace, their limits, and what becomes of those that break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.http.connection import EdgeSettings
from gateway.protect.reply import Cut, Reply, RequestCut
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, RunningEdge, Stream, post, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection
from tests.support.upstream import RecordingUpstream

P = PROTECTED.encode()
MIB = 1024 * 1024


@asynccontextmanager
async def cutting(silence_seconds: float = 60.0) -> AsyncIterator[tuple[RunningEdge, list[RequestCut]]]:
    """An edge whose handler notes how bodies are cut, and lets the edge deal with it."""
    cuts: list[RequestCut] = []

    async def answer(incoming: Request) -> Reply:
        try:
            async for _ in incoming.body.stream():
                pass
        except RequestCut as cut:
            cuts.append(cut)
            raise
        return reply()

    async with serving(answer, settings=EdgeSettings(silence_seconds=silence_seconds)) as edge:
        yield edge, cuts


LENGTH_HEAD = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n"
CHUNKED_HEAD = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [LENGTH_HEAD, LENGTH_HEAD + b"12345", CHUNKED_HEAD + b"5\r\n12", CHUNKED_HEAD + b"2\r\n12\r\n"],
    ids=["no-byte-of-it", "half-of-it", "half-a-chunk", "no-last-chunk"],
)
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_body_that_breaks_off_is_never_whole(data: bytes, how: str) -> None:
    """Whoever reads it gets an error, whichever way the client goes."""
    async with cutting() as (edge, cuts):
        async with Connection(edge.port) as connection:
            await connection.send(data)
            await eventually(lambda: edge.edge.in_flight)
            if how == "rst":
                connection.reset()
            else:
                connection.finish_sending()
            await eventually(lambda: cuts)
        assert [cut.cut for cut in cuts] == [Cut.GONE]
        await eventually(lambda: edge.edge.connections == 0)


@pytest.mark.parametrize(
    ("first", "bad"),
    [(b"2\r\n12\r\n", bad) for bad in (b"ZZ\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"5\n")] + [(b"2\r\n12", b"\r\nZZ\r\n")],
)
async def test_chunks_that_are_none_are_refused_in_the_middle(first: bytes, bad: bytes) -> None:
    """The reader gets an error at once, also right behind a whole chunk, and the client one answer."""
    async with cutting() as (edge, cuts), Connection(edge.port) as connection:
        await connection.send(CHUNKED_HEAD + first)
        await eventually(lambda: edge.edge.in_flight)
        await connection.send(bad)
        response = await connection.read_response()
        assert (response.status, response.values("idempotency-status")) == (400, [b"request-invalid"])
        assert [cut.cut for cut in cuts] == [Cut.MALFORMED]
        assert await connection.read_rest() == b""


async def test_a_body_that_does_not_come_is_given_up() -> None:
    """After too long a silence the client is told, and the connection ends."""
    async with cutting(0.2) as (edge, cuts), Connection(edge.port) as connection:
        await connection.send(LENGTH_HEAD + b"12345")
        response = await connection.read_response()
        assert (response.status, response.header("connection")) == (408, "close")
        assert [cut.cut for cut in cuts] == [Cut.SLOW]


async def test_a_body_that_comes_too_slowly_to_keep_a_place_is_given_up() -> None:
    """A byte now and then is no silence, and still takes the place of another request."""
    settings = EdgeSettings(silence_seconds=1.0, bytes_per_second_min=1000.0)
    async with serving(settings=settings) as edge, Connection(edge.port) as connection:
        await connection.send(LENGTH_HEAD.replace(b"10", b"1000"))
        answer = asyncio.create_task(connection.read_response())
        while not answer.done():
            await connection.send(b"x")
            await asyncio.wait((answer,), timeout=0.05)
        response = await answer
        assert (response.status, response.header("connection")) == (408, "close")
        assert edge.taken == []


async def test_a_slow_upload_that_takes_no_place_goes_on() -> None:
    """What is passed through is streamed at the client's pace."""
    settings = EdgeSettings(silence_seconds=2.0, bytes_per_second_min=1e9)
    async with (
        RecordingUpstream() as upstream,
        serving(settings=settings, upstream=upstream) as edge,
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
        for _ in range(2):
            await connection.send(LENGTH_HEAD[:-2] + b"Expect: 100-Continue\r\n\r\n")
            await begun.wait()
            with pytest.raises(TimeoutError):
                await connection.read_response(deadline_seconds=0.05)
            asked.set()
            assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await connection.send(b"0123456789")
            response = await connection.read_response()
            assert (response.status, response.body, response.interim) == (200, b"0123456789", [])
            begun.clear()
            asked.clear()


@pytest.mark.parametrize(
    "data",
    [
        LENGTH_HEAD[:-2] + b"Expect: 100-continue\r\n\r\n0123456789",
        LENGTH_HEAD.replace(b"1.1", b"1.0")[:-2] + b"Expect: 100-continue\r\n\r\n",
        LENGTH_HEAD[:-2] + b"\r\n",
    ],
    ids=["the-body-is-there", "http-1.0", "not-expected"],
)
async def test_continue_is_not_sent_where_it_is_not_due(data: bytes) -> None:
    """Nobody waits for it (RFC 9110 section 10.1.1)."""
    async with serving() as edge, Connection(edge.port) as connection:
        await connection.send(data)
        if not data.endswith(b"9"):
            await eventually(lambda: edge.edge.in_flight)
            await connection.send(b"0123456789")
        response = await connection.read_response()
        assert (response.status, response.interim) == (200, [])


async def test_an_answer_before_the_body_reaches_a_client_that_still_sends() -> None:
    """What is left of the body is thrown away, so that no RST overtakes the answer; it comes instead of a 100."""

    async def answer(incoming: Request) -> Reply:
        return reply(b"too large", status=413)

    head = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n" % (16 * MIB)
    async with serving(answer) as edge:
        for expects in (b"", b"Expect: 100-continue\r\n"):
            async with Connection(edge.port) as connection:
                await connection.send(head + expects + b"\r\n")
                for _ in range(0 if expects else 16):
                    await connection.send(bytes(MIB))
                response = await connection.read_response()
                assert (response.status, response.body, response.interim) == (413, b"too large", [])
                assert response.header("connection") == "close"
                assert await connection.read_rest() == b""


async def test_the_rest_of_an_unread_body_is_no_request() -> None:
    """A body that looks like a request is never taken for one."""

    async def answer(incoming: Request) -> Reply:
        calls.append(incoming)
        return reply(status=413)

    calls: list[Request] = []
    async with serving(answer) as edge, Connection(edge.port) as connection:
        await connection.send(b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n")
        assert (await connection.read_response()).status == 413
        await connection.send(post() * 10)
        assert await connection.read_rest() == b""
        assert len(calls) == 1


async def test_a_stream_is_given_up_with_its_client() -> None:
    """Whoever makes it learns at once, even while nothing is being written."""
    aborted = asyncio.Event()

    class Waiting(Stream):
        async def read(self) -> bytes:
            if self._pieces:
                return self._pieces.pop(0)
            await aborted.wait()
            return await super().read()

        def abort(self) -> None:
            aborted.set()

    async with serving(reply(Waiting(b"data: 1\n\n", cut=True))) as edge:
        async with Connection(edge.port) as connection:
            await connection.send(post())
            await connection.reader.readuntil(b"data: 1\n\n")
            connection.reset()
            await aborted.wait()
        await eventually(lambda: edge.edge.in_flight == 0)


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


@pytest.mark.parametrize(
    "endless", [b"1;" + b"e" * 100_000, b"0\r\n" + b"T: 1\r\n" * 20_000], ids=["extension", "trailers"]
)
async def test_what_stands_around_chunks_has_the_limit_of_a_head(endless: bytes) -> None:
    """A body that brings none of its bytes is no body."""
    async with cutting() as (edge, cuts), Connection(edge.port) as connection:
        await connection.send(CHUNKED_HEAD + b"1\r\na\r\n")
        await eventually(lambda: edge.edge.in_flight)
        for start in range(0, len(endless), 10_000):
            await connection.send(endless[start : start + 10_000])
        assert (await connection.read_response()).status == 400
        assert [cut.cut for cut in cuts] == [Cut.MALFORMED]
