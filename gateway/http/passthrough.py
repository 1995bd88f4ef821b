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

from gateway.core.message import NameTable
from gateway.core.observation import ExchangeResult
from gateway.core.routing import normalise_path
from gateway.core.verdict import Verdict
from gateway.http.connection import ClientGone
from gateway.http.exchange import ClientExchange, relay
from gateway.observe.facts import Events, RequestPassed
from gateway.protect.compose import passed_on
from gateway.protect.forwarding import response_headers, unprotected_request
from gateway.protect.observing import Observing, Sighting
from gateway.protect.problem import PROBLEM, UNSENT, UNTAKEN, Shape, Trouble, refuse
from gateway.protect.reply import Reply, RequestBody, RequestCut
from gateway.protect.request import Request
from gateway.protect.route import Route, Target
from gateway.upstream import Duplex, Lost, NotSent, StreamBody, UpstreamResponse, status_of

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
        self._is_key_header = NameTable(lambda name: name.lower() in key_headers)

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
        if route is None and self._key_headers:
            for name, _ in head.headers:
                if self._is_key_header[name]:
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
            reply = refuse(Verdict.OVERLOADED, shape=shape, case=UNTAKEN)
        case NotSent():
            reply = refuse(Verdict.UPSTREAM_UNREACHABLE, shape=shape, case=UNSENT)
        case Lost():
            return refuse(Trouble.NO_RESPONSE, shape=shape, status=status)
        case _:
            assert_never(result)
    # A verdict is one on a protected request.
    return replace(reply, verdict=None)


async def _switch(
    client: ClientExchange, response: UpstreamResponse, upstream: Duplex, sighting: Sighting | None
) -> None:
    client.on_gone(None)
    if sighting is not None:
        sighting.give_up()
    head = response.head
    try:
        tunnel = client.switch(head.status, head.reason, response_headers(head.headers, upgraded=True))
    except BaseException:
        response.close()
        raise
    await relay(tunnel, response, upstream)
