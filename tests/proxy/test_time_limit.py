"""Limits on waits that share one timer: each ends its own block, in its own time, and nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.time_limit import TimeLimits


async def test_a_block_that_takes_too_long_ends() -> None:
    """By TimeoutError, and the task goes on."""
    limits = TimeLimits()
    with pytest.raises(TimeoutError), limits.within(0.01):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_block_in_time_is_left_alone() -> None:
    """Also long after it ended, when the timer fires that was set for it."""
    limits = TimeLimits()
    with limits.within(0.01):
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)


async def test_each_block_has_its_own_time() -> None:
    """Whatever the order in which they begin and end."""
    limits = TimeLimits()
    ended: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        with pytest.raises(TimeoutError), limits.within(seconds):
            await asyncio.Event().wait()
        ended.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("last", 0.15), ("first", 0.01), ("second", 0.08)):
            group.create_task(wait(name, seconds))
        with limits.within(30.0):
            await asyncio.sleep(0)
    assert ended == ["first", "second", "last"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    """Even where the limit is reached in the same step."""
    limits = TimeLimits()
    begun = asyncio.Event()

    async def wait() -> None:
        with limits.within(0.0):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_block_is_its_own() -> None:
    """It is not taken for the end of the time."""
    limits = TimeLimits()
    with pytest.raises(KeyError), limits.within(10.0):
        raise KeyError("mine")


async def test_limits_may_lie_in_one_another() -> None:
    """The inner one ends the inner block, and the outer one the outer."""
    limits = TimeLimits()
    ended: list[str] = []

    async def wait_twice() -> None:
        try:
            with limits.within(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append("inner")
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError), limits.within(0.05):
        await wait_twice()
    assert ended == ["inner"]
