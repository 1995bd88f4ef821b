"""The interface of the upstream client: one request in, what is known of it out.

Owns the order of one exchange: connection, last check of the lease, first byte, head. Its purpose is to know whether a
byte of the request may have left. Knows nothing of keys, records or outcomes, and logs nothing.

Invariant: `NotSent` means that no byte was written to the network; from the first one on the result is an
`UpstreamResponse` or `Lost`, and the request is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gateway.core.message import RequestHead, ResponseHead
from gateway.upstream.connect import UpstreamSettings
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.pool import UpstreamPool, UpstreamStats
from gateway.upstream.request import FileReader, request_bytes
from gateway.upstream.response import ResponseReceiver
from gateway.upstream.result import BodyLost, FileBody, Framing, Lost, NotSent, OutboundBody, SentNothing

# At most so much of an arriving body is buffered before it is read.
_ARRIVED_BYTES_MAX: Final = 256 * 1024

# Reasons why a connection could not be made, as opposed to reasons not to try.
_UNREACHED: Final = frozenset(
    (
        SentNothing.DNS,
        SentNothing.REFUSED,
        SentNothing.UNREACHABLE,
        SentNothing.CONNECT_TIMEOUT,
        SentNothing.TLS,
        SentNothing.LOCAL,
    )
)


class Duplex:
    """The connection after a 101: bytes both ways. The caller must close it."""

    __slots__ = ("_connection", "_receiver")

    def __init__(self, connection: UpstreamConnection, receiver: ResponseReceiver) -> None:
        self._connection = connection
        self._receiver = receiver

    async def read(self) -> bytes | BodyLost:
        """The next bytes from the upstream; `b""` once it ended its direction."""
        return await self._receiver.read()

    async def write(self, data: bytes) -> bool:
        """Send bytes; waits while the upstream is slow. False when the connection is gone."""
        return self._connection.write_body(data) and await self._connection.wait_writable()

    def write_eof(self) -> None:
        """Announce that nothing more will be written; no effect over TLS."""
        self._connection.write_eof()

    def close(self) -> None:
        """End both directions; what was written is still sent. May be called repeatedly."""
        self._connection.discard()


@dataclass(slots=True)
class UpstreamResponse:
    """The upstream's head has arrived, its body may still be arriving.

    Read `body` to its end or `close` it, else the connection is never free again; as a context manager it closes
    itself. `length` is the body's, if the framing defines it.
    """

    head: ResponseHead
    framing: Framing
    length: int | None
    body: ResponseReceiver
    upgraded: Duplex | None

    def close(self) -> None:
        """Drop what was not read: aborts the connection unless the body is complete."""
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

    def __init__(self, settings: UpstreamSettings, on_change: Callable[[NotSent | None], None] | None = None) -> None:
        """Must be called with the event loop running; opens nothing yet.

        `on_change` receives why connections can no longer be made, again when the reason changes, and None when they
        can be made again.
        """
        self.settings = settings
        self._on_change = on_change
        self._why_unreached: SentNothing | None = None
        self._loop = asyncio.get_running_loop()
        self._pool = UpstreamPool(settings)

    @property
    def stats(self) -> UpstreamStats:
        """Live counters; read only."""
        return self._pool.stats

    async def exchange(
        self,
        request: RequestHead,
        body: OutboundBody = b"",
        *,
        protected: bool,
        may_send: Callable[[], bool],
        on_interim: Callable[[ResponseHead], None] | None = None,
        response_timeout_seconds: float | None = None,
    ) -> UpstreamResponse | NotSent | Lost:
        """Send the request once and wait for the head of its response.

        `request.headers` are the end-to-end headers including `Host`; those of framing and connection are replaced.
        `may_send` is called in the step of the event loop in which the first byte goes out; on False nothing is sent.
        `on_interim` receives every 1xx but 100, before `exchange` returns.

        Clock: `response_timeout_seconds` T counts from the first byte of the request. Head and `body.read_all` must be
        done by then, else the connection is aborted (`Unknown.TIMEOUT`). `body.read` allows T without a byte, however
        long the whole body takes. While the `StreamBody` of an unprotected request is being sent, every chunk restarts
        T.

        If cancelled before the first byte, nothing was sent; afterwards the connection is aborted and the upstream's
        handling of the request is *not* known. An exception from `may_send` or `on_interim` has the same effect.
        """
        written = request_bytes(request, body)
        if written is None:
            return self._not_sent(
                SentNothing.REQUEST_INVALID, "the method, the target or a header cannot be sent as it is"
            )
        try:
            source = FileReader(body) if isinstance(body, FileBody) else body
        except OSError as error:
            return self._not_sent(SentNothing.LOCAL, f"the request's body cannot be read: {error}")
        timeout_seconds = response_timeout_seconds or self.settings.response_timeout_seconds
        connection: UpstreamConnection | None = None
        is_allowed = False
        try:
            # The number of protected requests is bounded elsewhere.
            held_bytes = 0 if protected else _held_bytes(body)
            acquired = await self._acquire(protected=protected, held_bytes=held_bytes)
            if isinstance(acquired, NotSent):
                return acquired
            connection = acquired
            receiver = ResponseReceiver(self._loop, connection, self._loop.time() + timeout_seconds, timeout_seconds)
            # Nothing awaits from here to the first byte, so the checks of connection and lease still hold; and next to
            # nothing is done, because a process that is killed in between leaves a doubt about a request it never sent.
            is_allowed = may_send()
        finally:
            if not is_allowed:
                if isinstance(source, FileReader):
                    source.close()
                if connection is not None:
                    self._pool.give_back_unused(connection)
        if not is_allowed:
            return self._not_sent(SentNothing.LEASE_LOST, "the lease no longer allowed sending")
        connection.send(
            written.head,
            source,
            receiver,
            method=request.method,
            wants_upgrade=written.wants_upgrade,
            sending_restarts_clock=not protected,
        )
        try:
            return await self._receive(connection, receiver, on_interim)
        except BaseException:
            receiver.close()
            raise

    async def _acquire(self, *, protected: bool, held_bytes: int) -> UpstreamConnection | NotSent:
        """An idle connection, or a new one."""
        connection = self._pool.take_idle(protected=protected)
        if connection is not None:
            return connection
        acquired = await self._pool.acquire(protected=protected, held_bytes=held_bytes)
        if isinstance(acquired, NotSent):
            self._pool.stats.not_sent += 1
            if acquired.reason in _UNREACHED:
                self._note_change(acquired)
        elif self._why_unreached is not None:
            self._note_change(None)
        return acquired

    async def _receive(
        self,
        connection: UpstreamConnection,
        receiver: ResponseReceiver,
        on_interim: Callable[[ResponseHead], None] | None,
    ) -> UpstreamResponse | Lost:
        head = await receiver.wait_head(on_interim)
        if isinstance(head, Lost):
            self._pool.stats.lost += 1
            return head
        self._pool.stats.answered += 1
        framing = receiver.framing
        upgraded = Duplex(connection, receiver) if framing is Framing.UPGRADE else None
        return UpstreamResponse(head, framing, receiver.length, receiver, upgraded)

    def _not_sent(self, reason: SentNothing, detail: str) -> NotSent:
        self._pool.stats.not_sent += 1
        return NotSent(reason, detail)

    def _note_change(self, failure: NotSent | None) -> None:
        why = None if failure is None else failure.reason
        if why is not self._why_unreached:
            self._why_unreached = why
            if self._on_change is not None:
                self._on_change(failure)

    def retire(self) -> None:
        """Only exchanges that began before, or for requests that did, are to come: keep no connection for others."""
        self._pool.retire()

    async def close(self) -> None:
        """Close idle connections, abort the others, and wait until none is left. Safe to repeat."""
        await self._pool.close()


def _held_bytes(body: OutboundBody) -> int:
    """An upper bound of a body's bytes in memory before it is sent."""
    if isinstance(body, bytes):
        return len(body)
    return _ARRIVED_BYTES_MAX if body.length is None else min(body.length, _ARRIVED_BYTES_MAX)
