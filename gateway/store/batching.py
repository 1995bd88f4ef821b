"""Natural batching: items that arrive while a batch is under way form the next one.

It owns the queue in front of one executor and knows neither what an item is nor how it is executed. There is no timer:
an item that finds the executor idle starts at once, together with those submitted in the same turn of the event loop.

Theory of operation
-------------------
One task drains the queue and exists only while there is something to drain. In a loop it takes the next batch, awaits
`execute` and sets the results. With a key function, a batch has one item per key and is sorted by key; a second item of
a key keeps its place for a later batch, so items of one key are executed in the order of their submission.

Cancelling a submitter whose item still waits removes the item. If its batch is under way, only the result is lost.
Every other submitter gets a result, the exception that its batch ended with, or `NotApplied`.

An executor may return `LATER` for some items, as long as it executes one. They are the first of the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from gateway.store.base import Indefinite, NotApplied, StoreError

I = TypeVar("I")  # noqa: E741 -- an item
R = TypeVar("R")

BATCH_SIZE_MAX = 256
QUEUE_MAX = 10_000


class Later:
    """Stands in place of a result: the item was not executed yet."""


LATER: Final = Later()

# An item, its future, and its key. A plain tuple for speed: every statement of the program passes through here.
Entry = tuple[I, asyncio.Future[R], Any]


class Batcher(Generic[I, R]):
    """A queue in front of `execute`, which gets a list of items and returns as many results in the same order.

    A result that is an exception is raised to its submitter alone. An exception that `execute` raises goes to the whole
    batch, so its class has to be true of every item. Belongs to the event loop that submits.
    """

    def __init__(
        self,
        execute: Callable[[list[I]], Awaitable[Sequence[R | Exception | Later]]],
        *,
        key: Callable[[I], Any] | None = None,
        size_max: int = BATCH_SIZE_MAX,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._execute = execute
        self._key = key
        self._size_max = size_max
        self._queue_max = queue_max
        self._queue: deque[Entry[I, R]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._draining: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, item: I) -> asyncio.Future[R]:
        """Queue the item for the next batch. Raises `NotApplied` when full or closed.

        Await the future at once, so that cancelling the submitter cancels it.
        """
        if self._closed:
            raise NotApplied("the store is closed")
        if len(self._queue) >= self._queue_max:
            raise NotApplied(f"the store is behind: {len(self._queue)} statements are waiting")
        if self._draining is None:
            # Only here: before Python 3.12 each `get_running_loop` is a system call.
            self._loop = asyncio.get_running_loop()
            self._draining = self._loop.create_task(self._drain())
        future: asyncio.Future[R] = self._loop.create_future()
        self._queue.append((item, future, self._key(item) if self._key else None))
        return future

    async def close(self) -> None:
        """Wait for the batch under way. Items that still wait, and later submitters, get `NotApplied`."""
        self._closed = True
        self._refuse_waiting()
        if self._draining is not None:
            # Never cancelled: a batch that may have taken effect has to return its results.
            await asyncio.wait((self._draining,))

    async def _drain(self) -> None:
        try:
            while batch := self._next_batch():
                await self._run(batch)
        finally:
            self._draining = None
            if self._queue:
                # Only while the loop is torn down; no submitter may wait for ever.
                self._refuse_waiting()

    def _next_batch(self) -> list[Entry[I, R]]:
        queue = self._queue
        if self._key is None:
            batch: list[Entry[I, R]] = []
            while queue and len(batch) < self._size_max:
                entry = queue.popleft()
                if not entry[1].done():
                    batch.append(entry)
            return batch
        chosen: dict[Any, Entry[I, R]] = {}
        later: list[Entry[I, R]] = []
        # The second limit bounds the search when many items have the same key.
        while queue and len(chosen) < self._size_max and len(later) < self._size_max:
            entry = queue.popleft()
            if not entry[1].done() and chosen.setdefault(entry[2], entry) is not entry:
                later.append(entry)
        queue.extendleft(reversed(later))
        return [chosen[each] for each in sorted(chosen)]

    async def _run(self, batch: list[Entry[I, R]]) -> None:
        try:
            results = await self._execute([item for item, _, _ in batch])
            later: list[Entry[I, R]] = []
            for entry, result in zip(batch, results, strict=True):
                future = entry[1]
                if future.done():
                    continue
                if isinstance(result, Later):
                    later.append(entry)
                elif isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            self._queue.extendleft(reversed(later))
            if self._closed:
                self._refuse_waiting()
        except Exception as error:  # noqa: BLE001 -- raised to every submitter of the batch
            fail([future for _, future, _ in batch], error)
        except BaseException:
            fail(
                [future for _, future, _ in batch],
                Indefinite("the program was stopped while the statement was under way"),
            )
            raise

    def _refuse_waiting(self) -> None:
        waiting = [future for _, future, _ in self._queue]
        self._queue.clear()
        fail(waiting, NotApplied("the store was closed before the statement was executed"))


def fail(futures: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    """Raise the error to each submitter that still waits."""
    for future in futures:
        if not future.done():
            future.set_exception(_own_copy(error))


def _own_copy(error: Exception) -> Exception:
    """Copy the exception for one submitter: in a shared one, the tracebacks of all would pile up."""
    if not isinstance(error, StoreError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
