"""Which connection serves the next request, and which never serves one again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from gateway.upstream import Lost, NotSent, SentNothing, Unknown, UpstreamResponse, tls_context
from gateway.upstream.pool import IdleHistory
from tests.http.upstream.wire import DONE, Server, all_closed, answer, answering, request, send, serving, upstream_to
from tests.support.eventually import eventually
from tests.support.tls import Authority

FOREIGN = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"


@contextlib.contextmanager
def in_a_thread(
    *after_answer: bytes | None, go: threading.Event | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[threading.Event]]]:
    """A server that does something right after its n-th answer, with the loop standing still: bytes, or FIN for None.

    Gives its port and, for each connection, the event that it was done. With `go` it waits for that before it does it.
    """
    done = [threading.Event() for _ in after_answer]
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connections = []
        with contextlib.suppress(OSError):
            for then, event in zip(after_answer, done, strict=True):
                connection, _ = listener.accept()
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                connections.append(connection)
                connection.recv(65536)
                connection.sendall(DONE)
                if go is not None:
                    go.wait(10)
                if then is None:
                    connection.close()
                else:
                    connection.sendall(then)
                event.set()
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], done
    finally:
        # Wakes a server that still waits for somebody.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize("protected", [False, True], ids=["unprotected", "protected"])
async def test_requests_use_fresh_connections_until_one_was_seen_to_last(protected: bool) -> None:
    """Without experience a used connection is not trusted; with some it is."""
    async with serving(answering(DONE)) as server, upstream_to(server.port, seen_to_last_seconds=0.0) as client:
        await answer(client, protected=protected)
        await answer(client, protected=protected)
        assert server.accepted == 2

        async def is_reused() -> bool:
            await answer(client, protected=protected)
            return client.stats.reused > 0

        await eventually(is_reused)
        accepted = server.accepted
        await answer(client, protected=protected)
        assert server.accepted == accepted
        assert client.stats.died_on_reuse == 0


@pytest.mark.parametrize(
    "fields",
    [b"Connection: close\r\n", b"Keep-Alive: timeout=1\r\n", b"Connection: close\r\nKeep-Alive: timeout=9\r\n"],
    ids=["close", "announced-too-short", "close-beats-announced"],
)
async def test_what_the_upstream_says_of_its_connection_is_believed(fields: bytes) -> None:
    """A connection that is about to be closed serves no second request."""
    wire = DONE.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n")
    async with serving(answering(wire)) as server, upstream_to(server.port) as client:
        for _ in range(2):
            await answer(client)
        assert server.accepted == 2


async def test_http_1_0_is_not_kept() -> None:
    """Without an explicit keep-alive the connection ends with the answer."""
    async with serving(answering(DONE.replace(b"1.1", b"1.0"))) as server, upstream_to(server.port) as client:
        for _ in range(2):
            await answer(client)
        assert server.accepted == 2


async def test_a_connection_that_was_idle_for_too_long_is_closed() -> None:
    """Nothing is kept beyond the keepalive time, and having lasted so long is experience."""
    settings = {"keepalive_seconds": 0.5, "seen_to_last_seconds": 0.0}
    async with serving(answering(DONE)) as server, upstream_to(server.port, **settings) as client:
        await answer(client)
        await all_closed(client)
        assert client._pool._history.allows(0.4, asyncio.get_running_loop().time())
        await answer(client, protected=True)
        await answer(client, protected=True)
        assert (server.accepted, client.stats.reused) == (2, 1)


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
@pytest.mark.parametrize("protected", [False, True], ids=["unprotected", "protected"])
async def test_a_body_behind_an_answer_that_has_none_is_nobodys_answer(
    method: bytes, wire: bytes, protected: bool
) -> None:
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
        assert await (await answer(client, protected=protected)).body.read_all(10) == b"done"
        assert server.accepted == 2


async def test_a_connection_serves_on_after_a_204_once_nothing_came_for_a_while() -> None:
    """Its rest is short: an upstream that answers 204 all the time is not connected to anew each time."""
    async with serving(answering(b"HTTP/1.1 204 No Content\r\n\r\n")) as server, upstream_to(server.port) as client:
        await answer(client)

        async def is_reused() -> bool:
            await answer(client)
            return client.stats.reused > 0

        await eventually(is_reused)
        assert client.stats.died_on_reuse == 0


@pytest.mark.parametrize("then", [None, FOREIGN, b"x"], ids=["fin", "an-answer", "a-byte"])
async def test_what_came_since_the_answer_is_seen_before_the_first_byte(then: bytes | None) -> None:
    """An end or bytes that arrive on an idle connection with the loop standing still condemn it all the same."""
    go = threading.Event()
    with in_a_thread(then, b"", go=go) as (port, done):
        async with upstream_to(port) as client:
            assert await (await answer(client)).body.read_all(10) == b"done"
            go.set()
            done[0].wait(10)
            assert await (await answer(client)).body.read_all(10) == b"done"
            assert (client.stats.reused, client.stats.opened) == (0, 2)


@pytest.mark.parametrize("then", [None, FOREIGN, b"x"], ids=["fin", "an-answer", "a-byte"])
async def test_what_came_since_the_answer_over_tls(authority: Authority, then: bytes | None) -> None:
    """Bytes that a fresh connection may have to read, its session tickets, condemn a used one."""
    go = threading.Event()
    tls = tls_context(ca=authority.ca_file)
    with in_a_thread(then, b"", go=go, tls=authority.issue().server_context()) as (port, done):
        async with upstream_to(port, tls=tls) as client:
            assert await (await answer(client)).body.read_all(10) == b"done"
            go.set()
            done[0].wait(10)
            assert await (await answer(client)).body.read_all(10) == b"done"
            assert (client.stats.reused, client.stats.opened) == (0, 2)


async def test_a_lost_keep_alive_race_is_in_doubt_and_teaches() -> None:
    """A connection that dies under its second request is not retried, and no used one is trusted for a while."""
    ends = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE)
        await reader.readexactly(1)
        if not ends.is_set():
            ends.set()
            return
        await reader.readuntil(b"\r\n\r\n")

    async with serving(handler) as server, upstream_to(server.port) as client:
        await answer(client)
        result = await send(client)
        assert isinstance(result, Lost)
        assert result.reason in (Unknown.CLOSED, Unknown.RESET)
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


@contextlib.contextmanager
def closing_soon() -> Iterator[int]:
    """The port of a service that closes each connection 0 to 6 ms after its answer, and says nothing of it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            for number in itertools.count():
                connection, _ = listener.accept()
                connection.recv(65536)
                connection.sendall(DONE)
                threading.Timer(number % 13 / 2000, connection.close).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_an_upstream_that_closes_soon_after_each_answer_fails_no_unprotected_request() -> None:
    """Nobody sends such a request again, so it is not sent where a service may be about to close."""
    with closing_soon() as port:
        async with upstream_to(port, seen_to_last_seconds=0.0) as client:
            lost = 0
            for _ in range(300):
                result = await send(client, request(b"GET"), b"")
                if isinstance(result, UpstreamResponse):
                    assert await result.body.read_all(10) == b"done"
                else:
                    lost += 1
            assert lost == 0


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


async def test_connections_are_bounded_and_waiting_ends() -> None:
    """Beyond the limit a request waits for a place, and gives up in time without having sent anything."""
    release = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.read_request(reader)
            await release.wait()
            writer.write(DONE)

    async with serving(handler) as server:
        async with upstream_to(server.port, connections_max=2, connect_timeout_seconds=0.5) as client:
            running = [asyncio.create_task(send(client)) for _ in range(2)]
            await eventually(lambda: len(server.requests) == 2)
            result = await send(client)
            assert isinstance(result, NotSent)
            assert result.reason is SentNothing.POOL_TIMEOUT
            release.set()
            assert all(isinstance(result, UpstreamResponse) for result in await asyncio.gather(*running))
        release.clear()
        async with upstream_to(server.port, connections_max=2, connect_timeout_seconds=30) as client:
            running = [asyncio.create_task(send(client)) for _ in range(9)]
            await eventually(lambda: len(server.requests) == 4)
            assert len(client._pool._waiting_others) == 7
            running[5].cancel()
            running[6].cancel()
            release.set()
            results = await asyncio.gather(*running, return_exceptions=True)
            assert sum(isinstance(result, UpstreamResponse) for result in results) == 7
            assert client.stats.opened == 2


async def test_requests_that_last_keep_no_protected_one_out() -> None:
    """There are places for it alone, which nobody else gets when it is done."""
    release = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await server.read_request(reader)
            if b"/lasts" in head:
                await release.wait()
            writer.write(DONE)

    limits = {"connections_max": 2, "connections_reserved": 1, "connect_timeout_seconds": 30}
    async with serving(handler) as server, upstream_to(server.port, **limits) as client:
        lasting = [asyncio.create_task(send(client, request(target=b"/lasts"))) for _ in range(3)]
        await eventually(lambda: len(server.requests) == 2 and len(client._pool._waiting_others) == 1)
        for _ in range(2):
            await answer(client, protected=True)
        assert len(client._pool._waiting_others) == 1
        release.set()
        assert all(isinstance(result, UpstreamResponse) for result in await asyncio.gather(*lasting))


async def test_answers_that_last_keep_no_operation_out() -> None:
    """Once only the rest of its answer is passed on, an operation has its place no more."""
    release = asyncio.Event()

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
            await release.wait()
            writer.write(b"k")

    limits = {"connections_max": 1, "connections_reserved": 1, "connect_timeout_seconds": 30}
    async with serving(handler) as server, upstream_to(server.port, **limits) as client:
        streams = []
        for _ in range(4):
            stream = await answer(client, protected=True)
            stream.body.allow_to_outlast()
            streams.append(stream)
        waiting = asyncio.create_task(answer(client))
        await eventually(lambda: len(client._pool._waiting_others) == 1)
        release.set()
        for stream in (*streams, await waiting):
            assert await stream.body.read_all(2) == b"ok"


@pytest.mark.parametrize("protected", [False, True], ids=["unprotected", "protected"])
async def test_a_place_is_taken_from_a_connection_that_may_not_serve(protected: bool) -> None:
    """At the limit an idle connection that is not trusted makes room for a fresh one."""
    limits = {"connections_max": 1, "seen_to_last_seconds": 0.0}
    async with serving(answering(DONE)) as server, upstream_to(server.port, **limits) as client:
        for _ in range(3):
            await answer(client, protected=protected)
        assert client.stats.opened == 3 - client.stats.reused


def test_history_trusts_only_what_it_has_seen() -> None:
    """A time is allowed when a connection has clearly survived it."""
    history = IdleHistory()
    assert not history.allows(0.0, now=100.0)
    history.survived(1.0)
    assert history.allows(0.9, now=100.0)
    assert not history.allows(0.96, now=100.0)
    history.survived(0.5)
    assert history.allows(0.9, now=100.0)


def test_history_remembers_an_early_end_for_a_while() -> None:
    """After an early end nothing that old is trusted, longer each time it happens again, and not for ever."""
    history = IdleHistory()
    history.survived(2.0)
    history.closed_early(0.3, now=100.0)
    assert history.allows(0.2, now=101.0)
    assert not history.allows(0.3, now=101.0)
    assert history.allows(0.3, now=110.0)
    for _ in range(50):
        history.closed_early(0.0, now=120.0)
    history.closed_early(1.0, now=121.0)
    assert not history.allows(0.0, now=140.0)
    assert history.allows(0.0, now=141.0)
