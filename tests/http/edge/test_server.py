"""What the edge hands on and what it writes, byte for byte."""

from __future__ import annotations

import asyncio
import os
from email.utils import parsedate_to_datetime
from itertools import pairwise

import pytest

from gateway.core.message import Headers
from gateway.http.connection import EdgeSettings
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, Stream, post, reply, serving
from tests.support.http import Connection, exchange


async def test_framing_is_recomputed_and_never_copied() -> None:
    """What a reply brings of lengths, codings, connections and the word is not believed."""
    lies: Headers = (
        (b"Content-Length", b"999"), (b"Transfer-Encoding", b"chunked"), (b"Connection", b"close"),
        (b"Keep-Alive", b"timeout=5"), (b"Trailer", b"X"), (b"Upgrade", b"h2c"), (b"Idempotency-Status", b"released"),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
    )  # fmt: skip
    async with serving(reply(b"abc", headers=lies)) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(post())
            response = await connection.read_response("POST")
            assert response.headers == [
                (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
                (b"Idempotency-Status", b"stored"),
                (b"Content-Length", b"3"),
            ]
            assert response.body == b"abc"


@pytest.mark.parametrize(
    ("method", "status", "headers", "body", "length"),
    [
        ("HEAD", 200, ((b"Content-Length", b"70"),), b"", "70"),
        ("HEAD", 200, (), b"abc", "3"),
        ("HEAD", 200, ((b"Content-Length", b"x"),), b"", None),
        ("POST", 204, ((b"Content-Length", b"70"),), b"not allowed", None),
        ("POST", 304, ((b"Content-Length", b"70"),), b"", "70"),
        ("POST", 304, (), b"", None),
        ("POST", 200, (), b"", "0"),
    ],
)
async def test_a_reply_without_a_body_stays_exact(
    method: str, status: int, headers: Headers, body: bytes, length: str | None
) -> None:
    """HEAD, 204, 304 and empty bodies end where they should, and the connection goes on."""
    async with serving(reply(body, status=status, headers=headers)) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(post().replace(b"POST", method.encode()))
            response = await connection.read_response(method)
            assert (response.status, response.header("content-length"), response.body) == (status, length, b"")
            assert parsedate_to_datetime(response.header("date") or "").tzinfo is not None
            assert response.header("server") is None


async def test_http_1_0_gets_no_chunks() -> None:
    """A stream of unknown length ends with the connection, and everything else may keep it."""
    old = post().replace(b"HTTP/1.1", b"HTTP/1.0")
    stays = old.replace(HOST, HOST + b"Connection: keep-alive\r\n")
    async with serving(reply(Stream(b"ab", b"cde"))) as edge:
        response = await exchange(edge.port, stays)
        assert (response.body, response.complete) == (b"abcde", True)
        assert (response.header("transfer-encoding"), response.header("connection")) == (None, "close")
    async with serving() as edge, Connection(edge.port) as connection:
        for sent, kept in ((stays, "keep-alive"), (stays, "keep-alive"), (old, "close")):
            await connection.send(sent)
            assert (await connection.read_response()).header("connection") == kept
        assert await connection.read_rest() == b""


@pytest.mark.parametrize("length", [9, 1], ids=["too-short", "too-long"])
async def test_a_body_of_another_length_breaks_the_connection(length: int) -> None:
    """The client must not take it for whole, and what follows it for a response."""
    stream = Stream(b"ab", b"c")
    async with serving(reply(stream, length=length)) as edge, Connection(edge.port) as connection:
        await connection.send(post())
        with pytest.raises(ConnectionError):
            await connection.read_rest()
        assert stream.aborted


@pytest.mark.parametrize("bad", [(b"X", b"a\r\nY: b"), (b"X\n", b"a"), (b"X", b"a\x00")])
async def test_a_line_end_in_a_field_is_not_written(bad: tuple[bytes, bytes]) -> None:
    """It is a defect of ours, and the client is told not to use a new key."""
    async with serving(reply(headers=(bad,))) as edge:
        response = await exchange(edge.port, post())
        assert (response.status, response.values("y"), response.header("connection")) == (500, [], "close")
        assert "new key" in response.json()["detail"]


P = PROTECTED.encode()


async def test_garbage_behind_a_request_in_one_piece() -> None:
    """The whole piece is refused: the request before the garbage is not handed on."""
    async with serving() as edge:
        response = await exchange(edge.port, post() + b"garbage\r\n\r\n")
        assert response.status == 400
        assert edge.taken == []


async def test_a_head_that_never_ends_is_given_up() -> None:
    """A client that sends its head byte by byte has as long as one that is idle."""
    async with serving(settings=EdgeSettings(keepalive_seconds=0.2)) as edge, Connection(edge.port) as connection:
        await connection.send(b"POST " + P + b" HTTP/1.1\r\nHost:")
        assert await connection.read_rest() == b""


async def test_many_garbage_connections_leave_nothing_behind() -> None:
    """Each ends with its answer."""
    async with serving() as edge:
        await asyncio.gather(*(exchange(edge.port, b"\x00\r\n\r\n") for _ in range(100)))
        assert (await exchange(edge.port, post())).status == 200


@pytest.mark.parametrize("at", [1, 30, -3], ids=["request-line", "fields", "body"])
async def test_what_comes_as_an_answer_ends_is_read_after_what_waits(at: int) -> None:
    """The rest of a pipelined request may come in the very turn in which the answer before it is done."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    bodies: list[bytes] = []

    async def answer(incoming: Request) -> Reply:
        bodies.append(b"".join([data async for data in incoming.body.stream()]))
        begun.set()
        await go_on.wait()
        return reply(bodies[-1])

    async with serving(answer) as edge, Connection(edge.port) as connection:
        second = post(body=b"second")
        await connection.send(post(body=b"first") + second[:at])
        await begun.wait()
        # Sent at once, by the kernel.
        assert os.write(connection.writer.get_extra_info("socket").fileno(), second[at:]) == len(second[at:])
        go_on.set()
        assert (await connection.read_response()).body == b"first"
        assert (await connection.read_response()).body == b"second"
        assert bodies == [b"first", b"second"]


async def test_a_long_line_of_requests_leaves_room_for_others() -> None:
    """Answers that need no waiting are not all given in one turn of the loop, and none needs the body that came."""
    answered = 0
    turns: list[int] = []

    async def answer(_: Request) -> Reply:
        nonlocal answered
        answered += 1
        return reply()

    def look() -> None:
        turns.append(answered)
        if answered < 500:
            asyncio.get_running_loop().call_soon(look)

    async with serving(answer) as edge, Connection(edge.port) as connection:
        look()
        await connection.send(post() * 500)
        for _ in range(500):
            assert (await connection.read_response()).status == 200
    assert max(after - before for before, after in pairwise(turns)) <= 2


async def test_a_long_line_of_small_chunks_leaves_room_for_others() -> None:
    """They are read a few at a time, in order, and what comes behind the first of them is looked at like the first."""
    pieces: list[bytes] = []

    async def answer(incoming: Request) -> Reply:
        pieces.extend([piece async for piece in incoming.body.stream()])
        return reply(b"taken")

    body = bytes(range(97, 122)) * 1000
    chunks = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks += b"".join([b"1\r\n%c\r\n" % byte for byte in body])
    async with serving(answer) as edge:
        assert (await exchange(edge.port, chunks + b"0\r\n\r\n")).body == b"taken"
        assert b"".join(pieces) == body
        assert max(map(len, pieces)) <= 1024
        response = await exchange(edge.port, chunks + b"zz\r\n")
        assert (response.status, response.header("connection")) == (400, "close")
        assert b"".join(pieces) == body
