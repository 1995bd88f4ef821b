"""A gateway that does not run for a while blames nobody for that time: what has come meanwhile counts as in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.support.eventually import eventually
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, config_text, sqlite_store, status_of
from tests.support.http import Response, request
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, RecordingUpstream

SECONDS = 1


def process(store: dict[str, Any], directory: Path, url: str, /, **changes: Any) -> GatewayProcess:
    """A gateway with this store in front of this service."""
    return GatewayProcess(yaml.safe_load(config_text(url, store, directory, **changes)), directory)


async def send(gateway: GatewayProcess) -> Response:
    """One request under one key."""
    fields = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]
    return await request(gateway.port, "POST", "/charges", fields, BODY, deadline_seconds=60.0)


async def frozen(gateway: GatewayProcess, happens: Callable[[], object], seconds: int = SECONDS) -> None:
    """Let this happen while the gateway does not run, which it does not for longer than these seconds."""
    gateway.pause()
    until = time.monotonic() + 1.5 * seconds
    happens()
    await eventually(lambda: time.monotonic() > until)
    gateway.resume()


async def test_a_response(tmp_path: Path) -> None:
    """A response that came in time is recorded, although nobody looked until the time was over."""
    async with (
        RecordingUpstream() as upstream,
        process(
            sqlite_store(tmp_path), tmp_path, upstream.url, upstream={"response_timeout": f"{SECONDS}s"}
        ) as gateway,
    ):
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        answer = asyncio.create_task(send(gateway))
        await upstream.wait_for_requests(1)
        await frozen(gateway, hold.set)
        assert status_of(await answer) == (201, "stored")
        assert status_of(await send(gateway)) == (201, "replayed")


async def test_a_connection(tmp_path: Path) -> None:
    """A service that took the connection is sent the request, although nobody looked until the time was over."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    listener.settimeout(10.0)
    port = listener.getsockname()[1]
    # Fills what the service has not accepted: further connections wait until it does.
    first = socket.create_connection(("127.0.0.1", port))
    async with process(
        sqlite_store(tmp_path), tmp_path, f"http://127.0.0.1:{port}", upstream={"connect_timeout": f"{SECONDS}s"}
    ) as gateway:
        answer = asyncio.create_task(send(gateway))
        await eventually(lambda: _is_connecting(port), what="it connects")
        gateway.pause()
        listener.accept()[0].close()
        # The kernel tries again by itself, after a second.
        connection, _ = listener.accept()
        await frozen(gateway, lambda: None)
        with first, listener, connection:
            connection.settimeout(10.0)
            arrived = b""
            while BODY not in arrived and (data := await asyncio.to_thread(connection.recv, 64 * 1024)):
                arrived += data
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone")
            assert status_of(await answer) == (201, "stored")


async def test_the_store(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """A claim that the store granted in time is granted, although nobody looked until the time was over."""
    store = {"durable": await own_postgres.new_database()}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url) as gateway:
        upstream.on("/charges", Answer(201))
        own_postgres.pause()
        answer = asyncio.create_task(send(gateway))
        await eventually(lambda: _is_in_flight(gateway), what="it claims")
        await frozen(gateway, own_postgres.resume, 4)
        assert status_of(await answer) == (201, "stored")
        assert len(upstream.requests) == 1


async def test_the_authorization_service(tmp_path: Path) -> None:
    """A decision that came in time is heard, although nobody looked until the time was over."""
    async with RecordingUpstream() as upstream, RecordingUpstream() as authorization:
        route = {"authorize": {"forward_auth": {"url": f"{authorization.url}/", "timeout": f"{SECONDS}s"}}}
        async with process(sqlite_store(tmp_path), tmp_path, upstream.url, route=route) as gateway:
            hold = asyncio.Event()
            authorization.on(None, Answer(200, hold=hold))
            upstream.on("/charges", Answer(201))
            answer = asyncio.create_task(send(gateway))
            await authorization.wait_for_requests(1)
            await frozen(gateway, hold.set)
            assert status_of(await answer) == (201, "stored")


def _is_connecting(port: int) -> bool:
    """Whether a connection to it is being made, by the table of the system."""
    wanted = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(line.split()[2].endswith(wanted) and line.split()[3] == "02" for line in lines[1:])


async def _is_in_flight(gateway: GatewayProcess) -> bool:
    text = (await gateway.status("/metrics")).body.decode()
    return 'idempotency_in_flight{route="charge"} 1' in text
