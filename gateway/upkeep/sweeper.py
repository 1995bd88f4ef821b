"""Writes what became due: leases that lapsed, responses and deliveries that expired, keys no longer remembered.

Owns how much is swept at once and how often. The store knows what is due; of its gateways, the one whose turn it is
sweeps. Since every read is settled, a late or missing sweep makes nothing wrong. So the sweep yields to requests: it
works in bounded batches, pauses after each for as long as the batch took, and stops once the gateway drains.

A store's clock that was set back is corrected by a sweep alone (`lifecycle.written_down`), and callers wait for that.
So each gateway sweeps at its start, before which nobody may have seen the clock, and whenever it has seen a step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NoReturn

from gateway.observe.facts import Events, SweepDone
from gateway.store.base import boot_seconds
from gateway.store.operations import Swept, Upkeep
from gateway.upkeep.timer import LOOK_SECONDS, Sleep, repeat

_BATCH_RECORDS_MAX: Final = 500
_BATCHES_MAX: Final = 20
# After a pass that left work. Short: each batch was followed by a pause already, and one gateway has to keep up with
# the keys of all.
_BRISK_PAUSE_SECONDS: Final = 0.1
# Bounds of the pause after a batch.
_GIVE_WAY_SECONDS_MIN: Final = 0.01
_GIVE_WAY_SECONDS_MAX: Final = 5.0


@dataclass(eq=False, slots=True)
class Sweeper:
    """Sweeps one store, `limit` records at a time, every `pass_seconds`, while it `has_turn`."""

    store: Upkeep
    events: Events
    _: KW_ONLY
    has_turn: Callable[[], bool] = lambda: True
    clock_steps: Callable[[], int] = lambda: 0
    limit: int = _BATCH_RECORDS_MAX
    pass_seconds: float = 30.0
    clock: Callable[[], float] = boot_seconds
    sleep: Sleep = asyncio.sleep
    _is_stopped: bool = field(default=False, init=False)
    # The steps of the store's clock before the last sweep, and when the next one is due.
    _steps_before: int | None = field(default=None, init=False)
    _next_seconds: float = field(default=0.0, init=False)

    def stop(self) -> None:
        """Sweep no more. The current batch finishes; no other follows."""
        self._is_stopped = True

    async def run_once(self, *, is_urgent: bool = False) -> Swept:
        """Sweep what is due, up to a bound, and return the sum; `more` when something is left. `is_urgent`: whoever has
        the turn. Raises `StoreError`, after publishing what the batches before it wrote. If cancelled, only the count
        of the current batch is lost."""
        started = self.clock()
        total, batches = Swept(), 0
        try:
            while not self._is_stopped and (is_urgent or self.has_turn()):
                batch_started = self.clock()
                total += await self.store.sweep(self.limit)
                batches += 1
                if not total.more or batches == _BATCHES_MAX:
                    break
                spent_seconds = self.clock() - batch_started
                await self.sleep(min(max(spent_seconds, _GIVE_WAY_SECONDS_MIN), _GIVE_WAY_SECONDS_MAX))
        finally:
            if batches:
                duration_seconds = self.clock() - started
                counts = (total.lapsed, total.retired, total.collected)
                self.events.publish(SweepDone(*counts, duration_seconds, total.named, total.expired))
        return total

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=min(LOOK_SECONDS, self.pass_seconds), at_once=True, sleep=self.sleep)

    async def _pass(self) -> float:
        steps = self.clock_steps()
        is_urgent = steps != self._steps_before
        if is_urgent or (self.has_turn() and self.clock() >= self._next_seconds):
            swept = await self.run_once(is_urgent=is_urgent)
            if swept.more:
                return min(_BRISK_PAUSE_SECONDS, self.pass_seconds)
            self._steps_before = steps
            self._next_seconds = self.clock() + self.pass_seconds * random.uniform(0.8, 1.2)  # noqa: S311
        return min(LOOK_SECONDS, self.pass_seconds)
