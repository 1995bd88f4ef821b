"""A dedicated thread for blocking calls. The event loop submits them; they run one after the other and return results.

What runs in the thread belongs to it alone and needs no lock. Cancelling a caller loses the result; the call runs on.

Each way there is one hand-over: a call, or a whole batch of items, is put once, and the thread calls the loop back
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from gateway.store.batching import Batches, Job
from gateway.store.watching import Watchers

P = ParamSpec("P")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 -- an item
R = TypeVar("R")


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


class WorkerBatches(Batches[I, R]):
    """Batches for `execute` in the thread of a worker, without a task."""

    def __init__(
        self,
        on_results: Callable[[Sequence[I], Sequence[R | Exception]], None] | None = None,
        watchers: Watchers | None = None,
    ) -> None:
        super().__init__()
        self._on_results = on_results
        self._watchers = watchers

    def open(self, worker: Worker, execute: Callable[[list[I]], Sequence[R | Exception]]) -> None:
        """Have the items executed by this worker, and so, from now on."""
        self._loop, self._is_open, self._idle = asyncio.get_running_loop(), True, None
        self._execute, self._put = execute, worker.jobs.put
