"""Clients over TLS that are slow to read their answers, or do not: the same holds for them as without it."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from gateway.http.connection import EdgeSettings
from tests.http.edge.harness import HOST, post, reading_nothing, reply, serving, taken_by
from tests.support.eventually import eventually
from tests.support.tls import Authority
from tests.support.upstream import Answer, Ending, RecordingUpstream

# More than the buffers of the system take.
LONG_BYTES = 16 << 20

FIELDS = pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"], ids=["kept-alive", "to-be-closed"])
TLS = pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
IMPATIENT = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.1)


def context_of(authority: Authority, is_secure: bool = True) -> ssl.SSLContext | None:
    return authority.issue("localhost").server_context() if is_secure else None


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself asyncio's own loop waits as good as not at all for those who read slowly."""
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 0.05)


async def some_of(client: socket.socket) -> int:
    """Read a little of an answer that is not at its end; how much it was."""
    count = len(await asyncio.to_thread(client.recv, 1 << 14))
    assert count
    return count


async def rest_of(client: socket.socket) -> int:
    """Read until the end, which must be a proper one; how much it was."""
    count = 0
    while some := await asyncio.to_thread(client.recv, 1 << 14):
        count += len(some)
    return count


@TLS
@FIELDS
async def test_a_client_that_reads_slowly_gets_all_of_its_answer(
    authority: Authority, fields: bytes, is_secure: bool
) -> None:
    """What has yet to leave when the connection is closed leaves for as long as the client reads."""
    settings = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.5, bytes_per_second_min=1.0)
    tls = context_of(authority, is_secure)
    async with serving(reply(b"x" * LONG_BYTES), settings=settings, tls=tls) as edge:
        async with reading_nothing(edge.port, authority if is_secure else None) as client:
            client.sendall(post(fields))
            (connection,) = await eventually(lambda: list(edge.edge._clients))
            got = await some_of(client)
            # Some of it between any two looks of the edge at its reader, while it writes and, over TLS, when all of it
            # is encrypted; and the rest after a few of them.
            for is_written in (False, is_secure):
                while is_written and connection.is_busy:
                    got += await some_of(client)
                for _ in range(2):
                    due, taken = connection._reader.due, taken_by(connection)
                    while taken_by(connection) == taken:
                        got += await some_of(client)
                    await eventually(lambda due=due: connection._reader.due != due)  # type: ignore[misc]
            assert got + await rest_of(client) > LONG_BYTES
        await eventually(lambda: edge.edge.connections == 0)


@TLS
@FIELDS
@pytest.mark.parametrize("is_short", [False, True], ids=["long", "short"])
async def test_a_client_that_does_not_read_its_answer_is_broken_off(
    authority: Authority, fields: bytes, is_secure: bool, is_short: bool
) -> None:
    """Nobody can hold a connection by reading nothing, or by no farewell; a short answer is there to be read later."""
    body = b"done" if is_short else b"x" * LONG_BYTES
    tls = context_of(authority, is_secure)
    async with (
        serving(reply(body), settings=IMPATIENT, tls=tls) as edge,
        reading_nothing(edge.port, authority if is_secure else None) as client,
    ):
        client.sendall(post(fields))
        await eventually(lambda: edge.edge.connections == 1)
        await eventually(lambda: edge.edge.connections == 0, what="the connection is broken off")
        assert not is_short or await rest_of(client) > 0


async def test_a_tunnel_that_ends_and_is_not_read(authority: Authority) -> None:
    """What is left of it holds the connection no longer than the rest of an answer does."""
    asks = b"GET /socket HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with (
        RecordingUpstream() as upstream,
        serving(to=upstream.port, settings=IMPATIENT, tls=context_of(authority)) as edge,
        reading_nothing(edge.port, authority) as client,
    ):
        # More than the system takes, and less than makes whoever writes it wait.
        upstream.on("/socket", Answer(raw=switched + bytes(100_000), ending=Ending.CLOSE))
        (connection,) = await eventually(lambda: list(edge.edge._clients))
        assert connection.transport is not None
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.sendall(asks)
        await upstream.wait_for_requests(1)
        await eventually(lambda: edge.edge.connections == 0, what="the connection is broken off")
        await eventually(lambda: edge.edge.in_flight == 0, what="nothing is left in flight")
