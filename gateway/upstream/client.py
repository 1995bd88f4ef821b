"""The interface of the upstream client: one request in, what is known of it out; and the pool of its connections.

Invariant: `NotSent` means that no byte was written to the network; from the first one on the result is an
`UpstreamResponse` or `Lost`, and the request is never sent again.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from operator import itemgetter
from types import TracebackType
from typing import Final, Self

from gateway.core.message import HOP_BY_HOP, Headers, NameTable, RequestHead, ResponseHead, asks_upgrade
from gateway.upstream.connect import Names, UpstreamSettings, open_connection
from gateway.upstream.connection import (
    NEVER,
    FileBody,
    FileReader,
    Framing,
    Lost,
    NotSent,
    OutboundBody,
    ResponseReceiver,
    SentNothing,
    Sweep,
    Unknown,
    UpstreamConnection,
)

# -- the pool ----------------------------------------------------------------------------------------------------------
#
# Which connection serves the next request.
#
# The keep-alive race: an upstream closes an idle connection just as we send on it, and "executed, then closed" cannot
# be distinguished from "never read". An unprotected request then fails, since nothing here sends it again; a protected
# one is in doubt. So a request gets a used connection only if it has been idle for clearly less time than a connection
# has been *seen* to survive. Until one has been seen, and for a while after a connection was closed early, requests get
# fresh connections. The most recently used one goes first, so that the others grow old and provide evidence.
#
# The late body: some upstreams send a body after a response that has none (204, 304). It condemns an idle connection;
# after the next request was sent, it would be read as that request's response. So such a connection rests for a while.
#
# The slow client, which sends or reads a byte at a time, keeps a connection as long as it likes. When unprotected
# requests have all the places that they may have, slow clients make room for new ones.
#
# Invariant: idle connections + busy ones + those being opened never exceed the limit, except for responses that outlast
# their operation, each of which has a client that reads it; and a place that becomes free wakes one waiting request.

# Subtracted from the announced time, which the upstream counts from an earlier moment (Node announces 5 and means it).
_ANNOUNCED_MARGIN_SECONDS = 1.0
# For so long a body may still arrive after a response that has none.
_LATE_BODY_SECONDS = 0.25
# If no client is slow enough to make room, do not check all of them again for a while.
_NOBODY_SLOW_SECONDS = 1.0
# A bound for the bodies of requests that wait for a connection. A short body costs no more than a head.
_WAITING_BYTES_MAX = 64 * 1024 * 1024
_SHORT_BYTES = 4 * 1024
# An end-of-file may be under way for so long before it can be seen here.
_CLOSING_MARGIN_SECONDS = 0.05
_PROBATION_SECONDS = 10.0
_PROBATION_SECONDS_MAX = 300.0
_TOGETHER_SECONDS = 1.0


class Choice(Enum):
    OPEN = auto()
    EVICT = auto()
    CROWD_OUT = auto()
    WAIT = auto()


@dataclass(slots=True)
class UpstreamStats:
    """Counts since the start, for metrics. `opened`, `reused` and `closed` count connections, whichever side closed."""

    opened: int = 0
    reused: int = 0
    closed: int = 0
    died_on_reuse: int = 0
    answered: int = 0
    lost: int = 0
    not_sent: int = 0


class IdleHistory:
    """How long idle connections to this upstream have been seen to survive. All times in seconds, `now` on one clock.

    A connection that the upstream closed early (a restart, a short timeout, a close after each response) begins a
    probation, which doubles each time that happens during one. Until it ends, connections that were idle for as long
    are not used. Connections that are closed together, as at a restart, count once.
    """

    def __init__(self) -> None:
        self._survived_seconds = 0.0
        self._closed_after_seconds = float("inf")
        self._probation_seconds = 0.0
        self._probation_since = float("-inf")
        self._probation_until = float("-inf")

    def survived(self, idle_seconds: float) -> None:
        """Record that an idle connection was still open after so long."""
        self._survived_seconds = max(self._survived_seconds, idle_seconds)

    def closed_early(self, idle_seconds: float, now: float) -> None:
        """Record that the upstream closed a connection that had been idle for so long."""
        if now >= self._probation_until:
            self._probation_seconds = _PROBATION_SECONDS
            self._closed_after_seconds = idle_seconds
        else:
            self._closed_after_seconds = min(self._closed_after_seconds, idle_seconds)
            if now < self._probation_since + _TOGETHER_SECONDS:
                return
            self._probation_seconds = min(self._probation_seconds * 2, _PROBATION_SECONDS_MAX)
        self._probation_since = now
        self._probation_until = now + self._probation_seconds

    def allows(self, idle_seconds: float, now: float) -> bool:
        limit = self._survived_seconds
        if now < self._probation_until:
            limit = min(limit, self._closed_after_seconds)
        return idle_seconds + _CLOSING_MARGIN_SECONDS <= limit


class UpstreamPool:
    """The connections to one upstream. `acquire` returns a quiet one, which gives itself back or is closed."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.stats = UpstreamStats()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._history = IdleHistory()
        self._idle: deque[UpstreamConnection] = deque()  # longest idle first
        self._connections: set[UpstreamConnection] = set()
        self._opening = 0
        # In use by, or being opened for, unprotected requests, and responses that outlast their operation.
        self._passing = 0
        # Two queues, because what frees a place for one kind need not free one for the other.
        self._waiting_protected: deque[asyncio.Future[None]] = deque()
        self._waiting_others: deque[asyncio.Future[None]] = deque()
        self._waiting_bytes = 0
        self._nobody_slow_until = float("-inf")
        self.sweep = Sweep(self._loop, self._look)
        self._changed: asyncio.Future[None] | None = None
        self._is_closed = False
        self._names = Names()
        # Its threads are started when first needed.
        self.files: Executor = ThreadPoolExecutor(4, "upstream-files")

    def take_idle(self, *, protected: bool) -> UpstreamConnection | None:
        """A used connection that may serve this request, checked at this moment; the first case that applies.

        1. It is unprotected, and those have all their places: none.
        2. The most recently used one rests, and the oldest does, too: none. Where only the first rests, the oldest is
           looked at.
        3. It was idle for longer than one has been seen to survive: none, and the oldest shows how long that may be.
        4. It is quiet: this one.
        5. Something came on it, or it is too old: it is retired, and the next one is looked at.
        """
        if not protected and self._passing >= self._settings.connections_max:
            return None
        idle, now = self._idle, self._loop.time()
        while idle:
            connection, take = idle[-1], idle.pop
            if connection.rests_until > now:
                connection, take = idle[0], idle.popleft
                if connection.rests_until > now:
                    return None
            idle_seconds = now - connection.idle_since
            is_young = now < connection.idle_until
            if is_young and not self._history.allows(idle_seconds, now):
                if idle[0].is_quiet():
                    self._history.survived(now - idle[0].idle_since)
                return None
            take()
            connection.is_idle = False
            if is_young and connection.is_quiet():
                connection.idle_before_seconds = idle_seconds
                self.stats.reused += 1
                if not protected:
                    connection.is_passing = True
                    self._passing += 1
                return connection
            self._retire(connection, now)
        return None

    async def acquire(self, *, protected: bool, held_bytes: int = 0) -> UpstreamConnection | NotSent:
        """A quiet connection, used or fresh. May be cancelled at any time, and then leaves nothing behind.

        `held_bytes` is how much of the request's body stays in memory during the wait, if nothing else bounds that. The
        caller must use the connection, or `give_back` it, before it awaits anything.
        """
        queue = self._waiting_protected if protected else self._waiting_others
        until = self._loop.time() + self._settings.connect_timeout_seconds
        waits = 0
        while not self._is_closed:
            connection = self.take_idle(protected=protected)
            if connection is not None:
                return connection
            match self._choose(protected=protected):
                case Choice.OPEN:
                    return await self._open(protected=protected)
                case Choice.EVICT:
                    oldest = self._idle.popleft()
                    oldest.is_idle = False
                    oldest.discard()
                case Choice.CROWD_OUT if waits == 0:
                    self._make_room(newcomers=1)
            if waits == 0 and held_bytes > _SHORT_BYTES and self._waiting_bytes + held_bytes > _WAITING_BYTES_MAX:
                return NotSent(SentNothing.POOL_TIMEOUT, "too many bytes of bodies wait for a connection")
            self._waiting_bytes += held_bytes
            try:
                is_free = await self._wait_free(queue, until, is_first=waits == 0)
            finally:
                self._waiting_bytes -= held_bytes
            if not is_free:
                return NotSent(SentNothing.POOL_TIMEOUT, f"all {len(self._connections)} connections are busy")
            waits += 1
        return NotSent(SentNothing.CLOSED, "the upstream client is closed")

    def _choose(self, *, protected: bool) -> Choice:
        """What is done for a request that no idle connection may serve; the first case that applies. Changes nothing.

        1. It is unprotected, and those have all their places: slow clients are to make room, and it waits.
        2. There is a place, or one of those that are reserved for protected requests: a fresh connection.
        3. A connection is idle, but may not serve it: that one goes, and what its end wakes opens a fresh one.
        4. All are busy: it waits.
        """
        settings = self._settings
        if not protected and self._passing >= settings.connections_max:
            return Choice.CROWD_OUT
        count = len(self._connections) + self._opening
        if count < settings.connections_max + settings.connections_reserved:
            return Choice.OPEN
        if protected and count - self._passing < settings.connections_reserved:
            return Choice.OPEN
        return Choice.EVICT if self._idle else Choice.WAIT

    def give_back(self, connection: UpstreamConnection, response: ResponseReceiver | None = None) -> None:
        """Take back a connection that may serve the next request.

        Without a `response` nothing was sent on it: for the upstream it was idle all the time.
        """
        if response is not None:
            now, seconds = self._loop.time(), self._settings.keepalive_seconds
            if response.keepalive_seconds is not None:
                seconds = min(seconds, response.keepalive_seconds - _ANNOUNCED_MARGIN_SECONDS)
            connection.idle_since, connection.idle_until = now, now + seconds
            connection.rests_until = now + _LATE_BODY_SECONDS if response.may_be_followed else now
        if connection.is_passing:
            connection.is_passing = connection.gives_way = False
            self._passing -= 1
        if self._is_closed or connection.idle_until <= connection.idle_since:
            connection.discard()
            return
        connection.is_idle = True
        self._idle.append(connection)
        if connection.idle_until < self.sweep.at:
            self.sweep.by(connection.idle_until)
        if self._waiting_protected or self._waiting_others:
            self._wake_one()

    async def close(self) -> None:
        """Close idle connections, abort the others, and wait until none is left. Safe to repeat; may be cancelled."""
        self._is_closed = True
        self.sweep.stop()
        while self._waiting_protected or self._waiting_others:
            self._wake_one()
        self._idle.clear()
        for connection in tuple(self._connections):
            if connection.is_idle:
                connection.is_idle = False
                connection.discard()
            else:
                connection.abort(Unknown.ABORTED, "the upstream client is being closed")
        while self._connections or self._opening:
            self._changed = self._loop.create_future()
            await self._changed
        self.files.shutdown(wait=False, cancel_futures=True)

    # -- reported by connections ---------------------------------------------------------------------------------------

    def connection_made(self, connection: UpstreamConnection) -> None:
        self.stats.opened += 1
        connection.idle_since = self._loop.time()
        connection.idle_until = connection.idle_since + self._settings.keepalive_seconds
        if connection.is_closed:
            self.stats.closed += 1
        else:
            self._connections.add(connection)

    def connection_condemned(self, connection: UpstreamConnection) -> None:
        """The upstream ended a connection, or sent something on it, while it was idle."""
        if connection.is_idle:
            connection.is_idle = False
            self._idle.remove(connection)
            now = self._loop.time()
            self._history.closed_early(now - connection.idle_since, now)

    def connection_died_on_reuse(self, connection: UpstreamConnection) -> None:
        self.stats.died_on_reuse += 1
        self._history.closed_early(connection.idle_before_seconds, self._loop.time())

    def connection_closed(self, connection: UpstreamConnection) -> None:
        if connection not in self._connections:
            return
        self.stats.closed += 1
        if connection.is_passing:
            connection.is_passing = connection.gives_way = False
            self._passing -= 1
        self._connections.remove(connection)
        self.connection_condemned(connection)
        self._note_change()

    def connection_lasts(self, connection: UpstreamConnection) -> None:
        if not connection.is_passing:
            connection.is_passing = True
            self._passing += 1
            if self._passing > self._settings.connections_max:
                self._make_room(newcomers=0)
            self._wake_one()

    async def _open(self, *, protected: bool) -> UpstreamConnection | NotSent:
        self._opening += 1
        if not protected:
            self._passing += 1
        result: UpstreamConnection | NotSent | None = None
        try:
            result = await open_connection(self._settings, self, self._names)
        finally:
            self._opening -= 1
            if isinstance(result, UpstreamConnection) and not result.is_closed:
                result.is_passing = not protected
            elif not protected:
                self._passing -= 1
            if not isinstance(result, UpstreamConnection):
                self._note_change()
        if self._is_closed and isinstance(result, UpstreamConnection):
            result.discard()
            return NotSent(SentNothing.CLOSED, "the upstream client is closed")
        return result

    async def _wait_free(self, queue: deque[asyncio.Future[None]], until: float, *, is_first: bool) -> bool:
        """Wait for a free connection, or a place for one; False on timeout."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        if is_first:
            queue.append(waiting)
        else:
            # Another request was quicker than the one that had been woken, which keeps its turn.
            queue.appendleft(waiting)
        try:
            async with asyncio.timeout_at(until):
                await waiting
        except BaseException as error:
            if waiting in queue:
                queue.remove(waiting)
            elif not self._is_closed:
                self._wake_one()  # it was woken, but cannot use its turn
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def _make_room(self, *, newcomers: int) -> None:
        """Free the places that are needed by ending exchanges whose clients are too slow to send or read."""
        now = self._loop.time()
        if now < self._nobody_slow_until:
            return
        # Those that give way end soon.
        passing = self._passing - sum(connection.gives_way for connection in self._connections)
        wanted = passing + len(self._waiting_others) + newcomers - self._settings.connections_max
        for connection in tuple(self._connections):
            if wanted <= 0:
                break
            may_give_way = connection.is_passing and not connection.gives_way
            if may_give_way and connection.crowd_out(self._settings.unread_seconds):
                connection.gives_way = True
                wanted -= 1
        if wanted > 0:
            self._nobody_slow_until = now + _NOBODY_SLOW_SECONDS

    def _wake_one(self) -> None:
        """Wake the first waiting request. Protected ones come first, since none lasts as long as a stream may."""
        for queue in (self._waiting_protected, self._waiting_others):
            while queue:
                waiting = queue.popleft()
                if not waiting.done():
                    waiting.set_result(None)
                    return

    def _note_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._wake_one()

    def _retire(self, connection: UpstreamConnection, now: float) -> None:
        """Close a connection that is no longer among the idle ones, and record how long it survived."""
        idle_seconds = now - connection.idle_since
        if connection.is_quiet():
            self._history.survived(idle_seconds)
        else:
            self._history.closed_early(idle_seconds, now)
        connection.discard()

    def _look(self) -> float:
        """Abort what is overdue, and retire what has been idle for too long; returns when the next of them is due."""
        now = self._loop.time()
        soonest = NEVER
        for connection in tuple(self._connections):
            due = connection.due()
            if due > now:
                soonest = min(soonest, due)
            elif connection.is_idle:
                self._idle.remove(connection)
                connection.is_idle = False
                self._retire(connection, now)
            else:
                connection.abort(Unknown.TIMEOUT, "nothing arrived in time")
        return soonest


# -- the client --------------------------------------------------------------------------------------------------------

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


@dataclass(slots=True)
class UpstreamResponse:
    """The upstream's head has arrived, its body may still be arriving.

    Read `body` to its end or `close` it, else the connection is never free again; as a context manager it closes
    itself. `length` is the body's, if the framing defines it. After a 101 the body is what the upstream sends from then
    on, and `upgraded` takes what is sent to it.
    """

    head: ResponseHead
    framing: Framing
    length: int | None
    body: ResponseReceiver
    upgraded: UpstreamConnection | None

    def close(self) -> None:
        """Drop what was not read: aborts the connection unless the body is complete."""
        if self.upgraded is not None:
            self.upgraded.discard()
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
        upgraded = connection if receiver.framing is Framing.UPGRADE else None
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
