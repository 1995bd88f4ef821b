"""Unprotected traffic: forwarded unchanged, streamed both ways, and never sent twice.

Owns the exchange of a request without a record: interim responses, upgrades, and the reply when the upstream cannot be
reached or breaks off. Nothing here inspects or keeps a body. When the client leaves, its request is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from gateway.core.message import Headers, NameTable, RequestHead, ResponseHead, values_by_name
from gateway.core.observation import ExchangeResult
from gateway.core.routing import normalise_path
from gateway.core.verdict import Verdict
from gateway.http.connection import ClientGone
from gateway.http.tunnel import ClientTunnel, relay
from gateway.observe.facts import Events, RequestPassed
from gateway.protect.forwarding import response_headers, unprotected_request
from gateway.protect.observing import Observing
from gateway.protect.problem import PROBLEM, UNSENT, UNTAKEN, Shape, Trouble, refuse
from gateway.protect.reply import Reply, RequestBody, RequestCut
from gateway.protect.request import Request
from gateway.protect.route import Route, Target
from gateway.protect.upstream_reply import passed_on
from gateway.upstream import Duplex, Lost, NotSent, StreamBody, UpstreamResponse, status_of

Result = UpstreamResponse | NotSent | Lost


class Client(Protocol):
    """What can be sent to a client beside the reply."""

    @property
    def takes_interim(self) -> bool:
        """Whether it understands interim (1xx) responses: HTTP/1.0 does not (RFC 9110 section 15.2)."""

    def send_interim(self, head: ResponseHead) -> None:
        """Send an interim response. Harmless when the client is gone."""

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        """Call this when the client is gone, or now if it is. None removes the callback."""

    def switch(self, head: ResponseHead) -> ClientTunnel:
        """Write the 101, after which the connection is bytes both ways. Raises `ClientGone`."""


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
        self._loop = asyncio.get_running_loop()

    async def __call__(
        self, incoming: Request, client: Client, route: Route | None, verdict: Verdict | None
    ) -> Reply | None:
        """Forward once, and return the reply; None after a tunnel. Raises `ClientGone` and `RequestCut`.

        `verdict` says why a route's request is not protected; it is None where the route is only observed.
        """
        is_observed = route is not None and route.is_observed
        began, sighting, is_answered = time.monotonic(), None, False
        if route is not None and is_observed and self._observing is not None:
            sighting = self._observing.begin(incoming, route)
        if sighting is not None:
            incoming = sighting.copied(incoming)
        target = self._target if route is None else route.target
        try:
            head = unprotected_request(incoming.head, incoming.hop, target.forwarding, upgrades=incoming.upgrades)
            result = await _exchange(target, head, incoming.body, client)
            self._publish(incoming, route, verdict, time.monotonic() - began, result)
            if isinstance(result, UpstreamResponse) and result.upgraded is not None:
                if sighting is not None:
                    sighting.give_up()
                await _switch(client, result, result.upgraded)
                return None
            # To an observed request as if no route matched.
            reply = _reply_to(result, self._shape if is_observed or route is None else route.shape)
            if sighting is not None:
                reply = sighting.answered(result, reply)
            is_answered = True
            return reply
        finally:
            if sighting is not None and not is_answered:
                # The client left, or its request broke off.
                sighting.end(ExchangeResult.UNKNOWN)

    def _publish(
        self, incoming: Request, route: Route | None, verdict: Verdict | None, duration_seconds: float, result: Result
    ) -> None:
        key_header: str | None = None
        path: str | None = None
        if route is None:
            headers = incoming.head.headers
            if not self._key_headers.isdisjoint(values_by_name(headers)):
                key_header = self._first_key_header(headers).decode("latin-1")
                path = normalise_path(incoming.head.target).decode("latin-1")
        self._events.publish(
            RequestPassed(
                verdict,
                incoming.head.method.decode("latin-1"),
                _status_of(result),
                duration_seconds,
                key_header,
                path,
                None if route is None else route.name,
                None if isinstance(result, UpstreamResponse) else f"{result.reason}: {result.detail}",
                is_observed=route is not None and route.is_observed,
            )
        )

    def _first_key_header(self, headers: Headers) -> bytes:
        """The name of the first key header in the request, as it is spelt."""
        for name, _ in headers:
            if self._is_key_header[name]:
                return name
        return b""


async def _exchange(target: Target, head: RequestHead, body: RequestBody, client: Client) -> Result:
    """Exchange with the upstream, and give up as soon as the client is gone."""
    cuts: list[RequestCut] = []
    whole = None if body.length is None else body.whole()
    sent = StreamBody(_watched(body.stream(), cuts), body.length, body.crowd_out) if whole is None else whole
    task = asyncio.current_task()
    is_gone = False

    def give_up() -> None:
        nonlocal is_gone
        if not is_gone and task is not None:
            is_gone = True
            task.cancel()

    client.on_gone(give_up)
    try:
        result = await target.upstream.exchange(
            head,
            sent,
            protected=False,
            may_send=lambda: True,
            on_interim=partial(_pass_on, client),
        )
        client.on_gone(None)
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
        client.on_gone(None)
    if isinstance(result, Lost) and cuts:
        raise cuts[0]
    return result


async def _watched(chunks: AsyncIterator[bytes], cuts: list[RequestCut]) -> AsyncIterator[bytes]:
    """The chunks. Keeps the reason why they are cut short, because the upstream client reports only that they are."""
    try:
        async for data in chunks:
            yield data
    except RequestCut as cut:
        cuts.append(cut)
        raise


def _pass_on(client: Client, head: ResponseHead) -> None:
    if client.takes_interim:
        client.send_interim(ResponseHead(head.status, head.reason, response_headers(head.headers)))


def _status_of(result: Result) -> int:
    return result.head.status if isinstance(result, UpstreamResponse) else status_of(result.reason)


def _reply_to(result: Result, shape: Shape) -> Reply:
    if isinstance(result, UpstreamResponse):
        return passed_on(result)
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


async def _switch(client: Client, response: UpstreamResponse, upstream: Duplex) -> None:
    head = response.head
    try:
        tunnel = client.switch(ResponseHead(head.status, head.reason, response_headers(head.headers, upgraded=True)))
    except BaseException:
        response.close()
        raise
    await relay(tunnel, response, upstream)
