"""A thread of one's own for what blocks: calls go in from the event loop, one after the other, and results come back.

What runs in it belongs to it alone, so it needs no lock. A caller that is cancelled loses the result; the call runs on.
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
        # A program that ends without stopping it is not held up by it.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call the function in the thread, after all that was asked before."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._jobs.put((lambda: function(*args, **kwargs), loop, result))
        return result

    def end(self, last: Callable[[], None]) -> asyncio.Future[None]:
        """Call `last` in the thread as its last call, and let the thread end by itself."""
        ended = self.run(last)
        self._jobs.put(None)
        return ended

    async def stop(self, last: Callable[[], None]) -> None:
        """`end`, and wait until the thread is gone. If cancelled, it ends all the same."""
        await self.end(last)
        # It has nothing left to do but to return.
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 -- whatever it is belongs to the caller
                error = raised
            # On a closed loop nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, future, result, error)
            # Nothing of a finished call is kept alive until the next one comes.
            del job, function, loop, future, result, error


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
