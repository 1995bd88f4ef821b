"""The partitions of the responses: one for each day from which all of them are expired, made ahead and dropped whole.

A role that runs a gateway owns no table: two functions of the schema, which run with the owner's rights, make and drop
the partition of a day for it. Whoever sweeps makes those of the coming days for all gateways, and drops those of past
ones. Each gateway makes its own first. A response that comes before its partition waits until that is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from gateway.core.operation import MICROSECONDS
from gateway.store.base import StoreError
from gateway.store.postgres.connection import Connection, Link, ServerRefused, transaction
from gateway.store.postgres.statements import CHECK_SLACK_US, PARTITION_LOCK, load

_LOG = logging.getLogger("gateway")

# Of how many operation names the last window is known.
_OPERATIONS_MAX: Final = 10_000
# How many days ahead partitions are made.
DAYS_AHEAD: Final = 2
_DAY_US: Final = 86_400 * MICROSECONDS
# Up to how many days a window has days of which length, as `drop_day` has it.
_COARSENESS: Final = ((10, 1), (70, 7), (728, 28), (3_640, 364))
_ATTACH_TIMEOUT: Final = "100ms"
# Tries to attach one for a response. Each waits for a lock for a moment, while the rest of the queue waits.
_ATTACH_TRIES: Final = 5
# Dropping a day locks the whole table for a moment, and traffic queues behind the request for that lock.
_DROP_TIMEOUT: Final = "50ms"
# How often to look for a past day to drop, and the longest pause while a reader blocks that.
_DROP_PAUSE_SECONDS: Final = 60.0
_DROP_PAUSE_SECONDS_MAX: Final = 1_800.0
# How often to make those of coming days, and how soon to retry after a failure: there is a day's time for it.
_MAKE_PAUSE_SECONDS: Final = 600.0
_MAKE_AGAIN_SECONDS: Final = 10.0

_PAST_DAYS: Final = load("past_days")
_MISSING_DAYS: Final = load("missing_days")
_LONGEST_WINDOW: Final = load("longest_window")


class Days:
    """The partitions, as one gateway sees to them."""

    def __init__(self, clock_us: Callable[[], int | None]) -> None:
        self._clock_us = clock_us
        self.longest_us = 0
        """The longest replay window of what this gateway serves, and of what responses declared."""
        self._replay_us: dict[str, int] = {}
        self.late = 0
        """How often a response had to wait until its partition was made."""
        # When, on the event loop's clock, to make partitions and to look for a past day next.
        self._next_make_at = 0.0
        self._next_drop_at, self._drop_pause_seconds = 0.0, _DROP_PAUSE_SECONDS

    async def keep(self, link: Link) -> None:
        """From time to time, make the partitions of coming days, so that no completion has to, and drop a past one."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_make_at:
            is_done = await self._make(link, of_all=True)
            self._next_make_at = now + (_MAKE_PAUSE_SECONDS if is_done else _MAKE_AGAIN_SECONDS)
        if now >= self._next_drop_at:
            await self._drop(link, now)

    def learn(self, operation: str, replay_us: int) -> None:
        """A completion under this operation name has this window."""
        self.longest_us = max(self.longest_us, replay_us)
        if operation in self._replay_us or len(self._replay_us) < _OPERATIONS_MAX:
            self._replay_us[operation] = replay_us

    def expected_us(self, operation: str) -> int:
        """After how long a new claim expects that its response is over, a little late: by the last window of its
        operation name."""
        return self._replay_us.get(operation, _DAY_US) + CHECK_SLACK_US

    async def begin(self, link: Link, replay_us: int) -> None:
        """Make the partitions of a gateway whose longest window is this, also if whoever sweeps is late."""
        self.longest_us = max(self.longest_us, replay_us)
        await self._make(link)

    async def make_room(self, link: Link, replay_us: Collection[int]) -> None:
        """Make the partitions for responses that wait for them. Raises what the link does."""
        self.late += 1
        self.longest_us = max(self.longest_us, *replay_us)
        _LOG.warning("a response had to wait until the partition for its day was made")
        for tries_left in reversed(range(_ATTACH_TRIES)):
            try:
                await link.run(lambda connection: self._add(connection, replay_us))
            except ServerRefused as refused:
                if not refused.is_locked or not tries_left:
                    raise
            else:
                return

    async def _make(self, link: Link, *, of_all: bool = False) -> bool:
        async def make(connection: Connection) -> None:
            longest_us = self.longest_us
            if of_all:
                # Of all gateways.
                ((longest_us,),) = await connection.fetch(_LONGEST_WINDOW)
            await self._add(connection, windows_up_to(longest_us))

        try:
            await link.run(make)
        except StoreError as error:
            _LOG.warning("the partitions for the responses of coming days could not be made yet: %s", error)
            return False
        return True

    async def _add(self, connection: Connection, replay_us: Collection[int]) -> None:
        """Make the partitions for responses with these windows, recorded now or in the coming days.

        Attaching a partition does not block traffic. But it waits for an ANALYZE of the table or the build of an index,
        which may take hours. So this gives up soon, and the caller may retry.
        """
        wanted = (self._clock_us(), sorted(set(replay_us)), DAYS_AHEAD)
        if not await connection.fetch(_MISSING_DAYS, *wanted):
            return
        async with transaction(connection, {"lock_timeout": _ATTACH_TIMEOUT}):
            await connection.execute(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
            for row in await connection.fetch(_MISSING_DAYS, *wanted):
                await connection.execute("SELECT idempotency_gateway.add_partition($1)", row["day"])

    async def _drop(self, link: Link, now: float) -> None:
        """Drop the responses of one past day. It tries once and briefly to get the lock: a long read makes it fail."""

        async def drop(connection: Connection) -> bool:
            past = await connection.fetch(_PAST_DAYS, self._clock_us())
            if past:
                async with transaction(connection, {"lock_timeout": _DROP_TIMEOUT}):
                    await connection.execute("SELECT idempotency_gateway.drop_partition($1)", past[0]["day"])
            return bool(past)

        try:
            is_dropped = await link.run(drop)
        except StoreError:
            # Another gateway does it, or a reader blocks it. Each try holds up traffic for a moment: pause longer.
            self._drop_pause_seconds = min(2 * self._drop_pause_seconds, _DROP_PAUSE_SECONDS_MAX)
            self._next_drop_at = now + self._drop_pause_seconds
            return
        self._drop_pause_seconds = _DROP_PAUSE_SECONDS
        self._next_drop_at = 0.0 if is_dropped else now + _DROP_PAUSE_SECONDS


def windows_up_to(longest_us: int) -> list[int]:
    """Windows, one or more for each day that a response may have whose window is no longer than this."""
    found, begin_us = [0], 0
    for days, coarseness in _COARSENESS:
        end_us = min(longest_us, days * _DAY_US)
        found += [*range(begin_us + 1, end_us, coarseness * _DAY_US), end_us]
        if end_us == longest_us:
            return found
        begin_us = end_us
    return [*found, longest_us]
