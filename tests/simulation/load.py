"""The load of a long run without faults: callers who come at random all the time, as on any working day."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from tests.simulation.clients import Clients, Intent, is_settled
from tests.simulation.history import Call
from tests.simulation.loop import SimulatedLoop

# New operations: a mean, whose gaps are those of callers who know nothing of each other.
OPERATIONS_PER_SECOND: Final = 0.8

_ROUTES: Final = ("charge", "charge", "order", "order", "order", "note", "note", "pay", "book", "ping", "haul")
_HERDS: Final = (*(1,) * 14, 2, 3, 7)
_TRIES_MAX: Final = 12
# Nobody hangs up sooner who waits for the slowest route.
_PATIENCE_SECONDS: Final = 60.0


class Load:
    """Callers for one run."""

    def __init__(self, clients: Clients, *, loop: SimulatedLoop, dice: random.Random) -> None:
        self._clients, self._loop, self._dice = clients, loop, dice

    async def run(self, seconds: float) -> None:
        """New operations for so long; returns when all of their callers are gone."""
        until = self._loop.time() + seconds
        callers: list[asyncio.Task[None]] = []
        while True:
            await asyncio.sleep(self._dice.expovariate(OPERATIONS_PER_SECOND))
            if self._loop.time() >= until:
                break
            callers.append(asyncio.create_task(self._live(self._intent(len(callers)), until)))
        await asyncio.gather(*callers)

    def _intent(self, number: int) -> Intent:
        dice = self._dice
        route, scope = dice.choice(_ROUTES), dice.choice(("t1", "t2", "t3"))
        return Intent(route, scope, f"k{number}", b'{"amount":%d,"currency":"eur"}' % number)

    async def _live(self, intent: Intent, until: float) -> None:
        dice = self._dice
        for attempt in range(_TRIES_MAX):
            calls = [self._call(intent) for _ in range(dice.choice(_HERDS))]
            if any(map(is_settled, await asyncio.gather(*calls))):
                break
            await asyncio.sleep(0.5 * (attempt + 1))
        for _ in range(dice.choice((0, 0, 0, 1, 3))):
            pause_seconds = dice.choice((0.1, 3.0, 20.0, 300.0)) * dice.uniform(0.5, 1.5)
            if self._loop.time() + pause_seconds >= until:
                return
            await asyncio.sleep(pause_seconds)
            await self._call(intent)

    async def _call(self, intent: Intent) -> Call:
        dice = self._dice
        body = intent.body if dice.random() < 0.97 else intent.body.replace(b"eur", b"usd")
        patience_seconds = _PATIENCE_SECONDS if dice.random() < 0.98 else dice.uniform(0.01, 5.0)
        has_key = intent.route != "ping" or dice.random() < 0.8
        return await self._clients.call(intent, body, patience_seconds, has_key=has_key)
