"""Waits for what others do with an operation. Requests that wait for the same of one operation share one reader.

A waiting request never claims or takes over: it gets the record once that is as it waits for. News from the store wakes
the reader, which also polls with growing pauses in case news is lost. A request whose time is over gets the record as
it was read last. The reader ends with its last request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Snapshot, State
from gateway.protect.slices import Slices
from gateway.store.base import Store, StoreError

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_PAUSE_GROWTH: Final = 1.6


Until = Callable[[Snapshot], bool]
"""What is waited for; equal ones are waited for together."""


def is_unclaimed(snapshot: Snapshot) -> bool:
    """Nobody executes it."""
    return snapshot.state is not State.CLAIMED


def is_delivered(snapshot: Snapshot) -> bool:
    """Its request is no longer kept, or nothing delivers it until somebody decides."""
    record = snapshot.record
    return record is None or record.delivery is None or record.state in (State.DEAD_LETTER, State.IN_DOUBT)


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
        self._readers: dict[tuple[UUID, Until], _Reader] = {}
        self._slices = Slices()
        self._is_closed = False

    async def wait(self, operation_id: UUID, timeout_seconds: float, until: Until = is_unclaimed) -> Snapshot | None:
        """The record once it is as `until` says, or as it was read last when the time is over.

        None if it could not be read at all.
        """
        if self._is_closed:
            return None
        awaited = operation_id, until
        reader = self._readers.get(awaited)
        if reader is None or reader.task.done():
            # A reader that has ended, and whose waiters have yet to wake, may have read before this request came.
            reader = _Reader(partial(self._read_until, operation_id, until))
            self._readers[awaited] = reader
        reader.waiters += 1
        try:
            await self._slices.until(reader.task, timeout_seconds)
        finally:
            reader.waiters -= 1
            if self._readers.get(awaited) is reader and (reader.task.done() or reader.waiters == 0):
                # Removed at once, so that the next request does not join a reader that is ending.
                del self._readers[awaited]
                reader.task.cancel()
        if reader.task.done() and not reader.task.cancelled():
            return reader.task.result()
        return reader.latest

    async def _read_until(self, operation_id: UUID, until: Until, reader: _Reader) -> Snapshot:
        pause = _PAUSE_SECONDS_MIN
        async with self._store.watch(operation_id) as watch:
            while True:
                # Read after the watch was opened, so that every later change is news.
                try:
                    snapshot = await self._store.read(operation_id)
                except StoreError:
                    pass
                else:
                    reader.latest = snapshot
                    if until(snapshot):
                        return snapshot
                await watch.wait_changed(pause)
                pause = min(pause * _PAUSE_GROWTH, _PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        """End every reader. Requests that wait now get what was read last; later ones get None."""
        self._is_closed = True
        tasks = [reader.task for reader in self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
