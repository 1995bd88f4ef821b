"""One connection from a client: the socket's events on one side, one request at a time on the other.

Owns the order of requests on it, the client's address, the news that it went, how long it may be idle, input that waits
or is thrown away, and the two ways to stop being HTTP: a tunnel, and bytes that are no request. It knows nothing of
routes or replies.

Theory of operation. A request is read as it comes and handed on as soon as its head is here; of a short one all is here
by then. What follows it on the connection waits unread, and beyond a limit in the kernel, until its exchange has ended.
So a pipelined request is read only after the answer before it was written, and bytes that follow a handshake are still
there for the tunnel or for the next request, whichever it becomes.

Invariant: after bytes that are no request, or a request whose end is not certain, nothing that follows is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final, Protocol, cast

from gateway.http.body import ClientBody
from gateway.http.delivery import Delivery, delivery_of
from gateway.http.request_parser import ReceivedRequest, RequestInvalid, RequestParser
from gateway.http.settings import EdgeSettings
from gateway.protect.hop import hop_from
from gateway.protect.reply import Cut
from gateway.upstream import keep_alive

_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
# The connection stops reading when so much waits behind the request that is being answered.
_WAITING_BYTES_MAX: Final = 64 * 1024
# Less of a request than this is not told of: it is as little as a connection takes without one.
_SMALL_BYTES: Final = 4 * 1024
# Whoever writes waits when so much has not left.
_WRITTEN_BYTES_MAX: Final = 64 * 1024


class Input(Protocol):
    """Who takes a connection's bytes once it is no longer HTTP."""

    def feed_data(self, data: bytes) -> None: ...
    def feed_eof(self) -> None: ...
    def half_closed(self) -> None: ...


class ConnectionOwner(Protocol):
    """Who keeps count of the connections: the server."""

    @property
    def settings(self) -> EdgeSettings: ...

    def connection_opened(self, connection: ClientConnection) -> None: ...
    def input_held(self, connection: ClientConnection, size_bytes: int) -> None:
        """So much of what came waits for the rest of its head, or for its turn."""

    def connection_closed(self, connection: ClientConnection) -> None: ...


class Answerer(Protocol):
    """Who answers what comes on them."""

    def request_arrived(self, connection: ClientConnection, request: ReceivedRequest, body: ClientBody) -> None:
        """Answer it, and say `exchange_ended` on the connection when all was written."""

    def refusal(self, status: int) -> bytes:
        """The whole response to bytes that are no request."""


class ClientConnection(asyncio.Protocol):
    """See the module. `on_gone` is called when the client went; `gone` is set from then on.

    `idle_since`: when the last request was answered, or the connection made, on the loop's clock.
    """

    __slots__ = (
        "_answerer",
        "_body",
        "_delivery_before",
        "_drained",
        "_input",
        "_is_deaf",
        "_is_input_paused",
        "_is_input_told",
        "_is_reading_paused",
        "_loop",
        "_owner",
        "_parser",
        "_request",
        "_settings",
        "_timer",
        "_waiting",
        "gone",
        "hop",
        "idle_since",
        "is_busy",
        "is_writing_paused",
        "on_gone",
        "transport",
    )

    def __init__(self, owner: ConnectionOwner, answerer: Answerer) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._answerer = answerer
        self._settings = settings = owner.settings
        self._parser = RequestParser(
            self, header_bytes_max=settings.header_bytes_max, header_fields_max=settings.header_fields_max
        )
        self._request: ReceivedRequest | None = None
        self._body: ClientBody | None = None
        self._waiting = b""
        self._input: Input | None = None
        self._is_deaf = False
        self._is_input_paused = False
        self._is_input_told = False
        self._is_reading_paused = False
        self._drained: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._delivery_before: Delivery | None = None
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        self.on_gone: Callable[[], object] | None = None
        self.is_busy = False
        self.is_writing_paused = False
        self.hop = hop_from(None, is_secure=False)

    # -- for the exchange ---------------------------------------------------------------------------------------------

    def exchange_ended(self, *, keep_alive: bool) -> None:
        """All that there is to say to the request was written: go on with what follows it, or close."""
        self.is_busy = False
        self._body = None
        transport = self.transport
        if transport is None or self._input is not None:
            return
        if not keep_alive:
            self._is_deaf = True
            transport.close()
            return
        if self._is_reading_paused:
            # The body is here whole, was too much to hold, and was not taken by anybody.
            self.resume_reading()
        self._parser.begin()
        self.idle_since = self._loop.time()
        if self._waiting:
            # In a turn of its own, so that a long line of requests holds nobody else up.
            self._loop.call_soon(self._go_on)

    def discard_input(self) -> None:
        """Throw away whatever still comes: the answer was given without it."""
        self._is_deaf = True
        self._waiting = b""
        self._tell_input()
        if self._body is not None:
            self._body.give_up()
        self._resume_transport()

    def open_tunnel(self, taker: Input) -> None:
        """Hand on every byte from now on, and those that came too early."""
        self._input = taker
        waiting, self._waiting = self._waiting, b""
        self._tell_input()
        if waiting:
            taker.feed_data(waiting)
        self._is_input_paused = False
        if not self._is_reading_paused:
            self._resume_transport()

    def abort(self) -> None:
        """End the connection so that the client cannot take what it got for whole: by RST, never by FIN."""
        transport = self.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        transport.abort()

    def close(self) -> None:
        """Take no further request, and close as soon as what was written has left."""
        self._is_deaf = True
        # Closed twice over TLS, a transport of asyncio forgets what it is closing, and cannot be aborted any more.
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def end_if_read(self) -> None:
        """End a connection that is being closed where its client has everything, and only does not go.

        That is certain when it was so the last time, too.
        """
        if self.transport is None:
            return
        before, now = self._delivery_before, delivery_of(self.transport)
        self._delivery_before = now
        if now.is_all and now == before:
            # An RST might overtake what it has yet to look at.
            self.transport.abort()

    def pause_reading(self) -> None:
        """Whoever takes the input has enough for now."""
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._pause_transport()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._is_reading_paused:
            self._is_reading_paused = False
            if not self._is_input_paused:
                self._resume_transport()

    @property
    def taken_bytes(self) -> int:
        """What the client has taken, counted from anywhere; see `Delivery`."""
        return 0 if self.transport is None else delivery_of(self.transport).taken_bytes

    async def wait_writable(self) -> None:
        """Wait while too much is unsent, or until the connection is gone. One caller at a time."""
        if self.is_writing_paused and self.transport is not None:
            self._drained = self._loop.create_future()
            await self._drained

    # -- events of the parser: `RequestSink` --------------------------------------------------------------------------

    def head_arrived(self, request: ReceivedRequest) -> ClientBody:
        self._request = request
        settings = self._settings
        body = self._body = ClientBody(self, request.length, settings.silence_seconds, settings.bytes_per_second_min)
        return body

    # -- events of the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Over TLS the loops would take over eight times as much before anybody is made to wait.
        self.transport.set_write_buffer_limits(high=_WRITTEN_BYTES_MAX)
        address = transport.get_extra_info("peername")
        self.hop = hop_from(
            str(address[0]) if isinstance(address, tuple) else None,
            is_secure=transport.get_extra_info("sslcontext") is not None,
        )
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Whoever reads a silent stream, or holds a socket, has no other clock.
            with contextlib.suppress(OSError):
                keep_alive(sock)
        self.idle_since = self._loop.time()
        self._set_timer(self._settings.keepalive_seconds)
        self._owner.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._input is not None:
            self._input.feed_data(data)
        elif self._is_deaf:
            return
        elif self._waiting or self._is_request_whole:
            # What came before this and waits for its turn is read before it.
            self._wait_with(data)
        else:
            self._read(data)

    def eof_received(self) -> bool:
        """A client that ends its direction is taken for gone, because most that do so are; not so in a tunnel."""
        if self._input is None:
            return False
        self._input.half_closed()
        # TLS knows no half-closed connection.
        return self.hop.scheme == b"http"

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        # At once, for connection and parser know each other, and are collected much later.
        self._waiting = b""
        self._parser.forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._body is not None:
            self._body.cut_short(Cut.GONE)
        if self._input is not None:
            self._input.feed_eof()
        self.resume_writing()
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()
        self._owner.connection_closed(self)

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _is_request_whole(self) -> bool:
        """Whether what comes belongs behind the request that is being answered."""
        return self.is_busy and (self._body is None or self._body.is_received)

    def _read(self, data: bytes) -> None:
        """Read until the end of one request, or as much of it as a turn may take; the rest waits."""
        is_at_beginning = self._parser.is_at_beginning
        try:
            data = self._parser.feed(data)
        except RequestInvalid as problem:
            self._is_deaf = True
            data = b""
            if self._body is None:
                self._refuse(problem.status)
                return
            self._body.cut_short(Cut.MALFORMED)
        request, self._request = self._request, None
        if request is not None and self._body is not None:
            if request.fault is not None:
                self._is_deaf = True
            self.is_busy = True
            if data or not is_at_beginning or not self._body.is_received:
                self._tell_input()
            self._answerer.request_arrived(self, request, self._body)
        elif not self.is_busy:
            self._tell_input()
        if data and not self._is_deaf:
            self._wait_with(data)
            if not self._is_request_whole:
                # In a turn of its own, so that a long line of requests or of small chunks holds nobody else up.
                self._loop.call_soon(self._go_on)

    def _wait_with(self, data: bytes) -> None:
        """Keep what follows the request that is being answered, or is of it and not yet its turn."""
        self._waiting += data
        self._tell_input()
        if len(self._waiting) > _WAITING_BYTES_MAX and not self._is_input_paused:
            self._is_input_paused = True
            self._pause_transport()

    def _go_on(self) -> None:
        transport = self.transport
        if self._is_request_whole or self._is_deaf or self._input is not None:
            return
        if transport is None or transport.is_closing():
            return
        waiting, self._waiting = self._waiting, b""
        self._tell_input()
        if self._is_input_paused:
            self._is_input_paused = False
            if not self._is_reading_paused:
                self._resume_transport()
        if waiting:
            self._read(waiting)

    def _tell_input(self) -> None:
        size_bytes = len(self._waiting) + self._parser.held_bytes
        is_worth_it = size_bytes > _SMALL_BYTES
        if is_worth_it or self._is_input_told:
            self._is_input_told = is_worth_it
            self._owner.input_held(self, size_bytes if is_worth_it else 0)

    def _refuse(self, status: int) -> None:
        """Answer bytes that are no request, and let the client read that before the connection is closed.

        Closing with input unread would send an RST, which may overtake the answer (RFC 9112 section 9.6).
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(self._answerer.refusal(status))
        if transport.can_write_eof():
            transport.write_eof()
            self._delivery_before = delivery_of(transport)
            self._set_timer(self._settings.linger_seconds)
        else:
            transport.close()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look_at_time)

    def _look_at_time(self) -> None:
        """Close a connection that has been idle for too long.

        The timer is set anew when it fires too early: requests cost none.
        """
        self._timer = None
        transport = self.transport
        if transport is None:
            return
        if transport.is_closing() or (self._is_deaf and not self.is_busy):
            self._look_at_reader(transport)
            return
        limit = self._settings.keepalive_seconds
        left = limit if self.is_busy or self._input is not None else self.idle_since + limit - self._loop.time()
        if left > 0:
            self._set_timer(left)
        else:
            self._is_deaf = True
            self._delivery_before = delivery_of(transport)
            self._set_timer(self._settings.silence_seconds)
            transport.close()

    def _look_at_reader(self, transport: asyncio.Transport) -> None:
        """Let a client have what was written for it as long as it reads at a pace, and break off one that does not.

        Closing alone waits for it, for ever if need be.
        """
        seconds = self._settings.silence_seconds
        before, now = self._delivery_before, delivery_of(transport)
        self._delivery_before = now
        if before is not None and now.is_all and now == before:
            # It has everything, and does not go. An RST might overtake what it has yet to look at.
            transport.abort()
        elif (
            before is None
            or now.is_all
            or now.taken_bytes - before.taken_bytes >= self._settings.bytes_per_second_min * seconds
        ):
            self._set_timer(seconds)
        else:
            self.abort()

    def _pause_transport(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume_transport(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
