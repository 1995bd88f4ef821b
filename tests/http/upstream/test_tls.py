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
    lost,
    not_sent,
    send,
    serving,
    upstream_to,
)
from tests.support.tls import Authority


@pytest.mark.parametrize(
    "server_name", [None, "other.example"], ids=["not-for-the-address", "not-for-the-configured-name"]
)
async def test_a_certificate_for_somebody_else_sent_nothing(authority: Authority, server_name: str | None) -> None:
    """The name in the certificate must be the upstream's."""
    tls = tls_context(ca=authority.ca_file)
    async with serving(answering(DONE), authority.issue("service.example").server_context()) as server:
        async with upstream_to(server.port, tls=tls, server_name=server_name) as client:
            assert (await not_sent(client, protected=True)).reason is SentNothing.TLS
        async with upstream_to(server.port, tls=tls, server_name="service.example") as client:
            assert (await answer(client)).head.status == 200
        assert len(server.requests) == 1


@pytest.mark.parametrize("says", [DONE, b""], ids=["http", "nothing"])
async def test_a_server_without_tls_sent_nothing(authority: Authority, says: bytes) -> None:
    """Plain HTTP is no handshake, and neither is an end; there is always a word on why."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)

    async with serving(handler) as server, upstream_to(server.port, tls=tls_context(ca=authority.ca_file)) as client:
        result = await not_sent(client)
        assert result.reason is SentNothing.TLS
        assert not result.detail.endswith(": ")


async def test_a_handshake_that_stands_still_sent_nothing(authority: Authority) -> None:
    """It counts as part of connecting."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    tls = tls_context(ca=authority.ca_file)
    async with serving(handler) as server, upstream_to(server.port, tls=tls, connect_timeout_seconds=0.2) as client:
        assert (await not_sent(client)).reason is SentNothing.CONNECT_TIMEOUT
        running = asyncio.create_task(send(client))
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_client_certificate_is_shown(authority: Authority) -> None:
    """An upstream that asks for one gets it."""
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


async def test_an_answer_cut_at_any_byte_is_never_taken_for_whole(authority: Authority) -> None:
    """As without TLS; the connection ends without close_notify."""
    cuts = iter(range(len(DONE) + 1))

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(DONE[: next(cuts)])
        await writer.drain()
        writer.transport.abort()

    tls, server_tls = tls_context(ca=authority.ca_file), authority.issue().server_context()
    async with serving(handler, server_tls) as server, upstream_to(server.port, tls=tls) as client:
        for cut in range(len(DONE) + 1):
            if cut < len(DONE) - 4:
                assert (await lost(client)).reason is (Unknown.TRUNCATED if cut else Unknown.CLOSED), cut
            else:
                body = await (await answer(client)).body.read_all(10)
                assert body == b"done" if cut == len(DONE) else isinstance(body, Lost)
        await all_closed(client)
        assert len(server.requests) == len(DONE) + 1
