"""One connection to the upstream: the socket's events on one side, one exchange at a time on the other.

Owns the moment after which a byte of the request may have left (`send`), the end of an exchange, and whether the
connection may serve another. Does not choose connections and does not know what a request means.

Theory of operation. A connection is idle, or has an exchange: a receiver, which reads the response. `send` begins the
exchange and writes the first bytes to the transport in the same step. The exchange is over when the response has ended
or can no longer end; the connection is given back to its pool only if the ends of both messages are certain. Bytes
that arrive without an exchange belong to no request, so they condemn the connection: they must never become the next
response.

Invariant: after `abort` not one more byte of the request leaves this host (what is buffered here and in the kernel is
dropped with an RST).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Final, cast

from gateway.upstream.response import NEVER, ResponseInvalid, ResponseReceiver
from gateway.upstream.result import FileBody, Framing, StreamBody, Unknown

if TYPE_CHECKING:
    from gateway.upstream.pool import UpstreamPool

# Up to this size head and body leave in one write, and so usually in one segment.
_ONE_WRITE_BYTES_MAX: Final = 64 * 1024
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
# Combined once: to combine members of an enumeration takes a microsecond.
_PEEK: Final = socket.MSG_PEEK | socket.MSG_DONTWAIT
_FILE_CHUNK_BYTES: Final = 128 * 1024


class UpstreamConnection(asyncio.Protocol):
    """See the module.

    `served` counts finished exchanges. `is_closed` is true until the connection is made. The pool sets `is_idle`,
    `idle_since`, `idle_until` and `rests_until` (on the loop's clock), `idle_before_seconds`, `is_passing` and
    `gives_way`.
    """

    __slots__ = (
        "_arrivals",
        "_crowd_out_body",
        "_drained",
        "_is_writing_paused",
        "_pool",
        "_receiver",
        "_sender",
        "_socket",
        "_transport",
        "gives_way",
        "idle_before_seconds",
        "idle_since",
        "idle_until",
        "is_closed",
        "is_idle",
        "is_passing",
        "rests_until",
        "served",
        "sweep",
    )

    def __init__(self, pool: UpstreamPool, sock: socket.socket) -> None:
        self._pool = pool
        self._socket = sock
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)
        self._receiver: ResponseReceiver | None = None
        self._sender: asyncio.Task[None] | None = None
        self._crowd_out_body: Callable[[], bool] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_writing_paused = False
        self.sweep = pool.sweep
        self.idle_since = 0.0
        self.idle_until = 0.0
        self.idle_before_seconds = 0.0
        self.rests_until = 0.0
        self.served = 0
        self.is_closed = True
        self.is_idle = False
        self.is_passing = False
        self.gives_way = False

    # -- for the pool -------------------------------------------------------------------------------------------------

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

    def due(self) -> float:
        """When the pool has to look at this connection: it is idle for too long then, or its exchange is overdue."""
        if self.is_idle:
            return self.idle_until
        return NEVER if self._receiver is None else self._receiver.due

    def discard(self) -> None:
        """Close the connection gracefully: what was written is still sent."""
        if not self._transport.is_closing():
            self._transport.close()

    # -- for the exchange ---------------------------------------------------------------------------------------------

    def send(
        self,
        receiver: ResponseReceiver,
        head: bytes,
        body: bytes | FileReader | StreamBody,
        *,
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
        self._receiver = receiver
        if not isinstance(body, bytes):
            self._sender = self.sweep.loop.create_task(self._send_body(body, receiver, sending_restarts_clock))
            self._crowd_out_body = body.crowd_out if isinstance(body, StreamBody) else None
            if isinstance(body, FileReader):
                # Also when the task is cancelled before its first step.
                self._sender.add_done_callback(lambda _: body.close())

    def allow_to_outlast(self) -> None:
        self._pool.connection_lasts(self)

    def abort(self, reason: Unknown, detail: str) -> None:
        """End the exchange without its response, and the connection with it."""
        receiver = self._detach()
        self._reset()
        if receiver is not None:
            receiver.fail(reason, detail)

    def crowd_out(self, unread_seconds: float) -> bool:
        """End the exchange soon if its client is too slow to keep its place; returns whether it was."""
        if self._receiver is not None and self._receiver.is_unread_for(unread_seconds):
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
            self._drained = self.sweep.loop.create_future()
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
        receiver = self._receiver
        if receiver is None:
            if not self._transport.is_closing():
                self._pool.connection_condemned(self)
                self._reset()
            return
        try:
            receiver.feed(data)
        except ResponseInvalid as problem:
            self.abort(problem.reason, str(problem))
            return
        if receiver.is_done:
            self._finish(receiver)
        elif self._sender is not None and receiver.framing is Framing.UPGRADE:
            self.abort(Unknown.MALFORMED, "101 before the request was read")
        receiver.wake()

    def eof_received(self) -> bool:
        """The upstream ended its direction; over TLS this counts as clean only with close_notify."""
        receiver = self._receiver
        if receiver is None:
            return False
        if not (self._is_end_authentic() and receiver.end_of_input()):
            self._note_death_on_reuse(receiver)
            self.abort(*_ended(receiver))
            return False
        is_upgraded = receiver.framing is Framing.UPGRADE
        if is_upgraded:
            self._receiver = None
        else:
            self._finish(receiver)
        receiver.wake()
        # The other direction of an upgraded one stays open until the caller closes it. TLS has no half-closed ones.
        return is_upgraded and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self.is_closed = True
        receiver = self._detach()
        self.resume_writing()
        if receiver is not None:
            self._note_death_on_reuse(receiver)
            if exc is not None:
                receiver.fail(Unknown.RESET, str(exc) or type(exc).__name__)
            else:
                receiver.fail(*_ended(receiver))
        self._pool.connection_closed(self)

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

    def _note_death_on_reuse(self, receiver: ResponseReceiver) -> None:
        """Report a keep-alive race that was, or may have been, lost."""
        if self.served and not receiver.has_begun:
            self._pool.connection_died_on_reuse(self)

    def _read_rest(self) -> None:
        """Read a response that is in the kernel's buffer although the connection broke.

        An upstream that responds and closes before it has read the whole request provokes an RST; at our next write
        the transport fails without having read. Over TLS the socket is closed by now, and the response lost.
        """
        with contextlib.suppress(OSError):
            while self._receiver is not None and self._receiver.framing is not Framing.UPGRADE:
                data = self._socket.recv(64 * 1024, socket.MSG_DONTWAIT)
                if not data:
                    return
                self.data_received(data)

    def _detach(self) -> ResponseReceiver | None:
        receiver, self._receiver = self._receiver, None
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None
        return receiver

    def _finish(self, receiver: ResponseReceiver) -> None:
        """End the exchange after its response; give the connection back if it may serve another."""
        self.served += 1
        self._receiver = None
        if self._sender is not None or self._transport.get_write_buffer_size() or receiver.has_excess:
            # The upstream never sees the rest of the request.
            self._detach()
            self._reset()
        elif not receiver.is_persistent or self._transport.is_closing():
            self.discard()
        else:
            self._pool.give_back(self, receiver)

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._transport.abort()

    async def _send_body(
        self, body: FileReader | StreamBody, receiver: ResponseReceiver, sending_restarts_clock: bool
    ) -> None:
        """Runs concurrently with the wait for the response; cancelled when the exchange ends first."""
        problem = await self._send_chunks(body, receiver.restart_clock if sending_restarts_clock else None)
        if self._receiver is receiver:
            self._sender = None
            if problem is not None:
                self.abort(Unknown.REQUEST_ABORTED, problem)

    async def _send_chunks(self, body: FileReader | StreamBody, sent: Callable[[], None] | None) -> str | None:
        """Send the whole body, framed as declared; `sent` is called after each chunk.

        Returns what was wrong with the body, whose end was then not sent; None when all was sent or the connection is
        gone. If cancelled, sending stops where it is.
        """
        left = body.length
        try:
            async with closed_after(
                body.chunks(self._pool.files) if isinstance(body, FileReader) else body.chunks
            ) as chunks:
                async for chunk in chunks:
                    if not chunk:
                        continue
                    if left is None:
                        is_open = self.write_body(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    elif len(chunk) > left:
                        return "the request's body is longer than declared"
                    else:
                        left -= len(chunk)
                        is_open = self.write_body(chunk)
                    if not is_open or not await self.wait_writable():
                        return None
                    if sent is not None:
                        sent()
        except Exception as error:  # noqa: BLE001 - the caller's iterator may fail in any way; all mean the same here
            return f"the request's body failed: {type(error).__name__}"
        if left:
            return "the request's body is shorter than declared"
        if left is None:
            self.write_body(b"0\r\n\r\n")
        return None


def _ended(receiver: ResponseReceiver) -> tuple[Unknown, str]:
    if receiver.has_begun:
        return Unknown.TRUNCATED, "the connection ended inside the response"
    return Unknown.CLOSED, "the connection ended before a response"


class FileReader:
    """Reads a file body once, off the event loop. Always `close` it; that may be repeated.

    Owns a duplicate of the caller's descriptor for as long as a read may be under way, also when sending is cancelled
    in the middle of one: if the descriptor were closed under a reading thread, the thread could read another file.
    """

    def __init__(self, body: FileBody) -> None:
        """Raises OSError when the descriptor cannot be duplicated."""
        self.length = body.length
        self._descriptor = os.dup(body.descriptor)
        self._decrypt = body.decrypt
        self._reading: Future[bytes] | None = None
        self._is_closed = False

    async def chunks(self, executor: Executor) -> AsyncIterator[bytes]:
        """The first `length` bytes of the file, fewer if the file is shorter."""
        offset = 0
        while offset < self.length:
            wanted = min(_FILE_CHUNK_BYTES, self.length - offset)
            self._reading = executor.submit(self._read, wanted, offset)
            chunk = await asyncio.wrap_future(self._reading)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _read(self, wanted: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, wanted, offset)
        return data if self._decrypt is None else self._decrypt(data, offset)

    def close(self) -> None:
        """Close the duplicate, after a read that is still under way."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._reading is None:
            os.close(self._descriptor)
        else:
            self._reading.add_done_callback(lambda _: os.close(self._descriptor))


@contextlib.asynccontextmanager
async def closed_after(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks, with their source closed in the end if possible: some may not have been read."""
    try:
        yield chunks
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
