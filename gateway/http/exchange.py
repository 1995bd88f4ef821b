"""One request at the edge: reads it as a value, and writes its reply to the client's connection.

aiohttp's parser decides which bytes are a request. This module owns what a client may not say of itself, reading a body
at its consumer's pace, and `100 Continue`. That is sent when the body is first read, so that a request which is refused
by its head never uploads. Of the reply it owns the framing, which is never copied but written here alone, what has been
written so far, and whether the connection may serve another request. It decides nothing about a request.

Invariants: a request body that did not arrive completely raises `RequestCut`; it never just ends. A head has exactly
the lines that it was given, whatever their bytes, or it is refused. Once a byte of a final head is out, the connection
either carries the whole reply or is reset: a reply that broke off never looks complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.core.immutable import immutable
from gateway.core.message import (
    EXPECT,
    HOP_BY_HOP,
    Headers,
    IndexedHeaders,
    NameTable,
    RequestHead,
    ResponseHead,
    connection_options,
    folded_name,
    header_values,
)
from gateway.core.replay import has_no_body
from gateway.core.verdict import Verdict
from gateway.http.connection import HEAD_TOO_BIG, ClientConnection, ClientGone, MemoryBudget, Message, Payload
from gateway.protect.ambiguity import Fault
from gateway.protect.forwarding import response_headers
from gateway.protect.reply import BodyCut, Cut, Reply, ResponseStream
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.upstream import BodyLost, Duplex, UpstreamResponse

if TYPE_CHECKING:
    from gateway.http.handler import Served

# -- tunnel ------------------------------------------------------------------------------------------------------------
#
# Bytes both ways after a 101, until both sides have ended.
#
# Owns the buffer and the flow control of the client's direction, and what the end of one side means for the other: an
# end is passed on as an end, and a reset as a reset. It knows nothing of the protocol inside.

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


# -- exchange ----------------------------------------------------------------------------------------------------------

_OWN: Final = HOP_BY_HOP | {b"content-length", b"idempotency-status"}
_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))
_LENGTH_DIGITS_MAX: Final = 18
# The kinds of reply headers to framing, by name.
_PLAIN, _DATE, _REPLACED = range(3)

_STATUS_LINES: Final = {verdict: b"Idempotency-Status: " + verdict.encode() for verdict in Verdict}
_BODILESS: Final = frozenset(status for status in range(100, 1000) if has_no_body(b"GET", status))

LAST_CHUNK: Final = b"0\r\n\r\n"

# How much of a body is read at once, when its consumer reads it; as much again is buffered for a slow consumer.
_PIECE_BYTES: Final = 64 * 1024
# The bytes around a header's name and value, and around the parts of a request line.
_FIELD_BYTES: Final = len(b": \r\n")
_LINE_BYTES: Final = len(b"  HTTP/1.1\r\n\r\n")

# A body loses its upload slot to another request if it was waited for that long and came more slowly than this.
# A mebibyte may take a minute.
_CROWDED_SECONDS: Final = 5.0
_CROWDED_BYTES_PER_SECOND: Final = 16 * 1024

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

ONE_WRITE_BYTES_MAX: Final = 64 * 1024
"""Up to this size, head and body go out in one write."""
# How much of a longer body is written before waiting for the client. With TLS, writing the first two parts never
# waits, read or not; they are short, so that little memory is held beside the budget.
_PART_BYTES: Final = 64 * 1024


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if lower == b"date":
        return _DATE
    return _REPLACED if lower in _OWN else _PLAIN


_KINDS: Final = NameTable(_kind_of)


class ReplyInvalid(ValueError):
    """A reply that cannot be written without ambiguity: a bug of its maker, never the client's fault."""


@immutable
class Framed:
    """A head to send, and how its body follows. `length` is that of a body that is not chunked, if known.

    `keep_alive` is False where the end of the connection ends the body.
    """

    head: bytes
    sends_body: bool
    is_chunked: bool
    length: int | None
    keep_alive: bool


def framed(reply: Reply, *, method: bytes, minor: int, keep_alive: bool, shows_status: bool, date: bytes) -> Framed:
    """Frame a final reply to a request of HTTP/1.`minor` (RFC 9112 section 6). Raises `ReplyInvalid`.

    `date` is the line for a reply without one.
    """
    status, is_bytes = reply.status, isinstance(reply.body, bytes)
    length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
    written, has_date = reply.lines or _lines_of(reply)
    lines = [written]
    if reply.verdict is not None and shows_status:
        lines.append(_STATUS_LINES[reply.verdict])
    elif reply.would is not None:
        lines.append(b"Idempotency-Status: observed;would=" + reply.would.encode())
    if not has_date:
        lines.append(date)
    sends_body, is_chunked = method != b"HEAD" and status not in _BODILESS, False
    if not sends_body:
        said = _length_of_what_is_not_sent(method, reply, length if is_bytes else None)
        if said is not None:
            lines.append(b"Content-Length: " + said)
    elif length is not None:
        lines.append(b"Content-Length: %d" % length)
    elif minor > 0:
        is_chunked = True
        lines.append(b"Transfer-Encoding: chunked")
    else:
        keep_alive = False
    if not keep_alive or minor == 0:
        lines.append(b"Connection: keep-alive" if keep_alive else b"Connection: close")
    lines += (b"", b"")
    return Framed(b"\r\n".join(lines), sends_body, is_chunked, length, keep_alive)


def bare_head(status: int, reason: bytes, headers: Headers) -> bytes:
    """An interim response, or the 101 after which the connection is no longer HTTP. Raises `ReplyInvalid`.

    `headers` are those for the client. Lengths are left out, because no content follows (RFC 9110 section 8.6).
    """
    kept = tuple([header for header in headers if header[0].lower() not in _LENGTHS])
    lines, _ = _lines_of(Reply(status, reason, kept, b""), is_bare=True)
    return lines + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk; `data` is not empty, since an empty chunk is the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _length_of_what_is_not_sent(method: bytes, reply: Reply, body_bytes: int | None) -> bytes | None:
    """The `Content-Length` where no body follows: for HEAD and 304, the length of the body that GET would get."""
    status = reply.status
    if not (method == b"HEAD" or status == HTTPStatus.NOT_MODIFIED) or status == HTTPStatus.NO_CONTENT:
        return None
    own = next(reversed(header_values(reply.headers, b"content-length")), None)
    if own is not None and own.isdigit() and len(own) <= _LENGTH_DIGITS_MAX:
        return own
    return b"%d" % body_bytes if body_bytes else None


def _lines_of(reply: Reply, *, is_bare: bool = False) -> tuple[bytes, bool]:
    """See `Reply.lines`. They are kept, because a replay is written again and again; what is added to them holds no
    line of its own. `is_bare`: with the headers that framing replaces."""
    status, lines, has_date = reply.status, [b"HTTP/1.1 %d %b" % (reply.status, reply.reason)], False
    for header in reply.headers:
        kind = _KINDS[header[0]]
        if kind != _REPLACED or is_bare:
            lines.append(b": ".join(header))
            has_date |= kind == _DATE
    text, ends = b"\r\n".join(lines), len(lines) - 1
    # A header or reason that smuggles a line would add a line.
    if text.count(b"\n") != ends or text.count(b"\r") != ends or b"\0" in text or not 100 <= status <= 999:
        raise ReplyInvalid("a header or the reason of a reply holds CR, LF or NUL, or its status is not valid")
    object.__setattr__(reply, "lines", (text, has_date))
    return text, has_date


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
        """All of its bytes, if they are here."""
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


def too_big(head: RequestHead, header_bytes_max: int) -> Fault | None:
    """Why a head is over its limit as a whole."""
    size = sum([len(name) + len(value) + _FIELD_BYTES for name, value in head.headers], len(head.target) + _LINE_BYTES)
    return HEAD_TOO_BIG if size + len(head.method) > header_bytes_max else None


class ReservedHeaders:
    """Headers that a client may not send, because a service takes them from the gateway.

    They are dropped from every request, whatever its path, and in every spelling that a service may take for the same
    name.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        reserved = frozenset(map(folded_name, names))
        self._is_reserved = NameTable(lambda name: folded_name(name) in reserved)

    def without(self, head: RequestHead) -> RequestHead:
        """The head as the service may get it."""
        options = connection_options(head.headers)
        # Mostly.
        if not any(map(self._is_reserved.__getitem__, [*options, *[name for name, _ in head.headers]])):
            return head
        kept: list[tuple[bytes, bytes]] = []
        for name, value in head.headers:
            if name.lower() == b"connection":
                # It would have the gateway drop what it adds itself.
                listed = [option for option in value.split(b",") if not self._is_reserved[option.strip()]]
                kept.append((name, b",".join(listed)))
            elif not self._is_reserved[name]:
                kept.append((name, value))
        return RequestHead(head.method, head.target, IndexedHeaders(kept))


class ClientExchange:
    """See the module. Lives as long as its request.

    `served` is what it is served by. `route` protects the request, `observed` only looks at it. `is_examined`: it was
    not refused by its head. `is_forwarded`: it may have been sent unprotected. `takes_interim`: the client understands
    interim responses, which HTTP/1.0 does not have (RFC 9110 section 15.2). `has_begun_reply`: a byte of a final head
    is out. `stays`: nothing in the head keeps the connection from serving another request afterwards. `keep_alive`: it
    may.
    """

    __slots__ = (
        "_message",
        "body",
        "connection",
        "has_begun_reply",
        "has_origin",
        "head",
        "is_examined",
        "is_forwarded",
        "keep_alive",
        "observed",
        "payload",
        "route",
        "served",
        "stays",
        "takes_interim",
        "task",
        "version",
    )

    def __init__(self, connection: ClientConnection, message: Message, payload: Payload, served: Served) -> None:
        headers = IndexedHeaders(message.raw_headers)
        self.connection = connection
        self.task = connection.task
        self.served = served
        self._message = message
        self.payload = payload
        self.stays = not (message.should_close or message.chunked or message.upgrade)
        self.version: tuple[int, int] = message.version
        self.takes_interim = self.version == (1, 1)
        target = message.path.encode("utf-8", "surrogateescape")
        self.head = RequestHead(message.method.encode(), target, headers)
        self.has_origin = b"origin" in headers.by_name
        lengths = headers.by_name.get(b"content-length")
        length = None if message.chunked else int(lengths[0]) if lengths else 0
        self.body = ClientBody(connection, payload, length)
        self.route: Route | None = None
        self.observed: Route | None = None
        self.is_examined = self.is_forwarded = False
        self.has_begun_reply = self.keep_alive = False
        if headers.marks & EXPECT and self.takes_interim and not payload.is_eof():
            expectations = header_values(headers, b"expect")
            self.body.expects_continue = any(value.lower() == b"100-continue" for value in expectations)

    # -- the request --------------------------------------------------------------------------------------------------

    def request(self, *, may_upgrade: bool) -> Request:
        """The request as a value. Without `may_upgrade`, its request for an upgrade is dropped."""
        head, upgrades = self.head, False
        if self._message.upgrade:
            upgrades = may_upgrade and self._is_switchable()
            if not upgrades:
                kept = [header for header in head.headers if header[0].lower() != b"upgrade"]
                head = RequestHead(head.method, head.target, IndexedHeaders(kept))
        return Request(head, self.body, self.connection.hop, upgrades)

    def may_keep_alive(self) -> bool:
        """Whether what follows the request is surely another request.

        A body that did not arrive completely is followed by its rest. After chunks, aiohttp's parser takes the last
        trailer for the first header of the next request. After a request for an unknown upgrade, the bytes may belong
        to that protocol. HTTP/2 starts only after a 101 (RFC 7540 section 3.2), and Java's client always offers it.
        """
        message, connection = self._message, self.connection
        if message.should_close or message.chunked or not self.payload.is_eof() or connection.is_last:
            return False
        if not message.upgrade or self._is_switchable():
            return True
        return self._protocols() == [b"h2c"] and connection.dropped_nothing

    def _is_switchable(self) -> bool:
        """Whether the client asks for a protocol that may be tunnelled; HTTP/2 would bypass every route.

        A handshake has no body, of which one part would go to the request and the rest to the tunnel.
        """
        return self._protocols() == [b"websocket"] and self.takes_interim and self.body.length == 0

    def _protocols(self) -> list[bytes]:
        """The protocols that the request offers."""
        return [value.lower() for value in header_values(self.head.headers, b"upgrade")]

    # -- the reply ----------------------------------------------------------------------------------------------------

    def write(self, out: Framed, body: bytes) -> None:
        """Write the whole reply at once. Raises `ClientGone`."""
        self.has_begun_reply = True
        self.body.expects_continue = False
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(out.head + body if out.sends_body else out.head)
        self.keep_alive = out.keep_alive

    async def write_on(self, out: Framed, body: bytes | ResponseStream, unread: MemoryBudget) -> None:
        """Write a long reply as the client reads it; one that is here counts against `unread` meanwhile. Raises
        `ClientGone`."""
        self.write(out, b"")
        self.keep_alive = False
        if not isinstance(body, bytes):
            await self._write_stream(out, body)
        elif out.sends_body:
            await self._write_long(body, unread)
        self.keep_alive = out.keep_alive

    def abort(self) -> None:
        """Reset the connection, so that the client notices."""
        self.keep_alive = False
        self.connection.abort()

    async def _write_long(self, body: bytes, unread: MemoryBudget) -> None:
        """Write in parts: with TLS, it is unknown how much of what was written the transport still holds."""
        connection = self.connection
        with unread.held(connection, len(body)):
            try:
                for start in range(0, len(body), _PART_BYTES):
                    connection.write(body[start : start + _PART_BYTES])
                    await connection.drain()
            except BaseException:
                self.abort()
                raise

    async def _write_stream(self, out: Framed, stream: ResponseStream) -> None:
        connection = self.connection
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
                connection.write(chunk(data) if out.is_chunked else data)
                await connection.drain()
            if left:
                raise BodyCut("shorter than announced")
            if out.is_chunked:
                connection.write(LAST_CHUNK)
        except BodyCut:
            self.abort()
            raise ClientGone from None
        except BaseException:
            self.abort()
            raise
        finally:
            self.on_gone(None)

    # -- beside the reply ---------------------------------------------------------------------------------------------

    def send_interim(self, head: ResponseHead) -> None:
        """Pass on an interim (1xx) response, to a client that understands them. Harmless when the client is gone."""
        if self.takes_interim and self.connection.is_open and not self.has_begun_reply:
            self.connection.write(bare_head(head.status, head.reason, response_headers(head.headers)))

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        """Call this when the client is gone, or now if it is. None removes the callback."""
        self.connection.on_gone = callback
        if callback is not None and self.connection.gone.is_set():
            callback()

    def switch(self, status: int, reason: bytes, headers: Headers) -> ClientTunnel:
        """Write the 101, after which the connection is bytes both ways. Raises `ClientGone`."""
        self.connection.write(bare_head(status, reason, headers))
        self.has_begun_reply = True
        return ClientTunnel(self.connection)
