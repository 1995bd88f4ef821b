"""Slow clients whose requests nothing protects, when all connections to the upstream are taken."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.upstream import UpstreamSettings
from tests.http.edge.harness import HOST, serving
from tests.support.http import Connection, request


async def test_a_slow_upload_gives_way_to_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told that it was too slow, and the newcomer is served."""
    monkeypatch.setattr("gateway.http.connection._CROWDED_SECONDS", 0.0)
    has_begun = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            has_begun.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = UpstreamSettings("127.0.0.1", port, connections_max=1, connect_timeout_seconds=1.0)
    async with server, serving(upstream_settings=settings) as edge, Connection(edge.port) as slow:
        await slow.send(b"POST /uploads HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nslow")
        await has_begun.wait()
        # At once it is not slow yet.
        while (await request(edge.port, "GET", "/")).status == 503:
            pass
        assert (await slow.read_response("POST")).status == 408
