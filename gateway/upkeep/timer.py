"""The timer of background work: a pass, a pause, again.

It decides when, never what. A pass that fails is logged and followed by a longer pause; it never ends the timer,
because nobody would notice that upkeep has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final, NoReturn
from uuid import UUID, uuid4

from gateway.core.operation import microseconds
from gateway.store.base import StoreError, boot_seconds
from gateway.store.operations import Upkeep

# -- timer -------------------------------------------------------------------------------------------------------------

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


# -- turns -------------------------------------------------------------------------------------------------------------
# Which work of upkeep this process does for all gateways of a store.
#
# The store leases each turn, by its own clock, to whoever asks first. Whoever has all asks again early enough to try
# once more before they end; whoever lacks one asks more often. A process believes its turn for the length of a lease
# from the moment before it asked, so that a slow answer makes no turn longer. One that was frozen finds its turn over
# when it goes on; what it had begun may end beside the next holder's work, which is safe (`store.operations`).

LEASE_SECONDS: Final = 15.0
_ASK_SECONDS: Final = LEASE_SECONDS / 3
_KEEP_SECONDS: Final = LEASE_SECONDS / 2
# After a failure, doubled up to the above.
_AGAIN_SECONDS: Final = 1.0
# A stop waits no longer for a store that is slow or down.
_LEAVE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 1.0
"""How often a worker without a turn looks for one, at no cost."""


Duty = StrEnum("Duty", "SWEEP RECOVERY TALLY")
"""Work that one gateway does for all."""


@dataclass(eq=False, slots=True)
class Turns:
    """The turns of one process. `names` are those of the turns in the store, of the duties that it has work for."""

    store: Upkeep
    names: Mapping[Duty, str]
    _: KW_ONLY
    clock: Callable[[], float] = boot_seconds
    sleep: Sleep = asyncio.sleep
    _holder: UUID = field(default_factory=uuid4, init=False)
    _until: dict[str, float] = field(default_factory=dict, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Have no turn any more. `leave` tells the store."""
        self._is_stopped = True

    def has(self, duty: Duty) -> bool:
        name = self.names.get(duty)
        return name is not None and not self._is_stopped and self.clock() < self._until.get(name, 0.0)

    async def run_once(self) -> None:
        """Ask for all turns. Raises `StoreError`; what was leased before goes on."""
        if self._is_stopped:
            return
        asked, names = self.clock(), frozenset(self.names.values())
        taken = await self.store.take_turns(self._holder, names, microseconds(LEASE_SECONDS))
        self._until = dict.fromkeys(taken, asked + LEASE_SECONDS)

    async def run(self) -> NoReturn:
        await repeat(
            self._pass, pause_seconds=_AGAIN_SECONDS, pause_seconds_max=_ASK_SECONDS, at_once=True, sleep=self.sleep
        )

    async def _pass(self) -> float:
        await self.run_once()
        has_all = all(self.has(duty) for duty in self.names)
        return _KEEP_SECONDS if has_all else _ASK_SECONDS

    async def leave(self) -> None:
        """Leave all turns to others. If the store cannot be told, they end with their leases."""
        self.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.store.leave_turns(self._holder)
