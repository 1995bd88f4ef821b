"""From a client's request to the reply on its connection: whom it is given to, and what it gets when all else fails.

What is asked of a request first is said by `examine`. What a protected one means is the coordinator's business, what is
not protected goes to the passthrough; both are given from outside. Listening, and which connections there are, is the
server's.

A client that goes cancels nothing here: what works on its request ends by itself when there is nobody left to write to,
and what was begun for the client is supervised elsewhere.

Theory of operation. A short reply is written in the very step in which it becomes known (`_give_now`), which may be the
one in which the request came. A task (`_walk`) is there for whatever has to wait: for an answer that is a coroutine,
for a reply to be decoded, for a client that reads slowly. What is refused here is written by one, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeGuard, TypeVar, assert_never

from gateway.core.routing import RouteTable
from gateway.core.verdict import Word
from gateway.http.body import ClientBody
from gateway.http.connection import ClientConnection
from gateway.http.examining import Fault, Protecting, examine
from gateway.http.exchange import (
    ONE_WRITE_BYTES_MAX,
    Client,
    ClientExchange,
    ClientGone,
    EdgeState,
    pieces_of,
)
from gateway.http.known_requests import KnownRequest, KnownRequests
from gateway.http.request_parser import ReceivedRequest
from gateway.http.writer import framed
from gateway.observe.facts import Herald, RequestAnswered
from gateway.protect.decoding import decode_unaccepted
from gateway.protect.problem import Shaped, plain, refuse
from gateway.protect.reply import (
    Coming,
    Cut,
    Found,
    Incoming,
    Later,
    Repeatable,
    Reply,
    RequestCut,
    ResponseStream,
    Untouched,
)

_LOG = logging.getLogger("gateway.edge")

_FAILED: Final = (
    "The gateway failed, and it is not known whether the request had an effect. Do not send it again under a new key."
)

_FAILED_BEFORE: Final = "The gateway failed. Nothing was executed. Repeat with the same key."


class EdgeRoute(Protecting, Shaped, Protocol):
    """What the edge needs to know of a protected route; see `route.Route`."""

    @property
    def name(self) -> str: ...
    @property
    def shows_status(self) -> bool: ...


R = TypeVar("R", bound=EdgeRoute)

Protect = Callable[[Incoming, R], Found | Later[Found]]
# For what nothing protects. The last two arguments say why: no route, or this word of this route's. None is for a
# request that became a tunnel and has ended. With the future, nothing of the request may be left to be read.
Forward = Callable[[Incoming, Client, R | None, Word | None], Later[Reply | None]]

_Answer = Found | None | Later[Found] | Later[Reply | None]


class RequestHandler(Generic[R]):
    """Satisfies `Answerer`. `close` it in the end, when no connection is left. Lives on one event loop."""

    def __init__(
        self, *, routes: RouteTable[R], protect: Protect[R], forward: Forward[R], herald: Herald, state: EdgeState
    ) -> None:
        self._routes = routes
        self._protect = protect
        self._forward = forward
        self._herald = herald
        self._state = state
        self._busy = 0
        self._idle: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._known = KnownRequests()
        # One thread, so that those who ask for much decoding wait for it, and nobody who asks for none.
        self._decoding = ThreadPoolExecutor(1, "decoding")

    @property
    def in_flight(self) -> int:
        """Requests that are being worked on or written, tunnels included."""
        return self._busy

    async def wait_idle(self, seconds: float) -> None:
        """Wait until nothing is in flight, but no longer than that."""
        if self._busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=seconds)

    async def end_tasks(self) -> None:
        """End what is still being worked on."""
        # What a future held in its last moment may have begun another.
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Forget the requests that are known."""
        self._known.close()
        self._decoding.shutdown(wait=False, cancel_futures=True)

    # -- for connections: `Answerer` -----------------------------------------------------------------------------------

    def request_repeated(self, connection: ClientConnection, data: bytes) -> bool:
        known = self._known.find(data, connection.hop)
        transport = connection.transport
        if known is None or transport is None or self._state.is_stopping or connection.is_writing_paused:
            return False
        try:
            pieces = self._pieces_again(known)
        except Exception:  # noqa: BLE001 - read like any other, it gets an answer all the same
            _LOG.exception("a known request could not be answered")
            pieces = None
        if pieces is None:
            self._known.forget(data)
            return False
        if not transport.is_closing():
            for piece in pieces:
                transport.write(piece)
        return True

    def _pieces_again(self, known: KnownRequest) -> tuple[bytes, ...] | None:
        reply = known.again()
        # Executed anew since it was known, it may have got a long answer.
        if reply is None or reply.decode_for is not None or not _is_short(reply.body):
            return None
        shows_status, date = known.shows_status, self._state.clock.now()
        out = framed(reply, method=known.method, minor=1, keep_alive=True, shows_status=shows_status, date=date)
        return pieces_of(out, reply.body)

    def request_arrived(
        self, connection: ClientConnection, request: ReceivedRequest, body: ClientBody, data: bytes | None
    ) -> None:
        exchange = ClientExchange(connection, request, body, data, self._state)
        self._busy += 1
        route: R | None = None
        answer: _Answer = None
        is_forwarded = False
        try:
            route, fault = examine(self._routes, request.head, request.host, request.fault)
            if fault is None:
                if route is None:
                    is_forwarded = True
                    answer = self._forward(exchange.incoming(may_upgrade=True), exchange, None, None)
                else:
                    answer = self._protect(exchange.incoming(may_upgrade=False), route)
                if isinstance(answer, asyncio.Future):
                    self._tasks.add(answer)
                    answer.add_done_callback(partial(self._answer_came, exchange, route))
                    return
                if self._give_now(exchange, route, answer):
                    return
        except ClientGone:
            self._end(exchange)
            return
        except Exception:  # noqa: BLE001 - raised to the transport it would leave a client waiting and a request counted
            _LOG.exception("a request could not be looked at")
            # One that nothing protects may have been sent on before that.
            detail = _FAILED if is_forwarded else _FAILED_BEFORE
            fault, answer = Fault(500, detail, is_verdict=False), None
        self._walk(exchange, route, fault, answer)

    def _answer_came(
        self, exchange: ClientExchange, route: R | None, future: Coming[Found] | Coming[Reply | None]
    ) -> None:
        self._tasks.discard(future)
        if future.cancelled():
            exchange.abort()
            self._end(exchange)
            return
        answer: _Answer = future
        if future.exception() is None:
            answer = future.result()
            try:
                if self._give_now(exchange, route, answer):
                    return
            except ClientGone:
                self._end(exchange)
                return
            except Exception:  # noqa: BLE001 - the task meets it again, and has an answer to it
                _LOG.debug("a reply could not be written")
        self._walk(exchange, route, None, answer)

    def _give_now(self, exchange: ClientExchange, route: R | None, answer: _Answer) -> bool:
        """Write an answer that needs no waiting, and so no task; whether it was one."""
        if isinstance(answer, Repeatable) and route is not None:
            answer = self._know(exchange, route, answer)
        if not isinstance(answer, Reply) or answer.decode_for is not None:
            return False
        if not exchange.write_now(answer, shows_status=route is not None and route.shows_status):
            return False
        self._end(exchange)
        return True

    def _walk(self, exchange: ClientExchange, route: R | None, fault: Fault | None, answer: _Answer) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(exchange, route, fault, answer))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._task_ended(task, exchange, answer))

    def _know(self, exchange: ClientExchange, route: R, answer: Repeatable) -> Reply:
        data = exchange.repeatable
        if data is not None and answer.reply.decode_for is None and _is_short(answer.reply.body):
            connection, method = exchange.connection, exchange.head.method
            known = KnownRequest(connection.hop, method, route.shows_status, answer.again)
            self._known.remember(data, known)
        return answer.reply

    def refusal(self, status: int) -> bytes:
        detail = "The request is not well-formed HTTP/1.1." if status == 400 else "The head of the request is too big."
        reply = plain(status, detail)
        out = framed(reply, method=b"", minor=1, keep_alive=False, shows_status=False, date=self._state.clock.now())
        return out.head + reply.body if isinstance(reply.body, bytes) else out.head

    # -- one request --------------------------------------------------------------------------------------------------

    async def _serve(self, exchange: ClientExchange, route: R | None, fault: Fault | None, answer: _Answer) -> None:
        try:
            if not exchange.connection.gone.is_set():
                await self._answer(exchange, route, fault, answer)
        except ClientGone:
            exchange.keep_alive = False
        except BaseException:
            exchange.abort()
            raise
        # Here and not when the task has ended, which is a turn of the loop later: the next request may be waiting.
        self._end(exchange)

    def _task_ended(self, task: asyncio.Task[None], exchange: ClientExchange, answer: _Answer) -> None:
        """Also of a task that was cancelled before its first step."""
        self._tasks.discard(task)
        # Without effect unless nobody took it, because the client went or the edge was closed.
        _let_go(answer)
        self._end(exchange)

    def _end(self, exchange: ClientExchange) -> None:
        """Once for each exchange; more often it changes nothing."""
        if exchange.has_ended:
            return
        exchange.has_ended = True
        self._busy -= 1
        if self._busy == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        exchange.connection.exchange_ended(keep_alive=exchange.keep_alive)

    async def _answer(self, exchange: ClientExchange, route: R | None, fault: Fault | None, answer: _Answer) -> None:
        """Answer in every case, but where the client is gone."""
        try:
            if fault is not None:
                await self._refuse(exchange, route, fault)
                return
            exchange.body.keeps_pace = route is not None
            # What a future held may be the rest of a way.
            while not isinstance(answer, Found) and answer is not None:
                answer = await answer
            await self._give(exchange, route, answer)
        except ClientGone:
            raise
        except RequestCut as cut:
            await self._refuse_cut(exchange, route, cut)
        except Exception:  # noqa: BLE001 - whatever it was, a client waits for an answer
            _LOG.exception("a request could not be answered")
            if exchange.is_answered:
                exchange.abort()
                raise ClientGone from None
            await exchange.write_last(plain(500, _FAILED, route))

    async def _give(self, exchange: ClientExchange, route: R | None, answer: Found | None) -> None:
        if isinstance(answer, Untouched):
            await self._pass(exchange, answer.incoming, route, answer.word)
            return
        if isinstance(answer, Repeatable) and route is not None:
            answer = self._know(exchange, route, answer)
        if isinstance(answer, Reply):
            if answer.decode_for is not None:
                answer = await self._decode(answer, exchange.connection)
            await exchange.write(answer, shows_status=route is not None and route.shows_status)

    async def _decode(self, reply: Reply, connection: ClientConnection) -> Reply:
        """The reply in a coding that its request accepts. What waits for its turn is held as what is yet to be read."""
        if not isinstance(reply.body, bytes):
            return reply
        until = time.monotonic() + self._state.settings.decoding_wait_seconds
        with self._state.unread.held(connection, len(reply.body)):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoding, _decoded, reply, reply.body, connection.gone, until)

    async def _pass(self, exchange: ClientExchange, incoming: Incoming, route: R | None, word: Word) -> None:
        exchange.body.keeps_pace = False
        try:
            if exchange.connection.gone.is_set():
                # On an idle connection it would be sent before anybody asks.
                raise ClientGone
            passed: Reply | Later[Reply | None] | None = self._forward(incoming, exchange, route, word)
            try:
                while not isinstance(passed, Reply) and passed is not None:
                    passed = await passed
            except asyncio.CancelledError:
                if isinstance(passed, asyncio.Future) and not passed.cancelled() and passed.exception() is None:
                    # In the very moment in which it had come.
                    _let_go(passed.result())
                raise
            if passed is not None:
                await self._give(exchange, route, replace(passed, word=word))
        except RequestCut as cut:
            # What had come of it may have been passed on, so nothing is said of what the service did with it.
            await self._refuse_cut(exchange, route, cut, is_verdict=False)
        finally:
            incoming.body.close()

    # -- what is refused here -----------------------------------------------------------------------------------------

    async def _refuse(self, exchange: ClientExchange, route: R | None, fault: Fault) -> None:
        """Rule 2. The connection is closed, because what follows on it may be read in two ways as well."""
        if route is None or not fault.is_verdict:
            await exchange.write_last(plain(fault.status, fault.detail, route))
            return
        reply = refuse(Word.REQUEST_INVALID, shape=route.shape, status=fault.status, detail=fault.detail)
        head = exchange.head
        self._herald.state(
            RequestAnswered(
                route=route.name,
                word=Word.REQUEST_INVALID,
                status=reply.status,
                duration_seconds=0.0,
                method=head.method.decode("latin-1"),
                request_id=head.text(b"x-request-id"),
                trace_id=head.text(b"traceparent"),
            )
        )
        await exchange.write_last(reply, shows_status=route.shows_status)

    async def _refuse_cut(
        self, exchange: ClientExchange, route: R | None, cut: RequestCut, *, is_verdict: bool = True
    ) -> None:
        match cut.cut:
            case Cut.GONE:
                raise ClientGone
            case Cut.MALFORMED:
                fault = Fault(400, "The chunks of the request body are malformed.", is_verdict)
            case Cut.SLOW | Cut.CROWDED_OUT:
                fault = Fault(408, "The request body did not come in time.", is_verdict)
            case other:
                assert_never(other)
        if exchange.is_answered:
            exchange.abort()
            raise ClientGone
        await self._refuse(exchange, route, fault)


def _decoded(reply: Reply, coded: bytes, gone: asyncio.Event, until: float) -> Reply:
    """The reply in a coding that its request accepts. Takes time; not for the event loop.

    As it is where its client is `gone` by then, or many who ask and go would keep the others waiting; and where its
    turn comes too late, or many who ask would.
    """
    if reply.decode_for is None or gone.is_set() or time.monotonic() > until:
        return reply
    headers, body = decode_unaccepted(reply.headers, coded, reply.decode_for)
    return replace(reply, headers=headers, body=body, length=len(body), decode_for=None)


def _is_short(body: bytes | ResponseStream) -> TypeGuard[bytes]:
    """A long one has to wait for its client, which only a task can."""
    return isinstance(body, bytes) and len(body) <= ONE_WRITE_BYTES_MAX


def _let_go(answer: _Answer) -> None:
    """Nobody takes this."""
    if isinstance(answer, Coroutine):
        answer.close()
    elif isinstance(answer, Untouched):
        answer.incoming.body.close()
    elif isinstance(answer, Reply) and not isinstance(answer.body, bytes):
        answer.body.abort()
