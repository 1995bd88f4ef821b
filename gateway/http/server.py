"""The edge as a server: where it listens, which connections it has, and how it comes to its end.

It answers nothing: what comes on a connection goes to the `RequestHandler` that is made here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from heapq import nsmallest
from typing import Final, Generic

from gateway.core.routing import RouteTable
from gateway.http.connection import ClientConnection
from gateway.http.exchange import EdgeState
from gateway.http.handshakes import Door, Handshakes
from gateway.http.listening import ListenError, listen_fault
from gateway.http.request_handler import Forward, Protect, R, RequestHandler
from gateway.http.settings import EdgeSettings
from gateway.http.unread import Unread
from gateway.http.writer import DateClock
from gateway.observe.facts import Herald

# How often those are looked at whom the end of the edge waits for.
_LOOK_SECONDS: Final = 0.2
# One in so many connections makes room, where there are as many as there may be.
_ROOM_SHARE: Final = 64


class Edge(Generic[R]):
    """The listener for clients. `start` it, then `stop_listening`, then `close`. Lives on one event loop."""

    def __init__(
        self,
        *,
        routes: RouteTable[R],
        protect: Protect[R],
        forward: Forward[R],
        herald: Herald,
        settings: EdgeSettings | None = None,
    ) -> None:
        settings = settings or EdgeSettings()
        self._state = EdgeState(settings, DateClock(), Unread(settings.unread_bytes_max))
        self._handler = RequestHandler(
            routes=routes, protect=protect, forward=forward, herald=herald, state=self._state
        )
        self._listeners: list[asyncio.Server] = []
        self._clients: set[ClientConnection] = set()
        # Of these, those that were broken off to make room: gone in a moment.
        self._leaving: set[ClientConnection] = set()
        self._handshakes = Handshakes(self._connect, settings)
        self._begun = Unread(settings.begun_bytes_max)

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that are being worked on or written, tunnels included."""
        return self._handler.in_flight

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return len(self._clients)

    async def start(
        self,
        *,
        host: str | None = None,
        port: int = 0,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[str, int]:
        """Listen on an address, or on a socket that is bound already. Returns the address. Raises `ListenError`."""
        loop = asyncio.get_running_loop()
        connect = self._connect if tls is None else partial(Door, self._handshakes, tls)
        listen = partial(loop.create_server, connect, backlog=self._state.settings.backlog)
        try:
            if sock is not None:
                listener = await listen(sock=sock)
            else:
                listener = await listen(host=host, port=port, reuse_address=True)
        except OSError as error:
            raise ListenError(listen_fault(host, port, error)) from error
        self._listeners.append(listener)
        address = listener.sockets[0].getsockname()
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else (str(address), 0)

    async def listen_on(self, sock: socket.socket, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Listen on one more socket, which becomes the listener's, until `leave` or the end. Raises `ListenError`."""
        await self.start(sock=sock, tls=tls)
        return self._listeners[-1]

    def leave(self, listener: asyncio.Server) -> None:
        """Take no new connection from this listener. Those that it gave stay."""
        self._listeners.remove(listener)
        listener.close()

    def stop_listening(self) -> None:
        """Take no new connection or request. What is in flight goes on, and is the last on its connection."""
        self._state.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for client in list(self._clients):
            if not client.is_busy:
                client.close()

    async def close(self, grace_seconds: float = 0.0) -> int:
        """Wait for what is in flight, then break off the rest. Returns how many requests were broken off."""
        self.stop_listening()
        await self._handshakes.end()
        await self._handler.wait_idle(grace_seconds)
        broken_off = self._handler.in_flight
        clients = list(self._clients)
        for client in clients:
            if client.is_busy:
                client.abort()
            else:
                client.close()
        await self._handler.end_tasks()
        await self._wait_flushed(clients)
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()
        self._handler.close()
        return broken_off

    def _connect(self) -> ClientConnection:
        return ClientConnection(self, self._handler)

    def _make_room(self, newcomer: ClientConnection) -> None:
        """Break off those that have been idle for longest, some at a time because it takes a look at all."""
        idle = (client for client in self._clients - self._leaving if not client.is_busy)
        count = 1 + len(self._clients) // _ROOM_SHARE
        longest = nsmallest(count, idle, key=lambda client: client.idle_since)
        self._leaving.update(longest or [newcomer])
        for client in longest or [newcomer]:
            client.abort()

    async def _wait_flushed(self, clients: list[ClientConnection]) -> None:
        """Let clients have what was written for them, for as long as a client is let linger.

        Over TLS one that has it all may not look at its connection before it needs it again, and is not waited for.
        """
        try:
            async with asyncio.timeout(self._state.settings.linger_seconds):
                while left := [client for client in clients if not client.gone.is_set()]:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            for client in left:
                                await client.gone.wait()
                    for client in left:
                        client.end_if_read()
        except TimeoutError:
            for client in clients:
                client.abort()
            for client in clients:
                await client.gone.wait()

    # -- for connections: `ConnectionOwner` ----------------------------------------------------------------------------

    @property
    def settings(self) -> EdgeSettings:
        return self._state.settings

    def connection_opened(self, connection: ClientConnection) -> None:
        # Without descriptors left, neither the upstream nor the store could be reached for those that are served.
        if len(self._clients) - len(self._leaving) >= self._state.settings.connections_max:
            self._make_room(connection)
        self._clients.add(connection)

    def input_held(self, connection: ClientConnection, size_bytes: int) -> None:
        self._begun.hold(connection, size_bytes)

    def connection_closed(self, connection: ClientConnection) -> None:
        self._clients.discard(connection)
        self._leaving.discard(connection)
        self._begun.hold(connection, 0)
