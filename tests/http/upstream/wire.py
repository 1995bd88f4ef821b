"""Servers whose connections are coroutines over raw bytes, and clients that leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from gateway.core.message import IndexedHeaders, RequestHead
from gateway.upstream import Lost, NotSent, Upstream, UpstreamResponse, UpstreamSettings
from tests.support.eventually import eventually

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

T = TypeVar("T")
DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"


class Server:
    """`port` to connect to; `accepted` counts connections, `requests` holds heads and bodies that arrived whole."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted = 0
        self.requests: list[tuple[bytes, bytes]] = []

    async def read_request(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        """The next request: its head up to the empty line, and its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = head.lower()
        body = b""
        if b"content-length: " in fields:
            body = await reader.readexactly(int(fields.split(b"content-length: ")[1].split(b"\r\n")[0]))
        elif b"transfer-encoding: chunked" in fields:
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        self.requests.append((head, body))
        return head, body


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Hands every connection to the handler; whatever is still running at the end is cancelled."""
    server = Server()
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await handler(server, reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.accepted += 1
        task = asyncio.create_task(serve(reader, writer))
        tasks[task] = writer
        task.add_done_callback(tasks.pop)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        # What is being accepted must become a task first: asyncio forgets it if its listener goes before.
        for _ in range(10):
            await asyncio.sleep(0)
        listener.close()
        running = dict(tasks)
        for task, writer in running.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in running.values()), return_exceptions=True)


def answering(*answers: bytes) -> Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A handler that answers the requests of each connection in turn, the last answer over and over."""

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = list(answers)
        while True:
            await server.read_request(reader)
            writer.write(left.pop(0) if len(left) > 1 else left[0])

    return handler


@contextlib.asynccontextmanager
async def upstream_to(port: int, *, seen_to_last_seconds: float = 3600.0, **settings: Any) -> AsyncIterator[Upstream]:
    """A client that is closed at the end, and must have closed every connection that it opened.

    It has seen an idle connection to live for so long, and so uses one again; with 0 it has seen none yet.
    """
    client = Upstream(UpstreamSettings(**({"host": "127.0.0.1", "port": port} | settings)))
    client._pool._history.survived(seen_to_last_seconds)
    try:
        yield client
    finally:
        await client.close()
    assert client.stats.opened == client.stats.closed
    assert client._pool._passing == 0


def request(method: bytes = b"POST", target: bytes = b"/charge", *fields: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(method, target, IndexedHeaders(((b"Host", b"service"), *fields)))


async def send(
    client: Upstream, head: RequestHead | None = None, body: Any = b"{}", *, protected: bool = False, **options: Any
) -> UpstreamResponse | NotSent | Lost:
    return await client.exchange(head or request(), body, protected=protected, **({"may_send": lambda: True} | options))


async def _ends_as(kind: type[T], client: Upstream, *arguments: Any, **options: Any) -> T:
    result = await send(client, *arguments, **options)
    assert isinstance(result, kind), result
    return result


# One exchange that must be answered, one of which nothing may have left, and one that may have had an effect.
answer = partial(_ends_as, UpstreamResponse)
not_sent = partial(_ends_as, NotSent)
lost = partial(_ends_as, Lost)


async def all_closed(client: Upstream) -> None:
    await eventually(lambda: client.stats.opened == client.stats.closed, what="all connections closed")
