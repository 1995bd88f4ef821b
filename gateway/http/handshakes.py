"""TLS handshakes with clients: how many there may be at once, and which one gives way when there are too many.

A listener with TLS tells nobody of a connection before its handshake is over. Whoever opens one and says nothing has a
descriptor until then, and as much memory as a long request takes. So connections are taken without TLS, are counted,
and get it then. Where there are too many, the handshake that has lasted longest makes room for a newcomer: those who
keep silent last longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from gateway.http.settings import EdgeSettings

# A connection looks itself whether its client still reads what is left when it is closed, and breaks it off when not.
# The loop, left to itself, breaks off everybody after half a minute.
_TLS_CLOSE_SECONDS: Final = 24 * 3600.0
# For so many connections one handshake may be under way: it has a descriptor beside theirs.
_CONNECTIONS_FOR_ONE: Final = 4


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
