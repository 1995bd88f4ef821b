"""The edge as a server: its listeners, its connections and their time limits, and its shutdown.

It handles no requests: those go to its `Handler`.

A TLS listener of asyncio reports a connection only after its handshake. Until then a silent client would hold a
descriptor, and as much memory as a long request takes. So connections are accepted without TLS and counted, and then
start TLS. Where there are too many, the longest handshake makes room for a new one: silent clients last longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, cast

from aiohttp import web

from gateway.core.message import bracketed
from gateway.http.budget import MemoryBudget
from gateway.http.connection import ClientConnection
from gateway.http.handler import Handler, Served
from gateway.http.limits import EdgeSettings, has_c_parser
from gateway.observe.facts import Events

# How often connections are checked, and how many at once: with more of them, each is checked less often.
_SWEEP_SECONDS: Final = 0.25
_SWEEP_CONNECTIONS_MAX: Final = 2000
# How often the connections are checked that a shutdown waits for.
_CHECK_SECONDS: Final = 0.2
# One in so many connections is aborted when the limit is reached.
_ROOM_SHARE: Final = 64
# A connection that is being closed checks itself whether its client still reads, and aborts if not. By default, the
# loop would abort every one after half a minute.
_TLS_CLOSE_SECONDS: Final = 24 * 3600.0
# One handshake may be under way for so many connections, because it has a descriptor beside theirs.
_CONNECTIONS_FOR_ONE: Final = 4


class Edge:
    """The listener for clients. `start` it, then `stop_listening`, then `close`. Lives on one event loop."""

    def __init__(
        self,
        served: Served,
        events: Events,
        settings: EdgeSettings | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Needs a running event loop. Without `tls` it speaks plain HTTP."""
        self.settings = settings = settings or EdgeSettings()
        self.handler = Handler(
            served=served,
            events=events,
            settings=settings,
        )
        self._tls = tls
        # Registers aiohttp's connections. It handles no requests: their `start` does.
        self._server = web.Server(cast(Any, self.handler.handle))
        self._listeners: list[asyncio.Server] = []
        # In the order of their next check.
        self._clients: dict[ClientConnection, None] = {}
        # Those of them that were aborted to make room, and are about to close.
        self._leaving: set[ClientConnection] = set()
        self._handshakes = Handshakes(self._connect, settings)
        self._sweeping: asyncio.TimerHandle | None = None
        self.begun = MemoryBudget(settings.begun_bytes_max)
        """Requests that have arrived in part, or wait for their turn."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many requests are being processed or written, tunnels included."""
        return self.handler.in_flight

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return len(self._clients)

    async def start(
        self,
        *,
        host: str | None = None,
        port: int = 0,
        sock: socket.socket | None = None,
    ) -> tuple[str, int]:
        """Listen on an address, or on a socket that is bound already. Returns the address. Raises `ListenError`."""
        if not has_c_parser():
            raise ListenError(
                "cannot listen: aiohttp was installed without its HTTP parser in C, or AIOHTTP_NO_EXTENSIONS is set"
            )
        loop = asyncio.get_running_loop()
        listen = partial(loop.create_server, self._accept, backlog=self.settings.backlog)
        try:
            if sock is not None:
                if isinstance(bound := sock.getsockname(), tuple):
                    host, port = bound[:2]
                # Another program may listen there since it was bound. uvloop would close it then, and say nothing.
                sock.listen(self.settings.backlog)
                listener = await listen(sock=sock)
            else:
                listener = await listen(host=host, port=port, reuse_address=True)
        except OSError as error:
            raise ListenError(listen_fault(host, port, error)) from error
        self._listeners.append(listener)
        if self._sweeping is None:
            self._sweep()
        address = listener.sockets[0].getsockname()
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else (str(address), 0)

    async def listen_on(self, sock: socket.socket) -> asyncio.Server:
        """Listen on one more socket, until `leave` or `close`. The edge owns the socket from the call on. Raises
        `ListenError`."""
        try:
            await self.start(sock=sock)
        except BaseException:
            sock.close()
            raise
        return self._listeners[-1]

    async def adopt(self, sock: socket.socket) -> None:
        """Serve a connection that is there already. The edge then owns the socket."""
        await asyncio.get_running_loop().connect_accepted_socket(self._connect, sock)

    def leave(self, listener: asyncio.Server) -> None:
        """Accept no more connections from this listener. Open ones stay."""
        self._listeners.remove(listener)
        listener.close()

    def stop_listening(self) -> None:
        """Accept no more connections or requests. Requests in flight go on, and are the last on their connection."""
        self.handler.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for client in list(self._clients):
            if not client.is_busy:
                client.close()

    async def close(self, grace_seconds: float = 0.0) -> int:
        """Wait for requests in flight, then abort the rest. Returns how many were aborted."""
        self.stop_listening()
        await self._handshakes.end()
        await self.handler.wait_idle(grace_seconds)
        broken_off = self.handler.in_flight
        clients = list(self._clients)
        for client in clients:
            if client.is_busy:
                client.abort()
            else:
                client.close()
        await self.handler.end_tasks()
        await self._wait_flushed(clients)
        await asyncio.gather(*(client.task for client in clients if client.task is not None), return_exceptions=True)
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self.handler.close()
        return broken_off

    def serve_by(self, served: Served, settings: EdgeSettings, tls: ssl.SSLContext | None) -> None:
        """Serve the requests that begin from now on by this, and accept connections with `tls`. Open connections do not
        change."""
        self.settings, self._tls = settings, tls
        self.handler.serve_by(served, settings)

    def _accept(self) -> asyncio.Protocol:
        return self._connect() if self._tls is None else HandshakeStart(self._handshakes, self._tls)

    def _connect(self) -> ClientConnection:
        return ClientConnection(self._server, self)

    def _sweep(self) -> None:
        """Check each connection in turn, a limited number at a time."""
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = loop.time()
        clients = list(islice(self._clients, _SWEEP_CONNECTIONS_MAX))
        for client in clients:
            if len(clients) == _SWEEP_CONNECTIONS_MAX:
                self._clients[client] = self._clients.pop(client)
            client.check(now)

    def _make_room(self, newcomer: ClientConnection) -> None:
        """Abort the connections that were idle for longest, several at a time because all must be ranked."""
        idle = (client for client in self._clients if client not in self._leaving and not client.is_busy)
        count = 1 + len(self._clients) // _ROOM_SHARE
        longest = nsmallest(count, idle, key=lambda client: client.idle_since)
        self._leaving.update(longest or [newcomer])
        for client in longest or [newcomer]:
            client.abort()

    async def _wait_flushed(self, clients: list[ClientConnection]) -> None:
        """Let clients read what was written for them, for at most `linger_seconds`.

        Over TLS, a client that has read everything may notice the end only when it uses the connection again. Such a
        client is not waited for.
        """
        try:
            async with asyncio.timeout(self.settings.linger_seconds):
                while left := [client for client in clients if not client.gone.is_set()]:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_CHECK_SECONDS):
                            for client in left:
                                await client.gone.wait()
                    for client in left:
                        client.end_if_read()
        except TimeoutError:
            for client in clients:
                client.abort()
            for client in clients:
                await client.gone.wait()

    # -- for connections -----------------------------------------------------------------------------------------------

    def connection_opened(self, connection: ClientConnection) -> None:
        # Without free descriptors, the requests in flight could reach neither the upstream nor the store.
        if len(self._clients) - len(self._leaving) >= self.settings.connections_max:
            self._make_room(connection)
        self._clients[connection] = None

    def connection_closed(self, connection: ClientConnection) -> None:
        self._clients.pop(connection, None)
        self._leaving.discard(connection)


class Handshakes:
    """The handshakes of one edge. `connect` makes the protocol of a connection whose handshake is over."""

    def __init__(self, connect: Callable[[], asyncio.Protocol], settings: EdgeSettings) -> None:
        self._connect = connect
        self._settings = settings
        self._max = max(1, min(settings.handshakes_max, settings.connections_max // _CONNECTIONS_FOR_ONE))
        # Longest under way first.
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Start the handshake of an accepted connection, which then owns the socket."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._shake_hands(loop, sock, tls))
        self._under_way[task] = sock
        task.add_done_callback(lambda task: self._under_way.pop(task, None))
        if len(self._under_way) > self._max:
            _end(self._under_way.pop(next(iter(self._under_way))))

    async def end(self) -> None:
        """Abort the handshakes that are under way."""
        tasks = list(self._under_way)
        for sock in self._under_way.values():
            _end(sock)
        # The edge goes on closing, whatever a handshake raises.
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, tls: ssl.SSLContext) -> None:
        # The reason of a failed handshake is not needed.
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(
                self._connect,
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._settings.handshake_seconds,
                ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
            )


def _end(sock: socket.socket) -> None:
    """End the handshake by shutting the socket down. A handshake that is cancelled at the moment when it succeeds
    leaves a connection whose end uvloop never reports.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class HandshakeStart(asyncio.Protocol):
    """Takes over a connection from a listener without TLS, before anything is read from it."""

    def __init__(self, handshakes: Handshakes, tls: ssl.SSLContext) -> None:
        self._handshakes = handshakes
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        sock: socket.socket | None = None
        # If no descriptor is left for it, the connection is closed.
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
            sock.setblocking(False)
        # Closes its own descriptor, and not the connection.
        plain.abort()
        if sock is not None:
            self._handshakes.begin(sock, self._tls)


class ListenError(Exception):
    """Listening on the address failed. The text says why."""


def listen_fault(host: str | None, port: int, error: OSError) -> str:
    """The reason, and what to change."""
    address = f"{bracketed(host or '*')}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            why = "another program listens there already"
        case errno.EACCES:
            why = "this user may not; ports below 1024 need CAP_NET_BIND_SERVICE, or use a higher one"
        case errno.EADDRNOTAVAIL:
            why = "this machine has no such address"
        case _ if isinstance(error, socket.gaierror):
            why = "the host name cannot be resolved"
        case _:
            why = error.strerror or str(error)
    return f"cannot listen on {address}: {why}"
