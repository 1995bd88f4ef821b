"""Waiting for an announcement and giving up in time, where cancellations meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from gateway.protect.timing import Announcement, TimeLimit


def announcement() -> Announcement[str]:
    return Announcement(asyncio.get_running_loop())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_who_wait_hear_it() -> None:
    """Those who came before it, and those who come after it."""
    said = announcement()
    waiting = [asyncio.create_task(said.wait()) for _ in range(2)]
    await turns()
    assert not any(task.done() for task in waiting)
    said.announce("done")
    assert await asyncio.gather(*waiting, said.wait()) == ["done"] * 3


async def test_it_is_said_once() -> None:
    """A second value is a defect of whoever says it."""
    said = announcement()
    said.announce("one")
    with pytest.raises(RuntimeError):
        said.announce("two")
    assert await said.wait() == "one"


async def test_who_stops_waiting_concerns_nobody_else() -> None:
    """One waiter is cancelled, before the value and in the very turn of it; the other hears it."""
    said = announcement()
    gone, torn, other = (asyncio.create_task(said.wait()) for _ in range(3))
    await turns()
    gone.cancel()
    await turns()
    said.announce("done")
    torn.cancel()
    assert await other == "done"
    for task in (gone, torn):
        with pytest.raises(asyncio.CancelledError):
            await task


def within(seconds: float) -> TimeLimit:
    loop = asyncio.get_running_loop()
    return TimeLimit(loop, loop.time() + seconds)


async def fail_after(waited: Awaitable[object]) -> None:
    try:
        await waited
    finally:
        raise KeyError


async def test_a_block_in_time_is_left_alone() -> None:
    """Value and exception come through, and nothing happens afterwards."""
    with within(60.0):
        await turns()
    with pytest.raises(KeyError), within(60.0):
        await fail_after(turns())
    await turns()


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0], ids=["soon", "now", "before"])
async def test_a_block_that_takes_too_long_is_ended(seconds: float) -> None:
    """It ends with TimeoutError, and the task goes on undisturbed."""
    with pytest.raises(TimeoutError), within(seconds):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await turns()


async def test_a_block_may_end_by_itself_although_the_time_is_over() -> None:
    """An exception of its own on the way out is not taken for the time's."""
    with pytest.raises(KeyError), within(0.0):
        await fail_after(asyncio.Event().wait())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_is_one() -> None:
    """It is never taken for the end of the time, nor swallowed."""
    entered = asyncio.Event()

    async def work() -> None:
        with within(60.0):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
async def test_a_cancellation_from_outside_in_the_turn_in_which_the_time_is_over(is_first: bool) -> None:
    """Of both at once the one from outside counts."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        at = loop.time()
        if is_first:
            loop.call_at(at, task.cancel)
        with TimeLimit(loop, at):
            if not is_first:
                loop.call_at(at, task.cancel)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limits_in_limits() -> None:
    """The outer one ends both; the inner one alone ends only itself."""
    with pytest.raises(TimeoutError), within(0.0), within(60.0):
        await asyncio.Event().wait()
    with within(60.0):
        with pytest.raises(TimeoutError), within(0.0):
            await asyncio.Event().wait()
        await turns()


def test_outside_of_a_task() -> None:
    """There is nothing to end."""
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(RuntimeError), TimeLimit(loop, 0.0):
            pass
    finally:
        loop.close()
