"""Natural batching: items that arrive while a batch is under way form the next one, on the event loop or in a thread.

`Batcher` owns the queue in front of one executor and knows neither what an item is nor how it is executed. There is no
timer: an item that finds the executor idle starts at once, together with those submitted in the same turn of the event
loop.

With a key function, a batch has one item per key and is sorted by key; a second item of a key keeps its place for a
later batch, so items of one key are executed in the order of their submission.

Cancelling a submitter whose item still waits removes the item. If its batch is under way, only the result is lost.
Every other submitter gets a result, the exception that its batch ended with, or `NotApplied`.

*A thread* is for calls that block (`Worker`). They run one after the other. What runs there belongs to it alone and
needs no lock. Each way there is one hand-over: a call, or a whole batch of items, is put once, and the thread calls the
loop back once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, ParamSpec, TypeVar

from gateway.store.base import Indefinite, NotApplied, StoreError, Watchers

P = ParamSpec("P")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 -- an item
R = TypeVar("R")

BATCH_SIZE_MAX = 256
QUEUE_MAX = 10_000


Job = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, Any, BaseException | None], None], Any]
"""A function, its arguments, and what the loop does with its result or its error, behind a receipt."""

# An item, its future, and its key. A plain tuple for speed: every statement of the program passes through here.
Entry = tuple[I, asyncio.Future[R], Any]


class Batcher(Generic[I, R]):
    """A queue in front of an executor, which gets a list of items and returns as many results in the same order.

    A result that is an exception is raised to its submitter alone. An exception that the executor raises goes to the
    whole batch, so its class has to be true of every item. Belongs to the event loop that submits.
    """

    def __init__(
        self,
        execute: Callable[[list[I]], Awaitable[Sequence[R | Exception]]] | None = None,
        *,
        key: Callable[[I], Any] | None = None,
        size_max: int = BATCH_SIZE_MAX,
        queue_max: int = QUEUE_MAX,
        on_results: Callable[[Sequence[I], Sequence[R | Exception]], None] | None = None,
        watchers: Watchers | None = None,
    ) -> None:
        """Without `execute`, it is not open before `open`. `on_results` is called on the loop before the submitters get
        the results, whoever of them was cancelled; with `watchers`, only while these watch operations."""
        self._execute: Callable[[list[I]], Any] | None = execute
        self._is_open = execute is not None
        self._put: Callable[[Job], object] = self._begin
        self._key = key
        self._size_max = size_max
        self._queue_max = queue_max
        self._on_results = on_results
        self._watchers = watchers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Entry[I, R]] = deque()
        self._is_busy = False
        # Done once the last batch has returned; None while `close` was not called.
        self._idle: asyncio.Future[None] | None = None
        # On the event loop: one task executes the batches, and exists only while there is one.
        self._next: Job | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self, worker: Worker, execute: Callable[[list[I]], Sequence[R | Exception]]) -> None:
        """Have the items executed in the thread of this worker, and so, from now on."""
        self._loop, self._is_open, self._idle = asyncio.get_running_loop(), True, None
        self._execute, self._put = execute, worker.jobs.put

    def submit(self, item: I, /) -> asyncio.Future[R]:
        """Queue the item for the next batch. Raises `NotApplied` when full or not open.

        Await the future at once, so that cancelling the submitter cancels it: an item that still waits is then never
        executed.
        """
        if not self._is_open:
            raise NotApplied("the store is not open")
        if len(self._waiting) >= self._queue_max:
            raise NotApplied(f"the store is behind: {len(self._waiting)} statements are waiting")
        loop = self._loop
        if loop is None:
            # Kept: before Python 3.12 each `get_running_loop` is a system call.
            loop = self._loop = asyncio.get_running_loop()
        if not self._is_busy:
            # Not at once: what is submitted in the same turn of the loop goes along.
            self._is_busy = True
            loop.call_soon(self._hand_over)
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future, None if self._key is None else self._key(item)))
        return future

    async def close(self) -> None:
        """Wait for the batch under way. Items that still wait, and later submitters, get `NotApplied`."""
        self._is_open = False
        self._refuse_waiting()
        if self._is_busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            # Whoever is cancelled here leaves it to the others.
            await asyncio.wait((self._idle,))

    def _hand_over(self) -> None:
        """Begin the next batch, if there is one."""
        items: list[I] = []
        futures: list[asyncio.Future[R]] = []
        waiting = self._waiting if self._key is None else self._one_of_each_key()
        while waiting and len(items) < self._size_max:
            item, future, _ = waiting.popleft()
            if not future.done():
                items.append(item)
                futures.append(future)
        if items and self._is_open and self._execute is not None:
            self._put((self._execute, (items,), self._take_back, (items, futures)))
            return
        self._is_busy = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _one_of_each_key(self) -> deque[Entry[I, R]]:
        """Take the items of the next batch, in the order of their keys."""
        chosen: dict[Any, Entry[I, R]] = {}
        later: list[Entry[I, R]] = []
        # The second limit bounds the search when many items have the same key.
        while self._waiting and len(chosen) < self._size_max and len(later) < self._size_max:
            entry = self._waiting.popleft()
            if not entry[1].done() and chosen.setdefault(entry[2], entry) is not entry:
                later.append(entry)
        self._waiting.extendleft(reversed(later))
        return deque(chosen[each] for each in sorted(chosen))

    def _take_back(
        self,
        batch: tuple[list[I], list[asyncio.Future[R]]],
        results: Sequence[R | Exception],
        error: BaseException | None,
    ) -> None:
        items, futures = batch
        try:
            if error is not None:
                raise error
            if self._on_results is not None and (self._watchers is None or self._watchers.number):
                self._on_results(items, results)
            for future, result in zip(futures, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        except Exception as failure:  # noqa: BLE001 -- raised to every submitter of the batch
            fail(futures, failure)
        except BaseException:  # noqa: BLE001 -- of a thread or a task; the loop has its own
            fail(futures, Indefinite("the program was stopped while the statement was under way"))
        if self._waiting or self._idle is not None:
            self._hand_over()
        else:
            self._is_busy = False

    def _refuse_waiting(self) -> None:
        waiting = [future for _, future, _ in self._waiting]
        self._waiting.clear()
        fail(waiting, NotApplied("the store was closed before the statement was executed"))

    def _begin(self, job: Job) -> None:
        self._next = job
        if self._task is None:
            # Never cancelled by `close`: a batch that may have taken effect has to return its results.
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while (job := self._next) is not None:
                self._next = None
                execute, items, take_back, batch = job
                try:
                    results = await execute(*items)
                except Exception as error:  # noqa: BLE001 -- raised to every submitter of the batch
                    take_back(batch, None, error)
                except BaseException as error:
                    # Only while the loop is torn down; no submitter may wait for ever.
                    self._refuse_waiting()
                    take_back(batch, None, error)
                    raise
                else:
                    # Begins the next batch.
                    take_back(batch, results, None)
        finally:
            self._task = None


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


class Worker:
    """One thread, from construction, which needs the running loop, until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.jobs: Final[SimpleQueue[Job | None]] = SimpleQueue()
        # A daemon, so that it does not hold up a program that ends without `stop`.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call the function in the thread, after all earlier calls."""
        result: asyncio.Future[T] = self._loop.create_future()
        self.jobs.put((partial(function, **kwargs) if kwargs else function, args, _deliver, result))
        return result

    def end(self, last: Callable[[], None]) -> asyncio.Future[None]:
        """Call `last` in the thread as its last call; then the thread ends."""
        ended = self.run(last)
        self.jobs.put(None)
        return ended

    async def stop(self, last: Callable[[], None]) -> None:
        """`end`, and wait for the thread. If cancelled, the thread ends all the same."""
        await self.end(last)
        # Does not block for long: the thread only has to return.
        self._thread.join()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            function, args, deliver, receipt = job
            result, error = None, None
            try:
                result = function(*args)
            except BaseException as raised:  # noqa: BLE001 -- raised to the caller
                error = raised
            # Raised by a closed loop, where no caller waits any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(deliver, receipt, result, error)
            # Keep nothing of a finished call alive until the next one.
            del job, function, args, deliver, receipt, result, error


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
