"""Time limits for waits that hardly ever come to them.

A timer of the event loop costs more than most of the waits under it: it is made, put in order, and taken out again for
nothing. Here all waits share one. It is set for the earliest of them, and when it fires and finds nobody late, for the
earliest that is left.

Invariant: as with `asyncio.timeout`, a limit that was reached cancels its own block and nobody else's, and a
cancellation from outside stays one.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

_NEVER = float("inf")


class TimeLimits:
    """The limits of one part of the program. Belongs to the event loop that uses it first."""

    def __init__(self) -> None:
        self._held: set[TimeLimit] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    def within(self, seconds: float) -> TimeLimit:
        """`with limits.within(3): …` raises TimeoutError when the block, awaits included, takes longer."""
        return TimeLimit(self, seconds)

    def add(self, limit: TimeLimit) -> None:
        """Watch over a limit; called by itself."""
        self._held.add(limit)
        if limit.until < self._timer_at:
            self._set_timer(limit.until)

    def drop(self, limit: TimeLimit) -> None:
        """Watch over it no longer."""
        self._held.discard(limit)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        now = asyncio.get_running_loop().time()
        for limit in [limit for limit in self._held if limit.until <= now]:
            self._held.discard(limit)
            limit.reach()
        if self._held:
            self._set_timer(min(limit.until for limit in self._held))


class TimeLimit:
    """One block under a limit."""

    __slots__ = ("_cancelling", "_is_reached", "_limits", "_seconds", "_task", "until")

    def __init__(self, limits: TimeLimits, seconds: float) -> None:
        self._limits = limits
        self._seconds = seconds
        self._is_reached = False
        self.until = _NEVER

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is for a task")
        self._task = task
        self._cancelling = task.cancelling()
        self.until = asyncio.get_running_loop().time() + self._seconds
        self._limits.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.drop(self)
        if self._is_reached and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def reach(self) -> None:
        """The time is over."""
        self._is_reached = True
        self._task.cancel()
