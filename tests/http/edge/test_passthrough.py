"""What nothing protects goes through untouched, streamed both ways, and once."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from gateway.observe.facts import RequestPassed
from tests.http.edge.harness import HOST, serving, serving_before
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange, request
from tests.support.upstream import Answer, Ending, Framing, RecordingUpstream

MIB = 1024 * 1024
LONG = 100 * MIB
HELD_BYTES_MAX = 12 * MIB
ADDED = {b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"via"}


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as running:
        yield running


@pytest.mark.parametrize("method", ["PUT", "TRACE", "PROPFIND", "HEAD"])
async def test_any_method_goes_through(upstream: RecordingUpstream, method: str) -> None:
    """With its body if it has one, and the answer to it without one for HEAD."""
    async with serving(to=upstream.port) as edge:
        response = await request(edge.port, method, "/things", body=b"" if method == "HEAD" else b"body")
        assert (response.status, response.body) == (200, b"" if method == "HEAD" else b"done")
        assert response.header("content-length") == "4"
        assert response.values("idempotency-status") == []
        (got,) = upstream.requests
        assert (got.method, got.body) == (method, b"" if method == "HEAD" else b"body")


async def test_target_and_fields_go_through_as_sent(upstream: RecordingUpstream) -> None:
    """Bytes, order, spelling and repeats; what belongs to this hop is not forwarded."""
    target = b"//evil/%7E/../x/%2e;p=1?a=|&b=[]&c=%zz#frag"
    fields = (
        b"x-One: 1\r\nX-ONE: 2\r\nCookie: a=1\r\nX-Bytes: \xff\xfe\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n"
    )
    async with serving(to=upstream.port) as edge:
        await exchange(edge.port, b"GET " + target + b" HTTP/1.1\r\n" + HOST + fields + b"\r\n")
    (got,) = upstream.requests
    assert got.target == target
    assert [field for field in got.headers if field[0].lower() not in ADDED] == [
        (b"Host", b"gateway.test"), (b"x-One", b"1"), (b"X-ONE", b"2"), (b"Cookie", b"a=1"), (b"X-Bytes", b"\xff\xfe"),
    ]  # fmt: skip


async def test_the_answer_goes_through_as_it_came(upstream: RecordingUpstream) -> None:
    """Reason, fields and body keep their bytes; the gateway's own words are not the upstream's to say, and what it says
    to the gateway alone goes no further."""
    wire = (
        b"HTTP/1.1 299 Very \xe9 Odd\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Bytes: \xff\r\nServer: theirs\r\n"
        b"Date: Tue, 15 Nov 1994 08:12:31 GMT\r\nIdempotency-Status: stored\r\nIdempotent-Replayed: true\r\n"
        b"Idempotency-Expires: x\r\nIdempotency-Outcome: final\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n"
        b"Content-Length: 3\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n\x00\xffz"
    )
    upstream.on(None, Answer(raw=wire))
    async with serving(to=upstream.port) as edge:
        response = await request(edge.port, "GET", "/")
    assert (response.status, response.reason, response.body) == (299, b"Very \xe9 Odd", b"\x00\xffz")
    assert response.headers == [
        (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"X-Bytes", b"\xff"), (b"Server", b"theirs"),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"), (b"Content-Length", b"3"),
    ]  # fmt: skip


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE])
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_every_framing_arrives_whole(upstream: RecordingUpstream, framing: Framing, version: bytes) -> None:
    """However the upstream tells the end, the client is told it in its own version."""
    upstream.on(None, Answer(body=(b"ab", b"cde"), framing=framing))
    async with serving(to=upstream.port) as edge:
        response = await exchange(edge.port, b"GET / " + version + b"\r\n" + HOST + b"\r\n")
        assert (response.body, response.complete) == (b"abcde", True)


async def test_events_are_flushed_one_by_one(upstream: RecordingUpstream) -> None:
    """Each one reaches the client before the upstream makes the next."""
    go_on = [asyncio.Event() for _ in range(5)]
    pieces: list[bytes | asyncio.Event] = []
    for number, event in enumerate(go_on):
        pieces += [b"data: %d\n\n" % number, event]
    events = (("Content-Type", "text/event-stream"),)
    upstream.on(None, Answer(headers=events, body=tuple(pieces), framing=Framing.CHUNKED))
    async with serving(to=upstream.port) as edge, Connection(edge.port) as connection:
        await connection.send(b"GET /events HTTP/1.1\r\n" + HOST + b"\r\n")
        for number, event in enumerate(go_on):
            await connection.reader.readuntil(b"data: %d\n\n" % number)
            event.set()
        await connection.reader.readuntil(b"0\r\n\r\n")


async def test_interim_answers_are_passed_on(upstream: RecordingUpstream) -> None:
    """103 with its links, to whoever knows it: not to HTTP/1.0 (RFC 9110 section 15.2)."""
    hints = (("Link", "</style.css>; rel=preload"),)
    upstream.on(None, Answer(interim=((103, hints), (103, hints))))
    async with serving(to=upstream.port) as edge:
        response = await request(edge.port, "GET", "/")
        assert (response.status, response.interim) == (200, [(103, [(b"Link", b"</style.css>; rel=preload")])] * 2)
        response = await exchange(edge.port, b"GET / HTTP/1.0\r\n" + HOST + b"\r\n")
        assert (response.status, response.interim) == (200, [])


async def test_an_answer_may_come_before_the_request_is_whole() -> None:
    """For that is streamed. The client gets it, and the connection ends after it. The upstream never sees an end of the
    request."""
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge"
    after: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first\r\n")
        writer.write(early)
        after.append(await reader.read(-1))

    async with serving_before(accept) as edge, Connection(edge.port) as connection:
        await connection.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        response = await connection.read_response()
        assert (response.status, response.body, response.header("connection")) == (413, b"large", "close")
        assert await connection.read_rest() == b""
    assert after in ([], [b""])


async def test_long_bodies_take_little_memory_both_ways() -> None:
    """A hundred MiB go up and come back at the pace of the slower side, unchanged."""
    piece = bytes(range(256)) * (MIB // 256)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LONG)
        while data := await reader.read(MIB):
            writer.write(data)
            await writer.drain()

    async def upload(connection: Connection) -> None:
        for _ in range(LONG // MIB):
            await connection.send(piece)

    async with serving_before(accept) as edge, Connection(edge.port) as connection:
        await connection.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % LONG)
        tracemalloc.start()
        try:
            sending = asyncio.ensure_future(upload(connection))
            await connection.reader.readuntil(b"\r\n\r\n")
            digest = sha256()
            left = LONG
            while left:
                data = await connection.reader.read(MIB)
                left -= len(data)
                digest.update(data)
            await sending
            assert tracemalloc.get_traced_memory()[1] < HELD_BYTES_MAX
        finally:
            tracemalloc.stop()
    assert digest.digest() == sha256(piece * (LONG // MIB)).digest()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(ending=Ending.CLOSE, bytes_max=0), 502),
        (Answer(ending=Ending.RESET, bytes_max=0), 502),
        (Answer(raw=b"not http at all\r\n\r\n"), 502),
        (Answer(ending=Ending.SILENCE, bytes_max=0), 504),
    ],
    ids=["closed", "reset", "malformed", "silent"],
)
async def test_an_upstream_that_does_not_answer_is_told_plainly(
    upstream: RecordingUpstream, answer: Answer, status: int
) -> None:
    """No verdict is claimed for it, and the request is never sent again, whatever its method."""
    upstream.on(None, answer)
    patience = 0.3 if status == 504 else 60.0
    async with serving(to=upstream.port, response_timeout_seconds=patience) as edge:
        response = await request(edge.port, "GET", "/")
        assert (response.status, response.values("idempotency-status")) == (status, [])
        assert "not known" in response.json()["detail"]
        told = [fact.status for fact in edge.facts if isinstance(fact, RequestPassed)]
        assert (told, len(upstream.requests)) == ([status], 1)


async def test_what_was_not_sent_for_a_reason_of_our_own_is_told_plainly(upstream: RecordingUpstream) -> None:
    """It does not blame the upstream."""
    hold = asyncio.Event()
    upstream.on(None, Answer(hold=hold))
    async with serving(to=upstream.port, connections_max=1, connect_timeout_seconds=0.1) as edge:
        running = asyncio.create_task(request(edge.port, "GET", "/"))
        await upstream.wait_for_requests(1)
        response = await request(edge.port, "GET", "/")
        hold.set()
        assert ((await running).status, response.status) == (200, 503)
        assert response.json()["detail"] == "The gateway is overloaded, or is being stopped; nothing was sent."


@pytest.mark.parametrize(
    ("framing", "ending", "version"),
    [
        (Framing.LENGTH, Ending.CLOSE, b"HTTP/1.1"), (Framing.CHUNKED, Ending.RESET, b"HTTP/1.1"),
        (Framing.CLOSE, Ending.RESET, b"HTTP/1.1"), (Framing.CLOSE, Ending.RESET, b"HTTP/1.0"),
    ],
    ids=str,
)  # fmt: skip
async def test_an_answer_that_breaks_off_breaks_the_client_off(
    upstream: RecordingUpstream, framing: Framing, ending: Ending, version: bytes
) -> None:
    """What came is passed on, and its end is no end; not even for HTTP/1.0, whose end is that of the connection."""
    upstream.on(None, Answer(body=b"a" * 1000, framing=framing, ending=ending, bytes_max=500))
    async with serving(to=upstream.port) as edge:
        response = await exchange(edge.port, b"GET / " + version + b"\r\n" + HOST + b"\r\n")
        assert (response.status, response.complete) == (200, False)
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("when", ["before-the-answer", "in-the-answer", "in-the-request"])
@pytest.mark.parametrize("who", ["client", "edge"])
async def test_who_goes_takes_its_request_with_it(who: str, when: str) -> None:
    """The upstream hears a reset, and nothing is left running; an edge that is closed breaks its client off."""
    arrived, gone = asyncio.Event(), asyncio.Event()
    begins = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" if when == "in-the-answer" else b""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)
        arrived.set()
        with pytest.raises(ConnectionError):
            await reader.read(-1)
        gone.set()

    async with serving_before(accept) as edge, Connection(edge.port) as connection:
        length = b"Content-Length: 9\r\n" if when == "in-the-request" else b""
        await connection.send(b"PUT / HTTP/1.1\r\n" + HOST + length + b"\r\n")
        await arrived.wait()
        if begins:
            await connection.reader.readuntil(b"ab")
        if who == "client":
            connection.reset()
        else:
            assert await edge.edge.close() == 1
            with pytest.raises(ConnectionError):
                await connection.read_rest()
        await gone.wait()
        await eventually(lambda: edge.edge.in_flight == edge.edge.connections == 0)
        # What had no answer is not told of as passed.
        told = [fact.method for fact in edge.facts if isinstance(fact, RequestPassed)]
        assert told == ["PUT"] * bool(begins)


async def test_each_pipelined_request_gets_its_own_answer(upstream: RecordingUpstream) -> None:
    """In the order of the requests."""
    upstream.on(None, lambda received: Answer(body=received.target))
    async with serving(to=upstream.port) as edge, Connection(edge.port) as connection:
        await connection.send(b"".join(b"GET /%d HTTP/1.1\r\n" % n + HOST + b"\r\n" for n in range(40)))
        for number in range(40):
            assert (await connection.read_response()).body == b"/%d" % number
