"""One connection to the upstream: the socket's events on one side, one exchange at a time on the other.

A connection is idle, or has an exchange: a receiver, which reads the response. `send` begins it: from then on a byte of
the request may have left. It is over when the response has ended or can no longer end; the connection is given back to
its pool only if the ends of both messages are certain. Bytes that arrive without an exchange belong to no request, so
they condemn the connection: they must never become the next response.

Invariant: after `abort` not one more byte of the request leaves this host (what is buffered here and in the kernel is
dropped with an RST).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core import immutable
from gateway.core.message import IndexedHeaders, ResponseHead, list_members

if TYPE_CHECKING:
    from gateway.upstream.client import UpstreamPool

# -- results -----------------------------------------------------------------------------------------------------------
#
# What is *known* of an exchange: `SentNothing` is definite (no byte of the request was written to the network),
# `Unknown` is not (a byte may have left, and no complete response arrived).


class SentNothing(StrEnum):
    """Why no byte of the request was written to the network."""

    REQUEST_INVALID = "request_invalid"  # the head cannot be written without ambiguity
    CLOSED = "closed"  # this client was closed
    POOL_TIMEOUT = "pool_timeout"  # no connection became free in time
    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # also: the connection was accepted and closed before a request
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    LOCAL = "local"  # this host lacks descriptors or memory
    LEASE_LOST = "lease_lost"  # the caller's `may_send` returned False


class Unknown(StrEnum):
    """Why it is not known what the upstream did with a request of which a byte may have left."""

    TIMEOUT = "timeout"
    RESET = "reset"  # the transport broke: RST, an acknowledgement that never came, a broken TLS record
    CLOSED = "closed"  # a clean end before the first byte of a response
    TRUNCATED = "truncated"  # an end inside a response
    MALFORMED = "malformed"
    HEADERS_TOO_LONG = "headers_too_long"
    INTERIM_FLOOD = "interim_flood"  # too many 1xx responses
    REQUEST_ABORTED = "request_aborted"  # the source of the request's body failed or had another length
    ABORTED = "aborted"  # aborted on this side


# The cause is in this host or this gateway, not in the upstream.
_OUR_OWN_FAULT: Final = frozenset(
    (SentNothing.LEASE_LOST, SentNothing.POOL_TIMEOUT, SentNothing.LOCAL, SentNothing.CLOSED)
)


def status_of(reason: SentNothing | Unknown) -> int:
    """The status for a client that gets no response of the upstream, whether its request was protected or not."""
    # First, because members of the two enumerations with equal values are equal.
    if isinstance(reason, Unknown):
        return 504 if reason is Unknown.TIMEOUT else 502
    return 503 if reason in _OUR_OWN_FAULT else 502


@immutable
class NotSent:
    """Definite: the upstream cannot have seen this request. `detail` is for logs, never for a client."""

    reason: SentNothing
    detail: str


@immutable
class Lost:
    """Indefinite: a byte may have left, and no head of a response arrived, or not the proven end of its body. The
    connection has been aborted."""

    reason: Unknown
    detail: str


@immutable
class TooLong:
    """The body exceeds the limit; `prefix` is what was read so far, the rest can still be read."""

    prefix: bytes


class Framing(StrEnum):
    """How the end of a response's body is known (RFC 9112 section 6.3)."""

    NONE = "none"  # HEAD, 204, 304: there is no body, whatever the headers say
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"  # ends with the connection: FIN, over TLS close_notify
    UPGRADE = "upgrade"  # 101: no longer HTTP


@immutable
class FileBody:
    """A request body in a file: its first `length` bytes, read by offset.

    `descriptor` stays the caller's and may be closed as soon as `exchange` has returned: a duplicate is read. Where the
    file is encrypted, `decrypt` gets the bytes that were read and their offset.
    """

    descriptor: int
    length: int
    decrypt: Callable[[bytes, int], bytes] | None = None


@immutable
class StreamBody:
    """A request body that is still arriving. Without a `length` it is sent chunked.

    An exception from `chunks`, or more or fewer bytes than declared, aborts the connection, so that the upstream never
    sees a complete request. `crowd_out` ends it if it arrives too slowly to keep its place, and returns whether it did.
    """

    chunks: AsyncIterator[bytes]
    length: int | None
    crowd_out: Callable[[], bool] | None = None


OutboundBody = bytes | FileBody | StreamBody


# -- response ----------------------------------------------------------------------------------------------------------
#
# The receiving half of one exchange: reads a response strictly (RFC 9112), and keeps it until the caller takes it.
#
# llhttp judges heads and chunks. This module decides where a body ends (section 6.3), because llhttp has no way to know
# that the request was HEAD, and accepts too much: other protocols and versions, other codings, any reason. A receiver
# outlives its connection: once the end of the response has arrived, that may serve the next request while this body is
# still being read. Whatever arrives together wakes the caller once.
#
# Invariants: what the caller gets does not depend on how the bytes were split. After the end or the loss of the
# response only the buffer changes, and only shrinks. One caller at a time.

# The connection stops reading above this, until the caller reads or wants more.
BUFFER_BYTES_MAX: Final = 256 * 1024
INTERIM_RESPONSES_MAX: Final = 32
# The bytes around the data of one chunk: size, extensions and line ends.
CHUNK_LINE_BYTES_MAX: Final = 4096

NEVER: Final = float("inf")

# Hot: access to a member through its enumeration is slow in CPython 3.11.
_NONE, _LENGTH, _CHUNKED, _CLOSE, _UPGRADE = Framing

_HEAD_END: Final = b"\r\n\r\n"
_HTTP_1_0: Final = b"HTTP/1.0 "
_HTTP_1_1: Final = b"HTTP/1.1 "
_REASON_AT: Final = len(b"HTTP/1.1 200 ")
_CONTROL: Final = re.compile(rb"[^\t -~\x80-\xff]")
_TIMEOUT: Final = re.compile(rb"(?:^|,)[ \t]*timeout[ \t]*=[ \t]*\"?([0-9]{1,9})", re.IGNORECASE)


class ResponseInvalid(Exception):
    def __init__(self, reason: Unknown, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _malformed(detail: str) -> ResponseInvalid:
    return ResponseInvalid(Unknown.MALFORMED, detail)


class Sweep:
    """One timer for all that may become due: `look` finds what is, and returns when it must look again.

    A deadline is a number where `look` finds it. Only one that is earlier than `at` is announced, by `by`; so most
    exchanges set no timer, and none removes one.
    """

    __slots__ = ("_look", "_timer", "at", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], float]) -> None:
        self.loop = loop
        self.at = NEVER
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def by(self, when: float) -> None:
        """Look at this time of the loop's clock, or before."""
        if when < self.at:
            self.stop()
            self.at = when
            self._timer = self.loop.call_at(when, self._run)

    def stop(self) -> None:
        """Look no more, until the next `by`."""
        self.at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self.stop()
        self.by(self._look())


class _Found:
    """What llhttp finds in a response. It refers to no other object, so that no cycle is left to be collected."""

    def __init__(self) -> None:
        self.has_head = False
        self.chunks = 0
        self.data: list[bytes] = []
        self.has_ended = False
        self.has_excess = False

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_body(self, data: bytes) -> None:
        self.data.append(data)

    def on_message_complete(self) -> None:
        self.has_ended = True

    def on_message_begin(self) -> None:
        self.has_excess = self.has_ended


class ResponseReceiver:
    """Reads and buffers one response.

    `head` is None until it has arrived; `framing` says how the end of the body is known, and `length` is its length
    where that is known. For the connection: `is_done` means that the response is complete, and `has_excess` that bytes
    followed it. `is_persistent` and `keepalive_seconds` are what the upstream announced for the connection.
    `may_be_followed`: the response has no body by its status, but a faulty upstream may still send one.

    Times: the head, and a body read with `read_all`, must arrive by `deadline`, which counts from the first byte of the
    request. `read` allows `silence_seconds` from its call to the next bytes, so a stream may last for ever. Whoever
    sweeps aborts the connection once `due` is over; it is NEVER while the caller waits for nothing.
    """

    # Defaults; an instance sets only what differs.
    head: ResponseHead | None = None
    framing = _NONE
    length: int | None = None
    due = NEVER
    has_begun = False
    has_excess = False
    is_done = False
    is_persistent = True
    may_be_followed = False
    keepalive_seconds: float | None = None

    # What of a head has arrived, and who judges it.
    _seen = b""
    _judge: HttpResponseParser | None = None
    _interims: tuple[ResponseHead, ...] = ()
    _interim_count = 0
    # What of the body is missing, as far as that is known.
    _left: float = NEVER
    _decoder: tuple[HttpResponseParser, _Found] | None = None
    _framing_bytes = 0
    _line_ends = 0
    _buffered_bytes = 0
    _room_bytes = BUFFER_BYTES_MAX
    _loss: Lost | None = None
    _paused_since: float | None = None
    _waiter: asyncio.Future[ResponseHead | Lost] | None = None
    _on_interim: Callable[[ResponseHead], None] | None = None

    def __init__(
        self,
        source: UpstreamConnection,
        method: bytes,
        deadline: float,
        silence_seconds: float,
        *,
        wants_upgrade: bool,
        header_bytes_max: int,
    ) -> None:
        self.deadline = deadline
        self.silence_seconds = silence_seconds
        self._source: UpstreamConnection | None = source
        self._sweep = source.sweep
        self._method = method
        self._wants_upgrade = wants_upgrade
        self._header_bytes_max = header_bytes_max
        self._buffer: list[bytes] = []

    # -- for the connection -------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            ResponseInvalid: once; the receiver can only `fail` afterwards.
        """
        self.has_begun = True
        while data and self.head is None:
            data = self._feed_head(data)
        if data:
            problem: ResponseInvalid | None = None
            if self.is_done:
                self.has_excess, data = True, b""
            elif self._decoder is not None:
                data, problem = self._decode(*self._decoder, data)
            elif self._left < len(data):
                self.has_excess, data = True, data[: int(self._left)]
            if data:
                self._buffer.append(data)
                self._buffered_bytes += len(data)
                self._left -= len(data)
            if problem is not None:
                raise problem
            if not self._left:
                self.is_done = True
            elif self._buffered_bytes > self._room_bytes and self._paused_since is None and self._source is not None:
                self._paused_since = self._sweep.loop.time()
                self._source.pause_reading()

    def end_of_input(self) -> bool:
        """The input ended cleanly; returns whether that completes the response."""
        self.is_done = self.framing is _CLOSE or self.framing is _UPGRADE
        return self.is_done

    def fail(self, reason: Unknown, detail: str) -> None:
        """The response will never be complete. Wakes the caller."""
        if not self.is_done and self._loss is None:
            self._loss = Lost(reason, detail)
            self.wake()

    def wake(self) -> None:
        """All that arrived together is kept: stop the clock and wake the caller. The end releases the connection."""
        waiter, head = self._waiter, self.head or self._loss
        if self._interims and waiter is not None and not waiter.done():
            self._tell_interims(waiter)
        if head is None:
            return
        self.due = NEVER
        if self.is_done or self._loss is not None:
            if self._paused_since is not None:
                self._read_on()
            self._source = None
        self._waiter = None
        if waiter is not None and not waiter.done():
            waiter.set_result(head)

    def _tell_interims(self, waiter: asyncio.Future[ResponseHead | Lost]) -> None:
        interims, self._interims = self._interims, ()
        if self._on_interim is None:
            return
        try:
            for interim in interims:
                self._on_interim(interim)
        except Exception as error:  # noqa: BLE001 - it is the caller's own
            waiter.set_exception(error)

    def is_unread_for(self, seconds: float) -> bool:
        """Whether the buffer has been full for so long, with nothing read from it."""
        return self._paused_since is not None and self._sweep.loop.time() - self._paused_since >= seconds

    def restart_clock(self) -> None:
        """The request is still being sent: allow the whole time for the head again."""
        if self.head is None:
            self.deadline = self._sweep.loop.time() + self.silence_seconds
            if self._waiter is not None:
                self.due = self.deadline

    # -- the head -----------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> bytes:
        """Read one head as far as it has arrived, and return the bytes after it.

        llhttp gets nothing but the head, so that it never decides what follows.
        """
        before = len(self._seen)
        seen = self._seen + data
        end = seen.find(_HEAD_END, before - 3 if before > 3 else 0)
        size = len(seen) if end < 0 else end + len(_HEAD_END)
        if size > self._header_bytes_max:
            raise ResponseInvalid(Unknown.HEADERS_TOO_LONG, f"the head does not end in {self._header_bytes_max} bytes")
        if not seen.startswith(_HTTP_1_1):
            start = seen[: len(_HTTP_1_1)]
            if not (_HTTP_1_1.startswith(start) or _HTTP_1_0.startswith(start)):
                raise _malformed("not an HTTP/1 status line")
        head, judge = seen[:size], self._judge
        if judge is None:
            judge = self._judge = HttpResponseParser(None)
        try:
            judge.feed_data(head[before:])
        except (HttpParserError, HttpParserUpgrade) as problem:
            if not _is_whole(head):
                raise _malformed(str(problem)) from None
        if end < 0:
            self._seen = seen
            return b""
        self._seen, self._judge = b"", None
        status = judge.get_status_code()
        # llhttp accepted it: each line ends with CRLF, each name is a token before the first colon.
        lines = seen[:end].split(b"\r\n")
        status_line = lines.pop(0)
        reason = status_line[_REASON_AT:]
        if status < 100 or _CONTROL.search(reason):
            raise _malformed("not an HTTP/1 status line")
        pairs: list[tuple[bytes, bytes]] = []
        values: dict[bytes, list[bytes]] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            value = value.strip(b" \t")
            pairs.append((name, value))
            lower = name.lower()
            if lower in values:
                values[lower].append(value)
            else:
                values[lower] = [value]
        # Past its constructor, which would go through the headers once more.
        headers = tuple.__new__(IndexedHeaders, pairs)
        headers.by_name = values
        self._take_head(ResponseHead(status, reason, headers), values, status_line.startswith(_HTTP_1_0))
        return seen[size:]

    def _keep_interim(self, head: ResponseHead) -> None:
        self._interim_count += 1
        if self._interim_count > INTERIM_RESPONSES_MAX:
            raise ResponseInvalid(Unknown.INTERIM_FLOOD, f"more than {INTERIM_RESPONSES_MAX} interim responses")
        if head.status != 100:  # `Expect` is never forwarded
            self._interims = (*self._interims, head)

    def _take_head(self, head: ResponseHead, values: dict[bytes, list[bytes]], is_http_1_0: bool) -> None:
        """Keep an interim head. For a final one, decide where the body ends (RFC 9112 section 6.3).

        llhttp has refused a malformed or repeated length, and one beside a transfer coding.
        """
        if head.status < 200 and head.status != 101:
            self._keep_interim(head)
            return
        length = int(values[b"content-length"][0]) if b"content-length" in values else None
        codings = values.get(b"transfer-encoding")
        if codings and (is_http_1_0 or len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise _malformed("a transfer coding other than a single chunked")
        if is_http_1_0 or b"connection" in values or b"keep-alive" in values:
            self._read_persistence(values, is_http_1_0=is_http_1_0)
        if head.status == 101:
            if not self._wants_upgrade:
                raise _malformed("101 without a request for it")
            self.framing, self.is_persistent = _UPGRADE, False
        elif self._method == b"HEAD" or head.status in (204, 304):
            self.may_be_followed = True
            if self._method == b"HEAD" or (head.status == 204 and (codings or length)):
                # Many upstreams send a body to HEAD as to GET. A late one would be read as the next response.
                self.is_persistent = False
            self.length = 0
        elif codings:
            self.framing, self._decoder = _CHUNKED, _decoder()
        elif length is None:
            self.framing, self.is_persistent = _CLOSE, False
        else:
            self.framing, self.length = _LENGTH, length
        self.head = head
        if self.length is not None:
            self._left = self.length
            self.is_done = not self.length

    def _read_persistence(self, values: dict[bytes, list[bytes]], *, is_http_1_0: bool) -> None:
        options = list_members(values.get(b"connection", ()))
        self.is_persistent = b"close" not in options and (not is_http_1_0 or b"keep-alive" in options)
        for value in values.get(b"keep-alive", ()):
            if found := _TIMEOUT.search(value):
                self.keepalive_seconds = float(found[1])

    # -- the body -----------------------------------------------------------------------------------------------------

    def _decode(self, parser: HttpResponseParser, found: _Found, data: bytes) -> tuple[bytes, ResponseInvalid | None]:
        """What the next bytes of a chunked body hold, and what is wrong with those after it."""
        chunks = found.chunks
        problem: HttpParserError | None = None
        try:
            parser.feed_data(data)
        except HttpParserError as error:
            problem = error
        body = b"".join(found.data)
        found.data.clear()
        # llhttp bounds neither extensions nor trailers. The unused allowance of one chunk is not credited to others.
        allowed = CHUNK_LINE_BYTES_MAX * (found.chunks - chunks)
        self._framing_bytes = max(0, self._framing_bytes + len(data) - len(body) - allowed)
        if self._framing_bytes > self._header_bytes_max:
            return body, _malformed("chunk extensions or trailers too long")
        line_ends = len(data) - len(data.rstrip(b"\r\n"))
        self._line_ends = line_ends if line_ends < len(data) else line_ends + self._line_ends
        if found.has_ended:
            # An error now is about bytes after the response; llhttp does not report empty lines after it.
            self.has_excess = found.has_excess or problem is not None or self._line_ends > len(_HEAD_END)
            self._left = len(body)
        elif problem is not None:
            return body, _malformed(str(problem))
        return body, None

    # -- for the caller -----------------------------------------------------------------------------------------------

    def wait_head(self, on_interim: Callable[[ResponseHead], None] | None) -> asyncio.Future[ResponseHead | Lost]:
        """The head, or its loss. `on_interim` receives each interim response before, as soon as it arrives; if that
        raises, so does the wait."""
        self._on_interim = on_interim
        waiter = self._expect(self.deadline)
        if self.head is not None or self._loss is not None or self._interims:
            self.wake()
        return waiter

    def allow_to_outlast(self) -> None:
        """The rest is only forwarded, however long that takes: protected requests must not wait for this connection."""
        if self._source is not None:
            self._source.allow_to_outlast()

    async def read(self) -> bytes | Lost:
        """The next bytes of the body, at least one; `b""` at its proven end.

        What arrived before a loss is returned first. If cancelled, nothing is lost and it may be called again.
        """
        while True:
            if self._buffer:
                return self.take()
            if self.is_done:
                return b""
            if self._loss is not None:
                return self._loss
            await self._expect(self._sweep.loop.time() + self.silence_seconds)

    async def read_all(self, limit_bytes: int) -> bytes | TooLong | Lost:
        """The rest of the body if it has at most `limit_bytes`.

        A body with a longer declared length is not read. If cancelled, nothing is lost.
        """
        if self.length is not None and self.length > limit_bytes:
            return TooLong(b"")
        if limit_bytes > self._room_bytes:
            self._room_bytes = limit_bytes
            if self._paused_since is not None:
                self._read_on()
        while self._buffered_bytes <= limit_bytes:
            if self.is_done:
                return self.take()
            if self._loss is not None:
                return self._loss
            await self._expect(self.deadline)
        return TooLong(self.take())

    def close(self) -> None:
        """Drop the rest: aborts the connection unless the response has ended already. May be called repeatedly."""
        if self._source is not None:
            self._source.abort(Unknown.ABORTED, "the caller dropped the rest")
        self._buffer.clear()
        self._buffered_bytes = 0

    def take(self) -> bytes:
        """What is buffered: the whole body, if its proven end has arrived and nothing was read before."""
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._buffered_bytes = 0
        self._room_bytes = BUFFER_BYTES_MAX
        if self._paused_since is not None:
            self._read_on()
        return data

    def _read_on(self) -> None:
        if self._source is not None:
            self._paused_since = None
            self._source.resume_reading()

    def _expect(self, when: float) -> asyncio.Future[ResponseHead | Lost]:
        """A future for what arrives next, by then. Must not be called once the response has ended or is lost."""
        self.due = when
        sweep = self._sweep
        if when < sweep.at:
            sweep.by(when)
        self._waiter = waiter = sweep.loop.create_future()
        return waiter


def _decoder() -> tuple[HttpResponseParser, _Found]:
    """A parser of a chunked body, and what it finds. Of the head it has to know no more than that."""
    found = _Found()
    parser = HttpResponseParser(found)
    # Some upstreams pad chunk sizes with spaces, which is unambiguous.
    parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
    parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    return parser, found


def _is_whole(head: bytes) -> bool:
    """Whether llhttp accepts a head to its end, where it stops if that is of a 101."""
    found = _Found()
    with contextlib.suppress(HttpParserError, HttpParserUpgrade):
        HttpResponseParser(found).feed_data(head)
    return found.has_head


# -- connection --------------------------------------------------------------------------------------------------------

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
        reset_on_close(self._socket)
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


def reset_on_close(sock: socket.socket) -> None:
    """Have the end of the connection be an RST, with which what has yet to leave is dropped."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)


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
