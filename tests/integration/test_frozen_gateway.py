"""A gateway that does not run for a while blames nobody for that time: what has come meanwhile counts as in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.hand import begin
from tests.support import fleet
from tests.support.eventually import eventually
from tests.support.fleet import process
from tests.support.full_service import FullService, answer
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, sqlite_store, status_of
from tests.support.http import Response
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, RecordingUpstream

SECONDS = 1


async def send(gateway: GatewayProcess) -> Response:
    """One request under one key."""
    return await fleet.send(gateway.port, "k1", deadline_seconds=60.0)


async def frozen(gateway: GatewayProcess, happens: Callable[[], object], seconds: int = SECONDS) -> None:
    """Let this happen while the gateway does not run, which it does not for longer than these seconds."""
    gateway.pause()
    until = time.monotonic() + 1.5 * seconds
    happens()
    await eventually(lambda: time.monotonic() > until)
    gateway.resume()


async def test_a_response(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """A response that came in time is recorded, although nobody looked until the time was over."""
    changes = {"upstream": {"response_timeout": f"{SECONDS}s"}}
    async with process(sqlite_store(tmp_path), tmp_path, upstream, **changes) as gateway:
        sent, hold = await begin(gateway, upstream)
        await frozen(gateway, hold.set)
        assert status_of(await sent) == (201, "stored")
        assert status_of(await send(gateway)) == (201, "replayed")


async def test_a_connection(tmp_path: Path) -> None:
    """A service that took the connection is sent the request, although nobody looked until the time was over."""
    upstream = {"connect_timeout": f"{SECONDS}s"}
    with FullService() as service:
        async with process(sqlite_store(tmp_path), tmp_path, service.url, upstream=upstream) as gateway:
            sent = asyncio.create_task(send(gateway))
            await eventually(service.connecting, what="it connects")
            gateway.pause()
            service.make_room()
            with await asyncio.to_thread(service.accept) as connection:
                await frozen(gateway, lambda: None)
                await asyncio.to_thread(answer, connection, BODY)
                assert status_of(await sent) == (201, "stored")


async def test_the_store(tmp_path: Path, own_postgres: PostgresServer, upstream: RecordingUpstream) -> None:
    """A claim that the store granted in time is granted, although nobody looked until the time was over."""
    async with process({"durable": await own_postgres.new_database()}, tmp_path, upstream) as gateway:

        async def is_in_flight() -> bool:
            return await gateway.metric('idempotency_in_flight{route="charge"}', 0.0) == 1

        own_postgres.pause()
        sent = asyncio.create_task(send(gateway))
        await eventually(is_in_flight, what="it claims")
        await frozen(gateway, own_postgres.resume, 4)
        assert status_of(await sent) == (201, "stored")
        assert len(upstream.requests) == 1


async def test_the_authorization_service(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """A decision that came in time is heard, although nobody looked until the time was over."""
    async with RecordingUpstream() as authorization:
        route = {"authorize": {"forward_auth": {"url": f"{authorization.url}/", "timeout": f"{SECONDS}s"}}}
        async with process(sqlite_store(tmp_path), tmp_path, upstream, route=route) as gateway:
            hold = asyncio.Event()
            authorization.on(None, Answer(200, hold=hold))
            sent = asyncio.create_task(send(gateway))
            await authorization.wait_for_requests(1)
            await frozen(gateway, hold.set)
            assert status_of(await sent) == (201, "stored")
