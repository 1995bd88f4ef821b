"""Waiting for a condition that nothing can signal, with a deadline. Where an event can be awaited, await it instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PAUSE_SECONDS = 0.005


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], deadline_seconds: float = 10.0, what: str = "") -> T: ...
@overload
async def eventually(predicate: Callable[[], T], deadline_seconds: float = 10.0, what: str = "") -> T: ...
async def eventually(predicate: Callable[[], Any], deadline_seconds: float = 10.0, what: str = "") -> Any:
    """Ask again and again until the answer is true, and return it; other tasks run meanwhile.

    The predicate is a function or a coroutine function.

    Raises AssertionError, naming the last answer, when the deadline is over. What the predicate raises goes through.
    """
    deadline = time.monotonic() + deadline_seconds
    while not (answer := await _asked(predicate)):
        _check(deadline, deadline_seconds, what, answer)
        await asyncio.sleep(PAUSE_SECONDS)
    return answer


def eventually_blocking(predicate: Callable[[], T], deadline_seconds: float = 10.0, what: str = "") -> T:
    """`eventually` for code outside an event loop."""
    deadline = time.monotonic() + deadline_seconds
    while not (answer := predicate()):
        _check(deadline, deadline_seconds, what, answer)
        time.sleep(PAUSE_SECONDS)
    return answer


async def _asked(predicate: Callable[[], Any]) -> Any:
    answer = predicate()
    return await answer if isinstance(answer, Awaitable) else answer


def _check(deadline: float, deadline_seconds: float, what: str, answer: object) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"not within {deadline_seconds:g} s: {what or 'the condition'} (last answer: {answer!r})")
