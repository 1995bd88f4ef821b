"""How long a step may take, by one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.protect.scheduling import Limit, Limits


@dataclass(eq=False)
class Call:
    """What an operation is to its limits: something to end at that time."""

    when: float
    end: Callable[[], object]


def within(limits: Limits, seconds: float) -> Limit:
    return Limit(limits, limits.loop.time() + seconds)


async def test_a_step_that_takes_too_long_is_cut_off() -> None:
    """By `TimeoutError`, whose cause is the cancellation; what its block waited for is cancelled."""
    loop = asyncio.get_running_loop()
    limits, never = Limits(loop), loop.create_future()
    began = loop.time()
    with pytest.raises(TimeoutError) as over, within(limits, 0.02):
        await never
    assert isinstance(over.value.__cause__, asyncio.CancelledError)
    assert never.cancelled()
    assert loop.time() - began >= 0.018
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_step_that_ends_in_time_is_left_alone() -> None:
    """Also while others are cut off: each has its own time."""
    loop = asyncio.get_running_loop()
    limits, done = Limits(loop), loop.create_future()

    async def slow() -> None:
        with within(limits, 0.01):
            await asyncio.Event().wait()

    async def quick() -> str:
        with within(limits, 30.0):
            return str(await done)

    waiting, cut = asyncio.create_task(quick()), asyncio.create_task(slow())
    with pytest.raises(TimeoutError):
        await cut
    done.set_result("in time")
    assert await waiting == "in time"


async def test_what_comes_after_a_step_is_not_cut_off() -> None:
    """Its limit ends with it, also where the step failed."""
    limits, ended = Limits(asyncio.get_running_loop()), asyncio.Event()

    async def steps() -> None:
        with within(limits, 0.01):
            pass
        with pytest.raises(KeyError), within(limits, 0.01):
            raise KeyError
        limits.add(Call(limits.loop.time() + 0.03, ended.set))
        await ended.wait()

    task = asyncio.create_task(steps())
    await asyncio.wait((task,))
    assert not task.cancelled()
    assert not limits.due


async def test_whoever_cancels_the_task_is_not_taken_for_the_limit() -> None:
    limits = Limits(asyncio.get_running_loop())

    async def step() -> None:
        with within(limits, 30.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_limit_inside_a_limit() -> None:
    """The outer one, which is over first, ends both."""
    limits = Limits(asyncio.get_running_loop())
    reached: list[str] = []

    async def step() -> None:
        with within(limits, 0.01):
            try:
                with within(limits, 30.0):
                    await asyncio.Event().wait()
            except TimeoutError:
                reached.append("inner")

    with pytest.raises(TimeoutError):
        await step()
    assert reached == []


async def test_what_was_taken_out_is_not_called() -> None:
    """And what is due is, in any order; also what was due before it was announced."""
    limits, called, ended = Limits(asyncio.get_running_loop()), list[str](), asyncio.Event()
    now = limits.loop.time()
    removed = Call(now + 0.01, lambda: called.append("removed"))
    for each in (removed, Call(now + 0.02, ended.set), Call(now - 1.0, lambda: called.append("late"))):
        limits.add(each)
    del limits.due[removed]
    await ended.wait()
    assert called == ["late"]
