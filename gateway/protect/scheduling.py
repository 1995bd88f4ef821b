"""How requests share the event loop: in slices.

Work that may come all at once, a little of it in each turn of the event loop.

Between two turns the loop reads what has arrived and runs who was woken, so nobody else waits for longer than a
slice. Work has a flow: of several flows each has its turn, so that thousands of requests under one key hold up no
other one. How much is a slice is learned from how long turns take; what the work causes in the next turn counts, too.

Where nobody waits, the work is done at once: `is_free` takes one of many places in this turn, and that is all. Only
what comes beyond them waits, and as long as something waits, turns are measured, and slices are small. Turns are not
even counted before the `spare` places are gone, which may be taken by counting them down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from time import thread_time
from typing import Any, Final

# How much of the processor a turn may take before slices become smaller: a request has some twenty turns until it has
# its response. Then how small and large slices are, and the first one.
_TURN_SECONDS: Final = 0.002
_SIZE_MIN: Final = 2
_SIZE_MAX: Final = 64
_SIZE_FIRST: Final = 16
# More than the connections of a busy gateway ask for in one turn.
_PLACES: Final = 128
_SPARE: Final = 32


class Slices:
    """The work of one kind. Lives on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # In the order of their turns. None of them is empty.
        self._flows: dict[Hashable, deque[Callable[[], object]]] = {}
        # Who waits for what to be done.
        self._groups: dict[asyncio.Future[Any], dict[asyncio.Future[None], None]] = {}
        self._size, self._left = _SIZE_FIRST, _PLACES
        self.spare = _SPARE
        """Only where no turn is counted, and so nothing waits."""
        self._is_counting = False
        self._turn_began: float | None = None

    def is_free(self) -> bool:
        """Whether there is a place in this turn, and nobody waits for one. It is then taken."""
        if self._flows or not self._left:
            return False
        self._left -= 1
        if not self._is_counting:
            self._begin()
        return True

    def put(self, flow: Hashable, work: Callable[[], object]) -> None:
        """Do this in one of the next turns, in the order of its flow."""
        works = self._flows.get(flow)
        if works is None:
            self._flows[flow] = deque((work,))
        else:
            works.append(work)
        if not self._is_counting:
            self._begin()

    async def until(self, future: asyncio.Future[Any], timeout_seconds: float | None = None) -> None:
        """Wait until this is done, or for so long. Any number may wait for the same, and each goes on in its turn.

        Cancelling this does not cancel the future.
        """
        if future.done():
            return
        group = self._groups.get(future)
        if group is None:
            group = self._groups[future] = {}
            future.add_done_callback(self._wake_group)
        waiter = self._loop.create_future()
        group[waiter] = None
        timer = None if timeout_seconds is None else self._loop.call_later(max(0.0, timeout_seconds), _wake, waiter)
        try:
            await waiter
        finally:
            group.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def _wake_group(self, future: asyncio.Future[Any]) -> None:
        waiters = self._groups.pop(future)
        if waiters:
            self._flows[future] = deque(partial(_wake, waiter) for waiter in waiters)
            if not self._is_counting:
                self._begin()

    def _begin(self) -> None:
        self._is_counting = True
        self.spare = 0
        self._turn_began = thread_time() if self._flows else None
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_counting = False
        flows = self._flows
        if not flows:
            self._size, self._left, self.spare = _SIZE_FIRST, _PLACES, _SPARE
            return
        if self._turn_began is not None and thread_time() - self._turn_began > _TURN_SECONDS:
            self._size = max(_SIZE_MIN, self._size // 2)
        elif self._size < _SIZE_MAX:
            self._size += 1
        self._left = self._size
        self._begin()
        while flows and self._left:
            self._left -= 1
            flow = next(iter(flows))
            works = flows.pop(flow)
            work = works.popleft()
            if works:
                flows[flow] = works
            work()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
