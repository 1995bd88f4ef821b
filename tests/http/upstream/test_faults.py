"""Every phase with every fault: what is definite says so, and what is not never does."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from gateway.upstream import (
    Framing,
    Lost,
    NotSent,
    SentNothing,
    Unknown,
    UpstreamResponse,
    tls_context,
)
from gateway.upstream.connect import Names
from tests.http.upstream import wire
from tests.http.upstream.test_answers import WIRES
from tests.http.upstream.wire import DONE, Server, all_closed, answer, answering, request, send, serving, upstream_to
from tests.support.eventually import eventually
from tests.support.names import silent_name_server
from tests.support.ports import free_port
from tests.support.relay import reset
from tests.support.tls import Authority


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Lets every name stand for these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)


async def not_sent(port: int, **settings: Any) -> NotSent:
    """What one exchange says that must not have sent anything, nor asked whether it may."""

    def never() -> bool:
        raise AssertionError("asked for permission without a connection")

    async with upstream_to(port, **settings) as client:
        result = await wire.not_sent(client, protected=True, may_send=never)
        assert client.stats.not_sent == 1
        return result


async def test_a_refused_connection_sent_nothing(monkeypatch: pytest.MonkeyPatch, deaf_port: int) -> None:
    """Nobody listens, at the last of several addresses either; the network says no, or the connection is not made in
    time; the name is none, is not known, or has no address."""
    assert (await not_sent(free_port())).reason is SentNothing.REFUSED
    assert (await not_sent(1, host="255.255.255.255")).reason is SentNothing.UNREACHABLE
    assert (await not_sent(deaf_port, connect_timeout_seconds=0.1)).reason is SentNothing.CONNECT_TIMEOUT
    assert (await not_sent(1, host="a..example")).reason is SentNothing.DNS
    resolves_to(monkeypatch, ("127.0.0.1", free_port()), ("127.0.0.1", free_port()))
    assert (await not_sent(1, host="two.example")).reason is SentNothing.REFUSED
    resolves_to(monkeypatch)
    assert (await not_sent(1, host="nobody.example")).reason is SentNothing.DNS

    def fail(*_: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert (await not_sent(1, host="nobody.example")).reason is SentNothing.DNS


async def test_what_cannot_be_sent_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot be written, a client that is closed, and what this host lacks are not the upstream's."""
    async with serving(answering(DONE)) as server, upstream_to(server.port) as client:
        odd = request(b"POST", b"/", (b"A", b"b\r\nC: d"))
        assert (await wire.not_sent(client, odd)).reason is SentNothing.REQUEST_INVALID
        assert client.stats.opened == 0
        await answer(client)
        await client.close()
        assert (await wire.not_sent(client)).reason is SentNothing.CLOSED

    def fail(*_: object) -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", fail)
    async with upstream_to(1) as client:
        assert (await wire.not_sent(client)).reason is SentNothing.LOCAL


async def test_the_next_address_is_tried_while_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch, deaf_port: int
) -> None:
    """A refusing and a deaf address before the right one cost time, not the request."""
    async with serving(answering(DONE)) as server:
        resolves_to(monkeypatch, ("127.0.0.1", free_port()), ("127.0.0.1", deaf_port), ("127.0.0.1", server.port))
        async with upstream_to(1, host="three.example", connect_timeout_seconds=1.0) as client:
            assert (await answer(client)).head.status == 200
        assert len(server.requests) == 1


@pytest.mark.parametrize("ending", ["FIN", "RST", "TLS"])
@pytest.mark.parametrize("framing", WIRES)
async def test_an_answer_cut_at_any_byte_is_never_taken_for_whole(
    framing: Framing, ending: str, authority: Authority
) -> None:
    """Up to the head all is lost, then the body is; only the proven end completes it, and nothing is sent twice. Over
    TLS, an end without close_notify proves nothing."""
    wire = WIRES[framing]
    head_bytes = wire.index(b"\r\n\r\n") + 4
    cuts = iter(range(len(wire) + 1))
    server_tls, tls = None, None
    if ending == "TLS":
        server_tls, tls = authority.issue().server_context(), tls_context(ca=authority.ca_file)

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(wire[: next(cuts)])
        await writer.drain()
        if ending == "RST":
            reset(writer)
        if ending == "TLS":
            writer.transport.abort()

    async with serving(handler, server_tls) as server, upstream_to(server.port, tls=tls) as client:
        for cut in range(len(wire) + 1):
            got: object = await send(client)
            is_whole = cut == len(wire)
            if cut >= head_bytes:
                assert isinstance(got, UpstreamResponse), (cut, got)
                got = await got.body.read_all(100)
                if framing is Framing.CLOSE:
                    is_whole = ending == "FIN"
            if is_whole:
                assert got == b"0123456789"[: cut - head_bytes], cut
            else:
                assert isinstance(got, Lost), cut
                end = Unknown.RESET if ending == "RST" else Unknown.TRUNCATED if cut else Unknown.CLOSED
                assert got.reason is end, cut
        await all_closed(client)
        assert len(server.requests) == server.accepted == len(wire) + 1


@pytest.mark.parametrize("ending", ["FIN", "RST"])
async def test_a_connection_that_ends_while_the_request_is_read_is_in_doubt(ending: str) -> None:
    """A byte may have left, and the request is not sent again."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(10)
        reset(writer) if ending == "RST" else writer.close()

    async with serving(handler) as server, upstream_to(server.port) as client:
        for body in (b"{}", b"x" * 10_000_000):
            assert (await wire.lost(client, body=body, protected=True)).reason in (Unknown.RESET, Unknown.CLOSED)
        assert server.accepted == 2


async def test_lookups_that_were_given_up_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for and cancelled, two threads hang; afterwards the next one is carried out."""
    names = Names()
    async with silent_name_server(monkeypatch) as server:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await names.resolve("a.hangs", 80)
        assert server.running == 2
        await asyncio.to_thread(lambda: None)
    assert (await names.resolve("localhost", 80))[0]["host"] == "127.0.0.1"
    await eventually(lambda: server.running == 0)


def test_the_end_of_a_loop_waits_for_no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the end of the program: the thread is a daemon."""

    async def stop_meanwhile() -> threading.Event:
        async with silent_name_server(monkeypatch) as server:
            over, server.over = server.over, threading.Event()
            task = asyncio.create_task(Names().resolve("a.hangs", 80))
            await asyncio.to_thread(server.asked.acquire)
            assert {each.daemon for each in threading.enumerate() if each.name == "names"} == {True}
            task.cancel()
            over.set()
            return server.over

    asyncio.run(stop_meanwhile()).set()
