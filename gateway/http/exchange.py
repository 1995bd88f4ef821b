"""One request at the edge: read as a value, and its answer written to the client's connection.

Owns what has been written so far, whether the connection may serve another request, and the waiting for a client that
is slow to read. It decides nothing about a request.

Invariant: once a byte of a final head is out, the connection either carries the whole reply or is reset; it never ends
a reply as if it were whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead, field_values
from gateway.http.body import ClientBody
from gateway.http.connection import ClientConnection
from gateway.http.request_parser import ReceivedRequest
from gateway.http.settings import EdgeSettings
from gateway.http.tunnel import ClientTunnel, Tunnel
from gateway.http.unread import Unread
from gateway.http.writer import CONTINUE, LAST_CHUNK, DateClock, Framed, bare_head, chunk, framed
from gateway.protect.reply import BodyCut, Incoming, Reply, ResponseStream

# Up to this size head and body leave in one write.
ONE_WRITE_BYTES_MAX: Final = 64 * 1024
# What is written of a still longer one before the client is waited for. With TLS the first two parts make nobody wait,
# read or not: they are short, so that not much is held for clients beside what is counted.
_PART_BYTES: Final = 64 * 1024


def pieces_of(out: Framed, body: bytes) -> tuple[bytes, ...]:
    """A whole reply as what is to be written: in one piece where that copies little."""
    if not out.sends_body or not body:
        return (out.head,)
    return (out.head + body,) if len(body) <= ONE_WRITE_BYTES_MAX else (out.head, body)


class ClientGone(Exception):
    """There is nobody to answer: the client went, or does not read."""


class Client(Protocol):
    """What can be said to a client beside the reply, for a request that is passed through."""

    @property
    def takes_interim(self) -> bool:
        """Whether it knows interim (1xx) responses: HTTP/1.0 does not (RFC 9110 section 15.2)."""

    def send_interim(self, head: ResponseHead) -> None:
        """Pass an interim response on. Harmless when the client went."""

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        """Call this once the client is gone, at once if it is. None: no longer."""

    def switch(self, head: ResponseHead) -> Tunnel:
        """Write the 101, after which the connection is bytes both ways."""


@dataclass(slots=True)
class EdgeState:
    """What the exchanges of an edge share. Once it `is_stopping`, each is the last on its connection."""

    settings: EdgeSettings
    clock: DateClock
    unread: Unread
    is_stopping: bool = False


class ClientExchange:
    """See the module and `Client`. Lives as long as one request is worked on.

    `is_answered`: a byte of a final head is out. `keep_alive`: the connection may serve another request. `has_ended` is
    set by the request handler.
    """

    __slots__ = (
        "_edge",
        "_is_last",
        "_request",
        "body",
        "connection",
        "has_ended",
        "head",
        "is_answered",
        "keep_alive",
    )

    def __init__(
        self,
        connection: ClientConnection,
        request: ReceivedRequest,
        body: ClientBody,
        edge: EdgeState,
    ) -> None:
        self.connection = connection
        self._request = request
        self._edge = edge
        self._is_last = False
        self.is_answered = False
        self.has_ended = False
        self.keep_alive = False
        self.head = request.head
        self.body = body
        if not body.is_received and request.version == (1, 1):
            expectations = field_values(self.head.headers, b"expect")
            if any(value.lower() == b"100-continue" for value in expectations):
                body.ask = self._send_continue

    # -- the request --------------------------------------------------------------------------------------------------

    def incoming(self, *, may_upgrade: bool) -> Incoming:
        """The request as a value. Without `may_upgrade` it does not ask to leave HTTP."""
        head, upgrades = self.head, False
        if self._request.asks_upgrade:
            upgrades = may_upgrade and self._is_switchable()
            if not upgrades:
                kept = [field for field in head.headers if field[0].lower() != b"upgrade"]
                head = RequestHead(head.method, head.target, IndexedHeaders(kept))
        return Incoming(head, self.body, self.connection.hop, upgrades)

    def _is_switchable(self) -> bool:
        """Whether the protocol asked for is one that a tunnel is made for; HTTP/2 would lead past every route.

        A handshake has no body: the rest of one would be torn between the request and the tunnel.
        """
        request = self._request
        return self._protocols() == [b"websocket"] and request.version == (1, 1) and request.length == 0

    def _protocols(self) -> list[bytes]:
        """What the request offers to go on with."""
        return [value.lower() for value in field_values(self.head.headers, b"upgrade")]

    # -- the reply ----------------------------------------------------------------------------------------------------

    async def write(self, reply: Reply, *, shows_status: bool = True) -> None:
        """Write the whole reply. Raises `ClientGone`, and `ReplyInvalid` before anything was written."""
        body = reply.body
        try:
            out = self._framed(reply, shows_status)
            if isinstance(body, bytes):
                await self._write_whole(out, body)
            else:
                await self._write_stream(out, body)
        finally:
            if not isinstance(body, bytes):
                body.abort()
        self.keep_alive = out.keep_alive
        if not self.body.is_received:
            await self._linger()

    async def write_last(self, reply: Reply, *, shows_status: bool = True) -> None:
        """Write the reply, and serve nothing more on this connection."""
        self._is_last = True
        await self.write(reply, shows_status=shows_status)

    def abort(self) -> None:
        """Break the connection off, visibly."""
        self.keep_alive = False
        self.connection.abort()

    def _framed(self, reply: Reply, shows_status: bool) -> Framed:
        return framed(
            reply,
            method=self.head.method,
            minor=self._request.version[1],
            keep_alive=self._may_keep_alive(),
            shows_status=shows_status,
            date=self._edge.clock.now(),
        )

    def _may_keep_alive(self) -> bool:
        """A request whose body did not arrive whole is followed by its rest, which nobody must take for a request.

        Nor does another one follow a request for an upgrade that is not known: its bytes may be of that protocol. A
        client that offers HTTP/2 begins with it after a 101 only (RFC 7540 section 3.2), and Java's offers it always.
        """
        request = self._request
        if self._is_last or not request.keep_alive or self._edge.is_stopping or not self.body.is_received:
            return False
        return not request.asks_upgrade or self._protocols() == [b"h2c"] or self._is_switchable()

    async def _write_whole(self, out: Framed, body: bytes) -> None:
        """In parts: of what the transport took over, nobody can say with TLS how much it holds."""
        if not out.sends_body or len(body) <= ONE_WRITE_BYTES_MAX:
            self._send(*pieces_of(out, body))
            await self._drain()
            return
        with self._edge.unread.held(self.connection, len(body)):
            self._send(out.head)
            try:
                for start in range(0, len(body), _PART_BYTES):
                    self._send(body[start : start + _PART_BYTES])
                    await self._drain()
            except BaseException:
                self.abort()
                raise

    async def _write_stream(self, out: Framed, stream: ResponseStream) -> None:
        self._send(out.head)
        if not out.sends_body:
            return
        self.on_gone(stream.abort)
        try:
            left = out.length
            while data := await stream.read():
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        raise BodyCut("longer than announced")
                self._send(chunk(data) if out.is_chunked else data)
                await self._drain()
            if left:
                raise BodyCut("shorter than announced")
            if out.is_chunked:
                self._send(LAST_CHUNK)
        except BodyCut:
            self.abort()
            raise ClientGone from None
        except BaseException:
            self.abort()
            raise
        finally:
            self.on_gone(None)

    def _send(self, *pieces: bytes) -> None:
        transport = self.connection.transport
        for data in pieces:
            if transport is None or transport.is_closing():
                raise ClientGone
            self.is_answered = True
            transport.write(data)

    async def _drain(self) -> None:
        """Wait while the client is slow to read, and break off when it does not read at all."""
        connection = self.connection
        while connection.is_writing_paused:
            seconds = self._edge.settings.silence_seconds
            before = connection.taken_bytes
            try:
                async with asyncio.timeout(seconds):
                    await connection.wait_writable()
            except TimeoutError:
                # A long answer may take longer than any silence, as long as it is being read.
                if connection.taken_bytes - before < self._edge.settings.bytes_per_second_min * seconds:
                    self.abort()
                    raise ClientGone from None
        if connection.gone.is_set():
            raise ClientGone

    async def _linger(self) -> None:
        """The answer is out although the request is not in: let the client read it before the connection is closed.

        Closing with input unread would send an RST, which may overtake the answer (RFC 9112 section 9.6).
        """
        connection = self.connection
        transport = connection.transport
        if transport is None:
            return
        connection.discard_input()
        if transport.can_write_eof():
            transport.write_eof()
        try:
            async with asyncio.timeout(self._edge.settings.linger_seconds):
                await connection.gone.wait()
        except TimeoutError:
            self.abort()

    # -- beside the reply: `Client` -----------------------------------------------------------------------------------

    @property
    def takes_interim(self) -> bool:
        return self._request.version == (1, 1)

    def send_interim(self, head: ResponseHead) -> None:
        self._send_beside(bare_head(head))

    def _send_continue(self) -> None:
        self._send_beside(CONTINUE)

    def _send_beside(self, data: bytes) -> None:
        transport = self.connection.transport
        if transport is not None and not transport.is_closing() and not self.is_answered:
            transport.write(data)

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        self.connection.on_gone = callback
        if callback is not None and self.connection.gone.is_set():
            callback()

    def switch(self, head: ResponseHead) -> Tunnel:
        self._send(bare_head(head))
        return ClientTunnel(self.connection, self._drain_tunnel)

    async def _drain_tunnel(self) -> bool:
        try:
            await self._drain()
        except ClientGone:
            return False
        return True
