"""A dedicated thread for blocking calls. The event loop submits them; they run one after the other and return results.

What runs in the thread belongs to it alone and needs no lock. Cancelling a caller loses the result; the call runs on.

Each way there is one hand-over: a call, or a whole batch of items, is put once, and the thread calls the loop back
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, ParamSpec, TypeVar

from gateway.store.base import Indefinite, NotApplied
from gateway.store.batching import BATCH_SIZE_MAX, QUEUE_MAX, fail
from gateway.store.watching import Watchers

P = ParamSpec("P")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 -- an item
R = TypeVar("R")

# A function, its arguments, and what the loop does with its result or its error.
_Job = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, Any, BaseException | None], None], Any]


class Worker:
    """One thread, from construction, which needs the running loop, until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.jobs: Final[SimpleQueue[_Job | None]] = SimpleQueue()
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


class WorkerBatches(Generic[I, R]):
    """Natural batching in front of a worker, as `batching` explains it, without a task: what arrives while a batch is
    under way forms the next one. Belongs to the event loop that submits.

    `execute` gets a list of items in the thread and returns as many results in the same order. A result that is an
    exception is raised to its submitter alone. An exception that `execute` raises goes to the whole batch, so its class
    has to be true of every item.
    """

    def __init__(
        self,
        on_results: Callable[[Sequence[I], Sequence[R | Exception]], None] | None = None,
        watchers: Watchers | None = None,
    ) -> None:
        """`on_results` is called on the loop before the submitters get the results, whoever of them was cancelled; with
        `watchers`, only while these watch operations."""
        self._execute: Callable[[list[I]], Sequence[R | Exception]]
        self._on_results = on_results
        self._watchers = watchers
        self._waiting: deque[tuple[I, asyncio.Future[R]]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._worker: Worker | None = None
        self._is_busy = False
        # Done once the last batch has returned; None while `close` was not called.
        self._idle: asyncio.Future[None] | None = None

    def open(self, worker: Worker, execute: Callable[[list[I]], Sequence[R | Exception]]) -> None:
        """Have the items executed by this worker, and so, from now on."""
        self._loop, self._worker, self._idle = asyncio.get_running_loop(), worker, None
        self._execute = execute

    def submit(self, item: I, /) -> asyncio.Future[R]:
        """Queue the item for the next batch. Raises `NotApplied` when full or not open.

        Await the future at once, so that cancelling the submitter cancels it: an item that still waits is then never
        executed.
        """
        if self._worker is None:
            raise NotApplied("the store is not open")
        if len(self._waiting) >= QUEUE_MAX:
            raise NotApplied(f"the store is behind: {len(self._waiting)} statements are waiting")
        if not self._is_busy:
            # Not at once: what is submitted in the same turn of the loop goes along.
            self._is_busy = True
            self._loop.call_soon(self._hand_over)
        future: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((item, future))
        return future

    async def close(self) -> None:
        """Wait for the batch under way. Items that still wait, and later submitters, get `NotApplied`."""
        self._worker = None
        self._refuse_waiting()
        if self._is_busy:
            if self._idle is None:
                self._idle = self._loop.create_future()
            # Whoever is cancelled here leaves it to the others.
            await asyncio.wait((self._idle,))

    def _hand_over(self) -> None:
        """Give the thread the next batch, if there is one."""
        items: list[I] = []
        futures: list[asyncio.Future[R]] = []
        waiting = self._waiting
        while waiting and len(items) < BATCH_SIZE_MAX:
            item, future = waiting.popleft()
            if not future.done():
                items.append(item)
                futures.append(future)
        if items and self._worker is not None:
            self._worker.jobs.put((self._execute, (items,), self._take_back, (items, futures)))
            return
        self._is_busy = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

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
        except BaseException:  # noqa: BLE001 -- of the thread; the loop has its own
            fail(futures, Indefinite("the program was stopped while the statement was under way"))
        if self._waiting or self._idle is not None:
            self._hand_over()
        else:
            self._is_busy = False

    def _refuse_waiting(self) -> None:
        futures = [future for _, future in self._waiting]
        self._waiting.clear()
        fail(futures, NotApplied("the store was closed before the statement was executed"))
