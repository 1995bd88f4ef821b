"""News inside one process: which watches wait for which operation, and how a change wakes them.

It knows operation ids only, never records. News is only a hint: it is not kept for later watches, and several changes
between two waits count as one. Everything runs on the event loop that opened the watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from gateway.store.base import WORK


class LocalWatch:
    """One listener. Satisfies the `Watch` protocol of `base`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()

    async def wait_changed(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class Watchers:
    """The watches of one process, by operation. Bounded by its callers: a watch is open only while one waits."""

    def __init__(self) -> None:
        self._watches: dict[UUID, set[LocalWatch]] = {}
        self.number = 0
        """How many watches of operations are open, without those of `WORK`."""

    def __len__(self) -> int:
        return sum(map(len, self._watches.values()))

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[LocalWatch]:
        """Listen while the context is open."""
        watch = LocalWatch()
        self._watches.setdefault(operation_id, set()).add(watch)
        self.number += operation_id != WORK
        try:
            yield watch
        finally:
            self.number -= operation_id != WORK
            listeners = self._watches[operation_id]
            listeners.discard(watch)
            if not listeners:
                del self._watches[operation_id]

    def announce(self, operation_id: UUID) -> None:
        """Wake the listeners of this operation."""
        # Mostly there are none, and UUID hashes in Python code.
        if self._watches:
            for watch in self._watches.get(operation_id, ()):
                watch.wake()

    def watched(self) -> frozenset[UUID]:
        """The operations that have listeners now."""
        return frozenset(self._watches)
