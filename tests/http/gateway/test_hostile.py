"""Hostile messages through a whole gateway: nothing is executed twice or as another request, and others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

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
    assert len(REFUSED) >= 215
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
    """With 431, or 414 for a path, in one piece and in several. A long query is none."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for name, data in TOO_BIG.items():
            for size in (1 << 20, 1_000):
                async with Connection(home.port) as connection:
                    for piece in pieces(data + SMUGGLED, size):
                        await connection.send(piece)
                    response = await connection.read_response("POST")
                    assert response.status == (414 if name.startswith("path") else 431), name
                    assert await answers(connection) == [], name
        assert home.upstream.requests == []
        assert (await home.send(target="/other?" + "a" * 8_200)).status == 200
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


HOST = b"Host: gateway.test\r\n"
# What lets a request be executed, if it is not refused.
CALLER = HOST + b"X-Tenant: t1\r\nIdempotency-Key: hostile\r\n"
TARGET = b"/charges"
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: gateway.test\r\nContent-Length: 0\r\n\r\n"


def message(
    fields: bytes = b"", body: bytes = b"", *, method: bytes = b"POST", target: bytes = TARGET,
    version: bytes = b"HTTP/1.1", caller: bytes = CALLER,
) -> bytes:  # fmt: skip
    """A request that would be executed but for what is changed."""
    return method + b" " + target + b" " + version + b"\r\n" + caller + fields + b"\r\n" + body


def chunked(body: bytes, fields: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    """A request whose body comes in chunks, or in what claims to be some."""
    return message(fields, body)


def _named(kind: str, values: Iterable[bytes], build: Callable[[bytes], bytes]) -> dict[str, bytes]:
    return {f"{kind} {value!r}": build(value) for value in values}


_LENGTHS = (
    b"-2", b"+2", b"0x2", b"2e0", b"2.0", b"2 2", b"2,2", b"2, 2", b"2;2", b"2\x0b", b"\x0b2", b"two", b"\xd9\xa2",
    b"", b"99999999999999999999999", b"18446744073709551616", b"2\x00", b"'2'", b'"2"', b"0 2", b"2_0",
)  # fmt: skip
_CODINGS = (
    b"xchunked", b"chunkedx", b"chunked, chunked", b"chunked, gzip", b"chunked, identity", b"gzip, chunked", b"gzip",
    b"identity", b"deflate, chunked", b"chunked;q=1", b'"chunked"', b"'chunked'", b"\x0bchunked", b"chunked\x0b",
    b"chunked\x00", b"chunked\x7f", b"x, chunked", b"chunk", b"trailers", b"",
)  # fmt: skip
_SIZES = (
    b"g", b"-1", b"+1", b"0x1", b" 1", b"1 1", b"fffffffffffffffff", b"", b"1,1", b"1_0", b"\xd9\xa1", b"1\x00",
    b"1\x0b", b"1.0", b"1\r", b"x1", b"\t1",
    b"ffffffffffffffff", b"8000000000000000", b"1000000000000000", b"00ffffffffffffffff", b"0" * 90 + b"f" * 16,
)  # fmt: skip
_VERSIONS = (
    b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/1.10", b"HTTP/1", b"HTTP/11", b"HTTP/1.1 x",
    b"http/1.1", b"HTTP /1.1", b"HTTPS/1.1", b"HTP/1.1", b"HTTP/1.1\t", b"HTTP/-1.1", b"HTTP/1,1", b"HTTP/1.1\x00",
    b"HTTP/",
)  # fmt: skip
_METHODS = (
    b"post", b"Post", b"P\x00ST", b"POST\t", b"P\xc3\x96ST", b"FOO", b"LIST", b"POST/", b"(POST)", b"POST:",
    b"\x16\x03\x01", b"{}", b'"POST"', b"PRI", b"CONNECT", b"POSTPOST",
)  # fmt: skip
# With the caller's fields, each of these would be the protected route's to some service, or is no target.
_TARGETS = (
    b"http://gateway.test/charges", b"http://other.test/charges", b"HTTP://gateway.test/charges", b"//x/charges",
    b"http://a@gateway.test/charges", b"http://a@b@gateway.test/charges", b"http://x\\..\\charges",
    b"http://gateway.test#/charges", b"http://gateway.test|/charges", b"/charges#x", b"/x/../charges", b"*", b"charges",
    b"?charges", b"/charges\x00", b"/char\x01ges", b"/char\x0bges", b"/char\x7fges", b"/char\x80ges", b"/char\xffges",
    b"/char\xc3\xa9ges", b"/char ges", b"gateway.test:80",
)  # fmt: skip
_FIELDS = (
    b"X: a\x00b\r\n", b"X: a\x01b\r\n", b"X: a\x0bb\r\n", b"X: a\x1fb\r\n", b"X: a\x7fb\r\n", b"X: a\rb\r\n",
    b"X: a\nY: b\r\n", b"X: a\r\n b\r\n", b"X: a\r\n\tb\r\n", b"X:\r\n a\r\n", b"X: a\r\n \r\n", b" X: a\r\n",
    b"\tX: a\r\n", b": a\r\n", b"X\r\n", b"X : a\r\n", b"X\t: a\r\n", b"X Y: a\r\n", b"X\x00: a\r\n", b"X\xff: a\r\n",
    b"(X): a\r\n", b"X@: a\r\n", b"X/Y: a\r\n", b"X\n", b"X: a\n", b"\rX: a\r\n", b"X: a\r\r\n", b'"X": a\r\n',
    b"X=Y: a\r\n", b"{X}: a\r\n", b"X: a\x08\r\n", b"=\r\n",
)  # fmt: skip
_REPEATED = (
    b"Host: gateway.test\r\n", b"Host: other.test\r\n", b"host: gateway.test\r\n", b"Idempotency-Key: other\r\n",
    b"idempotency-key: hostile\r\n", b"X-Tenant: t2\r\n", b"x-tenant: t1\r\n", b"CONTENT_LENGTH: 5\r\n",
    b"Authorization: a\r\nAuthorization: b\r\n", b"Content-Type: a/b\r\nContent-Type: c/d\r\n",
    b"Connection: Idempotency-Key\r\n", b"Connection: close, X-Tenant\r\n", b"Connection: host\r\n",
    b"Connection: content-length\r\n", b"Connection: Transfer-Encoding\r\n", b"Connection: Authorization\r\n",
    b"Content-Encoding: gzip\r\nContent-Encoding: br\r\n", b"Authorization_: a\r\nHost_: b\r\nHost: c\r\n",
)  # fmt: skip
_HOSTS = (
    b"", b"Host: a, b\r\n", b"Host: a/b\r\n", b"Host: u@a\r\n", b"Host: a b\r\n", b"Host: a#b\r\n", b"Host: a?b\r\n",
    b"Host: a:b\r\n", b"Host: [::1\r\n", b"Host: a\\b\r\n", b"Host: a%2fb\r\n", b"Host: \xff\r\n", b"Host : a\r\n",
    b"Host\r\n",
)  # fmt: skip
_TRAILERS = (
    b"bad\r\n", b"X : y\r\n", b" X: y\r\n", b"X: a\x00\r\n", b"X: a\n", b": y\r\n", b"X: a\r\n b\r\n", b"\x00\r\n",
)  # fmt: skip
_AROUND_CHUNKS = {
    "longer than its size": b"1\r\nab\r\n0\r\n\r\n",
    "shorter than its size": b"3\r\nab\r\n0\r\n\r\n",
    "ended by a line feed": b"1\r\na\n0\r\n\r\n",
    "bare line feeds": b"1\na\n0\n\n",
    "ended by a carriage return": b"1\r\na\r0\r\n\r\n",
    "no end of the last one": b"1\r\na\r\n0\r\nX\r\n",
    "extension with NUL": b"1;a=\x00\r\na\r\n0\r\n\r\n",
    "extension with a line feed": b"1;a=b\na\r\n0\r\n\r\n",
}

# Each of them is refused, and the connection closed, wherever it is cut.
REFUSED: dict[str, bytes] = {
    **_named("length", _LENGTHS, lambda value: message(b"Content-Length: " + value + b"\r\n", b"{}")),
    **_named("coding", _CODINGS, lambda value: chunked(b"0\r\n\r\n", b"Transfer-Encoding: " + value + b"\r\n")),
    **_named("chunk size", _SIZES, lambda value: chunked(value + b"\r\na\r\n0\r\n\r\n")),
    **_named("version", _VERSIONS, lambda value: message(version=value)),
    **_named("method", _METHODS, lambda value: message(method=value)),
    **_named("target", _TARGETS, lambda value: message(target=value)),
    **_named("field", _FIELDS, message),
    **_named("once only", _REPEATED, message),
    **_named("host", _HOSTS, lambda value: message(caller=value + CALLER.removeprefix(HOST))),
    **_named("trailer", _TRAILERS, lambda value: chunked(b"1\r\na\r\n0\r\n" + value + b"\r\n")),
    **{f"chunk {name}": chunked(body) for name, body in _AROUND_CHUNKS.items()},
    "two lengths": message(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{} "),
    "two equal lengths": message(b"Content-Length: 2\r\ncontent-length: 2\r\n", b"{}"),
    "length and coding": chunked(b"0\r\n\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    "coding and length": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
    "coding and no length": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"),
    "two codings": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    "coding after another": chunked(b"0\r\n\r\n", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
    "coding before another": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n"),
    "coding with a space before its colon": chunked(b"0\r\n\r\n", b"Transfer-Encoding : chunked\r\n"),
    "folded coding": chunked(b"0\r\n\r\n", b"Transfer-Encoding:\r\n chunked\r\n"),
    "coding in HTTP/1.0": chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "nothing but line feeds": message().replace(b"\r\n", b"\n"),
    "nothing but carriage returns": message().replace(b"\r\n", b"\r"),
    "a line without a version": b"POST /charges\r\n\r\n",
    "a line without a target": b"POST HTTP/1.1\r\n" + CALLER + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "garbage": bytes(range(256)),
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "an empty name between lines": message(b"\r\n: x\r\n")[:-2] + b"\x00",
}
# Each of these is refused with 431 or 414.
TOO_BIG: dict[str, bytes] = {
    "field": message(b"X: " + b"a" * 70_000 + b"\r\n"),
    "name": message(b"X" * 70_000 + b": a\r\n"),
    "target": message(target=b"/" + b"a" * 70_000),
    "query": message(target=b"/charges?" + b"a" * 70_000),
    "path": message(target=b"/" + b"a" * 9_000),
    "path of a route": message(target=b"/charges/" + b"a" * 9_000),
    "path in another form": message(target=b"http://h/" + b"a" * 9_000),
    "head": message(b"".join(b"X-%d: %b\r\n" % (number, b"a" * 1_000) for number in range(70))),
    "number of fields": message(b"X: a\r\n" * 200),
    "number of short fields": message(b"X:\r\n" * 20_000),
}
