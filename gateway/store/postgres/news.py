"""News of operations between gateways, by NOTIFY, for gateways that asked for it.

It owns the channels and the interests of other gateways. It knows ids only, never records. Any message may be lost:
waiters also poll.

Theory of operation
-------------------
An operation without waiters costs nothing. A gateway that opens a watch announces its *interest* in the operation to
all gateways, and repeats that while the watch stays open. A gateway that changes an operation of interest announces the
*change*. If it changed the operation shortly before it received the interest, it announces the change then, since the
watching gateway may have read the record before.

News of work by itself is sent to all gateways, also by a command that ends at once. A gateway that cannot listen (its
connection is down, or a pooler gives it no session) receives and sends nothing. After a reconnection it wakes all its
waiters, since news may have been lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from gateway.store.base import WORK, StoreError, end_tasks
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.dialer import Link
from gateway.store.watching import LocalWatch, Watchers

INTEREST: Final = "idempotency_gateway_interest"
CHANGED: Final = "idempotency_gateway_changed"

_INTEREST_SECONDS: Final = 60.0
_INTERESTS_MAX: Final = 20_000
_RECENT_SECONDS: Final = 5.0
_RECENT_MAX: Final = 4_096
_PENDING_MAX: Final = 20_000
_HEARTBEAT_SECONDS: Final = 20.0
# Pauses after a failure; they grow while it lasts, because each try may be a log-in.
_PAUSE_SECONDS_MIN: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 5.0

_LAST_SECONDS: Final = 1.0

_SEND: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)"

_LOG = logging.getLogger("gateway")


class _Recent:
    """A bounded set of ids, each kept for a while. As integers, which hash much faster."""

    def __init__(self, seconds: float, size_max: int) -> None:
        self._seconds = seconds
        self._size_max = size_max
        self._until: OrderedDict[int, float] = OrderedDict()

    def add(self, operation_id: UUID) -> None:
        until, number = self._until, operation_id.int
        until[number] = time.monotonic() + self._seconds
        until.move_to_end(number)
        if len(until) > self._size_max:
            until.popitem(last=False)

    def __contains__(self, operation_id: UUID) -> bool:
        until = self._until.get(operation_id.int)
        return until is not None and until > time.monotonic()


class News:
    """The news of one store object. Belongs to the event loop that runs it."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: dict[tuple[str, UUID], None] = {}
        self._wanted = asyncio.Event()
        self._interests = _Recent(_INTEREST_SECONDS, _INTERESTS_MAX)
        self._changes = _Recent(_RECENT_SECONDS, _RECENT_MAX)
        # Interests that the other gateways still know: several watches of one operation announce it once.
        self._announced = _Recent(_INTEREST_SECONDS / 2, _INTERESTS_MAX)
        self._listening = asyncio.Event()

    def start(self, link: Link) -> None:
        """Send from now on, over a link that calls `listen` on each connection."""
        self._link = link
        self._repeat_interests()
        self._task = asyncio.create_task(self._run(link), name="postgres-news")

    async def close(self) -> None:
        await end_tasks((self._task,))
        # What was announced just before the end, as by an operator's command.
        if self._link is not None and (CHANGED, WORK) in self._pending:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._link.fetch(_SEND, [CHANGED], [str(WORK)])

    async def wait_listening(self) -> None:
        await self._listening.wait()

    async def listen(self, connection: Connection) -> None:
        own_pid = connection.get_server_pid()

        def receive(_connection: object, pid: int, channel: str, payload: str) -> None:
            if pid != own_pid:
                self._receive(channel, payload)

        def lose(_connection: object) -> None:
            self._listening.clear()
            self._wanted.set()

        connection.add_termination_listener(lose)
        for channel in (INTEREST, CHANGED):
            await connection.add_listener(channel, receive)
        self._listening.set()
        for operation_id in self._watchers.watched():
            self._watchers.announce(operation_id)
        self._repeat_interests()

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[LocalWatch]:
        async with self._watchers.watch(operation_id) as watch:
            if operation_id not in self._announced:
                self._announced.add(operation_id)
                self._send(INTEREST, operation_id)
            yield watch

    def announce(self, operation_id: UUID) -> None:
        """Wake the waiters of an operation that this gateway changed, here and on other gateways."""
        self._watchers.announce(operation_id)
        if self._link is not None:
            self._changes.add(operation_id)
            if operation_id == WORK or operation_id in self._interests:
                self._send(CHANGED, operation_id)

    def _receive(self, channel: str, payload: str) -> None:
        try:
            operation_id = UUID(payload)
        except ValueError:
            return
        if channel == CHANGED:
            self._watchers.announce(operation_id)
        elif channel == INTEREST:
            self._interests.add(operation_id)
            if operation_id in self._changes:
                self._send(CHANGED, operation_id)

    def _send(self, channel: str, operation_id: UUID) -> None:
        # News of work goes to all, whoever has an interest.
        if (channel, operation_id) == (INTEREST, WORK):
            return
        if self._link is not None and len(self._pending) < _PENDING_MAX:
            self._pending[channel, operation_id] = None
            self._wanted.set()

    def _repeat_interests(self) -> None:
        for operation_id in self._watchers.watched():
            self._send(INTEREST, operation_id)

    async def _run(self, link: Link) -> None:
        announced_at, pause_seconds = time.monotonic(), _PAUSE_SECONDS_MIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if not self._listening.is_set() else _HEARTBEAT_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            now = time.monotonic()
            if now - announced_at >= _HEARTBEAT_SECONDS:
                announced_at = now
                self._repeat_interests()
            pending, self._pending = self._pending, {}
            try:
                # An empty one is the heartbeat: it detects a dead connection, and reconnects after a loss.
                await link.fetch(_SEND, [channel for channel, _ in pending], [str(each) for _, each in pending])
            except StoreError as error:
                _LOG.debug("no news between gateways: %s", error)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            else:
                pause_seconds = _PAUSE_SECONDS_MIN
