"""From a client's request to the reply on its connection.

`examine` checks a request first. A protected one goes to the coordinator, one for the gateway's own resource to that,
another one to the passthrough; all are passed in. The server owns listeners and connections.

Each connection has one task, which calls `handle` for one request after the other. A client that leaves cancels nothing
here: the work on its request ends when the reply cannot be written, and an operation that was started for it has its
own task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, assert_never

from gateway.config.models import Cors
from gateway.core.routing import RouteTable
from gateway.core.verdict import Verdict
from gateway.http.connection import ClientConnection, ClientGone, EdgeSettings, MemoryBudget, Message, Payload
from gateway.http.exchange import ONE_WRITE_BYTES_MAX, ClientExchange, ReservedHeaders, framed, too_big
from gateway.observe.facts import Events, RequestAnswered
from gateway.protect.ambiguity import Fault, examine
from gateway.protect.decoding import decode_unaccepted
from gateway.protect.forwarding import NO_ORIGINS, for_origin
from gateway.protect.problem import FAILED_BEFORE, PROBLEM, SLOW, UNREAD, Shape, Trouble, refuse
from gateway.protect.reply import Cut, Reply, RequestCut, http_date
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route

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


class Served:
    """What requests are served by, from one switch of the configuration to the next.

    A request keeps the one that it began with. `requests` are those that have not ended. `unused` is resolved when it
    was replaced and its last request ended.
    """

    def __init__(
        self,
        *,
        routes: RouteTable[Route],
        protect: Protect,
        forward: Forward,
        resource: Resource | None = None,
        reserved: ReservedHeaders | None = None,
        cors: Cors = NO_ORIGINS,
        key_headers: frozenset[bytes] = frozenset(),
        shape: Shape = PROBLEM,
    ) -> None:
        """Needs a running event loop. `key_headers`, in lower case, are those that any route has keys in. `shape` is
        that of problems that are about no route."""
        self.routes = routes
        self.protect = protect
        self.forward = forward
        self.resource = resource
        self.reserved = reserved
        self.cors = cors
        self.key_headers = key_headers
        self.shape = shape
        self.unused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests = 0
        self.is_replaced = False

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
        own = served.resource
        exchange = ClientExchange(connection, message, payload, served)
        served.requests += 1
        self.busy.add(connection)
        try:
            if connection.transport is None:
                return False
            fault = self._examine(exchange)
            if fault is not None:
                await self._refuse(exchange, fault)
            elif exchange.route is not None:
                exchange.body.keeps_pace = True
                protected = await served.protect(exchange.request(may_upgrade=False), exchange.route)
                if isinstance(protected, Untouched):
                    await self._pass_untouched(exchange, protected)
                else:
                    await self._write(exchange, protected)
            elif own is not None and exchange.observed is None and own.owns(exchange.head.target):
                reply = await own.respond(exchange.request(may_upgrade=False))
                await self._write(exchange, reply, shows_status=True)
            else:
                exchange.is_forwarded = True
                passed = await served.forward(exchange.request(may_upgrade=True), exchange, exchange.observed, None)
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
            if served.is_replaced or self._idle is not None:
                self._request_ended(served)
        return exchange.keep_alive

    def _request_ended(self, served: Served) -> None:
        if served.is_replaced:
            served.request_ended()
        if self._idle is not None and not self.busy and not self._idle.done():
            self._idle.set_result(None)

    def _examine(self, exchange: ClientExchange) -> Fault | None:
        """Find the route of the request, and why it is refused, if it is."""
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
                exchange.head = served.reserved.without(head)
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
                case = None if exchange.is_examined else FAILED_BEFORE
                exchange.route = None
                await self._write(exchange, refuse(Trouble.GATEWAY_FAILED, shape=shape, case=case), is_last=True)
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
    case = SLOW if fault.status == 408 else UNREAD
    return refuse(Verdict.REQUEST_INVALID, shape=shape, status=fault.status, detail=fault.detail, case=case)


def _decoded(reply: Reply, coded: bytes, gone: asyncio.Event, until: float) -> Reply:
    """The reply in a coding that its request accepts. Takes time; not for the event loop.

    Returns it unchanged if its client is `gone` or its turn comes too late: otherwise many such requests would keep the
    others waiting.
    """
    if reply.decode_for is None or gone.is_set() or time.monotonic() > until:
        return reply
    headers, body = decode_unaccepted(reply.headers, coded, reply.decode_for)
    return replace(reply, headers=headers, body=body, length=len(body), decode_for=None)
