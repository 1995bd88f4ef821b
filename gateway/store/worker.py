"""A dedicated thread for blocking calls. The event loop submits them; they run one after the other and return results.

What runs in the thread belongs to it alone and needs no lock. Cancelling a caller loses the result; the call runs on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """One thread, from construction until `stop`."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon, so that it does not hold up a program that ends without `stop`.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call the function in the thread, after all earlier calls."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._jobs.put((lambda: function(*args, **kwargs), loop, result))
        return result

    def end(self, last: Callable[[], None]) -> asyncio.Future[None]:
        """Call `last` in the thread as its last call; then the thread ends."""
        ended = self.run(last)
        self._jobs.put(None)
        return ended

    async def stop(self, last: Callable[[], None]) -> None:
        """`end`, and wait for the thread. If cancelled, the thread ends all the same."""
        await self.end(last)
        # Does not block for long: the thread only has to return.
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 -- raised to the caller
                error = raised
            # Raised by a closed loop, where no caller waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, future, result, error)
            # Keep nothing of a finished call alive until the next one.
            del job, function, loop, future, result, error


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
