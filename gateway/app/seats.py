"""The sockets that workers accept connections on: each worker has its own, all on the same address.

The kernel spreads connections over the sockets (SO_REUSEPORT, socket(7)), evenly and whatever the workers are doing.
With one shared socket, connections that a client's pool opens at once go to the worker that wakes first: of eight, all
eight in most trials. The usual problem of separate sockets is that a socket dies with its worker, and connections
queued in it are reset. So the supervisor makes the sockets and keeps them open: a seat outlives its worker. While a
worker is away, another one accepts the connections of its seat.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.app.life import StartError
from gateway.config.address import Address
from gateway.http.server import Edge, Listener, ListenError, listen_fault

Seat = tuple[socket.socket, ...]
"""The sockets of one worker: one for each address that the host name resolves to."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What a worker gets: its number, and every seat by its number. The sockets are this process's own copies."""

    number: int
    seats: Mapping[int, Seat]


def bind_seats(address: Address, count: int) -> dict[int, Seat]:
    """Seats for `count` workers, numbered from 1. No connection arrives until a worker listens. Raises `StartError`."""
    seats: dict[int, Seat] = {}
    try:
        addresses = _resolved(address)
        for number in range(1, count + 1):
            # For port 0 the system chooses the first port; the other seats use the same one.
            seats[number] = tuple(_bound(family, sockaddr) for family, sockaddr in addresses)
            addresses = [(sock.family, sock.getsockname()) for sock in seats[number]]
    except OSError as error:
        close_seats(seats)
        raise StartError(f"{listen_fault(address.host, address.port, error)} (listen)") from error
    return seats


def close_seats(seats: Mapping[int, Seat]) -> None:
    """Close this process's copies."""
    for seat in seats.values():
        for sock in seat:
            sock.close()


def shares(count: int, serving: Collection[int]) -> dict[int, frozenset[int]]:
    """Which seats each serving worker listens on: its own, and those before it whose worker is away."""
    if not serving:
        return {}
    assigned: dict[int, set[int]] = {number: set() for number in serving}
    for seat in range(1, count + 1):
        assigned[min(serving, key=lambda number: (number - seat) % count)].add(seat)
    return {number: frozenset(seats) for number, seats in assigned.items()}


class Seating:
    """The seats that this worker listens on."""

    def __init__(self, edge: Edge, handed: Handed) -> None:
        self._edge = edge
        self._handed = handed
        self._listeners: dict[int, list[Listener]] = {}
        self._is_closed = False

    async def take_own(self) -> None:
        """Listen on this worker's own seat. Raises `ListenError`."""
        await self.take((self._handed.number,))

    async def take(self, numbers: Collection[int]) -> None:
        """Listen on these seats, and on no others. Raises `ListenError`."""
        for number in set(self._listeners) - set(numbers):
            for listener in self._listeners.pop(number):
                self._edge.leave(listener)
        for number in sorted(set(numbers) - set(self._listeners)):
            listeners: list[Listener] = []
            try:
                for sock in self._handed.seats[number]:
                    if self._is_closed:
                        return
                    # A listener closes its socket.
                    listeners.append(await self._edge.listen_on(_copy_of(sock)))
            except ListenError:
                # The next attempt starts with the whole seat again.
                while listeners:
                    self._edge.leave(listeners.pop())
                raise
            finally:
                if listeners:
                    self._listeners[number] = listeners

    def close(self) -> None:
        """Close every seat: one that any process has open would go on queueing connections."""
        self._is_closed = True
        close_seats(self._handed.seats)


def _copy_of(sock: socket.socket) -> socket.socket:
    """Raises `ListenError` when no descriptor is left for it."""
    try:
        return sock.dup()
    except OSError as error:
        raise ListenError(f"cannot listen on a seat: {error.strerror or error}") from error


def _resolved(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((int(family), sockaddr) for family, _, _, _, sockaddr in found))
    for family, sockaddr in addresses:
        if sockaddr[1]:
            # Without SO_REUSEPORT, to notice any process that listens there already, also another gateway.
            _bound(family, sockaddr, is_shared=False).close()
    return addresses


def _bound(family: int, sockaddr: Any, *, is_shared: bool = True) -> socket.socket:
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
