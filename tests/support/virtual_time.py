"""Tests in virtual time: when nothing is ready to run, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class _Selector(selectors.SelectSelector):
    """Finds nothing, and takes no time for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and no timer will wake them")
        self.now_seconds += max(0.0, timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_seconds


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine test so. Its end finds every task ended, and no error unheard."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def whole() -> None:
            unheard: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
            await test(*arguments, **named)
            for _ in range(3):
                await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks left behind: {left}"
            assert not unheard, f"errors that nobody heard: {unheard}"

        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(whole())

    # Pytest must see the arguments, and no coroutine function behind the wrapper.
    del run.__wrapped__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def settle(steps: int = 20) -> None:
    """Let what is ready run, without any time passing."""
    for _ in range(steps):
        await asyncio.sleep(0)
