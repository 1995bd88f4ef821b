"""Long answers that clients have yet to read, and requests that are here in part: for each a bound for all together."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack

import pytest

from gateway.http.connection import EdgeSettings, MemoryBudget
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from tests.http.edge.harness import HOST, post, reading_nothing, reply, serving, serving_before
from tests.support.eventually import eventually
from tests.support.http import Connection, request
from tests.support.tls import Authority

MIB = 1 << 20
LONG_BYTES = 16 * MIB


class Client:
    """Reads nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_whoever_has_had_time_goes_before_a_newcomer_that_holds_more() -> None:
    """Of those who have had it, the one that holds the most; what changes meanwhile makes nobody a newcomer. A single
    answer may be longer than the bound."""
    now = 0.0
    unread = MemoryBudget(100, lambda: now)
    slow, slower, newcomer, larger = clients = [Client() for _ in range(4)]
    with unread.held(larger, 200):
        assert not larger.is_aborted
    unread.hold(slow, 20)
    unread.hold(slower, 10)
    unread.hold(slower, 30)
    now = 5.0
    unread.hold(newcomer, 45)
    assert not any(client.is_aborted for client in clients)
    unread.hold(newcomer, 60)
    assert [client.is_aborted for client in clients] == [False, True, False, False]
    unread.hold(larger, 40)
    assert [client.is_aborted for client in clients] == [True, True, False, False]
    assert unread.held_bytes == 100


@pytest.mark.parametrize(
    ("is_secure", "answer_bytes"),
    [(False, LONG_BYTES), (True, LONG_BYTES), (True, 400_000)],
    ids=["plain", "tls", "tls-as-much-as-a-loop-would-take"],
)
async def test_clients_that_do_not_read_cannot_fill_the_memory(
    authority: Authority, is_secure: bool, answer_bytes: int
) -> None:
    """One of them is broken off for each that is too many; whoever reads gets its answer meanwhile."""
    tls = authority.issue("localhost").server_context() if is_secure else None
    own = authority.client_context() if is_secure else None

    async def answer(incoming: Request) -> Reply:
        return reply(b"short" if b"short" in incoming.head.target else bytes(answer_bytes))

    settings = EdgeSettings(unread_bytes_max=2 * answer_bytes)
    async with serving(answer, settings=settings, tls=tls) as edge, AsyncExitStack() as stack:
        unread = edge.edge.handler.unread
        for count in (1, 2, 2, 2):
            before = set(edge.edge._clients)
            client = await stack.enter_async_context(reading_nothing(edge.port, authority if is_secure else None))
            if is_secure:
                (connection,) = await eventually(lambda before=before: set(edge.edge._clients) - before)  # type: ignore[misc]
                # So that it is not the system that takes it.
                connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            client.sendall(post())
            await eventually(lambda count=count: unread.held_bytes == count * answer_bytes)  # type: ignore[misc]
            await eventually(lambda count=count: edge.edge.connections == count)  # type: ignore[misc]
        async with Connection(edge.port, tls=own) as reader:
            await reader.send(post(target=b"/pay/short"))
            assert (await reader.read_response()).body == b"short"
            await reader.send(post())
            assert len((await reader.read_response()).body) == answer_bytes
    assert unread.held_bytes == 0


def padding(size: int) -> bytes:
    return b"X-Padding: %b\r\n" % (b"x" * size)


def begun(size: int) -> bytes:
    """A head without its end."""
    return post(padding(size), b"").removesuffix(b"\r\n\r\n")


async def test_requests_that_are_begun_and_not_ended_cannot_fill_the_memory() -> None:
    """Whoever sent the most is broken off; the others may go on, and then nothing is held for them, nor for one that
    goes."""
    async with (
        serving(settings=EdgeSettings(begun_bytes_max=100_000)) as edge,
        Connection(edge.port) as first,
        Connection(edge.port) as largest,
        Connection(edge.port) as last,
    ):
        held = edge.edge.begun
        await first.send(begun(30_000))
        await eventually(lambda: held.held_bytes > 30_000)
        await largest.send(begun(50_000))
        await eventually(lambda: held.held_bytes > 80_000)
        await last.send(begun(40_000))
        with pytest.raises(ConnectionError):
            await largest.read_rest()
        for client in (first, last):
            await client.send(b"\r\n\r\n")
            assert (await client.read_response()).status == 200
        assert held.held_bytes == 0
        await first.send(begun(30_000))
        await eventually(lambda: held.held_bytes > 30_000)
        first.reset()
        await eventually(lambda: held.held_bytes == 0)


async def test_requests_that_wait_for_their_turn_cannot_fill_the_memory() -> None:
    """What comes behind a request that is being answered counts like one that is begun, until its turn comes."""
    answered = asyncio.Event()

    async def answer(_: Request) -> Reply:
        await answered.wait()
        return reply()

    async with (
        serving(answer, settings=EdgeSettings(begun_bytes_max=60_000)) as edge,
        Connection(edge.port) as client,
        Connection(edge.port) as larger,
    ):
        held = edge.edge.begun
        behind = post(padding(30_000))
        await client.send(post() + behind)
        await eventually(lambda: held.held_bytes > len(behind))
        await larger.send(post() + behind + behind)
        with pytest.raises(ConnectionError):
            await larger.read_rest()
        answered.set()
        for _ in range(2):
            assert (await client.read_response()).status == 200
        assert held.held_bytes == 0


def test_room_is_made_at_little_cost_where_many_hold_a_little() -> None:
    """Not by a look at all of them for each byte that comes."""
    budget = MemoryBudget(20_000 * 4096)
    for _ in range(20_000):
        budget.hold(Client(), 4096)
    began = time.process_time()
    for _ in range(2_000):
        budget.hold(Client(), 4096)
    assert time.process_time() - began < 5.0
    assert budget.held_bytes <= 20_000 * 4096


async def test_a_slow_upload_gives_way_to_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told that it was too slow, and the newcomer is served."""
    monkeypatch.setattr("gateway.http.connection._CROWDED_SECONDS", 0.0)
    has_begun = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            has_begun.set()
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    limits = {"connections_max": 1, "connect_timeout_seconds": 1.0}
    async with serving_before(accept, **limits) as edge, Connection(edge.port) as slow:
        await slow.send(b"POST /uploads HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nslow")
        await has_begun.wait()
        # At once it is not slow yet.
        while (await request(edge.port, "GET", "/")).status == 503:
            pass
        assert (await slow.read_response("POST")).status == 408
