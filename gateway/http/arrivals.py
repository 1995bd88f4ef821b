"""Where connections come from: they are accepted a few at a time, and their first requests have their turns.

Whatever is in the backlog of a socket, accepting it holds the loop for no longer than a slice of a turn. An accepted
connection is little more than its descriptor until bytes come. Then it waits for its turn, beside the requests that
come on connections that are there already: parsing a request and what follows takes a hundred times as long as
accepting. Requests that ask for the same wait in one line, so that a burst of them holds up no other request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable
from enum import Enum, auto
from time import perf_counter
from typing import Final, Protocol, cast

from gateway.protect.slices import Slices

# How long accepting may go on in one turn.
_ACCEPT_SECONDS: Final = 0.002
# After the system had no descriptor or memory for a connection.
_EXHAUSTED_SECONDS: Final = 1.0


class Room(Enum):
    """Whether the next connection may be accepted."""

    FREE = auto()
    LATER = auto()  # in the next turn
    NONE = auto()  # once another one has gone


class Listener:
    """Accepts the connections of one listening socket, which it owns. It stops where there is no room, until `resume`.

    What is not accepted waits in the backlog, and its clients notice nothing.
    """

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


class Owner(Protocol):
    """What an arrival reports to the edge."""

    slices: Slices

    def waits(self, arrival: Arrival, size_bytes: int) -> None: ...
    def left(self, arrival: Arrival) -> None: ...
    def flow_of(self, data: bytes) -> Hashable: ...
    def begin(self, arrival: Arrival, data: bytes) -> None: ...


class Arrival(asyncio.Protocol):
    """A connection that has sent nothing yet, or waits for the turn of its first request.

    `idle_since` is when it was accepted, on the loop's clock.
    """

    __slots__ = ("_data", "_is_over", "_owner", "idle_since", "transport")

    def __init__(self, owner: Owner, now: float) -> None:
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


def flow_of(data: bytes, names: frozenset[bytes]) -> Hashable:
    """What tells a request apart before it is parsed: its first line, its key, and its body as far as it is here.

    Only a guess, which decides about turns and nothing else. `names` are those of headers with keys, in lower case.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    line, *lines = head.split(b"\r\n")
    keys = [each for each in lines if each.partition(b":")[0].lower() in names]
    return hash((line, *keys, data[len(head) :]))
