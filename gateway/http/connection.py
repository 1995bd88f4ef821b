"""One connection from a client: aiohttp's, with the limits that it lacks, and an orderly end.

aiohttp reads the bytes and parses them in C. This module gives the parsed requests to the handler, one after the other
and in order. It owns the limits of the edge, and how a connection ends: by a FIN, so that the client reads its response
first, or by an RST, so that it cannot take what it got for whole. It knows no routes and no replies.

Theory of operation. aiohttp parses ahead of the request in progress, and a parsed request begins in a later turn of the
loop. So bytes are counted where they arrive (`data_received`), and a connection is busy as soon as a request is parsed.
A wait has no timer: it sets its deadline, and a sweep of the server calls `check`.

Invariant: after bytes that are no request, or a request whose end is not certain, the rest is ignored.

This uses private names of aiohttp, each for a reason; `tests/http/edge/test_aiohttp.py` notices when one changes:
- `_messages`, `_waiter`, `_request_count`, `_loop`: what was parsed, by the last bytes and before. aiohttp's own loop
  over the requests (`start`) makes a task, a writer and a URL for each of them, and closes the connection under what
  the client has yet to read.
- `_parser`, `_upgraded`, `_message_tail`: what came behind a request for an upgrade that is declined, and letting all
  of it go when the connection only lingers.
- `_buffer_paused`, `_resume_reading_if_drained`, `_reading_paused`, `_resume_transport_reading`: to read on as there is
  room for it, or to throw away.
- `_http_chunk_splits` of a body: where its last whole chunk ended, to find the size of the next one in the bytes.
- `_drain_helper`: to wait for a slow reader. `_task_handler`: the task of `start`.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from aiohttp import http_exceptions, http_parser, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.core.identity.caller import ClientCertificate, Hop, hop_from, read_certificate
from gateway.protect.ambiguity import Fault
from gateway.protect.reply import Cut, RequestCut
from gateway.upstream.connection import reset_on_close

if TYPE_CHECKING:
    from gateway.http.passthrough import ClientTunnel
    from gateway.http.server import Edge


# The head of a request as aiohttp parsed it, and the body as it comes.
Message: TypeAlias = RawRequestMessage
Payload: TypeAlias = StreamReader

# What of a body is read before anybody asked for it is twice as much, and may be held on every connection.
_READ_BYTES: Final = 8 * 1024
# Less of a request than this is not reported: it is as little as a connection takes without one.
SMALL_BYTES: Final = 4 * 1024
# The size of a chunk, and how many digits it may have: 15 are far more than any body. The parser takes all 16, up to a
# size that no body ever reaches the end of.
_CHUNK_SIZE: Final = re.compile(rb"0*([0-9A-Fa-f]*)")
_CHUNK_DIGITS_MAX: Final = 15
# Of a line that comes in pieces. Behind so much there are more zeros, or an extension.
_CHUNK_LINE_KEPT: Final = 64
# A writer waits when so much has not left.
_WRITTEN_BYTES_MAX: Final = 64 * 1024

# Most clients have read, or sent, everything in that time.
_FEW_SECONDS: Final = 5.0
# One in so many clients is aborted at a time, because finding the largest means ranking all.
_SHARE: Final = 64
# `struct tcp_info` of Linux (4.6 and later), of which these are tcpi_unacked, tcpi_bytes_acked and tcpi_notsent_bytes.
_TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")

# How much of a body is read at once, when its consumer reads it; as much again is buffered for a slow consumer.
_PIECE_BYTES: Final = 64 * 1024

# A body loses its upload slot to another request if it was waited for that long and came more slowly than this.
# A mebibyte may take a minute.
_CROWDED_SECONDS: Final = 5.0
_CROWDED_BYTES_PER_SECOND: Final = 16 * 1024

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

HEAD_TOO_BIG: Final = Fault(431, "The head of the request is too big.", is_verdict=False)
_MALFORMED: Final = Fault(400, "The request is not well-formed HTTP/1.1.")
_UNKNOWN_METHOD: Final = Fault(400, "The request does not begin with a method that this gateway knows.")
_REPEATED_HEADER: Final = Fault(400, "A header that a request may have once is repeated.")


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """Limits of the edge. Silence is the time without a byte, in a request body and towards a slow reader alike.

    `bytes_per_second_min` is the pace below which a client is given up after a first silence: with a body that has to
    be here whole before anything is done, and with reading what was written for it. `connections_max` counts a
    connection over TLS from the end of its handshake; until then it is one of `handshakes_max`, or of a quarter of
    `connections_max` where that is less. `unread_bytes_max` is for all long responses together, `begun_bytes_max` for
    all requests that are here in part or have yet to have their turn, see `MemoryBudget`. `decoding_wait_seconds` is
    how long a response waits for its turn to be decoded; then it goes out as it is stored.
    """

    header_bytes_max: int = 64 * 1024
    headers_max: int = 128
    keepalive_seconds: float = 75.0
    silence_seconds: float = 60.0
    bytes_per_second_min: float = 500.0
    linger_seconds: float = 5.0
    handshake_seconds: float = 10.0
    handshakes_max: int = 1024
    connections_max: int = 100_000
    unread_bytes_max: int = 256 * 1024 * 1024
    begun_bytes_max: int = 64 * 1024 * 1024
    decoding_wait_seconds: float = 5.0
    backlog: int = 4096


def fault_of(error: BaseException | None) -> Fault:
    """What aiohttp found, in words that repeat nothing of it."""
    match error:
        case http_exceptions.LineTooLong():
            return HEAD_TOO_BIG
        case http_exceptions.BadHttpMethod():
            return _UNKNOWN_METHOD
        case http_exceptions.BadHttpMessage(message=text) if text.startswith("Too many headers"):
            return HEAD_TOO_BIG
        case http_exceptions.BadHttpMessage(message=text) if text.startswith("Duplicate '"):
            return _REPEATED_HEADER
        case _:
            return _MALFORMED


def has_c_parser() -> bool:
    """Whether requests are parsed by llhttp. aiohttp's parser in Python is another one, which nothing here was held
    against."""
    return http_parser.HttpRequestParser.__module__ == "aiohttp._http_parser"


class Holder(Protocol):
    """What a budget needs of a client's connection."""

    def abort(self) -> None:
        """Reset it."""


class _Held(NamedTuple):
    size_bytes: int
    since: float


class MemoryBudget:
    """One limit for the bytes that all clients together keep in memory.

    Above it, the client that holds the most is aborted: one with a short response never suffers for one with a long
    response. Clients that had some time go first, the largest of them first: otherwise many that hold a little less,
    for long, would cut off all that would be done in a moment.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._held: dict[Holder, _Held] = {}
        self.held_bytes = 0

    @contextmanager
    def held(self, holder: Holder, size_bytes: int) -> Iterator[None]:
        """Hold so many bytes for this client meanwhile. The client must hold no others here."""
        self.hold(holder, size_bytes)
        try:
            yield
        finally:
            self.hold(holder, 0)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the bytes held for this client. 0 ends that."""
        before = self._held.pop(holder, None)
        self.held_bytes += size_bytes - (0 if before is None else before.size_bytes)
        if size_bytes:
            self._held[holder] = _Held(size_bytes, self._clock() if before is None else before.since)
        if self.held_bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """Abort clients, the first in rank first, down to the limit.

        Where many hold a little, a share of them goes at once: ranking all of them for each byte that comes would block
        the loop.
        """
        had_time = self._clock() - _FEW_SECONDS

        def rank(holder: Holder) -> tuple[bool, int]:
            held = self._held[holder]
            return held.since <= had_time, held.size_bytes

        share = len(self._held) // _SHARE
        # The bytes of a single client have a limit of their own.
        while (self.held_bytes > self._bytes_max or share > 0) and len(self._held) > 1:
            for holder in nlargest(max(1, share), self._held, key=rank):
                self.held_bytes -= self._held.pop(holder).size_bytes
                holder.abort()
            share = 0


class Delivery(NamedTuple):
    """How much of what was written the client has received: `taken_bytes` grow with it, from any start. `is_all`:
    nothing is left, unless the loop is about to write what it holds. Seen twice, with nothing received in between, that
    is certain.

    Without TLS the transport knows what has yet to leave. With TLS the loop encrypts a response at once and does not
    count what it then holds, so the kernel is asked what has arrived.
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

    def check(self, now: float) -> Literal["end", "break off"] | None:
        """To be called from time to time. End it: the client has received everything, and does not close. Break it off:
        the client does not read, or too slowly."""
        if now < self.due or self._transport is None:
            return None
        before = self._before
        if self.has_read_all() and self._is_ending:
            return "end"
        after, seconds = self._before, self._settings.silence_seconds
        self.due = now + seconds
        if before is None or after is None or (self._is_ending and after.is_all):
            return None
        is_at_pace = after.taken_bytes - before.taken_bytes >= self._settings.bytes_per_second_min * seconds
        return None if is_at_pace else "break off"


class ClientGone(Exception):
    """There is nobody to respond to: the client is gone, or does not read."""


class ClientConnection(web.RequestHandler):
    """See the module. `on_gone` is called when the client is gone; `gone` is set from then on.

    `idle_since`: when the last request ended, or the connection was made, on the loop's clock. `has_ended`: the client
    sends nothing more, and may still read. `ignores_input`: nothing more is parsed. `has_been_filled`: some head did
    not arrive alone in one short piece, so heads may exceed their limit and have to be measured.
    """

    def __init__(self, server: web.Server, owner: Edge) -> None:
        settings = owner.settings
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            # A sweep of the server ends idle connections.
            keepalive_timeout=0.0,
            tcp_keepalive=False,
            access_log=cast(Any, None),
            max_line_size=settings.header_bytes_max,
            max_field_size=settings.header_bytes_max,
            max_headers=settings.headers_max,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
        )
        self._owner = owner
        self.settings = settings
        # A head in one such piece is within its limit.
        self._short_bytes = settings.header_bytes_max // 2
        self._tunnel: ClientTunnel | None = None
        # Bytes of the next request that wait for their turn.
        self._unparsed = b""
        # The body of the request that was parsed last, where it is not whole, and how much of it had come.
        self._newest: Payload | None = None
        self._newest_bytes = 0
        # Of a body in chunks: where the chunk in progress begins in it, and the beginning of the line with its size.
        self._chunk_start = 0
        self._chunk_line: bytes | None = None
        # Bytes that came since anything was whole: of a head, or around the chunks of a body.
        self._head_bytes = 0
        # The same, and all that waits for its turn.
        self._held_bytes = 0
        self._is_held_reported = False
        # What has yet to come of a request for an upgrade; negative from when something may have come behind one.
        self._upgrade_left = 0
        self._is_closing = False
        self._reader = ReaderWatch(settings)
        self._body_due = math.inf
        self.task: asyncio.Task[None] | None = None
        # The body of the request in progress.
        self._served: Payload | None = None
        self.ignores_input = False
        self.has_been_filled = False
        self.has_ended = False
        self.idle_since = 0.0
        self.gone = asyncio.Event()
        self.on_gone: Callable[[], object] | None = None
        self.hop: Hop = hop_from(None, is_secure=False)

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress or parsed or waits for that, or the connection is a tunnel."""
        return self._served is not None or bool(self._messages) or bool(self._unparsed)

    async def start(self) -> None:
        """Handle one request after the other, until the connection ends. aiohttp makes a task of it."""
        while not self._is_closing:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused:
                self._resume_reading_if_drained()
            if not isinstance(message, RawRequestMessage):
                self._refuse(fault_of(message.exc))
                return
            self._served = payload
            if self._held_bytes and not self._messages:
                self._hold(self._head_bytes + len(self._message_tail))
            try:
                goes_on = await self._owner.handler.handle(self, message, payload)
            finally:
                self._served = None
            if self._tunnel is not None or self.transport is None:
                return
            if not goes_on or self.ignores_input or (self.has_ended and self.is_last):
                self.linger()
                return
            self.idle_since = self._loop.time()
            if self._upgraded:
                self._go_on_with_http()
            if self._messages:
                # In a turn of its own, so that a long line of requests holds nobody else up.
                await asyncio.sleep(0)

    # -- for the handler ----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_last(self) -> bool:
        """Whether no further request can come: the client has ended its direction, or its input is ignored."""
        return self.ignores_input or (self.has_ended and not self._messages)

    @property
    def dropped_nothing(self) -> bool:
        """Whether nothing came behind a request for an upgrade. aiohttp discards what arrives together with one that is
        not to a WebSocket, and would take the rest of that for a request."""
        return self._upgrade_left == 0

    def write(self, data: bytes) -> None:
        """Raises `ClientGone`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(data)

    async def drain(self) -> None:
        """Wait while the client is slow to read; abort one that does not read. Raises `ClientGone`."""
        if self.writing_paused and self.transport is not None:
            self._reader.watch_writing(self.transport, self._loop.time())
            try:
                await self._drain_helper()
            except ConnectionError:
                raise ClientGone from None
            finally:
                self._reader.stop()
        if self.gone.is_set():
            raise ClientGone

    async def read_body(self, payload: Payload, seconds: float) -> bytes:
        """The next bytes of a body, empty at its end. Raises `RequestCut`, also after so long without a byte."""
        self._body_due = self._loop.time() + seconds
        try:
            return await payload.readany()
        finally:
            self._body_due = math.inf

    def cut_body(self, cut: Cut) -> bool:
        """Raise `RequestCut` in the reader of the body that is arriving, and ignore the rest of it.

        Returns False if the body is complete, or was cut before.
        """
        body, self._newest = self._newest, None
        if body is None or body.is_eof():
            return False
        self.ignores_input = True
        error = RequestCut(cut)
        body.set_exception(error)
        # A reader that earlier bytes have just woken waits again without seeing this.
        self._loop.call_soon(body.set_exception, error)
        return True

    def open_tunnel(self, taker: ClientTunnel) -> None:
        """Give every byte from now on to the tunnel, and those that came too early."""
        self._tunnel = taker
        self._hold(0)
        self.set_parser(cast(Any, taker))
        if self.has_ended:
            taker.half_closed()

    # -- the end ------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End the connection by RST, so that the client cannot take what it got for whole."""
        transport = self.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            reset_on_close(sock)
        transport.abort()

    def linger(self) -> None:
        """End the connection after the client has read what was written. What it still sends is discarded.

        Closing with input unread would send an RST, which may overtake the response (RFC 9112 section 9.6).
        """
        transport = self.transport
        self._end_requests()
        if transport is None or transport.is_closing():
            return
        self._resume_transport_reading()
        if transport.can_write_eof() and not self.has_ended:
            transport.write_eof()
            self._reader.watch_end(transport, self._loop.time(), self.settings.linger_seconds)
        else:
            self._close_transport(transport)

    def close(self) -> None:
        """Take no further request, and close once everything written has left."""
        transport = self.transport
        self._end_requests()
        # Over TLS, a transport of asyncio that is closed twice cannot be aborted any more.
        if transport is not None and not transport.is_closing():
            self._close_transport(transport)

    def end_if_read(self) -> None:
        """Abort a closing connection whose client has received everything and does not close it."""
        if self.transport is not None and self._reader.has_read_all():
            self._end()

    def _end(self) -> None:
        """Not by RST, which might overtake what the client has yet to read."""
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Apply the time limits. Called a few times a second."""
        if now >= self._body_due:
            self._body_due = math.inf
            self.cut_body(Cut.SLOW)
        match self._reader.check(now):
            case "break off":
                self._reader.stop()
                self.abort()
            case "end":
                self._end()
            case None:
                pass
        is_idle = not self.is_busy and self._tunnel is None and not self._is_closing
        if is_idle and now - self.idle_since > self.settings.keepalive_seconds:
            self.close()

    # -- events of the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.task = self._task_handler
        # Over TLS the loops would buffer over eight times as much before a writer has to wait.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=_WRITTEN_BYTES_MAX)
        address = transport.get_extra_info("peername")
        self.hop = hop_from(
            str(address[0]) if isinstance(address, tuple) else None,
            is_secure=transport.get_extra_info("sslcontext") is not None,
        )
        certificate = _verified_certificate(transport)
        if certificate is not None:
            self.hop = replace(self.hop, certificate=certificate)
        self.idle_since = self._loop.time()
        self._owner.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
            self._hold(len(self._unparsed))
            return
        is_first = (
            self._served is None
            and not self._messages
            and self._newest is None
            and not (self._head_bytes or self._held_bytes or self.ignores_input)
            and self._tunnel is None
        )
        if not is_first or not data:
            self._parse(data)
            return
        slices = self._owner.slices
        if slices.spare:
            slices.spare -= 1
        elif not slices.is_free():
            self._wait_for_turn(data)
            return
        count = self._request_count
        super().data_received(data)
        if self._request_count == count + 1 and len(data) <= self._short_bytes:
            message, payload = self._messages[-1]
            if isinstance(message, RawRequestMessage) and not (message.upgrade or message.chunked):
                # Mostly: one request, in one piece.
                self._chunk_line = None
                if not payload.is_eof():
                    self._newest, self._newest_bytes = payload, payload.total_bytes
                return
        self._parsed(self._request_count - count, data)

    def _wait_for_turn(self, data: bytes) -> None:
        if self.transport is not None:
            self._unparsed = data
            # What follows, and its end, can wait in the kernel.
            self.transport.pause_reading()
            self._hold(len(data))
            self._owner.slices.put(self._owner.flow_of(data), self._parse_in_turn)

    def _parse_in_turn(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if self.transport is not None and data:
            self._hold(0)
            self.parse_now(data)

    def parse_now(self, data: bytes) -> None:
        """Parse bytes whose turn has come, and read on."""
        self._parse(data)
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _parse(self, data: bytes) -> None:
        if self.ignores_input:
            return
        count = self._request_count
        super().data_received(data)
        self._parsed(self._request_count - count, data)

    def _parsed(self, number: int, data: bytes) -> None:
        """These bytes were parsed, and so many requests are new."""
        if number:
            self._requests_parsed(number, data)
        elif self._tunnel is None and data:
            self._part_arrived(data)
        if self._chunk_line is not None:
            self._check_chunk(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that ends its direction after a whole request still gets its response, except over TLS, which has no
        half-closed connections."""
        is_plain = self.hop.scheme == b"http"
        self.has_ended = True
        if self._tunnel is not None:
            self._tunnel.half_closed()
            return is_plain
        self.cut_body(Cut.GONE)
        return is_plain and self.is_busy and not self._is_closing

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp calls this with each piece of a body, and would call its parser for nothing."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.cut_body(Cut.GONE)
        self._hold(0)
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()
        self._owner.connection_closed(self)

    def _go_on_with_http(self) -> None:
        """An upgrade was declined: what follows the request for it is HTTP."""
        self._upgraded = False
        if self._parser is not None:
            self._parser.set_upgraded(False)
        tail, self._message_tail = self._message_tail, b""
        self._hold(0)
        self._parse(tail)
        if self._buffer_paused:
            self._resume_reading_if_drained()

    def _requests_parsed(self, number: int, data: bytes) -> None:
        """So many requests were parsed by the last bytes; the last of them may be an error."""
        message, payload = self._messages[-1]
        if not isinstance(message, RawRequestMessage):
            self._parsing_failed()
            return
        is_alone = number == len(self._messages) == 1 and self._served is None and not self._head_bytes
        self._newest = None if payload.is_eof() else payload
        self._newest_bytes = payload.total_bytes
        self._chunk_start, self._chunk_line = 0, b"" if message.chunked else None
        # Its first bytes may have arrived together with the end of the previous request.
        if is_alone and not message.upgrade and len(data) <= self._short_bytes:
            return
        self.has_been_filled = True
        self._head_bytes = 0
        if message.upgrade:
            self._upgrade_parsed(message, data, is_alone=is_alone)
        elif not is_alone:
            has_to_wait = self._served is not None or len(self._messages) > 1
            self._hold(self._held_bytes + len(data) if has_to_wait else 0)

    def _parsing_failed(self) -> None:
        """Ignore what follows. A malformed body raises in its reader."""
        self.ignores_input = True
        if self.cut_body(Cut.MALFORMED):
            self._messages.pop()

    def _check_chunk(self, data: bytes) -> None:
        """Refuse a body at the size of a chunk that is longer than any body may be."""
        body = self._newest
        if body is None or body.is_eof():
            self._chunk_line = None
            return
        ends = body._http_chunk_splits  # noqa: SLF001 - see the module
        if ends:
            self._chunk_start = ends[-1]
        begun_bytes = body.total_bytes - self._chunk_start
        if begun_bytes > len(data):
            return
        # What came before the content of the chunk ends with the line of its size, or with a part of it.
        before = (self._chunk_line or b"") + data[: len(data) - begun_bytes]
        line = before[before.rfind(b"\n", 0, -1) + 1 :]
        size = _CHUNK_SIZE.match(line)
        if size is not None and len(size[1]) > _CHUNK_DIGITS_MAX:
            self.ignores_input = True
            self.cut_body(Cut.MALFORMED)
        self._chunk_line = b"" if begun_bytes else line[:_CHUNK_LINE_KEPT]

    def _part_arrived(self, data: bytes) -> None:
        """These bytes completed no head: they are a part of a head or of a body."""
        if self._upgrade_left > 0:
            self._upgrade_left -= len(data)
        if self._upgraded:
            self._hold(len(self._message_tail))
            return
        body = self._newest
        if body is not None:
            if body.is_eof():
                self._newest = None
                self._head_bytes = 0
            elif body.total_bytes == self._newest_bytes:
                self._head_bytes += len(data)
            else:
                self._newest_bytes = body.total_bytes
                self._head_bytes = 0
            if self._served is not None and body is not self._served:
                self._hold(self._held_bytes + len(data))
        else:
            self._head_bytes += len(data)
            self._hold(self._held_bytes + len(data))
        if self._head_bytes > self.settings.header_bytes_max:
            self._head_too_big()

    def _head_too_big(self) -> None:
        """A head, or what surrounds the chunks of a body, is over its limit."""
        if self.cut_body(Cut.MALFORMED):
            return
        if self.is_busy:
            self.ignores_input = True
        else:
            self._refuse(HEAD_TOO_BIG)

    def _upgrade_parsed(self, message: RawRequestMessage, data: bytes, *, is_alone: bool) -> None:
        """Note how much of the request is still to come, and whether anything may have come behind it."""
        if self._upgraded:
            self._hold(len(self._message_tail))
            return
        if self._upgrade_left < 0:
            return
        lengths = [value for name, value in message.raw_headers if name.lower() == b"content-length"]
        end = data.find(b"\r\n\r\n") + 4
        self._upgrade_left = end + int(lengths[0] if lengths else 0) - len(data) if is_alone and end > 3 else -1

    def _end_requests(self) -> None:
        """Parse nothing more, and release what arrived and was not read."""
        self.ignores_input = True
        self._is_closing = True
        self._messages.clear()
        if self._waiter is not None:
            self._waiter.cancel()
        self.cut_body(Cut.GONE)
        # It holds memory, and the connection may last for as long as the client reads.
        self._parser = None
        self._message_tail = self._unparsed = b""
        self._hold(0)

    def _refuse(self, fault: Fault) -> None:
        if self.is_open:
            self.write(self._owner.handler.refusal_bytes(fault))
        self.linger()

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes = size_bytes
        is_worth_it = size_bytes > SMALL_BYTES
        if is_worth_it or self._is_held_reported:
            self._is_held_reported = is_worth_it
            self._owner.begun.hold(self, size_bytes if is_worth_it else 0)

    def _close_transport(self, transport: asyncio.Transport) -> None:
        transport.close()
        self._reader.watch_end(transport, self._loop.time(), self.settings.silence_seconds)


@dataclass(slots=True, eq=False)
class ClientBody:
    """See `reply.RequestBody`. `expects_continue`: the client waits for `100 Continue` before it sends it.
    `keeps_pace`: it must come at a minimum pace, because it holds an upload slot meanwhile.
    """

    _connection: ClientConnection
    _payload: Payload
    length: int | None
    expects_continue: bool = False
    keeps_pace: bool = False
    _taken_bytes: int = 0
    _waited_seconds: float = 0.0
    _wait_began: float | None = None

    def whole(self) -> bytes | None:
        payload = self._payload
        if self.length == 0:
            return b""
        return payload.read_nowait() if payload.is_eof() and payload.exception() is None else None

    async def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come. Raises `RequestCut`."""
        payload = self._payload
        payload.set_read_chunk_size(_PIECE_BYTES)
        if self.expects_continue and not payload.is_eof():
            self.expects_continue = False
            if self._connection.is_open:
                self._connection.write(_CONTINUE)
        while not payload.at_eof():
            data = await self._read()
            if data:
                self._taken_bytes += len(data)
                yield data

    def crowd_out(self) -> bool:
        """Cut it short if it comes too slowly to keep its slot; returns whether it was cut."""
        waited_seconds = self._waited_seconds
        if self._wait_began is not None:
            waited_seconds += asyncio.get_running_loop().time() - self._wait_began
        if waited_seconds < _CROWDED_SECONDS or self._taken_bytes >= _CROWDED_BYTES_PER_SECOND * waited_seconds:
            return False
        return self._connection.cut_body(Cut.CROWDED_OUT)

    def close(self) -> None:
        """Holds nothing: the connection deals with what was not read."""

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        settings = self._connection.settings
        seconds = settings.silence_seconds
        if self.keeps_pace:
            # The first silence is free. After that, the bytes that came must make up for the time waited.
            earned = self._taken_bytes / settings.bytes_per_second_min
            seconds = max(0.0, min(seconds, seconds + earned - self._waited_seconds))
        began = self._wait_began = loop.time()
        try:
            return await self._connection.read_body(self._payload, seconds)
        finally:
            self._wait_began = None
            self._waited_seconds += loop.time() - began


def _verified_certificate(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """The client's certificate, where the listener asks for one and TLS has verified it."""
    context = transport.get_extra_info("sslcontext")
    if context is None or context.verify_mode is ssl.CERT_NONE:
        return None
    der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return None if der is None else read_certificate(der)
