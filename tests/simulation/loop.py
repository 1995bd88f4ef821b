"""An event loop in virtual time on which several simulated processes live beside each other.

Owns the clock, and which process runs next. Knows nothing of gateways. The same seed and the same work give the same
run, step for step: nothing here depends on an address, a hash or the wall clock.

Theory of operation
-------------------
*Processes.* Every callback belongs to one, by a context variable that tasks and timers inherit. Each has queues of its
own and runs as a real event loop does: what was ready before, then input, then timers, one round at a time. Between
rounds any other process may run, and the seed says which. Input that is there at the same time comes in any order.

*Time* moves only when nobody has anything to do. It is counted in ticks of 1/1024 s and every moment is rounded up to
one, as `epoll` does, so that things that nearly meet often do meet.

*Freezing* (SIGSTOP) stops the rounds of a process while time goes on; thawed, it finds all its input and timers at
once. *Killing* takes everything that it had: tasks stay where they are, for ever, and nothing of theirs runs, not even
a `finally`.

Within a process the order of `call_soon` is kept, because asyncio promises it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TICKS_PER_SECOND = 1024
NEVER = math.inf


class NumberedTask(asyncio.Task[Any]):
    """A task that is hashed by its number within the run, so that a set of tasks has the same order in every run."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: SimulatedLoop, **options: Any) -> None:
        self.number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class Process:
    """One simulated process: its queues, and whether it runs."""

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.is_alive = True
        self.frozen_until = 0.0
        # Not later than the moment at which it has something to do next; exact after each round.
        self.soonest = NEVER
        self._loop = loop
        self._ready: deque[asyncio.Handle] = deque()
        self._input: list[tuple[float, int, asyncio.Handle]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._tasks: list[NumberedTask] = []
        self.context = copy_context()
        self.context.run(_process.set, self)

    # -- seen from outside --------------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this process."""
        return self.context.run(self._loop.create_task, work)

    def deliver(self, delay_seconds: float, callback: Callable[..., object], *arguments: object) -> None:
        """Input for this process, after a delay. Nothing arrives at a dead one."""
        if self.is_alive:
            handle = asyncio.Handle(callback, arguments, self._loop, self.context)
            when = self._loop.moment_after(delay_seconds)
            heapq.heappush(self._input, (when, next(self._loop.numbers), handle))
            if when < self.soonest:
                self.soonest = when

    async def take_turn(self, delay_seconds: float) -> None:
        """Return when an input of its own has arrived."""
        arrived: asyncio.Future[None] = self._loop.create_future()
        self.deliver(delay_seconds, answer, arrived)
        await arrived

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self._loop.moment_after(seconds))

    def kill(self) -> None:
        """At once, without a final command."""
        self.is_alive = False
        self._ready.clear()
        self._input.clear()
        self._timers.clear()
        self.soonest = NEVER

    @property
    def unfinished(self) -> list[NumberedTask]:
        return [task for task in self._tasks if not task.done()]

    # -- seen from the loop -------------------------------------------------------------------------------------------

    def adopt(self, task: NumberedTask) -> None:
        self._tasks.append(task)
        if len(self._tasks) > 500:
            self._tasks = self.unfinished

    def add_ready(self, handle: asyncio.Handle) -> None:
        if self.is_alive:
            self._ready.append(handle)
            self.soonest = 0.0

    def add_timer(self, when: float, handle: asyncio.TimerHandle) -> None:
        if self.is_alive:
            heapq.heappush(self._timers, (when, next(self._loop.numbers), handle))
            if when < self.soonest:
                self.soonest = when

    def _next_moment(self) -> float:
        if self._ready:
            return 0.0
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        moment = timers[0][0] if timers else NEVER
        return min(moment, self._input[0][0]) if self._input else moment

    def run_round(self, now: float, order: random.Random) -> None:
        """One turn of an event loop: what is ready, then input, then timers that are due."""
        ready = self._ready
        if self._input and self._input[0][0] <= now:
            arrived = []
            while self._input and self._input[0][0] <= now:
                arrived.append(heapq.heappop(self._input)[2])
            if len(arrived) > 1:
                order.shuffle(arrived)
            ready.extend(arrived)
        while self._timers and self._timers[0][0] <= now:
            ready.append(heapq.heappop(self._timers)[2])
        for _ in range(len(ready)):
            if not ready:  # it was killed by itself
                break
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        self.soonest = self._next_moment()

    def bury(self) -> None:
        """End what the dead left, so that nothing of it runs when the memory is collected. Needs the running loop."""
        while left := self.unfinished:
            self._tasks = []
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    self.context.run(task.get_coro().close)


def answer(future: asyncio.Future[Any], value: object = None) -> None:
    """If it still waits for one."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """If it still waits for an answer."""
    if not future.done():
        future.set_exception(error)


_process: ContextVar[Process] = ContextVar("process")


def running_process() -> Process | None:
    """The process as which the caller runs; None outside of all of them."""
    return _process.get(None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `run` it once; it is closed afterwards."""

    def __init__(self, order: random.Random) -> None:
        super().__init__()
        self._order = order
        self.numbers = itertools.count()
        self._now = 0.0
        self._processes: list[Process] = []
        self._everybody: list[Process] = []
        self.world = self.add_process("world")
        self.rounds = 0
        self.complaints: list[str] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._complain)

    def add_process(self, name: str) -> Process:
        process = Process(name, self)
        self._processes.append(process)
        self._everybody.append(process)
        return process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the world's own coroutine to its end; all other processes end with it."""
        try:
            return self.run_until_complete(self.world.start(work))
        finally:
            self.run_until_complete(self.world.start(self._bury_all()))
            self.close()

    async def _bury_all(self) -> None:
        others = [process for process in self._everybody if process is not self.world]
        for end in (Process.kill, Process.bury):
            for process in others:
                end(process)

    def moment_after(self, delay_seconds: float) -> float:
        """The tick at which a delay from now is over."""
        return math.ceil((self._now + max(delay_seconds, 0.0)) * TICKS_PER_SECOND) / TICKS_PER_SECOND

    # -- what asyncio asks of a loop ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        context.get(_process, self.world).add_ready(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        context.get(_process, self.world).add_timer(self.moment_after(when - self._now), handle)
        return handle

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Threads take no time here."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- it is the caller's
            future.set_exception(error)
        return future

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> NumberedTask:
        task = NumberedTask(coro, loop=self, **options)
        _process.get().adopt(task)
        return task

    def _complain(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        self.complaints.append(f"{details.get('message')}: {details.get('exception')!r}")

    def _run_once(self) -> None:
        self.rounds += 1
        due = self._due()
        if not due:
            self._processes = [process for process in self._processes if process.is_alive]
            self._now = min((max(each.soonest, each.frozen_until) for each in self._processes), default=NEVER)
            if self._now == NEVER:
                raise RuntimeError("everybody waits for ever")
            due = self._due()
        if len(due) > 1:
            self._order.shuffle(due)
        for process in due:
            # One of the others may have killed or frozen it.
            if process.is_alive and process.frozen_until <= self._now:
                process.run_round(self._now, self._order)

    def _due(self) -> list[Process]:
        now = self._now
        return [process for process in self._processes if process.soonest <= now and process.frozen_until <= now]
