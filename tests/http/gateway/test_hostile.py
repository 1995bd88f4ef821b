"""Hostile messages through a whole gateway: nothing is executed twice or as another request, and others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.http.hostile import CALLER, HOST, REFUSED, SMUGGLED, TOO_BIG, chunked, message
from tests.support.house import House, house, sqlite_store
from tests.support.http import Connection, NoAnswerError, Response
from tests.support.upstream import Answer

TRAILER = b"X-Tenant: victim\r\n"


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


async def answers(connection: Connection) -> list[Response]:
    """Every response until the connection ends."""
    found: list[Response] = []
    with suppress(NoAnswerError):
        while True:
            found.append(await connection.read_response("POST"))
    return found


async def is_served(home: House, key: str) -> None:
    """The next connection gets its answer, and the upstream exactly its request."""
    before = len(home.upstream.requests)
    assert (await home.send(key)).status == 200
    (request,) = home.upstream.requests[before:]
    assert (request.method, request.target) == ("POST", b"/charges")
    assert request.values("X-Tenant") != [b"victim"]


@pytest.mark.parametrize("size", [1 << 20, 64, 1], ids=["whole", "in-pieces", "dripped"])
async def test_what_is_no_request_or_may_be_two_reaches_nobody(tmp_path: Path, size: int) -> None:
    """However it is cut: one refusal, no request upstream, the connection closed, and the next one served."""
    assert len(REFUSED) >= 190
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for number, (name, data) in enumerate(REFUSED.items()):
            async with Connection(home.port) as connection:
                try:
                    for piece in pieces(data + SMUGGLED, size):
                        await connection.send(piece)
                    found = await answers(connection)
                except ConnectionError:
                    # What came after the refusal may meet a connection that is closed.
                    assert size < len(data), name
                    found = []
            assert [400 <= response.status < 600 for response in found] in ([True], []), name
            assert found or size < len(data), name
            assert all(response.header("connection") == "close" for response in found), name
            assert all(b"smuggled" not in response.body and b"hostile" not in response.body for response in found), name
            assert home.upstream.requests[number:] == [], name
            await is_served(home, f"after-{number}")
        assert len(home.upstream.requests) == len(REFUSED)


async def test_what_is_too_big_is_refused_as_that(tmp_path: Path) -> None:
    """With 431, or 414 for a path, in one piece and in several."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for name, data in TOO_BIG.items():
            for size in (1 << 20, 1_000):
                async with Connection(home.port) as connection:
                    for piece in pieces(data + SMUGGLED, size):
                        await connection.send(piece)
                    (response,) = await answers(connection)
                assert response.status == (414 if name.startswith("path") else 431), name
        assert home.upstream.requests == []
        await is_served(home, "after")


async def test_a_message_that_is_cut_short_is_no_request(tmp_path: Path) -> None:
    """Wherever its client ends its direction: no request upstream, and at most a refusal for the client."""
    whole = (
        message(b"Content-Length: 12\r\nContent-Type: text/plain\r\n", b"not the last"),
        chunked(b"5\r\nthree\r\n7\r\n chunks\r\n0\r\nT: 1\r\n\r\n"),
        message(b"Content-Length: 5\r\n", b"never", target=b"/other"),
    )
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for data in whole:
            for end in range(0, len(data), 3):
                async with Connection(home.port) as connection:
                    await connection.send(data[:end])
                    connection.finish_sending()
                    assert all(response.status >= 400 for response in await answers(connection)), data[:end]
        assert home.upstream.requests == []
        await is_served(home, "after")


@pytest.mark.parametrize("target", [b"/charges", b"/other"], ids=["protected", "passed-through"])
@pytest.mark.parametrize("size", [1 << 20, 7], ids=["whole", "in-pieces"])
async def test_the_trailer_of_a_request_is_in_no_other(tmp_path: Path, target: bytes, size: int) -> None:
    """The parser takes it for a field of the next request, so there is none on that connection."""
    first = message(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n" + TRAILER + b"\r\n", target=target)
    second = message(b"Content-Length: 2\r\n", b"{}", target=target, caller=HOST + b"Idempotency-Key: second\r\n")
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        async with Connection(home.port) as connection:
            for piece in pieces(first + second, size):
                await connection.send(piece)
            response = await connection.read_response("POST")
            assert (response.status, response.header("connection")) == (200, "close")
            assert await answers(connection) == []
        (received,) = home.upstream.requests
        assert received.values("X-Tenant") == [b"t1"]
        assert received.trailers == []
        # Nor is it in the next one of the same worker.
        for _ in range(3):
            async with Connection(home.port) as connection:
                await connection.send(second)
                response = await connection.read_response("POST")
                assert response.status == (200 if target == b"/other" else 400)
        assert [
            TRAILER in b"%b: %b\r\n" % field for request in home.upstream.requests for field in request.headers
        ] == [False] * sum(len(request.headers) for request in home.upstream.requests)


@pytest.mark.parametrize("protocol", [b"h2c", b"foo/2", b"TLS/1.0", b"websocket, h2c"])
@pytest.mark.parametrize("body", [b"", b"{}"], ids=["bodiless", "with-a-body"])
async def test_what_follows_an_upgrade_is_never_torn(tmp_path: Path, protocol: bytes, body: bytes) -> None:
    """The parser drops what comes with it in one piece, so that what comes later may be the middle of something."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: %b\r\nContent-Length: %d\r\n" % (protocol, len(body))
    first = message(upgrade, body)
    # The beginning of a request whose body looks like one.
    torn = message(b"Content-Length: %d\r\n" % len(SMUGGLED), target=b"/other")
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        await connection.send(first + torn)
        await connection.send(SMUGGLED)
        response = await connection.read_response("POST")
        assert (response.status, response.header("connection")) == (200, "close")
        assert await answers(connection) == []
        assert [request.target for request in home.upstream.requests] == [b"/charges"]


async def test_what_follows_a_declined_socket_is_read_as_it_was_sent(tmp_path: Path) -> None:
    """The connection stays HTTP, and each request is the one that it was."""
    asks = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    first = message(asks, method=b"GET", target=b"/socket", caller=HOST)
    second = message(b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED, target=b"/other", caller=HOST)
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        await connection.send(first + second)
        for _ in range(2):
            assert (await connection.read_response()).status == 200
        assert [(each.target, each.body) for each in home.upstream.requests] == [
            (b"/socket", b""),
            (b"/other", SMUGGLED),
        ]


async def test_a_client_that_ends_its_direction_gets_its_responses(tmp_path: Path) -> None:
    """All of them, in order, and then the end."""
    data = b"".join(message(b"Content-Length: 2\r\n", b"{}").replace(b"hostile", b"k%d" % each) for each in range(3))
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for target in (b"/charges", b"/other"):
            async with Connection(home.port) as connection:
                await connection.send(data.replace(b"/charges", target))
                connection.finish_sending()
                found = await answers(connection)
                assert [response.status for response in found] == [200] * 3
                assert found[-1].complete
        assert len(home.upstream.requests) == 6
        assert CALLER.startswith(HOST)


async def test_a_torn_request_does_not_hide_that_something_was_dropped(tmp_path: Path) -> None:
    """Be it one for an upgrade itself."""
    first = message(b"Connection: Upgrade\r\nUpgrade: h2c\r\n", method=b"GET", target=b"/slow", caller=HOST)
    torn = message(b"Content-Length: 1000\r\n", target=b"/other")
    asks = message(b"Connection: Upgrade\r\nUpgrade: websocket\r\n", method=b"GET", target=b"/smuggled", caller=HOST)
    hold = asyncio.Event()
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        home.upstream.on("/slow", Answer(hold=hold))
        await connection.send(first + torn)
        await home.upstream.wait_for_requests(1)
        await connection.send(asks)
        # It has arrived when a later connection is answered.
        await is_served(home, "meanwhile")
        hold.set()
        response = await connection.read_response()
        assert (response.status, response.header("connection")) == (200, "close")
        assert await answers(connection) == []
        assert b"/smuggled" not in [request.target for request in home.upstream.requests]
