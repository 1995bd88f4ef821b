"""The front: one request in, and what is known of it out.

Owns the order of one exchange: connection, last look at the lease, first byte, head. The one fact that it exists for is
whether a byte of the request may have left. Knows nothing of keys, records or outcomes, and logs nothing.

Invariant: `NotSent` means that no byte was handed to the network; from the first one on the result is an `Answer` or
`Lost`, and the request is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.core.message import RequestHead, ResponseHead
from gateway.proxy.upstream.answer import AnswerReceiver
from gateway.proxy.upstream.connect import UpstreamSettings
from gateway.proxy.upstream.connection import UpstreamConnection
from gateway.proxy.upstream.pool import UpstreamPool, UpstreamStats
from gateway.proxy.upstream.request import request_bytes
from gateway.proxy.upstream.result import (
    BodyLost,
    FileBody,
    Framing,
    Lost,
    NotSent,
    RequestBody,
    SentNothing,
    StreamBody,
)
from gateway.proxy.upstream.sending import FileReader


class Duplex:
    """The connection after a 101: bytes both ways. The caller must close it."""

    __slots__ = ("_connection", "_receiver")

    def __init__(self, connection: UpstreamConnection, receiver: AnswerReceiver) -> None:
        self._connection = connection
        self._receiver = receiver

    async def read(self) -> bytes | BodyLost:
        """The next bytes from the upstream; `b""` once it ended its direction."""
        return await self._receiver.read()

    async def write(self, data: bytes) -> bool:
        """Send bytes; waits while the upstream is slow. False when the connection is gone."""
        return self._connection.write_body(data) and await self._connection.wait_writable()

    def write_eof(self) -> None:
        """Say that nothing more will be written; without effect over TLS."""
        self._connection.write_eof()

    def close(self) -> None:
        """End both directions; what was written is still sent. May be called repeatedly."""
        self._connection.discard()


@dataclass(slots=True)
class Answer:
    """The upstream's head has come, its body may still be coming.

    Read `body` to its end or `close` it, else the connection is never free again; as a context manager it closes by
    itself. `length` is the body's, where framing tells it. `head_seconds` passed from the first byte of the request to
    the head.
    """

    head: ResponseHead
    framing: Framing
    length: int | None
    body: AnswerReceiver
    upgraded: Duplex | None
    head_seconds: float

    def close(self) -> None:
        """Give up what was not read: aborts the connection unless the body has come to its end."""
        if self.upgraded is not None:
            self.upgraded.close()
        self.body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Upstream:
    """A client for one upstream; lives on one event loop. `close` it."""

    def __init__(self, settings: UpstreamSettings) -> None:
        """Must be called with the event loop running; opens nothing yet."""
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._pool = UpstreamPool(settings)

    @property
    def stats(self) -> UpstreamStats:
        """Live counters; read only."""
        return self._pool.stats

    async def exchange(
        self,
        request: RequestHead,
        body: RequestBody = b"",
        *,
        protected: bool,
        may_send: Callable[[], bool],
        on_interim: Callable[[ResponseHead], None] | None = None,
        response_timeout_seconds: float | None = None,
    ) -> Answer | NotSent | Lost:
        """Send the request once and wait for the head of its answer.

        `request.headers` are the end-to-end fields including `Host`; framing and connection fields in it are replaced.
        `may_send` is asked in the step of the event loop in which the first byte goes out; on False nothing is sent.
        `on_interim` gets every 1xx but 100, before `exchange` returns.

        Clock: `response_timeout_seconds` T counts from the first byte of the request. Head and `body.read_all` must be
        done by then, else the connection is aborted (`Unknown.TIMEOUT`). `body.read` allows T without a byte, however
        long the whole takes. While the `StreamBody` of an unprotected request is being sent, every piece grants T anew.

        If cancelled before the first byte, nothing was sent; afterwards the connection is aborted and it is *not* known
        what the upstream made of the request. An exception from `may_send` or `on_interim` is treated likewise.
        """
        timeout_seconds = response_timeout_seconds or self.settings.response_timeout_seconds
        result = await self._exchange(request, body, protected, may_send, on_interim, timeout_seconds)
        stats = self._pool.stats
        match result:
            case Answer():
                stats.answered += 1
            case Lost():
                stats.lost += 1
            case NotSent():
                stats.not_sent += 1
        return result

    async def _exchange(
        self,
        request: RequestHead,
        body: RequestBody,
        protected: bool,
        may_send: Callable[[], bool],
        on_interim: Callable[[ResponseHead], None] | None,
        timeout_seconds: float,
    ) -> Answer | NotSent | Lost:
        written = request_bytes(request, body)
        if written is None:
            return NotSent(SentNothing.REQUEST_INVALID, "the method, the target or a field cannot be sent as it is")
        source: bytes | FileReader | StreamBody
        if isinstance(body, FileBody):
            try:
                source = FileReader(body)
            except OSError as error:
                return NotSent(SentNothing.LOCAL, f"the request's body cannot be read: {error}")
        else:
            source = body
        is_sending = False
        try:
            connection = await self._pool.acquire(protected=protected)
            if isinstance(connection, NotSent):
                return connection
            # No await from here to the first byte, so that what was found of connection and lease still holds.
            is_sending = self._ask(may_send, connection)
        finally:
            if not is_sending and isinstance(source, FileReader):
                source.close()
        if not is_sending:
            return NotSent(SentNothing.LEASE_LOST, "the permission to send was gone")
        started = self._loop.time()
        receiver = AnswerReceiver(self._loop, connection, started + timeout_seconds, timeout_seconds)
        connection.send(
            written.head,
            source,
            receiver,
            method=request.method,
            wants_upgrade=written.wants_upgrade,
            sending_restarts_clock=not protected,
        )
        return await self._wait_answer(connection, receiver, on_interim, started)

    def _ask(self, may_send: Callable[[], bool], connection: UpstreamConnection) -> bool:
        allowed = False
        try:
            allowed = may_send()
        finally:
            if not allowed:
                self._pool.give_back(connection)
        return allowed

    async def _wait_answer(
        self,
        connection: UpstreamConnection,
        receiver: AnswerReceiver,
        on_interim: Callable[[ResponseHead], None] | None,
        started: float,
    ) -> Answer | Lost:
        try:
            while True:
                news = await receiver.wait_news()
                if isinstance(news, Lost):
                    return news
                if on_interim is not None:
                    for interim in news:
                        on_interim(interim)
                if receiver.head is not None:
                    break
        except BaseException:
            receiver.close()
            raise
        return Answer(
            head=receiver.head,
            framing=receiver.framing,
            length=receiver.length,
            body=receiver,
            upgraded=Duplex(connection, receiver) if receiver.framing is Framing.UPGRADE else None,
            head_seconds=receiver.head_at - started,
        )

    async def close(self) -> None:
        """Close idle connections, abort the others, and wait until none is left. Safe to repeat."""
        await self._pool.close()
