"""Natural batching: what arrives while the previous batch is under way goes together in the next one.

It owns the queue in front of one executor and knows neither what an item is nor how it is executed. There is no timer:
an item that finds nobody at work starts at once, with whoever else was submitted in the same turn of the event loop.

Theory of operation
-------------------
One task drains the queue and exists only while there is something to drain. It takes the next batch, awaits `execute`,
hands out the results and looks again. Where a key function is given, a batch has one item per key and is sorted by key;
a second item of a key keeps its place for a later batch, so what is submitted first is executed first.

A submitter that is cancelled while its item still waits takes the item with it. One whose item is under way loses the
answer only. Every submitter gets an answer: a result, the exception that its batch ended with, or `NotApplied`.

An executor may leave items for `LATER`, as long as it executes one. They are the first of the next batch.
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
    """In place of a result: the item was not executed yet."""


LATER: Final = Later()

# An item, where its answer goes, and its key. A plain tuple: every statement of the program passes through here.
Entry = tuple[I, asyncio.Future[R], Any]


class Batcher(Generic[I, R]):
    """A queue in front of `execute`, which gets a list of items and gives as many results in the same order.

    A result that is an exception is raised to its submitter alone. An exception that `execute` raises is raised to all
    of the batch, so it has to say by its class what is known of it. Belongs to the event loop that submits.
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
        """Execute the item with others; the future gets its result. Raises `NotApplied` when full or closed.

        To be awaited at once: cancelling it is what a cancelled submitter does.
        """
        if self._closed:
            raise NotApplied("the store is closed")
        if len(self._queue) >= self._queue_max:
            raise NotApplied(f"the store is behind: {len(self._queue)} statements are waiting")
        if self._draining is None:
            # Asked for here only: before Python 3.12 each time is a system call.
            self._loop = asyncio.get_running_loop()
            self._draining = self._loop.create_task(self._drain())
        answer: asyncio.Future[R] = self._loop.create_future()
        self._queue.append((item, answer, self._key(item) if self._key else None))
        return answer

    async def close(self) -> None:
        """Let the batch under way end; whoever still waits is told `NotApplied`, as is whoever comes later."""
        self._closed = True
        self._refuse_waiting()
        if self._draining is not None:
            # Waited for, never cancelled: a batch that may have taken effect gets its answer.
            await asyncio.wait((self._draining,))

    async def _drain(self) -> None:
        try:
            while batch := self._next_batch():
                await self._run(batch)
        finally:
            self._draining = None
            # Not empty only when the loop is being torn down: nobody must wait for ever.
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
        # The second limit bounds the search when everybody wants the same key.
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
                answer = entry[1]
                if answer.done():
                    continue
                if isinstance(result, Later):
                    later.append(entry)
                elif isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
            self._queue.extendleft(reversed(later))
            if self._closed:
                self._refuse_waiting()
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the answer of every member
            _fail(batch, error)
        except BaseException:
            _fail(batch, Indefinite("the program was stopped while the statement was under way"))
            raise

    def _refuse_waiting(self) -> None:
        waiting = list(self._queue)
        self._queue.clear()
        _fail(waiting, NotApplied("the store was closed before the statement was executed"))


def _fail(entries: Sequence[Entry[Any, Any]], error: Exception) -> None:
    for _, answer, _ in entries:
        if not answer.done():
            answer.set_exception(_own_copy(error))


def _own_copy(error: Exception) -> Exception:
    """Each submitter raises an exception of its own, or their tracebacks would grow into one another."""
    if not isinstance(error, StoreError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
