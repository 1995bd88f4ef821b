"""Drops of purged operations from the fast tier, and those that it still owes.

A drop that the fast tier did not take is owed: it is repeated until it is taken, and until then this gateway does not
ask the fast tier for that operation. What is owed is kept in memory only, so whoever purged is told of it and repeats
the purge after a restart; a copy that nobody dropped ends with its window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final
from uuid import UUID

from gateway.store.base import FastTier, NotApplied, StoreError
from gateway.store.tier_stats import TierStats

# More is refused, because an unlimited number could not be remembered.
_OWED_MAX: Final = 10_000
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0

# A purge does not say which claim's record it ended, and need not.
_EVERY_TOKEN: Final = 2**63 - 1


class Drops:
    """Drops from the fast tier. Without one every drop is done at once and nothing is ever owed."""

    def __init__(self, fast: FastTier | None, stats: TierStats) -> None:
        self._fast = fast
        self._stats = stats
        self._owed: dict[UUID, int] = {}
        self._debtor: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Operations whose drop is owed."""
        return len(self._owed)

    @property
    def under_way(self) -> Collection[asyncio.Future[None]]:
        return () if self._debtor is None else (self._debtor,)

    def is_owed(self, operation_id: UUID) -> bool:
        # Mostly nothing is, and an id is hashed by a function of Python.
        return bool(self._owed) and operation_id in self._owed

    def check_room(self) -> None:
        """Raises `NotApplied` where no more could be remembered, so that the purge is refused before it is begun."""
        if len(self._owed) >= _OWED_MAX:
            raise NotApplied("too many purges wait for the fast tier; repeat when it is back")

    async def drop(self, operation_id: UUID) -> bool:
        """Whether the fast tier took it. One that it did not take is not owed by this alone."""
        if self._fast is None:
            return True
        try:
            await self._fast.drop(operation_id, _EVERY_TOKEN)
        except StoreError:
            self._stats.fast_failures += 1
            return False
        return True

    def owe(self, operation_id: UUID) -> None:
        if self._fast is not None:
            self._owed[operation_id] = self._owed.get(operation_id, 0) + 1

    async def pay(self, operation_id: UUID) -> bool:
        """Drop what is owed. What came to be owed during the drop stays so."""
        debt = self._owed.get(operation_id)
        if not await self.drop(operation_id):
            return False
        if debt is not None and self._owed.get(operation_id) == debt:
            del self._owed[operation_id]
        return True

    def see_to_debts(self) -> None:
        """Have what is owed paid in the background."""
        if self._owed and (self._debtor is None or self._debtor.done()):
            self._debtor = asyncio.create_task(self._pay_all())

    async def _pay_all(self) -> None:
        """Until nothing is owed: try, and pause while the fast tier does not take it."""
        pause_seconds = _PAUSE_SECONDS_MIN
        while self._owed:
            for operation_id in list(self._owed):
                if not await self.pay(operation_id):
                    await asyncio.sleep(pause_seconds)
                    pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
                    break
            else:
                pause_seconds = _PAUSE_SECONDS_MIN
