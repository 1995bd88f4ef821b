"""From a client's request to the reply on its connection.

This module owns what a client may not say of itself, the framing of a reply, and whether the connection may serve
another request. `100 Continue` is sent when the body is first read, so that a request which is refused by its head
never uploads.

A client that leaves cancels nothing here: the work on its request ends when the reply cannot be written, and an
operation that was started for it has its own task.

Invariants: a request body that did not arrive completely raises `RequestCut`; it never just ends. A head has exactly
the lines that it was given, whatever their bytes, or it is refused. Once a byte of a final head is out, the connection
either carries the whole reply or is reset: a reply that broke off never looks complete.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final, Protocol, assert_never

from gateway.config.models import Cors
from gateway.core import immutable
from gateway.core.message import (
    CONNECTION,
    EXPECT,
    HOP_BY_HOP,
    MARKED,
    STAYS_OR_NOT,
    Headers,
    IndexedHeaders,
    NameTable,
    RequestHead,
    ResponseHead,
    connection_options,
    folded_name,
    header_values,
)
from gateway.core.outcome import has_no_body
from gateway.core.routing import RouteTable
from gateway.core.verdict import Verdict
from gateway.http.connection import (
    HEAD_TOO_BIG,
    ClientBody,
    ClientConnection,
    ClientGone,
    EdgeSettings,
    MemoryBudget,
    Message,
    Payload,
)
from gateway.observe.facts import Events, RequestAnswered
from gateway.protect.ambiguity import Fault, examine
from gateway.protect.forwarding import NO_ORIGINS, for_origin, response_headers
from gateway.protect.reply import (
    PROBLEM,
    BodyCut,
    Cut,
    Reply,
    RequestCut,
    ResponseStream,
    Shape,
    Trouble,
    decode_unaccepted,
    http_date,
    refuse,
)
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route

# -- one exchange ------------------------------------------------------------------------------------------------------

_OWN: Final = HOP_BY_HOP | {b"content-length", b"idempotency-status"}
_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))
_LENGTH_DIGITS_MAX: Final = 18
# The kinds of reply headers to framing, by name.
_PLAIN, _DATE, _REPLACED = range(3)

_STATUS_LINES: Final = {verdict: b"Idempotency-Status: " + verdict.encode() for verdict in Verdict}
_BODILESS: Final = frozenset(status for status in range(100, 1000) if has_no_body(b"GET", status))

LAST_CHUNK: Final = b"0\r\n\r\n"

# The bytes around a header's name and value, and around the parts of a request line.
_FIELD_BYTES: Final = len(b": \r\n")
_LINE_BYTES: Final = len(b"  HTTP/1.1\r\n\r\n")


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
    """One request at the edge, as a value, and the writing of its reply.

    `served` is what it is served by. `route` protects the request, `observed` only looks at it, and `own` is what it is
    for where it is for the gateway itself. `is_examined`: it was not refused by its head. `is_forwarded`: it may have
    been sent unprotected. `takes_interim`: the client understands interim responses, which HTTP/1.0 does not have (RFC
    9110 section 15.2). `has_begun_reply`: a byte of a final head is out. `stays`: nothing in the head keeps the
    connection from serving another request afterwards. `keep_alive`: it may.
    """

    def __init__(self, connection: ClientConnection, message: Message, payload: Payload, served: Served) -> None:
        headers = IndexedHeaders(message.raw_headers)
        by_name: dict[bytes, list[bytes]] = {}
        marks = 0
        for spelling, value in headers:
            lower, mark = MARKED[spelling]
            marks |= mark
            by_name[lower] = [value]
        if len(by_name) < len(headers):
            by_name = headers.by_name
        else:
            # Mostly no name is repeated. Then this is what its first look-up would find.
            if marks & CONNECTION and by_name[b"connection"][0] in STAYS_OR_NOT:
                marks -= CONNECTION
            headers.by_name, headers.marks = by_name, marks
        self.connection = connection
        self.task = connection.task
        self.served = served
        self.message = message
        self.payload = payload
        self.stays = not (message.should_close or message.chunked or message.upgrade)
        self.version: tuple[int, int] = message.version
        self.takes_interim = self.version == (1, 1)
        target = message.path.encode("utf-8", "surrogateescape")
        self.head = RequestHead(message.method.encode(), target, headers)
        self.has_origin = b"origin" in by_name
        lengths = by_name.get(b"content-length")
        length = None if message.chunked else int(lengths[0]) if lengths else 0
        self.body = ClientBody(connection, payload, length)
        self.request = Request(self.head, self.body, connection.hop)
        self.route: Route | None = None
        self.observed: Route | None = None
        self.own: Resource | None = None
        self.is_examined = self.is_forwarded = False
        self.has_begun_reply = self.keep_alive = False
        if headers.marks & EXPECT and self.takes_interim and not payload.is_eof():
            expectations = header_values(headers, b"expect")
            self.body.expects_continue = any(value.lower() == b"100-continue" for value in expectations)

    # -- the request --------------------------------------------------------------------------------------------------

    def settle_upgrade(self, *, may_upgrade: bool) -> None:
        """For a request that asks for an upgrade: it asks no longer unless it `may_upgrade`."""
        request, head = self.request, self.head
        request.upgrades = may_upgrade and self._is_switchable()
        if not request.upgrades:
            kept = [header for header in head.headers if header[0].lower() != b"upgrade"]
            request.head = RequestHead(head.method, head.target, IndexedHeaders(kept))

    def may_keep_alive(self) -> bool:
        """Whether what follows the request is surely another request.

        A body that did not arrive completely is followed by its rest. After chunks, aiohttp's parser takes the last
        trailer for the first header of the next request. After a request for an unknown upgrade, the bytes may belong
        to that protocol. HTTP/2 starts only after a 101 (RFC 7540 section 3.2), and Java's client always offers it.
        """
        message, connection = self.message, self.connection
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


# -- handler -----------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway.edge")


class Resource(Protocol):
    """What the gateway itself serves to clients."""

    def owns(self, target: bytes) -> bool:
        """Whether a request with this target is for it. No route matches such a target."""

    async def respond(self, request: Request) -> Reply:
        """The reply to such a request. Its body may be left unread."""


Protect = Callable[[Request, Route], Awaitable[Reply | Untouched]]
# Forwards an unprotected request. The last two arguments are why it is unprotected: no route, or this verdict on this
# route; a route without a verdict is only observed. Returns None for a request that became a tunnel and has ended.
Forward = Callable[[Request, ClientExchange, Route | None, Verdict | None], Awaitable[Reply | None]]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Served:
    """What requests are served by, from one switch of the configuration to the next.

    A request keeps the one that it began with. `requests` are those that have not ended. `unused` is resolved when it
    was replaced and its last request ended. `key_headers`, in lower case, are those that any route has keys in. `shape`
    is that of problems that are about no route.
    """

    routes: RouteTable[Route]
    protect: Protect
    forward: Forward
    resource: Resource | None = None
    reserved: ReservedHeaders | None = None
    cors: Cors = NO_ORIGINS
    key_headers: frozenset[bytes] = frozenset()
    shape: Shape = PROBLEM
    unused: asyncio.Future[None] = field(init=False, default_factory=lambda: asyncio.get_running_loop().create_future())
    requests: int = field(init=False, default=0)
    is_replaced: bool = field(init=False, default=False)

    def replace(self) -> None:
        """No request begins any more."""
        self.is_replaced = True
        self.request_ended()

    def request_ended(self) -> None:
        """To be called where it is replaced."""
        if not self.requests and not self.unused.done():
            self.unused.set_result(None)


class Handler:
    """Responds to requests. `close` it when no connection is left. Lives on one event loop."""

    def __init__(self, served: Served, events: Events, settings: EdgeSettings) -> None:
        self.served = served
        self._events = events
        self._settings = settings
        self._second, self._date = -1, b""
        self.busy: set[ClientConnection] = set()
        """Those whose requests are being processed or written, tunnels included."""
        self._idle: asyncio.Future[None] | None = None
        # One thread, so that requests that need decoding wait for each other, and no others do.
        self._decoding = ThreadPoolExecutor(1, "decoding")
        self.unread = MemoryBudget(settings.unread_bytes_max)
        """Long responses that clients have not read yet."""
        self.is_stopping = False
        """Whether each request is the last one on its connection."""

    async def wait_idle(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most that long."""
        if self.busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=seconds)

    async def end_tasks(self) -> None:
        """Cancel the requests in flight."""
        tasks = [each.task for each in self.busy if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """End the decoding thread."""
        self._decoding.shutdown(wait=False, cancel_futures=True)

    def refusal_bytes(self, fault: Fault) -> bytes:
        """The whole response to bytes that are not a request."""
        reply = _refusal(fault, self.served.shape)
        out = framed(reply, method=b"", minor=1, keep_alive=False, shows_status=False, date=_date_line(time.time()))
        return out.head + reply.body if isinstance(reply.body, bytes) else out.head

    def serve_by(self, served: Served, events: Events, settings: EdgeSettings) -> None:
        """Serve the requests that begin from now on by this."""
        before, self.served = self.served, served
        self._events, self._settings = events, settings
        before.replace()

    # -- one request --------------------------------------------------------------------------------------------------

    async def handle(self, connection: ClientConnection, message: Message, payload: Payload) -> bool:
        """Respond to one request; returns whether its connection may serve another. Raises only cancellation.

        It is responded to in every case, unless the client is gone.
        """
        served = self.served
        exchange = ClientExchange(connection, message, payload, served)
        served.requests += 1
        self.busy.add(connection)
        try:
            if connection.transport is None:
                return False
            fault = self._examine(exchange)
            request = exchange.request
            if fault is not None:
                await self._refuse(exchange, fault)
            elif exchange.route is not None:
                exchange.body.keeps_pace = True
                protected = await served.protect(request, exchange.route)
                if isinstance(protected, Untouched):
                    await self._pass_untouched(exchange, protected)
                else:
                    await self._write(exchange, protected)
            elif exchange.own is not None:
                await self._write(exchange, await exchange.own.respond(request), shows_status=True)
            else:
                exchange.is_forwarded = True
                passed = await served.forward(request, exchange, exchange.observed, None)
                if passed is not None:
                    await self._write(exchange, passed)
        except ClientGone:
            return False
        except Exception as error:  # noqa: BLE001 - whatever it was, a client waits for a response
            await self._respond_to(error, exchange)
        except BaseException:
            exchange.abort()
            raise
        finally:
            connection.on_gone = None
            served.requests -= 1
            self.busy.discard(connection)
            if served.is_replaced:
                served.request_ended()
            if self._idle is not None and not self.busy and not self._idle.done():
                self._idle.set_result(None)
        return exchange.keep_alive

    def _examine(self, exchange: ClientExchange) -> Fault | None:
        """Find the route of the request, or that it is for the gateway itself, and why it is refused, if it is."""
        served, head = exchange.served, exchange.head
        if exchange.connection.has_been_filled:
            fault = too_big(head, self._settings.header_bytes_max)
            if fault is not None:
                return fault
        route, fault = examine(served.routes, head, exchange.version)
        if route is not None and route.is_observed:
            exchange.observed = route
        else:
            exchange.route = route
        if fault is None:
            exchange.is_examined = True
            if served.reserved is not None:
                exchange.head = exchange.request.head = served.reserved.without(head)
            if route is None and served.resource is not None and served.resource.owns(head.target):
                exchange.own = served.resource
            if exchange.message.upgrade:
                exchange.settle_upgrade(may_upgrade=exchange.route is None and exchange.own is None)
        return fault

    async def _pass_untouched(self, exchange: ClientExchange, untouched: Untouched) -> None:
        """Forward a request that its route does not protect."""
        request, verdict = untouched.request, untouched.verdict
        exchange.body.keeps_pace = False
        try:
            if exchange.connection.transport is None:
                # An idle upstream connection would send it before the client's loss is noticed.
                raise ClientGone
            exchange.is_forwarded = True
            reply = await exchange.served.forward(request, exchange, exchange.route, verdict)
            if reply is not None:
                await self._write(exchange, replace(reply, verdict=verdict))
        finally:
            request.body.close()

    async def _respond_to(self, error: Exception, exchange: ClientExchange) -> None:
        """Respond to a request whose body was cut, or that the gateway failed at. Raises only cancellation."""
        if not isinstance(error, RequestCut):
            _LOG.error("a request could not be answered", exc_info=error)
        try:
            if exchange.has_begun_reply:
                exchange.abort()
            elif isinstance(error, RequestCut):
                await self._refuse_cut(exchange, error.cut)
            else:
                shape = exchange.served.shape if exchange.route is None else exchange.route.shape
                reply = refuse(Trouble.GATEWAY_FAILED, shape=shape, case=None if exchange.is_examined else "before")
                exchange.route = None
                await self._write(exchange, reply, is_last=True)
        except ClientGone:
            exchange.keep_alive = False
        except BaseException:
            exchange.abort()
            raise

    async def _write(
        self, exchange: ClientExchange, reply: Reply, *, is_last: bool = False, shows_status: bool = False
    ) -> None:
        """Write the reply, with its verdict where the route shows it, or with `shows_status`.

        Raises `ClientGone`, and `ReplyInvalid` before anything was written.
        """
        if reply.decode_for is not None:
            reply = await self._decode(reply, exchange.connection)
        shows_status = shows_status or (exchange.route is not None and exchange.route.settings.status_header)
        cors = exchange.served.cors
        if exchange.has_origin or cors.origins:
            reply = for_origin(reply, exchange.head.headers, cors, shows_status=shows_status)
        if (second := int(time.time())) != self._second:
            self._second, self._date = second, _date_line(second)
        body, connection = reply.body, exchange.connection
        # Mostly.
        stays = exchange.stays and exchange.payload.is_eof() and not (connection.ignores_input or connection.has_ended)
        try:
            out = framed(
                reply,
                method=exchange.head.method,
                minor=1 if exchange.takes_interim else 0,
                keep_alive=not (is_last or self.is_stopping) and (stays or exchange.may_keep_alive()),
                shows_status=shows_status,
                date=self._date,
            )
            if isinstance(body, bytes) and len(body) <= ONE_WRITE_BYTES_MAX:
                exchange.write(out, body)
            else:
                await exchange.write_on(out, body, self.unread)
            if connection.writing_paused:
                await connection.drain()
        finally:
            if not isinstance(body, bytes):
                body.abort()

    async def _decode(self, reply: Reply, connection: ClientConnection) -> Reply:
        """The reply in a coding that its request accepts. While it waits, it counts against the memory budget."""
        if not isinstance(reply.body, bytes):
            return reply
        until = time.monotonic() + self._settings.decoding_wait_seconds
        with self.unread.held(connection, len(reply.body)):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoding, _decoded, reply, reply.body, connection.gone, until)

    # -- what is refused here -----------------------------------------------------------------------------------------

    async def _refuse(self, exchange: ClientExchange, fault: Fault) -> None:
        """Rule 2. The connection is closed, because what follows on it may be ambiguous, too."""
        route, head = exchange.route, exchange.head
        if route is None or not fault.is_verdict:
            shape = exchange.served.shape if route is None else route.shape
            exchange.route = None
            await self._write(exchange, _refusal(fault, shape), is_last=True)
            return
        reply = refuse(Verdict.REQUEST_INVALID, shape=route.shape, status=fault.status, detail=fault.detail)
        self._events.publish(
            RequestAnswered(
                route=route.name,
                verdict=Verdict.REQUEST_INVALID,
                status=reply.status,
                duration_seconds=0.0,
                method=head.method.decode("latin-1"),
                request_id=head.text(b"x-request-id"),
                trace_id=head.text(b"traceparent"),
            )
        )
        await self._write(exchange, reply, is_last=True)

    async def _refuse_cut(self, exchange: ClientExchange, cut: Cut) -> None:
        # Of what was forwarded a part may have been sent, and the reply must not promise that nothing was executed.
        is_verdict = not exchange.is_forwarded
        match cut:
            case Cut.GONE:
                raise ClientGone
            case Cut.MALFORMED:
                fault = Fault(400, "The chunks of the request body are malformed.", is_verdict)
            case Cut.SLOW | Cut.CROWDED_OUT:
                fault = Fault(408, "The request body did not come in time.", is_verdict)
            case other:
                assert_never(other)
        await self._refuse(exchange, fault)


def _date_line(unix_seconds: float) -> bytes:
    return b"Date: " + http_date(int(unix_seconds))


def _refusal(fault: Fault, shape: Shape) -> Reply:
    """The reply to what is no request, or not a protected one."""
    return refuse(
        Verdict.REQUEST_INVALID,
        shape=shape,
        status=fault.status,
        detail=fault.detail,
        case="slow" if fault.status == 408 else "unread",
    )


def _decoded(reply: Reply, coded: bytes, gone: asyncio.Event, until: float) -> Reply:
    """The reply in a coding that its request accepts. Takes time; not for the event loop.

    Returns it unchanged if its client is `gone` or its turn comes too late: otherwise many such requests would keep the
    others waiting.
    """
    if reply.decode_for is None or gone.is_set() or time.monotonic() > until:
        return reply
    headers, body = decode_unaccepted(reply.headers, coded, reply.decode_for)
    return replace(reply, headers=headers, body=body, length=len(body), decode_for=None)
