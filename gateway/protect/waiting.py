"""Waits for operations that run in another gateway: one reader for all who wait for the same one.

A waiter never claims and never takes over: what it gets is the record once it is no longer claimed. News from the
store wake the reader, and it polls with growing pauses in case they are lost. Whoever is tired of waiting leaves with
what was read last; with the last one the reader ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Snapshot, State
from gateway.store.base import Store, StoreError

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_PAUSE_GROWTH: Final = 1.6


class _Reader:
    __slots__ = ("latest", "task", "waiters")

    def __init__(self, read: Callable[[_Reader], Coroutine[Any, Any, Snapshot]]) -> None:
        self.latest: Snapshot | None = None
        self.waiters = 0
        self.task = asyncio.get_running_loop().create_task(read(self))


class Waiting:
    """The readers of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[UUID, _Reader] = {}
        self._is_closed = False

    async def wait_settled(self, operation_id: UUID, timeout_seconds: float) -> Snapshot | None:
        """The record once nobody holds a live claim on it, or as it was read last when that did not happen in time.

        None where it was not read at all.
        """
        if self._is_closed:
            return None
        reader = self._readers.get(operation_id)
        if reader is None or reader.task.done():
            # One that has ended, and whose waiters have yet to wake, knows nothing of what made this one come.
            reader = _Reader(partial(self._read_until_settled, operation_id))
            self._readers[operation_id] = reader
        reader.waiters += 1
        try:
            await asyncio.wait((reader.task,), timeout=timeout_seconds)
        finally:
            reader.waiters -= 1
            if self._readers.get(operation_id) is reader and (reader.task.done() or reader.waiters == 0):
                # Taken out at once, so that whoever comes next does not join a reader that is ending.
                del self._readers[operation_id]
                reader.task.cancel()
        if reader.task.done() and not reader.task.cancelled():
            return reader.task.result()
        return reader.latest

    async def _read_until_settled(self, operation_id: UUID, reader: _Reader) -> Snapshot:
        pause = _PAUSE_SECONDS_MIN
        async with self._store.watch(operation_id) as watch:
            while True:
                # Read after the watch was opened: what changes from now on is news.
                try:
                    snapshot = await self._store.read(operation_id)
                except StoreError:
                    pass
                else:
                    reader.latest = snapshot
                    if snapshot.state is not State.CLAIMED:
                        return snapshot
                await watch.wait_changed(pause)
                pause = min(pause * _PAUSE_GROWTH, _PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        """End every reader; their waiters, and whoever comes later, see that nothing came in time."""
        self._is_closed = True
        tasks = [reader.task for reader in self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
