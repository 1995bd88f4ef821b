"""Where workers take connections: a socket of its own for each, on the same address.

The kernel spreads connections over the sockets (SO_REUSEPORT, socket(7)), evenly and whatever the workers are doing.
One socket that all of them share gives a pool of connections that is opened at once to whoever wakes first: of eight,
all eight in most trials. What is usually wrong with a socket for each is that it dies with its worker, and whoever is
queued in it is reset. So the supervisor makes the sockets and keeps them open: a seat outlives who sits on it. While a
worker is away another one takes the connections of its seat, and nobody waits.
"""

from __future__ import annotations

import socket
import ssl
from asyncio import Server
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.app.life import StartError
from gateway.config import Address
from gateway.http.server import ListenError, listen_fault

Seat = tuple[socket.socket, ...]
"""The sockets of one worker: one for each address that the name of the host stands for."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What a worker is given: its number, and every seat by its number. The sockets are this process's own copies."""

    number: int
    seats: Mapping[int, Seat]


class Listening(Protocol):
    """What of the edge is needed here."""

    async def listen_on(self, sock: socket.socket, tls: ssl.SSLContext | None) -> Server: ...
    def leave(self, listener: Server) -> None: ...


def bind_seats(address: Address, count: int) -> dict[int, Seat]:
    """A seat for each of so many workers, from 1. Nothing arrives before one listens. Raises `StartError`."""
    seats: dict[int, Seat] = {}
    try:
        places = _resolved(address)
        for number in range(1, count + 1):
            # The first port is chosen by the system where 0 is asked for; the others follow it.
            seats[number] = tuple(_bound(family, place) for family, place in places)
            places = [(sock.family, sock.getsockname()) for sock in seats[number]]
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
    """Which seats each serving worker looks after: its own, and those before it whose worker is away."""
    if not serving:
        return {}
    looked_after: dict[int, set[int]] = {number: set() for number in serving}
    for seat in range(1, count + 1):
        looked_after[min(serving, key=lambda number: (number - seat) % count)].add(seat)
    return {number: frozenset(seats) for number, seats in looked_after.items()}


class Seating:
    """The seats that this worker looks after."""

    def __init__(self, edge: Listening, handed: Handed, tls: ssl.SSLContext | None) -> None:
        self._edge = edge
        self._handed = handed
        self._tls = tls
        self._listeners: dict[int, list[Server]] = {}
        self._is_closed = False

    async def look_after_own(self) -> None:
        """Listen on this worker's own seat. Raises `ListenError`."""
        await self.look_after((self._handed.number,))

    async def look_after(self, numbers: Collection[int]) -> None:
        """Listen on these seats, and on no others. Raises `ListenError`."""
        for number in set(self._listeners) - set(numbers):
            for listener in self._listeners.pop(number):
                self._edge.leave(listener)
        for number in sorted(set(numbers) - set(self._listeners)):
            listeners: list[Server] = []
            try:
                for sock in self._handed.seats[number]:
                    if self._is_closed:
                        return
                    # A listener closes what it was given.
                    listeners.append(await self._edge.listen_on(_copy_of(sock), self._tls))
            except ListenError:
                # The whole seat is tried again.
                while listeners:
                    self._edge.leave(listeners.pop())
                raise
            finally:
                if listeners:
                    self._listeners[number] = listeners

    def close(self) -> None:
        """Give back every seat: one that any process still has open would go on collecting connections."""
        self._is_closed = True
        close_seats(self._handed.seats)


def _copy_of(sock: socket.socket) -> socket.socket:
    """Raises `ListenError` where no descriptor is left for it."""
    try:
        return sock.dup()
    except OSError as error:
        raise ListenError(f"a seat cannot be looked after: {error.strerror or error}") from error


def _resolved(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((int(family), place) for family, _, _, _, place in found))
    for family, place in places:
        if place[1]:
            # Without SO_REUSEPORT, to notice whoever listens there already, another gateway of this kind included.
            _bound(family, place, is_shared=False).close()
    return places


def _bound(family: int, place: Any, *, is_shared: bool = True) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(place)
    except BaseException:
        sock.close()
        raise
    return sock
