"""Time that passes only when a test says so, and stores that answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from gateway.store.operations import Swept, Tally
from tests.support.memory_store import MemoryStore


class Alarm:
    """A `sleep` that ends when it is told to; `asked` are the pauses so far, in seconds."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._began = asyncio.Semaphore(0)
        self._ring = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._began.release()
        await self._ring.acquire()

    async def wait_asleep(self) -> None:
        """Until the next pause has begun."""
        await self._began.acquire()

    @asynccontextmanager
    async def running(self, work: Coroutine[Any, Any, object]) -> AsyncIterator[asyncio.Task[object]]:
        """While this is entered, the work runs, and its first pause has begun."""
        task = asyncio.create_task(work)
        await self.wait_asleep()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def pass_one(self) -> None:
        """Let one pause begin and end, and wait until the next one begins: a pass lies between."""
        self._ring.release()
        await self._began.acquire()


class Scripted(MemoryStore):
    """A store on which each sweep and each tally does what is said next; after that it answers by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps: list[Swept | Exception | Callable[[], Awaitable[Swept]]] = []
        self.limits: list[int] = []
        self.tallies: list[Tally | Exception] = []
        self.tallied = 0

    async def sweep(self, limit: int) -> Swept:
        self.limits.append(limit)
        if not self.sweeps:
            return await super().sweep(limit)
        answer = self.sweeps.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Swept) else await answer()

    async def tally(self) -> Tally:
        self.tallied += 1
        if not self.tallies:
            return await super().tally()
        answer = self.tallies.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def no_pause(seconds: float) -> None:
    """A `sleep` that lets others run and nothing more."""
    await asyncio.sleep(0)
