"""Traffic that nothing protects: forwarded as it is, streamed both ways, and never sent twice.

Owns the way of a request from the edge to the upstream and back where no record is kept: interim responses, upgrades,
and what a client gets when the upstream cannot be reached or breaks off. Nothing here reads or keeps a body, and a
client that goes takes its request with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, assert_never

from gateway.core.message import ResponseHead, values_by_name
from gateway.core.routing import normalise_path
from gateway.core.verdict import Word
from gateway.observe.facts import Herald, RequestPassed
from gateway.proxy.answer_stream import AnswerStream
from gateway.proxy.client_body import RequestCut
from gateway.proxy.client_exchange import Client, ClientGone
from gateway.proxy.forwarding import response_fields, unprotected_request
from gateway.proxy.problem import plain
from gateway.proxy.reply import Incoming, Reply
from gateway.proxy.route import Route, Target
from gateway.proxy.tunnel import relay
from gateway.proxy.upstream import (
    Answer,
    Duplex,
    Framing,
    Lost,
    NotSent,
    SentNothing,
    StreamBody,
    Unknown,
)

_NOT_SENT_HERE: Final = frozenset((SentNothing.CLOSED, SentNothing.POOL_TIMEOUT, SentNothing.LOCAL))


class Passthrough:
    """Forwards what is not protected: to the upstream of its route, or to `target` where there is none.

    A request that carries one of `key_fields` (lower case) although no route matches is told of, for it may be one that
    somebody believes to be protected. To be made with the event loop running.
    """

    def __init__(self, target: Target, herald: Herald, key_fields: frozenset[bytes] = frozenset()) -> None:
        self._target = target
        self._herald = herald
        self._key_fields = key_fields
        self._loop = asyncio.get_running_loop()

    async def __call__(
        self, incoming: Incoming, client: Client, route: Route | None, word: Word | None
    ) -> Reply | None:
        """Forward once and return the reply, or None after a tunnel. Raises `ClientGone` and `RequestCut`.

        `word` says why a route's request is not protected.
        """
        loop = self._loop
        started = loop.time()
        target = self._target if route is None else route.target
        result = await _exchange(incoming, client, target, loop)
        match result:
            case Answer():
                status = result.head.status
            case NotSent(reason=SentNothing.REQUEST_INVALID):
                status = 400
            case NotSent():
                status = 503 if result.reason in _NOT_SENT_HERE else 502
            case Lost():
                status = 504 if result.reason is Unknown.TIMEOUT else 502
            case _:
                assert_never(result)
        self._tell(incoming, route, word, status, loop.time() - started)
        if isinstance(result, NotSent):
            return _not_sent(result, status)
        if isinstance(result, Lost):
            return _lost(status)
        if result.upgraded is None:
            return await _reply(result)
        await _switch(client, result, result.upgraded)
        return None

    def _tell(
        self, incoming: Incoming, route: Route | None, word: Word | None, status: int, duration_seconds: float
    ) -> None:
        key_field: str | None = None
        path: str | None = None
        if word is None:
            headers = incoming.head.headers
            if not self._key_fields.isdisjoint(values_by_name(headers)):
                found = next(name for name, _ in headers if name.lower() in self._key_fields)
                key_field = found.decode("latin-1")
                path = normalise_path(incoming.head.target).decode("latin-1")
        self._herald.state(
            RequestPassed(
                reason=_reason(word),
                method=incoming.head.method.decode("latin-1"),
                status=status,
                duration_seconds=duration_seconds,
                key_field=key_field,
                path=path,
                route=None if route is None else route.name,
            )
        )


async def _exchange(
    incoming: Incoming, client: Client, target: Target, loop: asyncio.AbstractEventLoop
) -> Answer | NotSent | Lost:
    """The exchange with the upstream, given up as soon as the client is gone."""
    head = unprotected_request(incoming.head, incoming.peer, incoming.scheme, target.forwarding)
    body = incoming.body
    cuts: list[RequestCut] = []
    sent: bytes | StreamBody
    whole = None if body.length is None else body.whole()
    sent = StreamBody(_watched(body.stream(), cuts), body.length) if whole is None else whole
    task = asyncio.current_task(loop)
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
            may_send=_always,
            on_interim=_passed_on(client) if client.takes_interim else None,
        )
        client.on_gone(None)
        if is_gone:
            # In the very step in which the exchange ended. The cancellation must not meet whatever comes next.
            if isinstance(result, Answer):
                result.close()
            await asyncio.sleep(0)
            raise ClientGone
    except asyncio.CancelledError:
        # Ours alone, and not that of somebody who ends the task.
        if is_gone and task is not None and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        client.on_gone(None)
    if isinstance(result, Lost) and cuts:
        raise cuts[0]
    return result


def _always() -> bool:
    return True


async def _watched(chunks: AsyncIterator[bytes], cuts: list[RequestCut]) -> AsyncIterator[bytes]:
    """The chunks; what cuts them short is noted, since the upstream client tells only that something did."""
    try:
        async for data in chunks:
            yield data
    except RequestCut as cut:
        cuts.append(cut)
        raise


def _passed_on(client: Client) -> Callable[[ResponseHead], None]:
    def pass_on(head: ResponseHead) -> None:
        client.send_interim(ResponseHead(head.status, head.reason, response_fields(head.headers)))

    return pass_on


async def _reply(answer: Answer) -> Reply:
    head = answer.head
    headers = response_fields(head.headers)
    if answer.framing is Framing.NONE:
        return Reply(head.status, head.reason, headers, b"")
    if answer.framing is Framing.LENGTH and answer.body.is_complete and answer.length is not None:
        # All of it is here already, so that it can leave in one write.
        whole = await answer.body.read_all(answer.length)
        if isinstance(whole, bytes):
            return Reply(head.status, head.reason, headers, whole)
    return Reply(head.status, head.reason, headers, AnswerStream(answer), length=answer.length)


async def _switch(client: Client, answer: Answer, upstream: Duplex) -> None:
    head = answer.head
    try:
        tunnel = client.switch(ResponseHead(head.status, head.reason, response_fields(head.headers, upgraded=True)))
    except BaseException:
        answer.close()
        raise
    await relay(tunnel, answer, upstream)


def _reason(word: Word | None) -> str:
    match word:
        case None:
            return "no_route"
        case Word.UNPROTECTED:
            return "store_unavailable"
        case _:
            return word.value


def _not_sent(result: NotSent, status: int) -> Reply:
    if result.reason is SentNothing.REQUEST_INVALID:
        return plain(status, "The request cannot be forwarded as it is.")
    if result.reason in _NOT_SENT_HERE:
        return plain(status, "The gateway is overloaded, or is being stopped; nothing was sent.")
    return plain(status, "The service could not be reached; nothing was sent.")


def _lost(status: int) -> Reply:
    detail = "The service did not answer in time." if status == 504 else "The service broke off before it answered."
    return plain(status, f"{detail} Whether the request had an effect is not known.")
