"""Operators: an honest one, who looks at what is in doubt, asks the upstream's own ledger and writes down what it says;
and one who drops what is asked for."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID, uuid4

from gateway.admin.operations import Operations, audit_by
from gateway.admin.resolution import Changed, Refused
from gateway.core.message import IndexedHeaders, ResponseHead, StoredResponse
from gateway.core.operation import MICROSECONDS, Command, Disprove, Prove, Record, Reinstate, Requeue, State, Withdraw
from gateway.core.outcome import stored_response
from gateway.core.recovery import Hold
from gateway.protect.route import route_of
from tests.simulation.gateway import SimulatedGateway, configuration
from tests.simulation.history import Drop, Sent
from tests.simulation.store import Database

_NAME = "operator"
_GRANTS = frozenset(("claim", "dispatch", "takeover"))
# On his own watch: as long as a gateway may believe in a claim that the store's clock has ended.
_PATIENCE_SECONDS = 6.0
# What he requeues later than this before the end may not be delivered by then.
_LAST_SECONDS = 20.0

_AUDIT = audit_by("purger", "somebody asked for it")
_TRIES_MAX = 8
# Longer than a gateway repeats a command itself.
_COMMAND_SECONDS = 30.0
_DROPPABLE = frozenset((State.COMPLETED, State.RELEASED, State.TOMBSTONE))


class Operator:
    """Works once in a while, with some diligence."""

    def __init__(self, database: Database, dice: random.Random) -> None:
        self._database, self._dice = database, dice
        self._loop, self._history = database.weather.loop, database.weather.history
        self._diligence = dice.choice((0.0, 0.2, 0.7))
        # Where a gateway recovers by itself he mostly leaves it to do so.
        self._meddles = dice.random() < 0.3
        config = configuration()
        self._routes = {route.name: route_of(config, route, None) for route in config.routes}

    async def work(self, until: float) -> None:
        while self._loop.time() < until:
            await asyncio.sleep(self._dice.uniform(0.5, 4.0))
            for operation_id, snapshot in self._database.settled().items():
                record = snapshot.record
                if record is None:
                    continue
                if record.state is State.DEAD_LETTER and self._loop.time() < until - _LAST_SECONDS:
                    self._decide(operation_id, record)
                if record.state is not State.IN_DOUBT:
                    continue
                is_his = self._meddles or isinstance(self._routes[record.identity.route].recovery, Hold)
                if is_his and self._dice.random() < self._diligence:
                    self._resolve(operation_id, record)

    def _decide(self, operation_id: UUID, record: Record) -> None:
        """What becomes of a dead letter is his choice: whatever it is, nothing happened before."""
        if self._dice.random() >= self._diligence:
            return
        if self._dice.random() < 0.7:
            command: Command = Requeue(operation_id, record.token, uuid4(), 30 * MICROSECONDS)
        else:
            retention = self._routes[record.identity.route].retention
            command = Withdraw(operation_id, record.token, uuid4(), retention.remember_us)
        self._database.apply(command, _NAME)

    def _resolve(self, operation_id: UUID, record: Record) -> None:
        asked = str(operation_id)
        sent = [one for one in self._history.sent if one.operation_id == asked and one.is_protected]
        if any(not one.is_closed for one in sent):
            return
        granted = [
            change for change in self._history.changes if change.operation_id == asked and change.event in _GRANTS
        ]
        if granted[-1].at + _PATIENCE_SECONDS > self._loop.time():
            return
        retention = self._routes[record.identity.route].retention
        # What was before the record came into being is another window's.
        born = [change.at for change in granted if change.at_us == record.first_claimed_us]
        if not born:
            # It was claimed by a clock that was set back since: he cannot tell when, and leaves it listed.
            return
        done = [one for one in sent if one.effect is not None and one.sent >= max(born)]
        command: Command
        if done:
            ends = retention.replay_us, retention.remember_us
            command = Prove(operation_id, record.token, uuid4(), self._answer_of(done[-1]), *ends)
        elif record.delivery is not None and self._dice.random() < 0.8:
            command = Reinstate(operation_id, record.token, uuid4())
        else:
            command = Disprove(operation_id, record.token, uuid4(), retention.remember_us)
        self._database.apply(command, _NAME)

    def _answer_of(self, sent: Sent) -> StoredResponse:
        """The ledger's own answer, kept as the route keeps one."""
        headers = tuple((name.encode(), value.encode()) for name, value in sent.answer_headers)
        keep = self._routes[sent.route].keep
        is_long = len(sent.answer_body) > keep.body_bytes_max
        head = ResponseHead(sent.status, b"", IndexedHeaders(headers))
        return stored_response(b"POST", head, None if is_long else sent.answer_body, keep)


class Purger:
    """Drops answers and forgets keys at random, through some gateway's admin port, as the product has it."""

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

    async def _say(self, operation_id: UUID, *, is_erasure: bool) -> None:
        async def say(operations: Operations) -> Changed | Refused:
            if is_erasure:
                return await operations.erase(operation_id, _AUDIT, is_sure=True)
            return await operations.purge(operation_id, _AUDIT)

        for _ in range(_TRIES_MAX):
            life = self._dice.choice(self._gateways).life
            if life is not None and life.is_listening:
                task = life.operate(say)
                await asyncio.wait((task,), timeout=_COMMAND_SECONDS)
                said = _result_of(task)
                if isinstance(said, Refused):
                    return
                if said is not None and not said.purges_pending:
                    self._history.drops.append(Drop(str(operation_id), self._loop.time(), is_erasure))
                    return
            await asyncio.sleep(1.0)


def _result_of(task: asyncio.Task[Changed | Refused]) -> Changed | Refused | None:
    """What the gateway said; None where it is dead, or does not know."""
    if not task.done() or task.cancelled():
        return None
    return None if task.exception() is not None else task.result()
