"""Tests in virtual time: when nothing is ready to run, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from tests.simulation.loop import SimulatedLoop

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine test so. Its end finds every task ended, and no error unheard."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def whole() -> None:
            await test(*arguments, **named)
            for _ in range(3):
                await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks left behind: {left}"
            assert not loop.complaints, f"errors that nobody heard: {loop.complaints}"

        loop = SimulatedLoop(random.Random(0))
        loop.run(whole())

    # Pytest must see the arguments, and no coroutine function behind the wrapper.
    del run.__wrapped__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def settle(steps: int = 20) -> None:
    """Let what is ready run, without any time passing."""
    for _ in range(steps):
        await asyncio.sleep(0)
