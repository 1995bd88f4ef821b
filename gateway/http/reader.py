"""Clients that are slow to read their responses: how much they have received, and when to give them up."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from enum import Enum, auto
from typing import Final

from gateway.core.immutable import immutable
from gateway.http.limits import EdgeSettings

# `struct tcp_info` of Linux (4.6 and later), of which these are tcpi_unacked, tcpi_bytes_acked and tcpi_notsent_bytes.
_TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")


@immutable
class Delivery:
    """How much of what was written the client has received.

    Without TLS the transport knows what has yet to leave. With TLS it does not: the loop encrypts a response at once
    and does not count what it then holds. So the kernel is asked what has arrived. `taken_bytes` grow with what the
    client receives, from any start. `is_all`: nothing is left, unless the loop is about to write what it holds. Seen
    twice, with nothing received in between, it is certain.
    """

    taken_bytes: int
    is_all: bool


_UNKNOWN: Final = Delivery(0, is_all=False)


def delivery_of(transport: asyncio.Transport) -> Delivery:
    """How much it has received by now. Where that is unknown, nothing ever is."""
    if transport.get_extra_info("sslcontext") is None:
        unsent_bytes = transport.get_write_buffer_size()
        return Delivery(-unsent_bytes, unsent_bytes == 0)
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return _UNKNOWN
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
    except OSError:
        return _UNKNOWN
    if len(info) < _TCP_INFO.size:
        return _UNKNOWN
    on_its_way, arrived_bytes, unsent_bytes = _TCP_INFO.unpack(info)
    return Delivery(arrived_bytes, on_its_way == 0 and unsent_bytes == 0)


class Check(Enum):
    """What to do with a connection."""

    WAIT = auto()
    END = auto()  # its client has received everything, and does not close
    BREAK_OFF = auto()  # its client does not read, or too slowly


class ReaderWatch:
    """Whether one client reads fast enough. A long response may take any time while it does.

    Closing a connection waits for its client without a limit, so the client is watched then, too.
    """

    __slots__ = ("_before", "_is_ending", "_settings", "_transport", "due")

    def __init__(self, settings: EdgeSettings) -> None:
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._before: Delivery | None = None
        self._is_ending = False
        self.due = math.inf
        """When to check it next, on the loop's clock."""

    def watch_writing(self, transport: asyncio.Transport, now: float) -> None:
        """A writer waits until the client has read more."""
        self._transport = transport
        self._before = delivery_of(transport)
        self.due = now + self._settings.silence_seconds

    def stop(self) -> None:
        """No writer waits any more."""
        self.due = math.inf

    def watch_end(self, transport: asyncio.Transport, now: float, seconds: float) -> None:
        """Nothing more is written. The client has so long to read the rest, and then as long as it reads."""
        self._transport = transport
        self._is_ending = True
        before = delivery_of(transport)
        # A time to linger is too short to judge a pace by.
        self._before = before if before.is_all or seconds >= self._settings.silence_seconds else None
        self.due = now + seconds

    def has_read_all(self) -> bool:
        """Whether it has received everything. That is certain when the last call found it, too."""
        if self._transport is None:
            return False
        before, self._before = self._before, delivery_of(self._transport)
        return self._before.is_all and self._before == before

    def check(self, now: float) -> Check:
        """To be called from time to time."""
        if now < self.due or self._transport is None:
            return Check.WAIT
        before = self._before
        if self.has_read_all() and self._is_ending:
            return Check.END
        after, seconds = self._before, self._settings.silence_seconds
        self.due = now + seconds
        if before is None or after is None or (self._is_ending and after.is_all):
            return Check.WAIT
        is_at_pace = after.taken_bytes - before.taken_bytes >= self._settings.bytes_per_second_min * seconds
        return Check.WAIT if is_at_pace else Check.BREAK_OFF
