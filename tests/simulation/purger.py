"""An operator who drops answers and forgets keys, through some gateway's admin port, as the product has it."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

from gateway.admin.operations import Operations, audit_by
from gateway.admin.resolution import Changed, Refused
from gateway.core.operation import State
from tests.simulation.gateway import SimulatedGateway
from tests.simulation.history import Drop
from tests.simulation.store import Database

_AUDIT = audit_by("purger", "somebody asked for it")
_TRIES_MAX = 8
# Longer than a gateway repeats a command itself.
_PATIENCE_SECONDS = 30.0
_DROPPABLE = frozenset((State.COMPLETED, State.RELEASED, State.TOMBSTONE))


class Purger:
    """Works `per_minute`, on operations at random."""

    def __init__(self, gateways: list[SimulatedGateway], database: Database, dice: random.Random) -> None:
        self._gateways, self._database, self._dice = gateways, database, dice
        self._loop, self._history = database.weather.loop, database.weather.history

    async def work(self, until: float, per_minute: float) -> None:
        """Begin to drop one after the other, until a moment of the run."""
        at_work: list[asyncio.Task[None]] = []
        while per_minute:
            await asyncio.sleep(self._dice.expovariate(per_minute / 60.0))
            if self._loop.time() >= until:
                break
            settled = self._database.settled()
            found = sorted(each for each, snapshot in settled.items() if snapshot.state in _DROPPABLE)
            if found:
                at_work.append(asyncio.create_task(self._drop(self._dice.choice(found))))
        await asyncio.gather(*at_work)

    async def _drop(self, operation_id: UUID) -> None:
        """Its answer, and often its key as well."""
        await self._say(operation_id, is_erasure=False)
        if self._dice.random() < 0.5:
            await asyncio.sleep(self._dice.choice((0.0, 0.0, 2.0)))
            await self._say(operation_id, is_erasure=True)

    async def _say(self, operation_id: UUID, *, is_erasure: bool) -> bool:
        async def say(operations: Operations) -> Changed | Refused:
            if is_erasure:
                return await operations.erase(operation_id, _AUDIT, is_sure=True)
            return await operations.purge(operation_id, _AUDIT)

        for _ in range(_TRIES_MAX):
            life = self._dice.choice(self._gateways).life
            if life is not None and life.is_listening:
                task = life.operate(say)
                await asyncio.wait((task,), timeout=_PATIENCE_SECONDS)
                said = _result_of(task)
                if isinstance(said, Refused):
                    return False
                if said is not None and not said.purges_pending:
                    self._history.drops.append(Drop(str(operation_id), self._loop.time(), is_erasure))
                    return True
            await asyncio.sleep(1.0)
        return False


def _result_of(task: asyncio.Task[Changed | Refused]) -> Changed | Refused | None:
    """What the gateway said; None where it is dead, or does not know."""
    if not task.done() or task.cancelled():
        return None
    return None if task.exception() is not None else task.result()
