"""Which connection serves the next request, and which never serves one again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from gateway.upstream import Unknown, UpstreamResponse, tls_context
from tests.http.upstream.wire import (
    DONE,
    Server,
    all_closed,
    answer,
    answering,
    lost,
    request,
    send,
    serving,
    upstream_to,
)
from tests.support.eventually import eventually
from tests.support.tls import Authority

FOREIGN = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"


@contextlib.contextmanager
def in_a_thread(*after_answer: Callable[[socket.socket], object], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that does this after its n-th answer, the last over and over, the loop standing still."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connections = []
        with contextlib.suppress(OSError):
            for then in itertools.chain(after_answer, itertools.repeat(after_answer[-1])):
                connection, _ = listener.accept()
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                connections.append(connection)
                connection.recv(65536)
                connection.sendall(DONE)
                then(connection)
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Wakes a server that still waits for somebody.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    ("version", "fields", "connections"),
    [
        (b"1.1", b"", 1),
        (b"1.1", b"Connection: keep-alive, Close\r\nKeep-Alive: timeout=9\r\n", 2),
        (b"1.1", b'keep-alive: max=100, Timeout = "1"\r\n', 2),
        (b"1.1", b"Keep-Alive: timeout=x\r\n", 1),
        (b"1.0", b"", 2),
        (b"1.0", b"Connection: Keep-Alive\r\n", 1),
    ],
    ids=["1.1", "close-beats-announced", "announced-too-short", "announced-badly", "1.0", "1.0-keep-alive"],
)
async def test_what_the_upstream_says_of_its_connection_is_believed(
    version: bytes, fields: bytes, connections: int
) -> None:
    """A connection that is about to be closed serves no second request, nor one of HTTP/1.0 that says nothing."""
    wire = DONE.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n").replace(b"1.1", version)
    async with serving(answering(wire)) as server, upstream_to(server.port) as client:
        for _ in range(2):
            await (await answer(client)).body.read_all(10)
        assert server.accepted == connections


async def test_a_connection_that_was_idle_for_too_long_is_closed() -> None:
    """Nothing is kept beyond the keepalive time."""
    async with serving(answering(DONE)) as server, upstream_to(server.port, keepalive_seconds=0.2) as client:
        await answer(client)
        await all_closed(client)


async def test_bytes_on_an_idle_connection_never_become_an_answer() -> None:
    """An unsolicited answer condemns its connection, and the next request gets its own answer."""
    async with serving(answering(DONE + FOREIGN, DONE)) as server, upstream_to(server.port) as client:
        assert await (await answer(client)).body.read_all(10) == b"done"
        assert await (await answer(client)).body.read_all(10) == b"done"
        await all_closed(client)
        assert (server.accepted, client.stats.reused) == (2, 0)

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await later.wait()
        writer.write(FOREIGN)
        await reader.read()

    later = asyncio.Event()
    async with serving(handler) as server, upstream_to(server.port) as client:
        await answer(client)
        later.set()
        await all_closed(client)
        assert await (await answer(client)).body.read_all(10) == b"done"


@pytest.mark.parametrize(
    ("method", "wire"),
    [
        (b"HEAD", DONE.partition(b"done")[0]),
        (b"POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"POST", b"HTTP/1.1 204 No Content\r\nContent-Length: 47\r\n\r\n"),
        (b"POST", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 47\r\n\r\n"),
    ],
    ids=["head", "204", "204-with-a-length", "304"],
)
async def test_a_body_behind_an_answer_that_has_none_is_nobodys_answer(method: bytes, wire: bytes) -> None:
    """What an upstream sends late behind a HEAD, 204 or 304 never answers the next request."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        if server.accepted > 1:
            writer.write(DONE)
            return
        writer.write(wire)
        # Only the next request brings it, so that nothing was to be seen before.
        await reader.readexactly(1)
        writer.write(FOREIGN)
        await reader.read()

    async with serving(handler) as server, upstream_to(server.port) as client:
        # Even where such connections were seen to last.
        client._pool._history.survived(60.0)
        await (await answer(client, request(method))).body.read_all(10)
        assert await (await answer(client)).body.read_all(10) == b"done"
        assert server.accepted == 2


@pytest.mark.parametrize(
    ("wire", "protected", "seen_seconds"),
    [(DONE, False, 0.0), (DONE, True, 0.0), (b"HTTP/1.1 204 No Content\r\n\r\n", False, 3600.0)],
    ids=["unprotected", "protected", "204"],
)
async def test_requests_use_fresh_connections_until_one_was_seen_to_last(
    wire: bytes, protected: bool, seen_seconds: float
) -> None:
    """Without experience a used connection is not trusted; with some it is. Behind a 204 something may come late, but
    an upstream that answers so all the time is not connected to anew each time either."""
    async with (
        serving(answering(wire)) as server,
        upstream_to(server.port, seen_to_last_seconds=seen_seconds) as client,
    ):
        for _ in range(2):
            await answer(client, protected=protected)
        assert wire != DONE or server.accepted == 2

        async def is_reused() -> bool:
            await answer(client, protected=protected)
            return client.stats.reused > 0

        await eventually(is_reused)
        accepted = server.accepted
        await answer(client, protected=protected)
        assert wire != DONE or server.accepted == accepted
        assert client.stats.died_on_reuse == 0


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("then", [None, FOREIGN, b"x"], ids=["fin", "answer", "a-byte"])
async def test_what_came_since_the_answer_is_seen_before_the_first_byte(
    authority: Authority, then: bytes | None, is_secure: bool
) -> None:
    """An end or bytes that arrive on an idle connection with the loop standing still condemn it all the same, also
    where a fresh connection may have to read some: its session tickets."""
    go, done = threading.Event(), threading.Event()
    server_tls, tls = None, None
    if is_secure:
        server_tls, tls = authority.issue().server_context(), tls_context(ca=authority.ca_file)

    def after(connection: socket.socket) -> None:
        go.wait(10)
        connection.close() if then is None else connection.sendall(then)
        done.set()

    with in_a_thread(after, lambda _: None, tls=server_tls) as port:
        async with upstream_to(port, tls=tls) as client:
            assert await (await answer(client)).body.read_all(10) == b"done"
            go.set()
            done.wait(10)
            assert await (await answer(client)).body.read_all(10) == b"done"
            assert (client.stats.reused, client.stats.opened) == (0, 2)


async def test_a_lost_keep_alive_race_is_in_doubt_and_teaches() -> None:
    """A connection that dies under its second request is not retried, and no used one is trusted for a while."""
    ends = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await reader.readexactly(1)
        if ends.is_set():
            await reader.readuntil(b"\r\n\r\n")
        ends.set()

    async with serving(handler) as server, upstream_to(server.port) as client:
        await answer(client)
        assert (await lost(client)).reason in (Unknown.CLOSED, Unknown.RESET)
        assert (server.accepted, len(server.requests), client.stats.died_on_reuse) == (1, 1, 1)
        for _ in range(3):
            await answer(client, protected=True)
        assert client.stats.reused == 1


async def test_an_upstream_that_closes_after_each_answer_never_causes_doubt() -> None:
    """Whoever closes silently gets a fresh connection for each protected request."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await writer.drain()

    async with serving(handler) as server, upstream_to(server.port, seen_to_last_seconds=0.0) as client:
        for _ in range(300):
            assert await (await answer(client, protected=True)).body.read_all(10) == b"done"
        assert len(server.requests) == 300


async def test_an_upstream_that_closes_soon_after_each_answer_fails_no_unprotected_request() -> None:
    """Nobody sends such a request again, so it is not sent where a service may be about to close, 0 to 6 ms later."""
    numbers = itertools.count()
    with in_a_thread(lambda it: threading.Timer(next(numbers) % 13 / 2000, it.close).start()) as port:
        async with upstream_to(port, seen_to_last_seconds=0.0) as client:
            for _ in range(300):
                assert await (await answer(client, request(b"GET"), b"")).body.read_all(10) == b"done"


async def test_answers_belong_to_their_own_requests() -> None:
    """Under concurrency, cancellations and unsolicited bytes every caller gets the answer to what it asked."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal condemned
        count = 0
        while True:
            _, body = await server.read_request(reader)
            count += 1
            condemned += count % 7 == 0
            wire = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            writer.write(wire + FOREIGN if count % 7 == 0 else wire)

    condemned = 0
    async with serving(handler) as server, upstream_to(server.port, connections_max=8) as client:

        async def ask(number: int) -> None:
            body = b"%d" % number
            asking = asyncio.create_task(send(client, body=body))
            if number % 5 == 0:
                for _ in range(number % 11):
                    await asyncio.sleep(0)
                asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                result = await asking
                assert isinstance(result, UpstreamResponse)
                assert await result.body.read_all(100) == body

        await asyncio.gather(*(ask(number) for number in range(400)))
        assert condemned > 0


@pytest.mark.parametrize("protected", [False, True], ids=["unprotected", "protected"])
async def test_a_place_is_taken_from_a_connection_that_may_not_serve(protected: bool) -> None:
    """At the limit an idle connection that is not trusted makes room for a fresh one."""
    limits = {"connections_max": 1, "seen_to_last_seconds": 0.0}
    async with serving(answering(DONE)) as server, upstream_to(server.port, **limits) as client:
        for _ in range(3):
            await answer(client, protected=protected)
        assert client.stats.opened == 3 - client.stats.reused
