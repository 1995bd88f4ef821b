"""The edge begins, drains and ends, and keeps connections as long as it may."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import AsyncExitStack

import pytest

from gateway.http.connection import EdgeSettings
from gateway.http.server import ListenError
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, PROTECTED, post, reading_nothing, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange
from tests.support.tls import Authority


async def test_idle_connections_are_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a FIN. A few are looked at at a time, so that a look at all of them holds nobody up."""
    monkeypatch.setattr("gateway.http.server._SWEEP_CONNECTIONS_MAX", 2)
    monkeypatch.setattr("gateway.http.server._SWEEP_SECONDS", 0.01)
    hold = asyncio.Event()

    async def answer(_: Request) -> Reply:
        await hold.wait()
        return reply()

    async with serving(answer, settings=EdgeSettings(keepalive_seconds=0.1)) as edge, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Connection(edge.port)) for _ in range(7)]
        # The first ones stay, and do not keep the others from being looked at.
        for busy in clients[:3]:
            await busy.send(post())
        for idle in clients[3:]:
            assert await idle.read_rest() == b""
        hold.set()
        for busy in clients[:3]:
            assert (await busy.read_response()).status == 200


async def test_a_handshake_that_does_not_come_is_not_waited_for_long(authority: Authority) -> None:
    """A connection that never says anything over TLS is given up, for it takes a descriptor and memory."""
    tls = authority.issue().server_context()
    async with serving(settings=EdgeSettings(handshake_seconds=0.2), tls=tls) as edge, Connection(edge.port) as mute:
        assert await mute.read_rest() == b""
        assert edge.edge.connections == 0


@pytest.mark.parametrize("bounds", [{"handshakes_max": 1}, {"connections_max": 7}], ids=["number", "descriptors"])
async def test_handshakes_are_bounded_and_a_newcomer_gets_its_own(authority: Authority, bounds: dict[str, int]) -> None:
    """The one that has lasted longest makes room; the end of the edge waits for none."""
    tls = authority.issue("localhost").server_context()
    settings = EdgeSettings(handshake_seconds=60.0, **bounds)
    async with serving(settings=settings, tls=tls) as edge, Connection(edge.port) as mute:
        await eventually(lambda: len(edge.edge._handshakes) == 1)
        async with Connection(edge.port, tls=authority.client_context()) as client:
            await client.send(post())
            assert (await client.read_response()).status == 200
        assert await mute.read_rest() == b""
        async with Connection(edge.port):
            await eventually(lambda: len(edge.edge._handshakes) == 1)
            await edge.edge.close()
            assert len(edge.edge._handshakes) == 0


async def test_a_client_over_tls_that_does_not_look_does_not_hold_up_the_end(authority: Authority) -> None:
    """It has its answer, and finds the connection ended when it needs it again. Another one leaves meanwhile."""
    tls = authority.issue("localhost").server_context()
    settings = EdgeSettings(linger_seconds=3600.0)

    # Sockets alone: a loop reads ahead of a protocol that has paused, and answers the end by itself.
    async with (
        serving(settings=settings, tls=tls) as edge,
        reading_nothing(edge.port, authority) as client,
        reading_nothing(edge.port, authority) as other,
    ):
        for each in (client, other):
            each.sendall(post())
        await eventually(lambda: len(edge.taken) == 2 and not edge.edge.in_flight)
        closing = asyncio.create_task(edge.edge.close())
        other.close()
        async with asyncio.timeout(10):
            await closing
        received = await asyncio.to_thread(lambda: b"".join(iter(lambda: client.recv(65536), b"")))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\ndone")


async def test_what_is_in_flight_ends_and_nothing_new_begins() -> None:
    """The listener goes at once, and so do connections that are idle, never spoke, or sent half a head; a request that
    is running is answered, even one still coming in."""
    async with (
        serving() as edge,
        Connection(edge.port) as silent,
        Connection(edge.port) as half_head,
        Connection(edge.port) as idle,
        Connection(edge.port) as busy,
    ):
        await half_head.send(b"POST " + PROTECTED.encode())
        await idle.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await idle.read_response()).status == 404
        await busy.send(post()[:-1])
        await eventually(lambda: edge.edge.in_flight == 1 and edge.edge.connections == 4)
        closing = asyncio.ensure_future(edge.edge.close(30.0))
        for each in (silent, half_head, idle):
            assert await each.read_rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await exchange(edge.port, post())
        await busy.send(b"}")
        response = await busy.read_response()
        assert (response.status, response.header("connection")) == (200, "close")
        assert await closing == 0
        assert edge.edge.in_flight == edge.edge.connections == 0


async def test_a_port_that_is_taken_after_the_bind_is_said_clearly() -> None:
    """A worker listens later than its supervisor binds: on nothing when another program was faster, and says so."""
    with socket.socket() as bound, socket.socket() as faster:
        for sock in (faster, bound):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(faster.getsockname() if sock is bound else ("127.0.0.1", 0))
        faster.listen()
        async with serving() as edge:
            with pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:\d+: another program"):
                await edge.edge.listen_on(bound)
        assert bound.fileno() == -1


@pytest.mark.parametrize(
    ("host", "why"),
    [("192.0.2.1", "this machine has no such address"), ("gateway.invalid", "the host name cannot be resolved")],
)
async def test_where_it_cannot_listen_is_said_clearly(host: str, why: str) -> None:
    """The operator reads address and reason: the one is nobody's (RFC 5737), the other never resolves (RFC 6761)."""
    async with serving() as edge:
        with pytest.raises(ListenError, match=rf"cannot listen on {re.escape(host)}:8080: {why}"):
            await edge.edge.start(host=host, port=8080)


async def test_more_connections_than_there_may_be() -> None:
    """The one that has been idle for longest makes room, whenever it was opened. Where all are busy, a newcomer is
    turned away by RST, and they are served; one that goes makes room."""
    may_answer = asyncio.Event()
    may_answer.set()

    async def answer(_: Request) -> Reply:
        await may_answer.wait()
        return reply()

    async with (
        serving(answer, settings=EdgeSettings(connections_max=2)) as edge,
        Connection(edge.port) as first,
        Connection(edge.port) as second,
    ):
        await eventually(lambda: edge.edge.connections == 2)
        for connection in (first, second, first):
            await connection.send(post())
            assert (await connection.read_response()).status == 200
            await a_moment()
        async with Connection(edge.port) as third:
            await third.send(post())
            assert (await third.read_response()).status == 200
            with pytest.raises(ConnectionError):
                await second.read_response()
            may_answer.clear()
            for connection in (first, third):
                await connection.send(post())
            await eventually(lambda: edge.edge.in_flight == 2)
            with pytest.raises(ConnectionError):
                await exchange(edge.port, post())
            may_answer.set()
            for connection in (first, third):
                assert (await connection.read_response()).status == 200
        await eventually(lambda: edge.edge.connections == 1)
        assert (await exchange(edge.port, post())).status == 200


async def a_moment() -> None:
    """Times are as coarse as milliseconds."""
    now = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() > now)
