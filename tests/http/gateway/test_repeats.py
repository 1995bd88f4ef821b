"""A request that comes again in every byte is read and judged like any other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.support.house import BODY, house, sqlite_store, status_of
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


def undated(response: Response) -> tuple[object, ...]:
    fields = [field for field in response.headers if field[0].lower() != b"date"]
    return response.status, response.reason, fields, response.body


async def test_each_repeat_gets_the_same(tmp_path: Path) -> None:
    """The second, third and fourth repeat are the first one's bytes, on the same connection and on another."""
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as first:
        home.upstream.on("/charges", Answer(201, headers=[("X-A", "1"), ("X-A", "2")], body=b"paid"))
        assert status_of(await say(first, charge())) == (201, "stored")
        replays = [await say(first, charge()) for _ in range(3)]
        async with Connection(home.port) as other:
            replays.append(await say(other, charge()))
        assert [status_of(replay) for replay in replays] == [(201, "replayed")] * 4
        assert len({repr(undated(replay)) for replay in replays}) == 1
        assert len(home.upstream.requests) == 1
        metrics = (await home.status("/metrics")).body.decode()
        (count,) = re.findall(r'idempotency_requests_total\{route="charge",verdict="replayed"\} (\S+)', metrics)
        assert float(count) == 4.0


async def test_other_bytes_are_read(tmp_path: Path) -> None:
    """One byte less or more, another body, key or tenant is another request, however well its neighbour is known."""
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        for verdict in ("stored", "replayed", "replayed"):
            assert status_of(await say(connection, charge())) == (200, verdict)
        assert status_of(await say(connection, charge(body=BODY.replace(b"1000", b"9000")))) == (422, "key-reused")
        assert status_of(await say(connection, charge("k2"))) == (200, "stored")
        assert status_of(await say(connection, charge(tenant="t2"))) == (200, "stored")
        assert status_of(await say(connection, charge(headers="X-More: 1\r\n"))) == (200, "replayed")
        twice = await say(connection, charge(headers="X-Tenant: t2\r\n"))
        assert status_of(twice) == (400, "request-invalid")


async def test_another_peer_is_asked_who_it_is(tmp_path: Path) -> None:
    """The bytes of a trusted hop prove nothing when somebody else sends them."""
    scope = {"header": "X-Tenant", "from": ["127.0.0.1/32"]}
    async with house(sqlite_store(tmp_path), tmp_path, route={"scope": scope}) as home:
        async with Connection(home.port) as trusted:
            for verdict in ("stored", "replayed", "replayed"):
                assert status_of(await say(trusted, charge())) == (200, verdict)
        reader, writer = await asyncio.open_connection("127.0.0.1", home.port, local_addr=("127.0.0.2", 0))
        try:
            writer.write(charge())
            line = await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()
        assert line == b"HTTP/1.1 400 Bad Request\r\n"


async def test_segments_do_not_matter(tmp_path: Path) -> None:
    """A known request is answered once, whether its bytes come cut, together with others, or after an empty line."""
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        for verdict in ("stored", "replayed", "replayed"):
            assert status_of(await say(connection, charge())) == (200, verdict)
        data = charge()
        for cut in (1, 30, len(data) - 1):
            await connection.send(data[:cut])
            assert status_of(await say(connection, data[cut:])) == (200, "replayed")
        await connection.send(data + charge("k2") + data + b"\r\n" + data)
        words = [status_of(await connection.read_response("POST"))[1] for _ in range(4)]
        assert words == ["replayed", "stored", "replayed", "replayed"]
        assert len(home.upstream.requests) == 2


async def test_a_request_that_waits_its_turn(tmp_path: Path) -> None:
    """A known request behind one that is being worked on is answered after it."""
    async with house(sqlite_store(tmp_path), tmp_path) as home, Connection(home.port) as connection:
        for verdict in ("stored", "replayed", "replayed"):
            assert status_of(await say(connection, charge())) == (200, verdict)
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(202, hold=hold))
        await connection.send(charge("slow"))
        await home.upstream.wait_for_requests(2)
        await connection.send(charge())
        hold.set()
        assert status_of(await connection.read_response("POST")) == (202, "stored")
        assert status_of(await connection.read_response("POST")) == (200, "replayed")


async def test_overload_is_for_known_requests_too(tmp_path: Path) -> None:
    """What is refused early is refused whether it is known or not."""
    async with (
        house(sqlite_store(tmp_path), tmp_path, limits={"max_in_flight": 1}) as home,
        Connection(home.port) as connection,
    ):
        for verdict in ("stored", "replayed", "replayed"):
            assert status_of(await say(connection, charge())) == (200, verdict)
        slow, hold = await home.begin("slow")
        assert status_of(await say(connection, charge())) == (503, "overloaded")
        hold.set()
        assert status_of(await slow) == (200, "stored")
        assert status_of(await say(connection, charge())) == (200, "replayed")
