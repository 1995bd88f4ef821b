"""How long a step may take, by one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.protect.claiming import Limit, Limits


@dataclass(eq=False)
class Call:
    """What an operation is to its limits: something to end at that time."""

    when: float
    end: Callable[[], object]


def within(limits: Limits, seconds: float) -> Limit:
    return Limit(limits, limits.loop.time() + seconds)


async def test_what_comes_after_a_step_is_not_cut_off() -> None:
    """Its limit ends with it, also where the step failed."""
    limits, ended = Limits(asyncio.get_running_loop()), asyncio.Event()

    async def steps() -> None:
        with within(limits, 0.01):
            pass
        with pytest.raises(KeyError), within(limits, 0.01):
            raise KeyError
        call = Call(limits.loop.time() + 0.03, ended.set)
        limits.due[call] = None
        limits.sweep.by(call.when)
        await ended.wait()

    task = asyncio.create_task(steps())
    await asyncio.wait((task,))
    assert not task.cancelled()
    assert not limits.due
