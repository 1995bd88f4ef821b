"""Upkeep of Postgres: the sweep, the tally, and the partitions of coming and past days.

It owns how much one transaction may lock or read, and when partitions are made and dropped. All of it uses a link that
no command waits for.

Theory of operation
-------------------
A sweep first asks whether anything is due, so that one of an idle store is a single statement.

Whose turn it is spares work and protects nothing. A sweep that runs beside another one, or late because its process was
frozen, is safe: each transaction reads the time, locks the records that it finds, and decides by what they are under
the lock. It passes by what another one has locked. The walk stops before the first claim that is not over in its own
snapshot, and moves `passed_token` only forward.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gateway.core.lifecycle import written_down
from gateway.core.operation import MICROSECONDS, State
from gateway.core.outbox import Outbox, OutboxRow, swept_rows, types_of, unpack
from gateway.store.base import StoreError, Unreadable
from gateway.store.operations import (
    LAPSES_NAMED_MAX,
    SEALED_COUNT_MAX,
    Swept,
    Tally,
    sealed_counts,
)
from gateway.store.postgres.agreement import known_operations
from gateway.store.postgres.change import Change, deliveries, write, write_events
from gateway.store.postgres.connection import Connection, Link
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.rows import row_of
from gateway.store.postgres.schema import add_partitions, drop_partition, longest_window, windows_up_to
from gateway.store.postgres.statements import load
from gateway.store.postgres.tombstone import Horizon, narrowed

_LOG = logging.getLogger("gateway")

# One transaction of a sweep: its row locks are held until it commits.
_SWEEP_ROWS_MAX: Final = 100
_WALK_ROWS_MAX: Final = 5_000
_WALKS_MAX: Final = 20
# How long the statement that drew a token may take to commit.
_COMMIT_SECONDS: Final = 5.0
# How often to look for a past day to drop, and the longest pause while a reader blocks that.
_DROP_PAUSE_SECONDS: Final = 60.0
_DROP_PAUSE_SECONDS_MAX: Final = 1_800.0
# How often to make partitions for coming days, and how soon to retry after a failure: there is a day's time for it.
_MAKE_PAUSE_SECONDS: Final = 600.0
_MAKE_AGAIN_SECONDS: Final = 10.0
# A lost change by time is made again by the next sweep, so its commit needs no flush.
_UNFLUSHED: Final = {"synchronous_commit": "off"}
# But its event would then be another one under the same id, because it has the time of the sweep, and the first one may
# have been published.
_FLUSHED: Final = "SET LOCAL synchronous_commit TO DEFAULT"

_IS_DUE: Final = load("is_due")
_SELECT_LAPSED: Final = load("select_lapsed")
_SELECT_DUE: Final = load("select_due")
_COLLECT_TOMBSTONES: Final = load("collect_tombstones")
_MOVE_PAUSES: Final = load("move_pauses")
_EXTEND_PAUSED: Final = load("extend_paused")
_PASS: Final = load("pass")
_TIDY: Final = load("tidy")
_TALLY: Final = f"{load('tally')}\nUNION ALL (\n{load('count_sealed')}\n)"
_OUTBOXES: Final = load("outboxes")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one transaction of a sweep wrote, to how many records, and whether another one would find more."""

    swept: Swept
    changed: int
    is_more: bool


class Upkeep:
    """These verbs of `Store`, over this link."""

    def __init__(self, dialer: Dialer, link: Link, clock_us: Callable[[], int | None], outbox: Outbox) -> None:
        self._dialer = dialer
        self._link = link
        self._fetch = partial(dialer.fetch, link)
        self._clock_us = clock_us
        self._outbox = outbox
        # When, on the event loop's clock, to make partitions and to look for a past day next.
        self._next_make_at = 0.0
        self._next_drop_at, self._drop_pause_seconds = 0.0, _DROP_PAUSE_SECONDS
        self._horizon = Horizon()
        # The last token drawn at the latest check, the time of that check, and a token up to which all have committed.
        self._drawn_token, self._checked_at, self._settled_token = 0, float("-inf"), 0

    async def sweep(self, limit: int) -> Swept:
        (row,) = await self._fetch(_IS_DUE, self._clock_us())
        swept = await self._sweep_all(limit) if row["is_due"] else Swept()
        await self._make_days()
        await self._drop_past()
        return swept

    async def _sweep_all(self, limit: int) -> Swept:
        swept, left = Swept(), limit
        await self._link.run(self._horizon.look)
        extended = await self._extend_paused(limit)
        for sweep_some, tries in (
            (self._sweep_lapsed, _WALKS_MAX),
            (self._sweep_due, limit),
            (self._collect_tombstones, limit),
        ):
            for _ in range(tries):
                if left <= 0:
                    break
                part = await sweep_some(min(left, _SWEEP_ROWS_MAX))
                swept += part.swept
                left -= part.changed
                if not part.is_more:
                    break
        bound = min(limit, _SWEEP_ROWS_MAX)
        (row,) = await self._fetch(_TIDY, self._clock_us(), bound)
        return replace(swept, more=left <= 0 or extended >= limit or row["looked_at"] >= bound)

    async def _extend_paused(self, bound: int) -> int:
        """Give more time to what is paused, before it is over, and return to how many records."""

        async def extend(connection: Connection) -> int:
            await connection.fetch(_MOVE_PAUSES, self._clock_us())
            ((_, moved),) = await connection.fetch(_EXTEND_PAUSED, self._clock_us(), bound)
            return int(moved)

        return await self._dialer.transact(self._link, extend, _UNFLUSHED)

    async def _sweep_lapsed(self, bound: int) -> _Part:
        """A piece of the walk for lapsed claims, up to a token below which every statement has committed.

        That is judged by the event loop's clock, which nobody can set, unlike the server's.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._checked_at >= _COMMIT_SECONDS:
            self._settled_token = self._drawn_token

        async def walk(connection: Connection) -> _Part:
            part = await self._write_down(connection, _SELECT_LAPSED, bound, _WALK_ROWS_MAX)
            (row,) = await connection.fetch(_PASS, self._clock_us(), _WALK_ROWS_MAX, self._settled_token)
            if self._settled_token == self._drawn_token:
                self._drawn_token, self._checked_at = row["drawn_token"], loop.time()
            return replace(part, is_more=part.is_more or row["is_more"])

        return await self._dialer.transact(self._link, walk, _UNFLUSHED)

    async def _sweep_due(self, bound: int) -> _Part:
        return await self._dialer.transact(
            self._link, lambda connection: self._write_down(connection, _SELECT_DUE, bound), _UNFLUSHED
        )

    async def _collect_tombstones(self, bound: int) -> _Part:
        collected = len(await self._fetch(_COLLECT_TOMBSTONES, self._clock_us(), bound))
        return _Part(Swept(collected=collected), collected, collected >= bound)

    async def _write_down(self, connection: Connection, select: str, bound: int, *arguments: int) -> _Part:
        """Write what time changed in the records that this statement locks."""
        rows = await connection.fetch(select, self._clock_us(), bound, *arguments)
        now_us = rows[0][0]
        known = await deliveries(connection, [row[1:] for row in rows])
        changes = [
            change for row in rows if (change := _change_by_time(row[1:], known.get(row[1], ()), now_us)) is not None
        ]
        changes = await narrowed(connection, changes, self._horizon.token, self._services)
        await write(connection, changes, now_us)
        await self._write_events(connection, changes, now_us)
        # What only moves was counted when it became what it is.
        after = [
            each.record for each in changes if each.record is None or each.record.state is not each.row.record.state
        ]
        states = Counter(State.ABSENT if record is None else record.state for record in after)
        lapsed = [each.identity for each in after if each is not None and each.state is State.IN_DOUBT]
        swept = Swept(
            len(lapsed),
            states[State.TOMBSTONE],
            states[State.ABSENT],
            expired=states[State.DEAD_LETTER],
            named=tuple((identity.route, identity.operation_id) for identity in lapsed[:LAPSES_NAMED_MAX]),
        )
        return _Part(swept, len(changes), len(changes) >= bound)

    async def _services(self, connection: Connection) -> frozenset[str]:
        """The services that the operations here may be of."""
        return frozenset(row.service for row in await known_operations(connection)) | {self._outbox.service}

    async def _write_events(self, connection: Connection, changes: Sequence[Change], now_us: int) -> None:
        """Write the events of what time did to the records of any service."""
        changed = [each for each in changes if each.record is not None and types_of(each.row.record, each.record)]
        if not changed:
            return
        others = await connection.fetch(_OUTBOXES, self._outbox.service)
        outboxes = [self._outbox, *(unpack(row["content"], self._outbox.sealing) for row in others)]
        rows: defaultdict[str, list[OutboxRow]] = defaultdict(list)
        for each in changed:
            service, own = swept_rows(outboxes, each.row.record, each.record)
            rows[service] += own
        if any(rows.values()):
            await connection.execute(_FLUSHED)
        for service, own_rows in sorted(rows.items()):
            await write_events(connection, service, own_rows, now_us)

    async def tally(self) -> Tally:
        rows = await self._fetch(_TALLY, self._clock_us(), SEALED_COUNT_MAX)
        in_doubt = [row for row in rows if row["keys"] is None]
        oldest_us = max((row["oldest_us"] for row in in_doubt), default=0)
        sealed = sealed_counts((row["keys"], row["found"]) for row in rows if row["keys"] is not None)
        return Tally({row["route"]: row["found"] for row in in_doubt}, oldest_us / MICROSECONDS, sealed)

    async def _make_days(self) -> None:
        """From time to time, make partitions for the responses of coming days and all gateways, so that no completion
        has to."""
        now = asyncio.get_running_loop().time()
        if now < self._next_make_at:
            return
        self._next_make_at = now + _MAKE_PAUSE_SECONDS

        async def make(connection: Connection) -> None:
            await add_partitions(connection, windows_up_to(await longest_window(connection)), self._clock_us())

        try:
            await self._link.run(make)
        except StoreError as error:
            self._next_make_at = now + _MAKE_AGAIN_SECONDS
            _LOG.warning("the partitions for the responses of coming days could not be made yet: %s", error)

    async def _drop_past(self) -> None:
        """From time to time, drop the responses of one past day."""
        now = asyncio.get_running_loop().time()
        if now < self._next_drop_at:
            return
        self._next_drop_at = now + _DROP_PAUSE_SECONDS
        try:
            dropped = await self._link.run(lambda connection: drop_partition(connection, self._clock_us()))
        except StoreError:
            # Another gateway does it, or a long read blocks it. Each try holds up traffic for a moment: pause longer.
            self._drop_pause_seconds = min(2 * self._drop_pause_seconds, _DROP_PAUSE_SECONDS_MAX)
            self._next_drop_at = now + self._drop_pause_seconds
            return
        self._drop_pause_seconds = _DROP_PAUSE_SECONDS
        if dropped:
            self._next_drop_at = 0.0


def _change_by_time(values: Sequence[Any], delivery: Sequence[Any], now_us: int) -> Change | None:
    """The change that a sweep makes to a row, if any."""
    try:
        row = row_of(values, delivery)
    except Unreadable:
        # A newer program wrote it, and sweeps it.
        return None
    if row is None:
        return None
    record = written_down(row.record, now_us)
    # A tombstone is written again to leave the table, or to be looked at later.
    if record is row.record and record.state is not State.TOMBSTONE:
        return None
    return Change(row, record)
