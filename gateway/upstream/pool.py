"""Which connection serves the next request.

Owns the connections, their number, and what is known of how long the upstream keeps an idle one open (`IdleHistory`).
Does not speak HTTP.

Theory of operation. The keep-alive race: an upstream closes an idle connection just as we send on it, and "executed,
then closed" cannot be distinguished from "never read". An unprotected request then fails, since nothing here sends it
again; a protected one is in doubt. So a request gets a used connection only if it has been idle for clearly less time
than a connection has been *seen* to survive. Until one has been seen, and for a while after a connection was closed
early, requests get fresh connections, which cost a fraction of a millisecond. The most recently used connection goes
first, so that the others grow old and provide evidence.

The late body: some upstreams send a body after a response that has none (204, 304). On an idle connection it condemns
the connection; after the next request was sent, it would be read as that request's response. So such a connection rests
for a while before it is used again.

The slow client: a client that sends its request or reads its response a byte at a time keeps a connection as long as it
likes, at no cost. When unprotected requests have all the places that they may have, slow clients make room for new
ones.

Invariant: idle connections + busy ones + those being opened never exceed the limit, except for responses that outlast
their operation, each of which has a client that reads it; and a place that becomes free wakes one waiting request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto

from gateway.upstream.connect import Names, UpstreamSettings, open_connection
from gateway.upstream.connection import NEVER, ResponseReceiver, Sweep, UpstreamConnection
from gateway.upstream.result import NotSent, SentNothing, Unknown

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
                self._learn_from_oldest(now)
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

    def _learn_from_oldest(self, now: float) -> None:
        oldest = self._idle[0]
        if oldest.is_quiet():
            self._history.survived(now - oldest.idle_since)

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
