"""The timer of background work: a pass, a pause, again.

It decides when, never what. A pass that fails is logged and followed by a longer pause; it never ends the timer,
because nobody would notice that upkeep has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from gateway.store.base import StoreError

_LOG = logging.getLogger("gateway")

_FAILURES_DOUBLED_MAX: Final = 5
# Gateways that were started together must not stay in step.
_JITTER: Final = 0.2

Sleep = Callable[[float], Awaitable[object]]


async def repeat(
    run_pass: Callable[[], Awaitable[float]],
    *,
    pause_seconds: float,
    pause_seconds_max: float | None = None,
    at_once: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> NoReturn:
    """Run a pass for ever, until cancelled. A pass returns the pause to make after it, in seconds. The pause before the
    first pass is at most `pause_seconds`; with `at_once` there is none. After failures it doubles, up to
    `pause_seconds_max`; twice the usual one if that is None, so that an outage of hours delays the first pass after it
    no more than a short one."""
    longest = 2 * pause_seconds if pause_seconds_max is None else max(pause_seconds_max, pause_seconds)
    failures = 0
    if not at_once:
        await sleep(pause_seconds * random.random())  # noqa: S311 -- spreads load, keeps no secret
    while True:
        pause = await _result_of(run_pass)
        failures = 0 if pause is not None else min(failures + 1, _FAILURES_DOUBLED_MAX)
        if pause is None:
            pause = min(pause_seconds * 2**failures, longest)
        await sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311


async def _result_of(run_pass: Callable[[], Awaitable[float]]) -> float | None:
    """The pause to make after it; None if it failed."""
    try:
        return await run_pass()
    except StoreError as error:
        _LOG.debug("upkeep will be tried again: %s", error)
    except Exception:  # noqa: BLE001 -- logged here; if the timer ended, upkeep would stop unnoticed
        _LOG.exception("upkeep failed because of a bug, and will be tried again")
    return None
