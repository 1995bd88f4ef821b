"""How long steps that every request takes may last: one timer for all of them.

`asyncio.timeout` sets a timer and removes it again, which costs a request more than to find its record. Here a limit is
a number that one sweep looks at. It is for what nearly always ends long before; rare waits have timers of their own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from gateway.upstream.response import NEVER, Sweep


class _Due(Protocol):
    when: float

    def end(self) -> object: ...


class Limits:
    """The limits of one kind of work. Lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: dict[_Due, None] = {}
        """What ends at its time, unless it is taken out before."""
        self._sweep = Sweep(loop, self._look)

    def add(self, due: _Due) -> None:
        """End it at its time of the loop's clock."""
        self.due[due] = None
        if due.when < self._sweep.at:
            self._sweep.by(due.when)

    def _look(self) -> float:
        now = self.loop.time()
        for due in [each for each in self.due if each.when <= now]:
            # One of those before may have taken it out.
            if due in self.due:
                del self.due[due]
                due.end()
        return min((each.when for each in self.due), default=NEVER)


@dataclass(slots=True, eq=False)
class Limit:
    """A block that is cut off by `TimeoutError` at that time of the loop's clock, as by `asyncio.timeout_at`. Once."""

    limits: Limits
    when: float
    _is_over: bool = field(init=False, default=False)
    _cancelling: int = field(init=False)
    _task: asyncio.Task[object] = field(init=False)

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a limit is for a task")
        self._task, self._cancelling = task, task.cancelling()
        self.limits.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.limits.due.pop(self, None)
        # Only the own cancellation becomes a timeout.
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        self._is_over = True
        self._task.cancel()
