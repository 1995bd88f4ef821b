"""The model: a store that executes `lifecycle.step` on a dictionary, under a clock that only its owner moves.

It has no logic of its own, so it is what every other store is compared with. `Memory` is the database, which outlives
the `MemoryStore` objects that are opened on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from gateway.core.lifecycle import settle, step
from gateway.core.operation import (
    MICROSECONDS,
    Command,
    Record,
    Result,
    Snapshot,
    State,
    microseconds,
    operation_id_of,
)
from gateway.store.base import NotApplied, RecipeConflict, Swept, Tally, Watch
from gateway.store.watching import Watchers

# Any instant will do; one that looks like a wall clock lets databases show it as a date.
EPOCH_US = 1_800_000_000 * MICROSECONDS


class ManualClock:
    """Microseconds that pass only when told. Callable, as the `clock_us` of a store."""

    def __init__(self, now_us: int = EPOCH_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += microseconds(seconds)


@dataclass(slots=True)
class Memory:
    """What a restart does not forget."""

    clock: ManualClock = field(default_factory=ManualClock)
    records: dict[UUID, Record] = field(default_factory=dict)
    tokens: count[int] = field(default_factory=lambda: count(1))
    recipes: dict[str, bytes] = field(default_factory=dict)
    watchers: Watchers = field(default_factory=Watchers)

    def draw_token(self) -> int:
        return next(self.tokens)

    def keep(self, operation_id: UUID, record: Record | None) -> None:
        """Write the record as it now is. An unchanged one is no news."""
        if record is self.records.get(operation_id):
            return
        if record is None:
            self.records.pop(operation_id)
        else:
            self.records[operation_id] = record
        self.watchers.announce(operation_id)


class MemoryStore:
    """The `Store` of the tests. Atomic because no verb awaits anything between reading and writing."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = Memory() if memory is None else memory
        self._started = False

    async def start(self) -> None:
        self._started = True

    async def close(self) -> None:
        self._started = False

    async def apply(self, command: Command) -> Result:
        self._check_started()
        return self.apply_now(command)

    def apply_now(self, command: Command) -> Result:
        """`apply`, for those who have no event loop."""
        memory, operation_id = self.memory, operation_id_of(command)
        result, record = step(memory.records.get(operation_id), command, memory.clock(), memory.draw_token)
        memory.keep(operation_id, record)
        return result

    async def read(self, operation_id: UUID) -> Snapshot:
        self._check_started()
        return self.read_now(operation_id)

    def read_now(self, operation_id: UUID) -> Snapshot:
        """`read`, for those who have no event loop."""
        now_us = self.memory.clock()
        return Snapshot(settle(self.memory.records.get(operation_id), now_us), now_us)

    async def sweep(self, limit: int) -> Swept:
        self._check_started()
        memory, written = self.memory, Counter[State]()
        for operation_id, record in list(memory.records.items()):
            settled = settle(record, memory.clock())
            if settled is record:
                continue
            if written.total() == limit:
                return _swept(written, more=True)
            memory.keep(operation_id, settled)
            written[State.ABSENT if settled is None else settled.state] += 1
        return _swept(written, more=False)

    async def tally(self) -> Tally:
        self._check_started()
        now_us = self.memory.clock()
        settled = (settle(record, now_us) for record in self.memory.records.values())
        in_doubt = [record for record in settled if record is not None and record.state is State.IN_DOUBT]
        oldest_us = max((now_us - record.claimed_us for record in in_doubt), default=0)
        return Tally(Counter(record.identity.route for record in in_doubt), oldest_us / MICROSECONDS)

    async def agree_recipes(self, recipes: Mapping[str, bytes], accept: frozenset[str]) -> list[RecipeConflict]:
        self._check_started()
        now_us, known = self.memory.clock(), self.memory.recipes
        alive = Counter(
            record.identity.operation for record in self.memory.records.values() if settle(record, now_us) is not None
        )
        conflicts = [
            RecipeConflict(operation, alive[operation])
            for operation, recipe in sorted(recipes.items())
            if known.get(operation, recipe) != recipe and alive[operation] and operation not in accept
        ]
        if not conflicts:
            known.update(recipes)
        return conflicts

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self.memory.watchers.watch(operation_id)

    def _check_started(self) -> None:
        if not self._started:
            raise NotApplied("the store is not open")


def _swept(written: Counter[State], *, more: bool) -> Swept:
    return Swept(written[State.IN_DOUBT], written[State.TOMBSTONE], written[State.ABSENT], more)
