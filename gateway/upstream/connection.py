"""One connection to the upstream: the socket's events on one side, one exchange at a time on the other.

Owns the moment after which a byte of the request may have left (`send`), the end of an exchange, and whether the
connection may serve another. Does not choose connections and does not know what a request means.

Theory of operation. A connection is idle, or has an exchange: a receiver and a parser. `send` begins the exchange and
writes the first bytes to the transport in the same step. The exchange is over when the response has ended or can no
longer end; the connection is given back to its owner only if the ends of both messages are certain. Bytes that arrive
without an exchange belong to no request, so they condemn the connection: they must never become the next response.

Invariant: after `abort` not one more byte of the request leaves this host (what is buffered here and in the kernel is
dropped with an RST).
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, cast

from gateway.upstream.parser import ResponseInvalid, ResponseParser
from gateway.upstream.request import FileReader, send_body
from gateway.upstream.response import NEVER, ResponseReceiver
from gateway.upstream.result import StreamBody, Unknown

# Up to this size head and body leave in one write, and so usually in one segment.
_ONE_WRITE_BYTES_MAX = 64 * 1024
_RST_ON_CLOSE = struct.pack("ii", 1, 0)
# Combined once: to combine members of an enumeration takes a microsecond.
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT


class ConnectionOwner(Protocol):
    """What a connection reports to its owner, the pool."""

    def connection_made(self, connection: UpstreamConnection) -> None: ...
    def give_back(self, connection: UpstreamConnection) -> None: ...
    def connection_condemned(self, connection: UpstreamConnection) -> None: ...
    def connection_died_on_reuse(self, connection: UpstreamConnection) -> None: ...
    def connection_closed(self, connection: UpstreamConnection) -> None: ...
    def connection_lasts(self, connection: UpstreamConnection) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """See the module.

    `served` counts finished exchanges. `announced_keepalive_seconds` is what the last response announced, if anything;
    `may_be_followed`: a late body may still arrive although the last response has none. `is_closed` is true until the
    connection is made. The owner sets `is_idle`, `idle_since` and `idle_until` (on the loop's clock),
    `idle_before_seconds`, `is_passing` and `gives_way`.
    """

    __slots__ = (
        "_arrivals",
        "_crowd_out_body",
        "_deadline",
        "_drained",
        "_exchange",
        "_executor",
        "_header_bytes_max",
        "_is_writing_paused",
        "_loop",
        "_owner",
        "_sender",
        "_socket",
        "_timer",
        "_timer_at",
        "_transport",
        "announced_keepalive_seconds",
        "gives_way",
        "idle_before_seconds",
        "idle_since",
        "idle_until",
        "is_closed",
        "is_idle",
        "is_passing",
        "may_be_followed",
        "served",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
        sock: socket.socket,
        header_bytes_max: int,
        executor: Executor,
    ) -> None:
        self._loop = loop
        self._owner = owner
        self._socket = sock
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)
        self._executor = executor
        self._header_bytes_max = header_bytes_max
        self._exchange: tuple[ResponseReceiver, ResponseParser] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._crowd_out_body: Callable[[], bool] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_writing_paused = False
        self._deadline = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.idle_since = 0.0
        self.idle_until = 0.0
        self.idle_before_seconds = 0.0
        self.served = 0
        self.announced_keepalive_seconds: float | None = None
        self.may_be_followed = False
        self.is_closed = True
        self.is_idle = False
        self.is_passing = False
        self.gives_way = False

    # -- for the owner ------------------------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether an idle connection has neither end-of-file nor unsolicited bytes at this moment.

        Checks the socket itself, because the event loop may not have read yet what has arrived.
        """
        if self.is_closed or self._transport.is_closing():
            return False
        if not self._arrivals.poll(0):
            # Nearly always; cheaper than an exception.
            return True
        try:
            pending = self._socket.recv(1, _PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # A fresh TLS 1.3 connection has session tickets to read; they are no response to anything.
        return bool(pending) and not self.served and self._transport.get_extra_info("ssl_object") is not None

    def discard(self) -> None:
        """Close an idle connection gracefully."""
        self._close(gracefully=True)

    # -- for the exchange ---------------------------------------------------------------------------------------------

    def send(
        self,
        head: bytes,
        body: bytes | FileReader | StreamBody,
        receiver: ResponseReceiver,
        *,
        method: bytes,
        wants_upgrade: bool,
        sending_restarts_clock: bool,
    ) -> None:
        """Begin the exchange: from the first statement on, a byte of the request may have left.

        The connection must be idle and `is_quiet`. Never raises and never waits; the receiver gets the failures. A task
        sends a body that is not in memory, and ends with the exchange.
        """
        transport = self._transport
        if not isinstance(body, bytes):
            transport.write(head)
        elif len(body) <= _ONE_WRITE_BYTES_MAX:
            transport.write(head + body if body else head)
        else:
            transport.write(head)
            transport.write(body)
        parser = ResponseParser(receiver, method, wants_upgrade=wants_upgrade, header_bytes_max=self._header_bytes_max)
        self._exchange = (receiver, parser)
        if not isinstance(body, bytes):
            self._sender = self._loop.create_task(self._send_body(body, receiver, sending_restarts_clock))
            self._crowd_out_body = body.crowd_out if isinstance(body, StreamBody) else None
            if isinstance(body, FileReader):
                # Also when the task is cancelled before its first step.
                self._sender.add_done_callback(lambda _: body.close())

    def allow_to_outlast(self) -> None:
        self._owner.connection_lasts(self)

    def set_deadline(self, when: float) -> None:
        """Abort the exchange as timed out at `when` on the loop's clock; NEVER removes the deadline.

        The timer is only moved to an earlier time, and restarted if it fires too early. So most exchanges set no timer.
        """
        self._deadline = when
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        if self._deadline > self._loop.time():
            if self._deadline is not NEVER:
                self.set_deadline(self._deadline)
        else:
            self.abort(Unknown.TIMEOUT, "nothing arrived in time")

    def abort(self, reason: Unknown, detail: str) -> None:
        """End the exchange without its response, and the connection with it."""
        exchange = self._detach()
        self._close(gracefully=False)
        if exchange is not None:
            exchange[0].fail(reason, detail)

    def crowd_out(self, unread_seconds: float) -> bool:
        """End the exchange soon if its client is too slow to keep its place; returns whether it was."""
        if self._exchange is not None and self._exchange[0].is_unread_for(unread_seconds):
            self.abort(Unknown.ABORTED, "the client did not read the response, and others needed its place")
            return True
        return self._sender is not None and self._crowd_out_body is not None and self._crowd_out_body()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # -- for the sender of a body, and for the caller after an upgrade -------------------------------------------------

    def write_body(self, data: bytes) -> bool:
        """Write bytes to the transport; False when the connection is gone."""
        if self._transport.is_closing():
            return False
        self._transport.write(data)
        return True

    async def wait_writable(self) -> bool:
        """Waits while too much is unsent; False when the connection is gone. One caller at a time."""
        if self._is_writing_paused and not self.is_closed:
            self._drained = self._loop.create_future()
            await self._drained
        return not self._transport.is_closing()

    def write_eof(self) -> None:
        """Half-close, where the transport can (TLS cannot; it stays open until it is closed)."""
        if not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    # -- events of the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_closed = False

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            if not self._transport.is_closing():
                self._owner.connection_condemned(self)
                self._close(gracefully=False)
            return
        receiver, parser = self._exchange
        try:
            parser.feed(data)
        except ResponseInvalid as problem:
            self.abort(problem.reason, str(problem))
            return
        if parser.is_done:
            self._finish(parser)
        elif parser.is_upgraded and self._sender is not None:
            self.abort(Unknown.MALFORMED, "101 before the request was read")
        receiver.wake()

    def eof_received(self) -> bool:
        """The upstream ended its direction; over TLS this counts as clean only with close_notify."""
        if self._exchange is None:
            return False
        receiver, parser = self._exchange
        is_clean = self._is_end_authentic()
        if is_clean and parser.is_upgraded:
            self._exchange = None
            receiver.body_ended()
            receiver.wake()
            # The other direction stays open until the caller closes it. TLS has no half-closed connections.
            return self._transport.get_extra_info("ssl_object") is None
        if is_clean and parser.end_of_input():
            self._finish(parser)
            receiver.wake()
        else:
            self._note_death_on_reuse(parser)
            self.abort(*_ended(parser))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self.is_closed = True
        exchange = self._detach()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        if exchange is not None:
            receiver, parser = exchange
            self._note_death_on_reuse(parser)
            if exc is not None:
                receiver.fail(Unknown.RESET, str(exc) or type(exc).__name__)
            else:
                receiver.fail(*_ended(parser))
        self._owner.connection_closed(self)

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    # -- inside -------------------------------------------------------------------------------------------------------

    def _is_end_authentic(self) -> bool:
        """Whether the upstream itself sent the end-of-file, rather than an attacker who cut the connection.

        asyncio reports FIN without close_notify as an end-of-file too (uvloop does not), so this reads from the TLS
        object, which ends only after close_notify.
        """
        ssl_object: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        if ssl_object is None:
            return True
        try:
            return ssl_object.read(1) == b""
        except ssl.SSLError:
            return False

    def _note_death_on_reuse(self, parser: ResponseParser) -> None:
        """Report to the owner a keep-alive race that was, or may have been, lost."""
        if self.served and not parser.has_begun:
            self._owner.connection_died_on_reuse(self)

    def _read_rest(self) -> None:
        """Read a response that is in the kernel's buffer although the connection broke.

        An upstream that responds and closes before it has read the whole request provokes an RST; at our next write
        the transport fails without having read. Over TLS the socket is closed by now, and the response lost.
        """
        with contextlib.suppress(OSError):
            while self._exchange is not None and not self._exchange[1].is_upgraded:
                data = self._socket.recv(64 * 1024, socket.MSG_DONTWAIT)
                if not data:
                    return
                self.data_received(data)

    def _detach(self) -> tuple[ResponseReceiver, ResponseParser] | None:
        exchange, self._exchange = self._exchange, None
        self._deadline = NEVER
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None
        return exchange

    def _finish(self, parser: ResponseParser) -> None:
        """End the exchange after its response; give the connection back if it may serve another."""
        is_request_sent = self._sender is None and self._transport.get_write_buffer_size() == 0
        self._detach()
        self.served += 1
        self.announced_keepalive_seconds = parser.keepalive_seconds
        self.may_be_followed = parser.may_be_followed
        if parser.has_excess or not is_request_sent:
            self._close(gracefully=False)
        elif not parser.is_persistent or self._transport.is_closing():
            self._close(gracefully=True)
        else:
            self._owner.give_back(self)

    def _close(self, *, gracefully: bool) -> None:
        if gracefully:
            if not self._transport.is_closing():
                self._transport.close()
            return
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._transport.abort()

    async def _send_body(
        self, body: FileReader | StreamBody, receiver: ResponseReceiver, sending_restarts_clock: bool
    ) -> None:
        """Runs concurrently with the wait for the response; cancelled when the exchange ends first."""
        problem = await send_body(
            self, body, self._executor, receiver.restart_clock if sending_restarts_clock else None
        )
        if self._exchange is not None and self._exchange[0] is receiver:
            self._sender = None
            if problem is not None:
                self.abort(Unknown.REQUEST_ABORTED, problem)


def _ended(parser: ResponseParser) -> tuple[Unknown, str]:
    if parser.has_begun:
        return Unknown.TRUNCATED, "the connection ended inside the response"
    return Unknown.CLOSED, "the connection ended before a response"
