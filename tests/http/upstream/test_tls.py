"""The same over TLS: who is spoken to, and which ends of a connection are the upstream's own."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from gateway.upstream import Lost, SentNothing, Unknown, tls_context
from tests.http.upstream.wire import (
    DONE,
    Server,
    all_closed,
    answer,
    answering,
    not_sent,
    serving,
    upstream_to,
)
from tests.support.tls import Authority


@pytest.mark.parametrize(
    "server_name", [None, "other.example"], ids=["not-for-the-address", "not-for-the-configured-name"]
)
async def test_a_certificate_for_somebody_else_sent_nothing(authority: Authority, server_name: str | None) -> None:
    tls = tls_context(ca=authority.ca_file)
    async with serving(answering(DONE), authority.issue("service.example").server_context()) as server:
        async with upstream_to(server.port, tls=tls, server_name=server_name) as client:
            assert (await not_sent(client, protected=True)).reason is SentNothing.TLS
        async with upstream_to(server.port, tls=tls, server_name="service.example") as client:
            assert (await answer(client)).head.status == 200
        assert len(server.requests) == 1


@pytest.mark.parametrize("says", [DONE, b"", None], ids=["http", "nothing", "stands-still"])
async def test_what_is_no_handshake_sent_nothing(authority: Authority, says: bytes | None) -> None:
    """Plain HTTP is none, and neither is an end, nor silence, which counts as part of connecting; there is always a
    word on why."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await (asyncio.Event().wait() if says is None else asyncio.sleep(0))
        writer.write(says or b"")

    settings = {"tls": tls_context(ca=authority.ca_file), "connect_timeout_seconds": 0.2 if says is None else 10.0}
    async with serving(handler) as server, upstream_to(server.port, **settings) as client:
        result = await not_sent(client)
        assert result.reason is (SentNothing.CONNECT_TIMEOUT if says is None else SentNothing.TLS)
        assert not result.detail.endswith(": ")


async def test_a_client_certificate_is_shown(authority: Authority) -> None:
    own = authority.issue("gateway.example")
    server_tls = authority.issue().server_context()
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server_tls.load_verify_locations(authority.ca_file)
    tls = tls_context(ca=authority.ca_file, cert=own.cert, key=own.key)
    async with serving(answering(DONE), server_tls) as server, upstream_to(server.port, tls=tls) as client:
        assert (await answer(client)).head.status == 200


@pytest.mark.parametrize("ending", ["close-notify", "fin-alone"])
async def test_only_close_notify_completes_a_close_delimited_answer(authority: Authority, ending: str) -> None:
    """Anybody on the path can forge a FIN, and the answer would look whole."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n0123456789")
        await writer.drain()
        if ending == "fin-alone":
            writer.transport.abort()

    tls, server_tls = tls_context(ca=authority.ca_file), authority.issue().server_context()
    async with serving(handler, server_tls) as server, upstream_to(server.port, tls=tls) as client:
        body = await (await answer(client)).body.read_all(100)
        if ending == "close-notify":
            assert body == b"0123456789"
        else:
            assert isinstance(body, Lost)
            assert body.reason is Unknown.TRUNCATED
        await all_closed(client)
