"""Bytes both ways after a 101, until both sides have ended.

Owns the buffer and the flow control of the client's direction, and what the end of one side means for the other: an end
is passed on as an end, and a reset as a reset. It knows nothing of the protocol inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.http.connection import ClientConnection, ClientGone
from gateway.upstream import BodyLost, Duplex, UpstreamResponse

# The connection stops reading above this, until the upstream takes what is there.
_BUFFER_BYTES_MAX = 128 * 1024


class ClientTunnel:
    """The client's end of a tunnel: its connection as two directions of bytes."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._has_ended = False
        self._is_broken = False
        self._is_paused = False
        self._news = asyncio.Event()
        connection.open_tunnel(self)

    # -- for the connection -------------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """As aiohttp's parsers: returns that it is not at an end, and that nothing is left over."""
        self._buffer += data
        if len(self._buffer) > _BUFFER_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._connection.pause_reading()
        self._news.set()
        return False, b""

    def feed_eof(self) -> None:
        """The connection is lost; after a half-close that is its normal end."""
        self._is_broken = not self._has_ended
        self._news.set()

    def half_closed(self) -> None:
        self._has_ended = True
        self._news.set()

    # -- for the relay ------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """The next bytes; empty once the client has ended its direction, None once it broke off."""
        while True:
            if self._buffer:
                data = bytes(self._buffer)
                self._buffer.clear()
                if self._is_paused:
                    self._is_paused = False
                    self._connection.resume_reading()
                return data
            if self._is_broken:
                return None
            if self._has_ended:
                return b""
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> bool:
        """Send bytes, waiting while the client is slow. False when it is gone."""
        try:
            self._connection.write(data)
            await self._connection.drain()
        except ClientGone:
            return False
        return True

    def write_eof(self) -> None:
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            self._connection.close()

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        self._connection.on_gone = callback

    def abort(self) -> None:
        self._connection.abort()

    def close(self) -> None:
        self._connection.close()


async def relay(client: ClientTunnel, response: UpstreamResponse, upstream: Duplex) -> None:
    """Relay until both directions have ended or one broke off, which ends the other. Closes both ends."""
    up = asyncio.ensure_future(_relay_up(client, upstream))
    down = asyncio.ensure_future(_relay_down(client, upstream))
    # There is no reader any more. What the client sent before it left is still passed on.
    client.on_gone(down.cancel)
    is_whole = False
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_EXCEPTION)
        is_whole = all(way.done() and (way.cancelled() or way.exception() is None) for way in (up, down))
    finally:
        client.on_gone(None)
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        if is_whole:
            client.close()
        else:
            client.abort()
            response.body.close()
        upstream.close()


class _BrokenOff(Exception):
    """One side is gone before its end."""


async def _relay_up(client: ClientTunnel, upstream: Duplex) -> None:
    while data := await client.read():
        if not await upstream.write(data):
            raise _BrokenOff
    if data is None:
        raise _BrokenOff
    upstream.write_eof()


async def _relay_down(client: ClientTunnel, upstream: Duplex) -> None:
    while True:
        data = await upstream.read()
        if isinstance(data, BodyLost):
            raise _BrokenOff
        if not data:
            client.write_eof()
            return
        if not await client.write(data):
            raise _BrokenOff
