"""A request that comes again in every byte is read and judged like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.http.gateway.asking import metric
from tests.support.house import BODY, House, house, sqlite_store, status_of
from tests.support.http import Connection, Response
from tests.support.upstream import Answer


def charge(key: str = "k1", headers: str = "", body: bytes = BODY, tenant: str = "t1") -> bytes:
    """A request as bytes, the same each time."""
    head = f"POST /charges HTTP/1.1\r\nHost: shop.test\r\nContent-Type: application/json\r\nX-Tenant: {tenant}\r\n"
    head += f"Idempotency-Key: {key}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def say(connection: Connection, data: bytes) -> Response:
    await connection.send(data)
    return await connection.read_response("POST")


@asynccontextmanager
async def known(directory: Path, **changes: Any) -> AsyncIterator[tuple[House, Connection]]:
    """A gateway that knows a request well, and the connection on which it came so often."""
    async with house(sqlite_store(directory), directory, **changes) as home, Connection(home.port) as connection:
        home.upstream.on("/charges", Answer(201, headers=[("X-A", "1"), ("X-A", "2")], body=b"paid"), Answer())
        for verdict in ("stored", "replayed", "replayed"):
            assert status_of(await say(connection, charge())) == (201, verdict)
        yield home, connection


async def test_each_repeat_gets_the_same(tmp_path: Path) -> None:
    """The repeats are the first one's bytes, on the same connection and on another, whether they come cut, together
    with others, after an empty line, or behind one that is being worked on."""
    async with known(tmp_path) as (home, connection):
        replays = [await say(connection, charge())]
        async with Connection(home.port) as other:
            replays.append(await say(other, charge()))
        data = charge()
        for cut in (1, 30, len(data) - 1):
            await connection.send(data[:cut])
            replays.append(await say(connection, data[cut:]))
        await connection.send(data + charge("k2") + data + b"\r\n" + data)
        together = [await connection.read_response("POST") for _ in range(4)]
        assert status_of(together.pop(1)) == (200, "stored")
        replays += together
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(202, hold=hold))
        await connection.send(charge("slow"))
        await home.upstream.wait_for_requests(3)
        await connection.send(data)
        hold.set()
        assert status_of(await connection.read_response("POST")) == (202, "stored")
        replays.append(await connection.read_response("POST"))
        assert {status_of(replay) for replay in replays} == {(201, "replayed")}
        told = [
            (each.status, each.reason, [field for field in each.headers if field[0].lower() != b"date"], each.body)
            for each in replays
        ]
        assert told == [told[0]] * len(told)
        assert len(home.upstream.requests) == 3
        assert await metric(home, "requests_total", route="charge", verdict="replayed") == len(replays) + 2


async def test_other_bytes_are_read(tmp_path: Path) -> None:
    """One byte less or more, another body, key or tenant is another request, however well its neighbour is known; and
    what is refused early is refused whether it is known or not."""
    async with known(tmp_path, limits={"max_in_flight": 1}) as (home, connection):
        for other, expected in (
            (charge(body=BODY.replace(b"1000", b"9000")), (422, "key-reused")),
            (charge("k2"), (200, "stored")),
            (charge(tenant="t2"), (200, "stored")),
            (charge(headers="X-More: 1\r\n"), (201, "replayed")),
            (charge(headers="X-Tenant: t2\r\n"), (400, "request-invalid")),
        ):
            assert status_of(await say(connection, other)) == expected
        async with Connection(home.port) as another:
            slow, hold = await home.begin("slow")
            assert status_of(await say(another, charge())) == (503, "overloaded")
            hold.set()
            assert status_of(await slow) == (200, "stored")
            assert status_of(await say(another, charge())) == (201, "replayed")


async def test_another_peer_is_asked_who_it_is(tmp_path: Path) -> None:
    """The bytes of a trusted hop prove nothing when somebody else sends them."""
    async with known(tmp_path, route={"scope": {"header": "X-Tenant", "from": ["127.0.0.1/32"]}}) as (home, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", home.port, local_addr=("127.0.0.2", 0))
        try:
            writer.write(charge())
            line = await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()
        assert line == b"HTTP/1.1 400 Bad Request\r\n"
