"""What the edge hands on and what it writes, byte for byte."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from dataclasses import replace
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from itertools import pairwise

import pytest

from gateway.core.message import Headers
from gateway.http.connection import EdgeSettings
from gateway.protect.reply import DECODED_BYTES_MAX, Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, PlainRoute, Stream, post, reply, serving
from tests.support.http import Connection, exchange

FIELDS: Headers = (
    (b"Content-Type", b"application/json"), (b"x-LOWER-upper", b"kept"), (b"Set-Cookie", b"a=1; Path=/"),
    (b"Set-Cookie", b"b=2, c=3"), (b"X-Bytes", b"\xff\xfe caf\xc3\xa9 \t end"), (b"X-Empty", b""), (b"ETag", b'"1"'),
)  # fmt: skip


async def test_a_request_is_handed_on_as_it_was_sent() -> None:
    """Method, target, fields and body keep their bytes, their order, their spelling and their repeats."""
    fields = b'X-One: 1\r\nx-ONE: 2\r\nIdempotency-Key: "k"\r\n'
    fields += b"X-Bytes: \xff\xfe\xc3\xa9\r\nX-Empty:\r\nX-Space:  a  b\t \r\n"
    target = b"//v1/%70ayments/?a=%7E&b=[|]&&c=%zz"
    async with serving() as edge:
        await exchange(edge.port, post(fields, b"\x00\xffbody", target), method="POST")
        (taken,) = edge.taken
        assert taken.head.method == b"POST"
        assert taken.head.target == target
        assert taken.head.headers == (
            (b"Host", b"gateway.test"), (b"X-One", b"1"), (b"x-ONE", b"2"), (b"Idempotency-Key", b'"k"'),
            (b"X-Bytes", b"\xff\xfe\xc3\xa9"), (b"X-Empty", b""), (b"X-Space", b"a  b"), (b"Content-Length", b"6"),
        )  # fmt: skip
        assert taken.body == b"\x00\xffbody"
        assert taken.incoming.body.length == 6
        assert taken.incoming.hop.peer == ip_address("127.0.0.1")
        assert taken.incoming.hop.scheme == b"http"


async def test_a_chunked_body_is_handed_on_without_its_chunks() -> None:
    """Extensions and trailers go with the framing."""
    chunks = b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nX-Trailer: 1\r\n\r\n"
    async with serving() as edge:
        await exchange(
            edge.port,
            b"POST " + PROTECTED.encode() + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        )
        (taken,) = edge.taken
        assert taken.body == b"abcd"
        assert taken.incoming.body.length is None


async def test_a_reply_goes_out_as_it_was_given() -> None:
    """Fields keep bytes, order, spelling and repeats; only length, date and the word are added, and no server."""
    async with serving(reply(b"\x00\xff", status=201, reason=b"Made \xe9", headers=FIELDS)) as edge:
        response = await exchange(edge.port, post(), method="POST")
    assert (response.version, response.status, response.reason) == (b"HTTP/1.1", 201, b"Made \xe9")
    assert response.body == b"\x00\xff"
    *given, status, date, length = response.headers
    assert given == [(name, value.strip(b" \t")) for name, value in FIELDS]
    assert status == (b"Idempotency-Status", b"stored")
    assert date[0] == b"Date"
    assert parsedate_to_datetime(date[1].decode()).tzinfo is not None
    assert length == (b"Content-Length", b"2")


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
        ("HEAD", 200, (), b"", None),
        ("HEAD", 200, ((b"Content-Length", b"x"),), b"", None),
        ("POST", 204, ((b"Content-Length", b"70"),), b"", None),
        ("POST", 204, (), b"not allowed", None),
        ("POST", 304, ((b"Content-Length", b"70"),), b"", "70"),
        ("POST", 304, (), b"", None),
        ("POST", 200, (), b"", "0"),
        ("POST", 299, (), b"abc", "3"),
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
            assert (response.status, response.header("content-length")) == (status, length)
            assert response.body == (b"" if method == "HEAD" or status in (204, 304) else body)


async def test_http_1_0_gets_no_chunks() -> None:
    """A stream of unknown length ends with the connection, and everything else may keep it."""
    old = post().replace(b"HTTP/1.1", b"HTTP/1.0")
    async with serving(reply(Stream(b"ab", b"cde"))) as edge:
        response = await exchange(edge.port, old.replace(HOST, HOST + b"Connection: keep-alive\r\n"))
        assert (response.body, response.complete) == (b"abcde", True)
        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
    async with serving() as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(old.replace(HOST, HOST + b"Connection: keep-alive\r\n"))
            response = await connection.read_response()
            assert response.header("connection") == "keep-alive"
        await connection.send(old)
        assert (await connection.read_response()).header("connection") == "close"
        assert await connection.read_rest() == b""


@pytest.mark.parametrize(
    ("version", "length"),
    [(b"HTTP/1.1", None), (b"HTTP/1.1", 9), (b"HTTP/1.1", 1), (b"HTTP/1.0", None)],
    ids=["chunked", "with-a-length", "too-long-for-its-length", "until-close"],
)
async def test_a_body_that_is_cut_breaks_the_connection(version: bytes, length: int | None) -> None:
    """The client cannot take what it got for whole: no last chunk, and an RST where the end is the end."""
    stream = Stream(b"ab", b"c", cut=True)
    async with serving(reply(stream, length=length)) as edge:
        response = await exchange(edge.port, post().replace(b"HTTP/1.1", version))
        assert not response.complete or length == 1
        assert stream.aborted
        # The edge goes on serving others.
        assert (await exchange(edge.port, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 404


@pytest.mark.parametrize("accepted", [b"identity", b"gzip"])
async def test_a_reply_is_decoded_for_its_request_beside_the_loop(accepted: bytes) -> None:
    """What takes long to decode keeps nobody else waiting; only the client that asked for it."""
    text = bytes(DECODED_BYTES_MAX)
    coded = gzip.compress(text)
    decode_for = None if accepted == b"gzip" else (accepted,)
    given = replace(reply(coded, headers=((b"Content-Encoding", b"gzip"),)), decode_for=decode_for)
    async with serving(protect_now=lambda *_: given) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(post())
            response = await connection.read_response()
            assert response.body == (text if decode_for else coded)
            assert response.values("content-encoding") == ([] if decode_for else [b"gzip"])
        names = {thread.name for thread in threading.enumerate()}
        assert ("decoding_0" in names) == (decode_for is not None)


async def test_a_defect_of_ours_is_answered_with_an_error() -> None:
    """A line end in a field is not written. The client is told not to use a new key, and nothing of the failure."""

    async def answer(incoming: Request) -> Reply:
        raise RuntimeError("secret detail")

    smuggling = [reply(headers=(bad,)) for bad in ((b"X", b"a\r\nY: b"), (b"X\n", b"a"), (b"X", b"a\x00"))]
    for given in (*smuggling, answer):
        async with serving(given) as edge:
            response = await exchange(edge.port, post())
            assert (response.status, response.values("y"), response.header("connection")) == (500, [], "close")
            assert b"secret" not in response.body
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


async def test_a_body_that_nobody_took_does_not_stop_the_connection() -> None:
    """Here whole, and then not wanted."""

    async def answer(incoming: Request) -> Reply:
        return reply(b"not wanted", status=400)

    async with serving(answer) as edge, Connection(edge.port) as connection:
        for _ in range(2):
            await connection.send(post(body=bytes(16_000)))
            response = await connection.read_response()
            assert (response.status, response.header("connection")) == (400, None)


async def test_a_long_line_of_requests_leaves_room_for_others() -> None:
    """Answers that need no waiting are not all given in one turn of the loop."""
    answered = 0
    turns: list[int] = []

    def answer(_: Request, __: PlainRoute) -> Reply:
        nonlocal answered
        answered += 1
        return reply()

    def look() -> None:
        turns.append(answered)
        if answered < 500:
            asyncio.get_running_loop().call_soon(look)

    async with serving(protect_now=answer) as edge, Connection(edge.port) as connection:
        look()
        await connection.send(post() * 500)
        for _ in range(500):
            assert (await connection.read_response()).status == 200
    assert max(after - before for before, after in pairwise(turns)) <= 2


async def test_a_long_line_of_small_chunks_leaves_room_for_others() -> None:
    """They are read a few at a time, in their order."""
    pieces: list[bytes] = []

    async def answer(incoming: Request) -> Reply:
        pieces.extend([piece async for piece in incoming.body.stream()])
        return reply(b"taken")

    chunked = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    body = bytes(range(97, 122)) * 1000
    async with serving(answer) as edge, Connection(edge.port) as connection:
        chunks = b"".join([b"1\r\n%c\r\n" % byte for byte in body])
        await connection.send(chunked + chunks + b"0\r\n\r\n")
        assert (await connection.read_response()).body == b"taken"
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 1024


async def test_a_long_line_of_small_chunks_that_ends_badly_is_refused() -> None:
    """What comes behind the first of them is looked at like the first."""
    chunked = b"POST " + P + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving() as edge:
        response = await exchange(edge.port, chunked + b"1\r\nx\r\n" * 5000 + b"zz\r\n")
        assert (response.status, response.header("connection")) == (400, "close")
        assert edge.taken == []
