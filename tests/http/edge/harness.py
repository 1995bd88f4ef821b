"""The real edge on loopback, with a handler of the test's own behind it, or with a real upstream."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self

from gateway.core.message import Headers, RequestHead
from gateway.core.routing import PathPattern, RouteTable, Rule
from gateway.core.verdict import Verdict
from gateway.http.connection import ClientConnection, EdgeSettings, delivery_of
from gateway.http.handler import ClientExchange, Served
from gateway.http.passthrough import Passthrough
from gateway.http.server import Edge
from gateway.observe.facts import Events, Fact
from gateway.protect.forwarding import ForwardingPolicy
from gateway.protect.reply import PROBLEM, BodyCut, Reply, Shape, Trouble, refuse
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Target
from gateway.upstream import Upstream, UpstreamSettings
from tests.support.tls import Authority

PROTECTED = "/v1/payments"
HOST = b"Host: gateway.test\r\n"


@dataclass(frozen=True, slots=True)
class PlainRoute:
    """As much of a route as the edge asks for."""

    name: str = "payments"
    once: frozenset[bytes] = frozenset((b"authorization", b"idempotency-key", b"x-tenant-id"))
    compared: frozenset[bytes] = frozenset()
    is_observed: bool = False
    shape: Shape = PROBLEM
    target: Any = None
    settings: ClassVar = SimpleNamespace(status_header=True)

    def for_key(self, headers: object) -> Self:
        return self


Handler = Callable[[Request], Awaitable[Reply | Untouched]]
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class RunningEdge:
    """An edge that listens on `port`. `taken` are the requests that its handler got whole, `facts` what was told."""

    edge: Edge
    port: int
    taken: list[RequestHead] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


class Stream:
    """A body of the test's own making. It ends properly, or is cut."""

    def __init__(self, *pieces: bytes, cut: bool = False) -> None:
        self._pieces = list(pieces)
        self._cut = cut
        self.aborted = 0

    async def read(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        if self._cut:
            raise BodyCut("as the test wants it")
        return b""

    def abort(self) -> None:
        self.aborted += 1


def reply(
    body: bytes | Stream = b"done",
    *,
    status: int = 200,
    headers: Headers = (),
    length: int | None = None,
) -> Reply:
    return Reply(status, b"OK", headers, body, Verdict.STORED, length)


def table(route: PlainRoute) -> RouteTable[PlainRoute]:
    methods = frozenset((b"POST", b"HEAD"))
    return RouteTable([(Rule(methods, PathPattern.parse(path)), route) for path in (PROTECTED, "/pay/{id}")])


@asynccontextmanager
async def serving(
    answer: Reply | Handler | None = None,
    *,
    settings: EdgeSettings | None = None,
    tls: ssl.SSLContext | None = None,
    route: PlainRoute | None = None,
    to: int | None = None,
    **limits: Any,
) -> AsyncIterator[RunningEdge]:
    """An edge whose protected route is `PROTECTED`.

    `answer` is what its requests get once their bodies are read, or who gives it. What is not protected goes to an
    upstream on the port `to`, within these limits, or gets a 404 if there is none.
    """
    route = route or PlainRoute()
    facts: list[Fact] = []
    taken: list[RequestHead] = []

    async def protect(incoming: Request, at: PlainRoute) -> Reply | Untouched:
        if callable(answer):
            return await answer(incoming)
        async for _ in incoming.body.stream():
            pass
        taken.append(incoming.head)
        return answer if answer is not None else reply()

    async def nowhere(
        incoming: Request, client: ClientExchange, at: PlainRoute | None, verdict: Verdict | None
    ) -> Reply | None:
        return refuse(Trouble.NO_SUCH_OPERATION)

    async with AsyncExitStack() as stack:
        events = Events(facts.append)
        forward: Any = nowhere
        if to is not None:
            client = Upstream(UpstreamSettings("127.0.0.1", to, **limits))
            # Experience, without which no idle connection is used.
            client._pool._history.survived(3600.0)
            stack.push_async_callback(client.close)
            policy = ForwardingPolicy(authority=b"upstream.test")
            target = Target(client, policy, 30.0)
            forward = Passthrough(target, events)
            route = replace(route, target=target)
        served: Served = Served(routes=table(route), protect=protect, forward=forward)
        edge = Edge(served, events, settings=settings, tls=tls)
        _, port = await edge.start(host="127.0.0.1")
        stack.push_async_callback(edge.close)
        yield RunningEdge(edge, port, taken, facts)


@asynccontextmanager
async def serving_before(accept: Accept, **limits: Any) -> AsyncIterator[RunningEdge]:
    """An edge before an upstream that treats each connection as `accept` says, and then closes it."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await accept(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with server, serving(to=server.sockets[0].getsockname()[1], **limits) as edge:
        yield edge


@asynccontextmanager
async def reading_nothing(port: int, authority: Authority | None) -> AsyncIterator[socket.socket]:
    """A connection, over TLS with an authority, that reads nothing by itself, and on which little is under way."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    await asyncio.to_thread(sock.connect, ("127.0.0.1", port))
    if authority is not None:
        context = authority.client_context()
        sock = await asyncio.to_thread(context.wrap_socket, sock, server_hostname="localhost")
    with sock:
        yield sock


def taken_by(connection: ClientConnection) -> int:
    """How much its client has taken, counted from anywhere."""
    transport = connection.transport
    return 0 if transport is None else delivery_of(transport).taken_bytes


def post(headers: bytes = b"Idempotency-Key: k\r\n", body: bytes = b"{}", target: bytes = PROTECTED.encode()) -> bytes:
    """A protected request as bytes."""
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + target + b" HTTP/1.1\r\n" + HOST + headers + length + b"\r\n" + body
