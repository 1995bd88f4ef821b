"""The edge as a server: its listeners, its connections and their time limits, and its shutdown.

It handles no requests: those go to its `Handler`.

Accepting holds the loop for no longer than a slice of a turn, whatever is in the backlog. An accepted connection is
little more than its descriptor until bytes come. Then it waits for its turn, beside the requests on connections that
are there already. Requests that ask for the same wait in one line, so that a burst of them holds up no other request.

Where no more connections may be open, the ones that were idle for longest make room. One that came or had a request
just now is not idle: it is about to send the next one, as all of a burst are. Where none is idle, new ones wait in the
backlog for a while, and are then turned away.

A TLS listener of asyncio reports a connection only after its handshake, and a silent client would hold a descriptor and
the memory of a long request until then. So connections are accepted without TLS and counted, and then start TLS. Where
there are too many, the longest handshake makes room for a new one: silent clients last longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import ssl
from collections.abc import Callable, Hashable
from enum import Enum, auto
from heapq import nsmallest
from itertools import islice
from time import perf_counter
from typing import Any, Final, cast

from aiohttp import web

from gateway.core.message import bracketed
from gateway.http.connection import (
    SMALL_BYTES,
    ClientConnection,
    EdgeSettings,
    MemoryBudget,
    has_c_parser,
)
from gateway.http.handler import Handler, Served
from gateway.observe.facts import Events
from gateway.protect.request import Slices
from gateway.upstream import keep_alive
from gateway.upstream.connection import reset_on_close

# How long accepting may go on in one turn.
_ACCEPT_SECONDS: Final = 0.002
# After the system had no descriptor or memory for a connection.
_EXHAUSTED_SECONDS: Final = 1.0
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
# A connection that was idle, or a handshake that has lasted, for less makes no room for a new one.
_SETTLED_SECONDS: Final = 0.5
# How long new connections wait for room before they are turned away.
_FULL_SECONDS: Final = 2.0


class Room(Enum):
    """Whether the next connection may be accepted."""

    FREE = auto()
    LATER = auto()  # in the next turn
    NONE = auto()  # once another one has gone


class Listener:
    """Accepts the connections of one listening socket, which it owns. It stops where there is no room, until `resume`:
    what is not accepted waits in the backlog, and its clients notice nothing."""

    def __init__(
        self, sock: socket.socket, room: Callable[[bool], Room], take: Callable[[socket.socket], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.sock = sock
        self._room = room
        self._take = take
        self._pause: asyncio.TimerHandle | None = None
        self._is_reading = self._is_closed = False
        self.resume()

    def resume(self) -> None:
        """Accept again, if nothing but the room was missing."""
        if not (self._is_reading or self._is_closed or self._pause):
            self._is_reading = True
            self._loop.add_reader(self.sock, self._accept)

    def close(self) -> None:
        """Accept no more, and close the socket."""
        if not self._is_closed:
            self._stop()
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            self.sock.close()

    def _stop(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self.sock)

    def _accept(self) -> None:
        until = perf_counter() + _ACCEPT_SECONDS
        # The loop says that a connection waits; nobody says that another one does.
        has_next = True
        while (room := self._room(has_next)) is Room.FREE:
            has_next = False
            try:
                accepted, _ = self.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._stop()
                self._pause = self._loop.call_later(_EXHAUSTED_SECONDS, self._go_on)
                return
            accepted.setblocking(False)
            self._take(accepted)
            if perf_counter() > until:
                return
        if room is Room.NONE:
            self._stop()

    def _go_on(self) -> None:
        self._pause = None
        self.resume()


class Arrival(asyncio.Protocol):
    """A connection that has sent nothing yet, or waits for the turn of its first request. `idle_since` is when it was
    accepted, on the loop's clock."""

    __slots__ = ("_data", "_is_over", "_owner", "idle_since", "transport")

    def __init__(self, owner: Edge, now: float) -> None:
        self._owner = owner
        self._data = b""
        self._is_over = False
        self.idle_since = now
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._is_over:
            transport.close()

    def data_received(self, data: bytes) -> None:
        owner = self._owner
        if self._data:
            self._data += data
            owner.waits(self, len(self._data))
        elif owner.slices.is_free():
            owner.begin(self, data)
        else:
            self._data = data
            # What follows, and its end, can wait in the kernel.
            cast(asyncio.Transport, self.transport).pause_reading()
            owner.waits(self, len(data))
            owner.slices.put(owner.flow_of(data), self.begin)

    def connection_lost(self, exc: Exception | None) -> None:
        self._data = b""
        self._owner.left(self)

    def begin(self) -> None:
        """Its turn has come, or is not waited for."""
        data, self._data = self._data, b""
        if data and self.transport is not None and not self.transport.is_closing():
            self._owner.begin(self, data)

    def end(self) -> None:
        """Close it, after the request that is here, if one is."""
        self._is_over = True
        if self._data:
            self.begin()
        elif self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close it without more ado."""
        self._is_over = True
        if self.transport is not None:
            self.transport.abort()


class Edge:
    """The listener for clients. `start` it, then `stop_listening`, then `close`. Lives on one event loop."""

    def __init__(
        self, served: Served, events: Events, settings: EdgeSettings | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Needs a running event loop. Without `tls` it speaks plain HTTP."""
        self.settings = settings = settings or EdgeSettings()
        self.handler = Handler(served, events, settings)
        self._tls = tls
        # Registers aiohttp's connections. It handles no requests: their `start` does.
        self._server = web.Server(cast(Any, self.handler.handle))
        self._listeners: list[Listener] = []
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        # Without a byte yet, the earliest first, and those that wait for the turn of their first request.
        self._arrivals: dict[Arrival, None] = {}
        self._waiting: set[Arrival] = set()
        # In the order of their next check.
        self._clients: dict[ClientConnection, None] = {}
        # Those of both that were aborted to make room, and are about to close.
        self._leaving: set[Arrival | ClientConnection] = set()
        # Since when there has been no room.
        self._full_since = math.inf
        self.slices = Slices()
        """The turns of requests that are about to be parsed."""
        self._handshakes = Handshakes(self._connect, settings)
        self._sweeping: asyncio.TimerHandle | None = None
        self.begun = MemoryBudget(settings.begun_bytes_max)
        """Requests that have arrived in part, or wait for their turn."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many requests are being processed or written, tunnels included."""
        return len(self.handler.busy)

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return len(self._clients) + len(self._arrivals) + len(self._waiting)

    async def start(
        self, *, host: str | None = None, port: int = 0, sock: socket.socket | None = None
    ) -> tuple[str, int]:
        """Listen on an address, or on a socket that is bound already. Returns the address. Raises `ListenError`."""
        if not has_c_parser():
            raise ListenError(
                "cannot listen: aiohttp was installed without its HTTP parser in C, or AIOHTTP_NO_EXTENSIONS is set"
            )
        socks = [] if sock is None else [sock]
        try:
            if sock is None:
                socks = await _bound(host, port)
            elif isinstance(bound := sock.getsockname(), tuple):
                host, port = bound[:2]
            for each in socks:
                # Another program may listen there since it was bound.
                each.listen(self.settings.backlog)
                each.setblocking(False)
                # Its connections inherit it. Nothing else notices that the reader of a silent stream, or the end of a
                # tunnel, is gone.
                with contextlib.suppress(OSError):
                    keep_alive(each)
        except OSError as error:
            if sock is None:
                for each in socks:
                    each.close()
            raise ListenError(listen_fault(host, port, error)) from error
        self._listeners += [Listener(each, self._room, self._take) for each in socks]
        if self._sweeping is None:
            self._sweep()
        address = socks[0].getsockname()
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else (str(address), 0)

    async def listen_on(self, sock: socket.socket) -> Listener:
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
        await self._loop.connect_accepted_socket(self._connect, sock)

    def leave(self, listener: Listener) -> None:
        """Accept no more connections from this listener. Open ones stay."""
        self._listeners.remove(listener)
        listener.close()

    def stop_listening(self) -> None:
        """Accept no more connections or requests. Requests in flight go on, and are the last on their connection."""
        self.handler.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for arrival in (*self._arrivals, *self._waiting):
            # One whose request is here is served, as one that was parsed is.
            arrival.end()
        for client in list(self._clients):
            if not client.is_busy:
                client.close()

    async def close(self, grace_seconds: float = 0.0) -> int:
        """Wait for requests in flight, then abort the rest. Returns how many were aborted."""
        self.stop_listening()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await self._handshakes.end()
        await self.handler.wait_idle(grace_seconds)
        broken_off = self.in_flight
        clients = list(self._clients)
        for client in clients:
            if client.is_busy:
                client.abort()
            else:
                client.close()
        await self.handler.end_tasks()
        await self._wait_flushed(clients)
        await asyncio.gather(*(client.task for client in clients if client.task is not None), return_exceptions=True)
        self._listeners.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self.handler.close()
        return broken_off

    def serve_by(self, served: Served, events: Events, settings: EdgeSettings, tls: ssl.SSLContext | None) -> None:
        """Serve the requests that begin from now on by this, and accept connections with `tls`. Open connections do not
        change."""
        self.settings, self._tls = settings, tls
        self.handler.serve_by(served, events, settings)

    @property
    def _is_full(self) -> bool:
        return self.connections - len(self._leaving) >= self.settings.connections_max

    def _room(self, has_next: bool) -> Room:
        """Whether the next connection may be accepted. Makes room for it if it surely waits."""
        if self._is_full:
            if not has_next:
                return Room.LATER
            now = self._loop.time()
            if self._make_room(now - _SETTLED_SECONDS):
                return Room.LATER
            self._full_since = min(self._full_since, now)
            return Room.NONE if now - self._full_since < _FULL_SECONDS else Room.FREE
        self._full_since = math.inf
        if self._tls is None:
            return Room.FREE
        if not self._handshakes.has_room():
            return Room.NONE
        # A handshake takes as long as a request.
        return Room.FREE if self.slices.is_free() else Room.LATER

    def _take(self, sock: socket.socket) -> None:
        """Serve a connection that was accepted, or turn it away."""
        if self._is_full:
            with sock:
                reset_on_close(sock)
            return
        if self._tls is not None:
            self._handshakes.begin(sock, self._tls)
            return
        arrival = Arrival(self, self._loop.time())
        self._arrivals[arrival] = None
        task = self._loop.create_task(self._open(arrival, sock))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, arrival: Arrival, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: arrival, sock)
        except OSError:
            self._arrivals.pop(arrival, None)

    def _connect(self) -> ClientConnection:
        return ClientConnection(self._server, self)

    def _sweep(self) -> None:
        """Check each connection in turn, a limited number at a time."""
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = self._loop.time()
        for arrival in list(islice(self._arrivals, _SWEEP_CONNECTIONS_MAX)):
            if now - arrival.idle_since <= self.settings.keepalive_seconds:
                break
            arrival.end()
        for listener in self._listeners:
            listener.resume()
        clients = list(islice(self._clients, _SWEEP_CONNECTIONS_MAX))
        for client in clients:
            if len(clients) == _SWEEP_CONNECTIONS_MAX:
                self._clients[client] = self._clients.pop(client)
            client.check(now)

    def _make_room(self, idle_by: float = math.inf) -> bool:
        """Abort the connections that were idle for longest, several at a time because all must be ranked; none that is
        idle only since after `idle_by`. Returns whether there were any."""
        idle: list[Arrival | ClientConnection] = [
            *self._arrivals,
            *(client for client in self._clients if not client.is_busy),
        ]
        idle = [each for each in idle if each.idle_since <= idle_by and each not in self._leaving]
        longest = nsmallest(1 + self.connections // _ROOM_SHARE, idle, key=lambda each: each.idle_since)
        self._leaving.update(longest)
        for each in longest:
            each.abort()
        return bool(longest)

    async def _wait_flushed(self, clients: list[ClientConnection]) -> None:
        """Let clients read what was written for them, for at most `linger_seconds`. Over TLS, one that has read
        everything may notice the end only when it uses the connection again, and is not waited for."""
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
        if self._is_full:
            self._make_room()
        self._clients[connection] = None

    def connection_closed(self, connection: ClientConnection) -> None:
        self._clients.pop(connection, None)
        self._gone(connection)

    def flow_of(self, data: bytes) -> Hashable:
        """The line in which the request that begins with these bytes waits: by its first line, its key, and its body as
        far as it is here. Only a guess, which decides about turns and nothing else.
        """
        names = self.handler.served.key_headers
        end = data.find(b"\r\n\r\n")
        head = data if end < 0 else data[:end]
        line, *lines = head.split(b"\r\n")
        keys = [each for each in lines if each.partition(b":")[0].lower() in names]
        return hash((line, *keys, data[len(head) :]))

    # -- for arrivals --------------------------------------------------------------------------------------------------

    def waits(self, arrival: Arrival, size_bytes: int) -> None:
        self._arrivals.pop(arrival, None)
        self._waiting.add(arrival)
        self.begun.hold(arrival, size_bytes if size_bytes > SMALL_BYTES else 0)

    def left(self, arrival: Arrival) -> None:
        self._forget(arrival)
        self._gone(arrival)

    def begin(self, arrival: Arrival, data: bytes) -> None:
        self._forget(arrival)
        self._leaving.discard(arrival)
        connection, transport = self._connect(), cast(asyncio.Transport, arrival.transport)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.parse_now(data)

    def _forget(self, arrival: Arrival) -> None:
        self._arrivals.pop(arrival, None)
        if arrival in self._waiting:
            self._waiting.discard(arrival)
            self.begun.hold(arrival, 0)

    def _gone(self, connection: Arrival | ClientConnection) -> None:
        self._leaving.discard(connection)
        for listener in self._listeners:
            listener.resume()


class Handshakes:
    """The handshakes of one edge. `connect` makes the protocol of a connection whose handshake is over."""

    def __init__(self, connect: Callable[[], asyncio.Protocol], settings: EdgeSettings) -> None:
        self._connect = connect
        self._settings = settings
        self._max = max(1, min(settings.handshakes_max, settings.connections_max // _CONNECTIONS_FOR_ONE))
        # Longest under way first, with the time when it began.
        self._under_way: dict[asyncio.Task[None], tuple[socket.socket, float]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def has_room(self) -> bool:
        """Whether one more may begin. The longest makes room, after a while."""
        if len(self._under_way) < self._max:
            return True
        task, (sock, began) = next(iter(self._under_way.items()))
        if asyncio.get_running_loop().time() - began < _SETTLED_SECONDS:
            return False
        del self._under_way[task]
        _end(sock)
        return True

    def begin(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Start the handshake of an accepted connection, which then owns the socket."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._shake_hands(loop, sock, tls))
        self._under_way[task] = sock, loop.time()
        task.add_done_callback(lambda task: self._under_way.pop(task, None))

    async def end(self) -> None:
        """Abort the handshakes that are under way."""
        tasks = list(self._under_way)
        for sock, _ in self._under_way.values():
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
    """By shutting the socket down: a handshake that is cancelled at the moment when it succeeds leaves a connection
    whose end uvloop never reports."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class ListenError(Exception):
    """Listening on the address failed. The text says why."""


async def _bound(host: str | None, port: int) -> list[socket.socket]:
    """A socket for each address of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    socks: list[socket.socket] = []
    try:
        for family, sockaddr in dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found):
            socks.append(bound_socket(family, sockaddr))
    except BaseException:
        for sock in socks:
            sock.close()
        raise
    return socks


def bound_socket(family: int, sockaddr: Any, *, is_shared: bool = False) -> socket.socket:
    """A socket to listen with on an address, beside others that are `is_shared` there. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


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
