"""The edge as a server: where it listens, which connections it has, their limits in time, and how it comes to its end.

It answers nothing: what comes on a connection goes to the `Handler` that is made here.

A listener with TLS tells nobody of a connection before its handshake is over. Whoever opens one and says nothing has a
descriptor until then, and as much memory as a long request takes. So connections are taken without TLS, are counted,
and get it then. Where there are too many, the handshake that has lasted longest makes room for a newcomer: those who
keep silent last longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, Generic, cast

from aiohttp import web

from gateway.core.message import bracketed
from gateway.core.routing import RouteTable
from gateway.http.budget import MemoryBudget
from gateway.http.connection import ClientConnection, ParsedRequest
from gateway.http.handler import Forward, Handler, Protect, R
from gateway.http.limits import EdgeSettings, Refusal, has_c_parser
from gateway.observe.facts import Events

# How often connections are looked at, and how many of them at once: above that each is looked at less often.
_SWEEP_SECONDS: Final = 0.25
_SWEEP_CONNECTIONS_MAX: Final = 2000
# How often those are looked at whom the end of the edge waits for.
_LOOK_SECONDS: Final = 0.2
# One in so many connections makes room, where there are as many as there may be.
_ROOM_SHARE: Final = 64
# A connection looks itself whether its client still reads what is left when it is closed, and breaks it off when not.
# The loop, left to itself, breaks off everybody after half a minute.
_TLS_CLOSE_SECONDS: Final = 24 * 3600.0
# For so many connections one handshake may be under way: it has a descriptor beside theirs.
_CONNECTIONS_FOR_ONE: Final = 4


class Edge(Generic[R]):
    """The listener for clients. `start` it, then `stop_listening`, then `close`. Lives on one event loop."""

    def __init__(
        self,
        *,
        routes: RouteTable[R],
        protect: Protect[R],
        forward: Forward[R],
        events: Events,
        settings: EdgeSettings | None = None,
    ) -> None:
        """To be made with the event loop running."""
        self.settings = settings = settings or EdgeSettings()
        self.handler = Handler(routes=routes, protect=protect, forward=forward, events=events, settings=settings)
        # What aiohttp's connections know each other by. It answers nothing: that is their `start`.
        self._server = web.Server(cast(Any, self.handler.handle))
        self._listeners: list[asyncio.Server] = []
        # In the order in which they are looked at next.
        self._clients: dict[ClientConnection, None] = {}
        # Of these, those that were broken off to make room: gone in a moment.
        self._leaving: set[ClientConnection] = set()
        self._handshakes = Handshakes(self._connect, settings)
        self._sweeping: asyncio.TimerHandle | None = None
        self.begun = MemoryBudget(settings.begun_bytes_max)
        """Requests that are here in part, or wait for their turn."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that are being worked on or written, tunnels included."""
        return self.handler.in_flight

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
        if not has_c_parser():
            raise ListenError(
                "cannot listen: aiohttp was installed without its HTTP parser in C, or AIOHTTP_NO_EXTENSIONS is set"
            )
        loop = asyncio.get_running_loop()
        connect = self._connect if tls is None else partial(Door, self._handshakes, tls)
        listen = partial(loop.create_server, connect, backlog=self.settings.backlog)
        try:
            if sock is not None:
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
        self.handler.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for client in list(self._clients):
            if not client.is_busy:
                client.close()

    async def close(self, grace_seconds: float = 0.0) -> int:
        """Wait for what is in flight, then break off the rest. Returns how many requests were broken off."""
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

    def _connect(self) -> ClientConnection:
        return ClientConnection(self._server, self)

    def _sweep(self) -> None:
        """Look at each connection in turn, a limited number at a time."""
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = loop.time()
        clients = list(islice(self._clients, _SWEEP_CONNECTIONS_MAX))
        for client in clients:
            if len(clients) == _SWEEP_CONNECTIONS_MAX:
                self._clients[client] = self._clients.pop(client)
            client.look(now)

    def _make_room(self, newcomer: ClientConnection) -> None:
        """Break off those that have been idle for longest, some at a time because it takes a look at all."""
        idle = (client for client in self._clients if client not in self._leaving and not client.is_busy)
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
            async with asyncio.timeout(self.settings.linger_seconds):
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

    def serve(self, connection: ClientConnection, parsed: ParsedRequest) -> Awaitable[bool]:
        return self.handler.handle(connection, parsed)

    def connection_opened(self, connection: ClientConnection) -> None:
        # Without descriptors left, neither the upstream nor the store could be reached for those that are served.
        if len(self._clients) - len(self._leaving) >= self.settings.connections_max:
            self._make_room(connection)
        self._clients[connection] = None

    def connection_closed(self, connection: ClientConnection) -> None:
        self._clients.pop(connection, None)
        self._leaving.discard(connection)

    def refusal_bytes(self, refusal: Refusal) -> bytes:
        return self.handler.refusal_bytes(refusal)


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
        """Shake hands on a connection that was taken; the socket is given away."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._shake_hands(loop, sock, tls))
        self._under_way[task] = sock
        task.add_done_callback(lambda task: self._under_way.pop(task, None))
        if len(self._under_way) > self._max:
            _end(self._under_way.pop(next(iter(self._under_way))))

    async def end(self) -> None:
        """Break off those that are under way."""
        tasks = list(self._under_way)
        for sock in self._under_way.values():
            _end(sock)
        # Whatever one of them raises, the edge goes on closing.
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, tls: ssl.SSLContext) -> None:
        # Without one, nobody needs to know why.
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(
                self._connect,
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._settings.handshake_seconds,
                ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
            )


def _end(sock: socket.socket) -> None:
    """End what comes over it, and so the handshake. Cancelled at the moment in which it is over, that would leave a
    connection that uvloop never tells of its end.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class Door(asyncio.Protocol):
    """Takes a connection over from a listener without TLS, before anything of it is read."""

    def __init__(self, handshakes: Handshakes, tls: ssl.SSLContext) -> None:
        self._handshakes = handshakes
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        sock: socket.socket | None = None
        # Where no descriptor is left for it, the client finds it closed.
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
            sock.setblocking(False)
        # Closes its own descriptor, and not the connection.
        plain.abort()
        if sock is not None:
            self._handshakes.begin(sock, self._tls)


class ListenError(Exception):
    """The address cannot be listened on. The text says why, for an operator."""


def listen_fault(host: str | None, port: int, error: OSError) -> str:
    """What an operator has to change."""
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
