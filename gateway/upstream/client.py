"""The interface of the upstream client: one request in, what is known of it out.

Owns the order of one exchange: connection, last check of the lease, first byte, head. Its purpose is to know whether a
byte of the request may have left. Knows nothing of keys, records or outcomes, and logs nothing.

Invariant: `NotSent` means that no byte was written to the network; from the first one on the result is an
`UpstreamResponse` or `Lost`, and the request is never sent again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import Final, Self

from gateway.core.message import HOP_BY_HOP, Headers, NameTable, RequestHead, ResponseHead, asks_upgrade
from gateway.upstream.connect import UpstreamSettings
from gateway.upstream.connection import FileReader, ResponseReceiver, UpstreamConnection
from gateway.upstream.pool import UpstreamPool, UpstreamStats
from gateway.upstream.result import BodyLost, FileBody, Framing, Lost, NotSent, OutboundBody, SentNothing

# At most so much of an arriving body is buffered before it is read.
_ARRIVED_BYTES_MAX: Final = 256 * 1024

# Written here or not at all. `Expect` is dropped because nothing waits for a 100: it would only add a second timeout.
_OWN: Final = HOP_BY_HOP | {b"content-length", b"expect"}

# Methods that usually have no content need no `Content-Length: 0` (RFC 9110 section 8.6).
_BODILESS: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"))

_REQUEST_LINE: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~\x80-\xff]+ HTTP/1\.1")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")

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
    """A client for one upstream; lives on one event loop. `close` it. `stats` are live counters; read only."""

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
        self.stats: UpstreamStats = self._pool.stats

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
        head, wants_upgrade = written
        try:
            source = FileReader(body) if isinstance(body, FileBody) else body
        except OSError as error:
            return self._not_sent(SentNothing.LOCAL, f"the request's body cannot be read: {error}")
        settings, stats = self.settings, self.stats
        timeout_seconds = response_timeout_seconds or settings.response_timeout_seconds
        connection: UpstreamConnection | None = None
        is_allowed = False
        try:
            connection = self._pool.take_idle(protected=protected)
            if connection is None:
                acquired = await self._acquire(body, protected=protected)
                if isinstance(acquired, NotSent):
                    return acquired
                connection = acquired
            receiver = ResponseReceiver(
                connection,
                request.method,
                self._loop.time() + timeout_seconds,
                timeout_seconds,
                wants_upgrade=wants_upgrade,
                header_bytes_max=settings.header_bytes_max,
            )
            # Nothing awaits from here to the first byte, so the checks of connection and lease still hold; and next to
            # nothing is done, because a process that is killed in between leaves a doubt about a request it never sent.
            is_allowed = may_send()
        finally:
            if not is_allowed:
                if isinstance(source, FileReader):
                    source.close()
                if connection is not None:
                    self._pool.give_back(connection)
        if not is_allowed:
            return self._not_sent(SentNothing.LEASE_LOST, "the lease no longer allowed sending")
        connection.send(receiver, head, source, sending_restarts_clock=not protected)
        try:
            result = await receiver.wait_head(on_interim)
        except BaseException:
            receiver.close()
            raise
        if isinstance(result, Lost):
            stats.lost += 1
            return result
        stats.answered += 1
        upgraded = Duplex(connection, receiver) if receiver.framing is Framing.UPGRADE else None
        return UpstreamResponse(result, receiver.framing, receiver.length, receiver, upgraded)

    async def _acquire(self, body: OutboundBody, *, protected: bool) -> UpstreamConnection | NotSent:
        """A connection where none is idle that may serve this request."""
        # The number of protected requests is bounded elsewhere.
        acquired = await self._pool.acquire(protected=protected, held_bytes=0 if protected else _held_bytes(body))
        if isinstance(acquired, NotSent):
            self.stats.not_sent += 1
            if acquired.reason in _UNREACHED:
                self._note_change(acquired)
        elif self._why_unreached is not None:
            self._note_change(None)
        return acquired

    def _not_sent(self, reason: SentNothing, detail: str) -> NotSent:
        self.stats.not_sent += 1
        return NotSent(reason, detail)

    def _note_change(self, failure: NotSent | None) -> None:
        why = None if failure is None else failure.reason
        if why is not self._why_unreached:
            self._why_unreached = why
            if self._on_change is not None:
                self._on_change(failure)

    async def close(self) -> None:
        """Close idle connections, abort the others, and wait until none is left. Safe to repeat."""
        await self._pool.close()


def _held_bytes(body: OutboundBody) -> int:
    """An upper bound of a body's bytes in memory before it is sent."""
    if isinstance(body, bytes):
        return len(body)
    return _ARRIVED_BYTES_MAX if body.length is None else min(body.length, _ARRIVED_BYTES_MAX)


# What to do with a header, by its name.
_SENT, _LEFT_OUT, _UPGRADE, _INVALID = range(4)


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if not _NAME.fullmatch(name):
        # This includes a colon, which would make a header of another name.
        kind = _INVALID
    elif lower == b"upgrade":
        kind = _UPGRADE
    else:
        kind = _LEFT_OUT if lower in _OWN else _SENT
    return kind


_KINDS: Final = NameTable(_kind_of)
_name_of: Final = itemgetter(0)


def request_bytes(request: RequestHead, body: OutboundBody) -> tuple[bytes, bool] | None:
    """The head as it is sent, and whether it asks for an upgrade; None when it cannot be written unambiguously.

    The framing is ours, everything else is as given. Hop-by-hop headers are left out, except `Upgrade` where the
    request asks for one. CONNECT is refused: its response has a framing of its own.
    """
    headers: Headers = request.headers
    wants_upgrade = False
    if any(map(_KINDS.__getitem__, map(_name_of, headers))):
        kinds = [_KINDS[name] for name, _ in headers]
        if _INVALID in kinds:
            return None
        wants_upgrade = _UPGRADE in kinds and asks_upgrade(headers)
        sent = (_SENT, _UPGRADE) if wants_upgrade else (_SENT,)
        headers = tuple(header for header, kind in zip(headers, kinds, strict=True) if kind in sent)
    lines = [b"%b %b HTTP/1.1" % (request.method, request.target), *map(b": ".join, headers)]
    if wants_upgrade:
        lines.append(b"Connection: Upgrade")
    if isinstance(body, bytes):
        if body or request.method not in _BODILESS:
            lines.append(b"Content-Length: %d" % len(body))
    else:
        lines.append(b"Transfer-Encoding: chunked" if body.length is None else b"Content-Length: %d" % body.length)
    lines += (b"", b"")
    head, line_ends = b"\r\n".join(lines), len(lines) - 1
    # A value with a smuggled line would leave the head well formed, with one line more than there are headers.
    if (
        not _REQUEST_LINE.fullmatch(lines[0])
        or head.count(b"\n") != line_ends
        or head.count(b"\r") != line_ends
        or b"\0" in head
        or request.method == b"CONNECT"
    ):
        return None
    return head, wants_upgrade
