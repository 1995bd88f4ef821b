"""Unprotected traffic: forwarded unchanged, streamed both ways, and never sent twice.

Owns the exchange of a request without a record: interim responses, upgrades, and the reply when the upstream cannot be
reached or breaks off. Nothing here inspects or keeps a body. When the client leaves, its request is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from gateway.core.observation import ExchangeResult
from gateway.core.routing import normalise_path
from gateway.core.verdict import Verdict
from gateway.http.connection import ClientConnection, ClientGone, Payload
from gateway.http.handler import ClientExchange, bare_head
from gateway.observe.facts import Events, RequestPassed
from gateway.protect.compose import passed_on
from gateway.protect.forwarding import response_headers, unprotected_request
from gateway.protect.observing import Observing, Sighting
from gateway.protect.reply import PROBLEM, Reply, RequestBody, RequestCut, Shape, Trouble, refuse
from gateway.protect.request import Request
from gateway.protect.route import Route, Target
from gateway.upstream import Lost, NotSent, StreamBody, UpstreamResponse, status_of
from gateway.upstream.connection import UpstreamConnection

_ALWAYS: Final = partial(bool, True)
Result = UpstreamResponse | NotSent | Lost


class Passthrough:
    """Forwards what is not protected: to the upstream of its route, or to `target` where there is none.

    A request that carries one of `key_headers` (lower case) although no route matches is published as such: somebody
    may believe it to be protected. What matches an observed route is copied for `observing` as it streams by, and
    forwarded like what matches none. To be made with the event loop running.
    """

    def __init__(
        self,
        target: Target,
        events: Events,
        key_headers: frozenset[bytes] = frozenset(),
        observing: Observing | None = None,
        shape: Shape = PROBLEM,
    ) -> None:
        """`shape` is that of problems that are about no route."""
        self._target = target
        self._shape = shape
        self._observing = observing
        self._events = events
        self._key_headers = key_headers

    async def __call__(
        self,
        request: Request,
        client: ClientExchange,
        route: Route | None,
        verdict: Verdict | None,
        sighting: Sighting | None = None,
    ) -> Reply | None:
        """Forward once, and return the reply; None after a tunnel. Raises `ClientGone` and `RequestCut`.

        `verdict` says why a route's request is not protected; it is None where the route is only observed. The request
        is given up as soon as the client is gone.
        """
        if verdict is None and route is not None and sighting is None and self._observing is not None:
            sighting = self._observing.begin(request, route)
            if sighting is not None:
                return await self._observed(request, client, route, sighting)
        began = time.monotonic()
        target = self._target if route is None else route.target
        cuts: list[RequestCut] = []
        task, is_gone, is_over = client.task, False, False

        def give_up() -> None:
            nonlocal is_gone
            if not (is_gone or is_over) and task is not None:
                is_gone = True
                task.cancel()

        client.on_gone(give_up)
        try:
            head = unprotected_request(request.head, request.hop, target.forwarding, upgrades=request.upgrades)
            body = None if request.body.length is None else request.body.whole()
            result = await target.upstream.exchange(
                head,
                _streamed(request.body, cuts) if body is None else body,
                protected=False,
                may_send=_ALWAYS,
                on_interim=client.send_interim,
            )
            if is_gone:
                # The client left in the step in which the exchange ended. The cancellation must not hit a later await.
                if isinstance(result, UpstreamResponse):
                    result.close()
                await asyncio.sleep(0)
                raise ClientGone
        except asyncio.CancelledError:
            # Only our own cancellation, and no other one of this task.
            if is_gone and task is not None and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            is_over = True
        if cuts and isinstance(result, Lost):
            raise cuts[0]
        self._publish(request, route, verdict, time.monotonic() - began, result)
        if not isinstance(result, UpstreamResponse):
            # To an observed request as if no route matched.
            reply = _failed(result, self._shape if verdict is None or route is None else route.shape)
        elif result.upgraded is None:
            reply = passed_on(result)
        else:
            await _switch(client, result, result.upgraded, sighting)
            return None
        return reply if sighting is None else sighting.answered(result, reply)

    async def _observed(
        self, request: Request, client: ClientExchange, route: Route, sighting: Sighting
    ) -> Reply | None:
        """Forward what only is observed, and have it copied as it streams by."""
        reply = None
        try:
            reply = await self(sighting.copied(request), client, route, None, sighting)
        finally:
            if reply is None:
                # The client left, or its request broke off.
                sighting.end(ExchangeResult.UNKNOWN)
        return reply

    def _publish(
        self, request: Request, route: Route | None, verdict: Verdict | None, duration_seconds: float, result: Result
    ) -> None:
        head = request.head
        key_header: str | None = None
        path: str | None = None
        if route is None and not self._key_headers.isdisjoint(head.headers.by_name):
            for name, _ in head.headers:
                if name.lower() in self._key_headers:
                    # As it is spelt.
                    key_header = name.decode("latin-1")
                    path = normalise_path(head.target).decode("latin-1")
                    break
        self._events.publish(
            RequestPassed(
                verdict,
                head.method.decode("latin-1"),
                result.head.status if isinstance(result, UpstreamResponse) else status_of(result.reason),
                duration_seconds,
                key_header,
                path,
                None if route is None else route.name,
                None if isinstance(result, UpstreamResponse) else f"{result.reason}: {result.detail}",
                is_observed=route is not None and route.is_observed,
            )
        )


def _streamed(body: RequestBody, cuts: list[RequestCut]) -> StreamBody:
    """A body as it comes. Keeps the reason why it is cut short, because the upstream client reports only that it is."""

    async def watched() -> AsyncIterator[bytes]:
        try:
            async for data in body.stream():
                yield data
        except RequestCut as cut:
            cuts.append(cut)
            raise

    return StreamBody(watched(), body.length, body.crowd_out)


def _failed(result: NotSent | Lost, shape: Shape) -> Reply:
    status = status_of(result.reason)
    match result:
        case NotSent() if status == 503:
            reply = refuse(Verdict.OVERLOADED, shape=shape, case="untaken")
        case NotSent():
            reply = refuse(Verdict.UPSTREAM_UNREACHABLE, shape=shape, case="unsent")
        case Lost():
            return refuse(Trouble.NO_RESPONSE, shape=shape, status=status)
        case _:
            assert_never(result)
    # A verdict is one on a protected request.
    return replace(reply, verdict=None)


async def _switch(
    client: ClientExchange, response: UpstreamResponse, upstream: UpstreamConnection, sighting: Sighting | None
) -> None:
    client.on_gone(None)
    if sighting is not None:
        sighting.give_up()
    head = response.head
    try:
        client.connection.write(bare_head(head.status, head.reason, response_headers(head.headers, upgraded=True)))
        client.has_begun_reply = True
        tunnel = ClientTunnel(client.connection)
    except BaseException:
        response.close()
        raise
    await relay(tunnel, response, upstream)


# -- tunnel ------------------------------------------------------------------------------------------------------------
#
# Bytes both ways after a 101, until both sides have ended.
#
# An end of one side is passed on to the other as an end, and a reset as a reset. Nothing here knows the protocol
# inside.

# The connection stops reading above this, until the upstream takes what is there.
_BUFFER_BYTES_MAX = 128 * 1024


class ClientTunnel:
    """The client's end of a tunnel: its connection as two directions of bytes."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._reader = Payload(connection, _BUFFER_BYTES_MAX // 2, loop=asyncio.get_running_loop())
        self._is_broken = False
        connection.open_tunnel(self)

    # -- for the connection -------------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """As aiohttp's parsers: returns that it is not at an end, and that nothing is left over."""
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        """The connection is lost; after a half-close that is its normal end."""
        self._is_broken = not self._reader.is_eof()
        self._reader.feed_eof()

    def half_closed(self) -> None:
        self._reader.feed_eof()

    # -- for the relay ------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """The next bytes; empty once the client has ended its direction, None once it broke off."""
        data = await self._reader.readany()
        return None if self._is_broken and not data else data

    def write_eof(self) -> None:
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            self.connection.close()


async def relay(client: ClientTunnel, response: UpstreamResponse, upstream: UpstreamConnection) -> None:
    """Relay until both directions have ended or one broke off, which ends the other. Closes both ends."""
    connection = client.connection
    up = asyncio.ensure_future(_relay_up(client, upstream))
    down = asyncio.ensure_future(_relay_down(client, response))
    # There is no reader any more. What the client sent before it left is still passed on.
    connection.on_gone = down.cancel
    is_whole = False
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_EXCEPTION)
        is_whole = all(way.done() and (way.cancelled() or way.exception() is None) for way in (up, down))
    finally:
        connection.on_gone = None
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        if is_whole:
            connection.close()
        else:
            connection.abort()
            response.body.close()
        upstream.discard()


class _BrokenOff(Exception):
    """One side is gone before its end."""


async def _relay_up(client: ClientTunnel, upstream: UpstreamConnection) -> None:
    while data := await client.read():
        if not (upstream.write_body(data) and await upstream.wait_writable()):
            raise _BrokenOff
    if data is None:
        raise _BrokenOff
    upstream.write_eof()


async def _relay_down(client: ClientTunnel, response: UpstreamResponse) -> None:
    """Raises `ClientGone`, too."""
    while True:
        data = await response.body.read()
        if isinstance(data, Lost):
            raise _BrokenOff
        if not data:
            client.write_eof()
            return
        client.connection.write(data)
        await client.connection.drain()
