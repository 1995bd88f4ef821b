"""Requests that try to be read in two ways: refused, nothing handed on, and nothing of them repeated."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.observe.facts import RequestAnswered
from tests.http.edge.harness import HOST, PROTECTED, RunningEdge, post, reply, serving, taken_by
from tests.support.eventually import eventually
from tests.support.http import Connection, Response, exchange
from tests.support.upstream import RecordingUpstream

P = PROTECTED.encode()
# More than the buffers of the system take.
LONG_BYTES = 16 << 20
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: gateway.test\r\nContent-Length: 0\r\n\r\n"


def raw(line: bytes, fields: bytes = HOST, body: bytes = b"") -> bytes:
    return line + b"\r\n" + fields + b"\r\n" + body


def chunked(body: bytes, fields: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    return raw(b"POST " + P + b" HTTP/1.1", HOST + fields, body)


# What the parser lets through and a protected route does not.
AMBIGUOUS = {
    "absolute-form": raw(b"POST http://gateway.test" + P + b" HTTP/1.1"),
    "absolute-form-elsewhere": raw(b"POST http://other.test" + P + b" HTTP/1.1"),
    "fragment": raw(b"POST " + P + b"#x HTTP/1.1"),
    "version-0.9": raw(b"POST " + P + b" HTTP/0.9"),
    "version-2.0": raw(b"POST " + P + b" HTTP/2.0"),
    "two-codings": chunked(b"0\r\n\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    "chunked-on-1.0": raw(b"POST " + P + b" HTTP/1.0", HOST + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "dot-segments": raw(b"POST /x/../v1/payments HTTP/1.1"),
    "dot-segments-out": raw(b"POST /v1/payments/../payments HTTP/1.1"),
    "escaped-dot-segments": raw(b"POST /x/%2e%2E/v1/payments HTTP/1.1"),
    "doubly-escaped-dot-segments": raw(b"POST /pay/%252e%252e HTTP/1.1"),
    "dot-segment-behind-an-escaped-slash": raw(b"POST /pay/..%2fx HTTP/1.1"),
    "escaped-slash": raw(b"POST /v1%2Fpayments HTTP/1.1"),
    "backslash": raw(b"POST /v1\\payments HTTP/1.1"),
    "path-parameter": raw(b"POST /v1/payments;x=y HTTP/1.1"),
    "repeated-key": post(b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n"),
    "repeated-equal-key": post(b"Idempotency-Key: a\r\nidempotency-key: a\r\n"),
    "repeated-authorization": post(b"Authorization: a\r\nAuthorization: b\r\n"),
    "repeated-scope": post(b"X-Tenant-Id: a\r\nX-Tenant-Id: b\r\n"),
    "key-with-underscore": post(b"Idempotency_Key: a\r\n"),
    "scope-with-underscore": post(b"X-Tenant-Id: a\r\nX_Tenant_Id: b\r\n"),
    "connection-names-the-key": post(b"Connection: close, Idempotency-Key\r\nIdempotency-Key: a\r\n"),
    "connection-names-the-scope": post(b"Connection: X-Tenant-Id\r\n"),
    "connection-names-the-credential": post(b"Connection: authorization\r\n"),
    "connection-names-the-length": post(b"Connection: content-length\r\n"),
    "two-values-of-host": raw(b"POST " + P + b" HTTP/1.1", b"Host: a, b\r\n"),
    "host-with-a-path": raw(b"POST " + P + b" HTTP/1.1", b"Host: a/b\r\n"),
}


async def refused(edge: RunningEdge, data: bytes) -> Response:
    """The one answer to `data`; the connection is closed after it."""
    async with Connection(edge.port) as connection:
        await connection.send(data)
        response = await connection.read_response("POST")
        assert response.complete
        try:
            rest = await connection.read_rest()
        except ConnectionError:
            rest = b""
        assert rest == b""
    assert response.header("server") is None
    assert response.header("content-type") == "application/problem+json"
    assert b"aiohttp" not in response.body
    assert b"gateway.test" not in response.body
    assert b"smuggled" not in response.body
    return response


async def test_garbage_behind_a_request_in_one_piece() -> None:
    """The whole piece is refused: the request before the garbage is not handed on."""
    async with serving() as edge:
        response = await exchange(edge.port, post() + b"garbage\r\n\r\n")
        assert response.status == 400
        assert edge.taken == []


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_what_is_ambiguous_is_refused_on_a_protected_route(name: str) -> None:
    """The verdict is `request-invalid`, told once, and neither the handler nor the upstream sees the request."""
    async with RecordingUpstream() as upstream, serving(upstream=upstream) as edge:
        response = await refused(edge, AMBIGUOUS[name])
        assert response.status == 400
        assert response.json()["code"] == "request-invalid"
        assert response.values("idempotency-status") == [b"request-invalid"]
        assert edge.taken == []
        assert upstream.requests == []
        (fact,) = edge.facts
        assert isinstance(fact, RequestAnswered)
        assert (fact.route, fact.verdict, fact.status) == ("payments", Verdict.REQUEST_INVALID, 400)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (raw(b"GET / HTTP/2.0"), 400),
        (b"GET /\r\n\r\n", 400),
        (raw(b"PUT / HTTP/1.1", HOST + b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 400),
        (raw(b"PUT / HTTP/1.0", HOST + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
        (raw(b"CONNECT gateway.test:80 HTTP/1.1"), 501),
        (raw(b"GET / HTTP/1.1", HOST + b"X: " + b"a" * 70_000 + b"\r\n"), 431),
        (raw(b"GET /" + b"a" * 70_000 + b" HTTP/1.1"), 431),
        (raw(b"GET / HTTP/1.1", HOST + b"".join(b"X-%d: %b\r\n" % (n, b"a" * 1000) for n in range(70))), 431),
        (raw(b"GET / HTTP/1.1", HOST + b"X: a\r\n" * 200), 431),
    ],
    ids=[
        "version-2.0",
        "version-0.9",
        "two-codings",
        "chunked-on-1.0",
        "connect",
        "field-too-long",
        "target-too-long",
        "head-too-long",
        "too-many-fields",
    ],
)
async def test_what_cannot_be_forwarded_is_refused_beside_the_routes(data: bytes, status: int) -> None:
    """Unprotected traffic gets a plain problem without a word of any verdict."""
    async with RecordingUpstream() as upstream, serving(upstream=upstream) as edge:
        response = await refused(edge, data + SMUGGLED)
        assert response.status == status
        assert response.values("idempotency-status") == []
        assert upstream.requests == []


async def test_a_head_that_never_ends_is_given_up() -> None:
    """A client that sends its head byte by byte has as long as one that is idle."""
    async with serving(settings=EdgeSettings(keepalive_seconds=0.2)) as edge, Connection(edge.port) as connection:
        await connection.send(b"POST " + P + b" HTTP/1.1\r\nHost:")
        assert await connection.read_rest() == b""


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"], ids=["kept-alive", "to-be-closed"])
async def test_a_client_that_does_not_read_its_answer_is_broken_off(fields: bytes) -> None:
    """Also where the answer was written at once and nobody waits for it to leave."""
    settings = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.1)
    async with serving(protect_now=lambda *_: reply(b"x" * LONG_BYTES), settings=settings) as edge:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", edge.port))
            client.sendall(post(fields))
            await eventually(lambda: edge.edge.connections == 1)
            await eventually(lambda: edge.edge.connections == 0, what="the connection is broken off")


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"], ids=["kept-alive", "to-be-closed"])
async def test_a_client_that_reads_slowly_gets_all_of_its_answer(fields: bytes) -> None:
    """It may take longer than a connection may be idle, as long as it reads."""
    settings = EdgeSettings(keepalive_seconds=0.1, silence_seconds=0.5, bytes_per_second_min=1.0)
    async with serving(protect_now=lambda *_: reply(b"x" * LONG_BYTES), settings=settings) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=4096)
        writer.write(post(fields))
        (connection,) = await eventually(lambda: list(edge.edge._clients))
        got = 0
        # Some of it between any two looks of the edge at its reader, and the rest after a few of them.
        for _ in range(3):
            due, taken = connection._reader.due, taken_by(connection)
            while taken_by(connection) == taken:
                got += len(await reader.read(1 << 16))
            await eventually(lambda due=due: connection._reader.due != due)  # type: ignore[misc]
        assert got + len(await reader.read()) > LONG_BYTES
        writer.close()
        await writer.wait_closed()


async def test_many_garbage_connections_leave_nothing_behind() -> None:
    """Each ends with its answer."""
    async with serving() as edge:
        await asyncio.gather(*(exchange(edge.port, b"\x00\r\n\r\n") for _ in range(100)))
        assert (await exchange(edge.port, post())).status == 200
