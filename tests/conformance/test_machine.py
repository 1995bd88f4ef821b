"""Long random histories of several operations, with restarts, sweeps and crowds: store and model agree."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gateway.store.base import Store
from tests.conformance.cases import MOVES, PAUSES, SPEECHES
from tests.conformance.hand import increasing
from tests.conformance.pair import Pair
from tests.conformance.stores import STORES, Database
from tests.support.memory_store import ManualClock

OPERATIONS = 3
SAID = MOVES | SPEECHES
SETTINGS = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Entitled speakers more often than the others: histories that come to nothing show nothing.
speeches = st.one_of(st.sampled_from(sorted(MOVES)), st.sampled_from(sorted(SAID)))
operations = st.integers(0, OPERATIONS - 1)


class Machine(RuleBasedStateMachine):
    """A history of a few operations, told to a store and to the model. All histories of a run share the event loop and
    the store; each brings its own operations."""

    database: ClassVar[Database]
    runner: ClassVar[asyncio.Runner]
    clock: ClassVar[ManualClock]
    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.is_restarted = False
        self.pairs = [Pair.new(self.clock) for _ in range(OPERATIONS)]

    @classmethod
    def open(cls) -> None:
        cls.store = cls.database.open_store()
        cls.runner.run(cls.store.start())

    def agree(self, *told: list[str]) -> None:
        assert [*told, *(pair.differences(exact=self.database.exact) for pair in self.pairs)] == [
            [] for _ in range(OPERATIONS + len(told))
        ]

    @rule(operation=operations, name=speeches)
    def say(self, operation: int, name: str) -> None:
        self.agree(self.runner.run(self.pairs[operation].say(self.store, SAID[name])))

    @rule(names=st.tuples(*[speeches] * OPERATIONS))
    def say_at_once(self, names: tuple[str, ...]) -> None:
        async def everybody() -> list[list[str]]:
            return await asyncio.gather(
                *(pair.say(self.store, SAID[name]) for pair, name in zip(self.pairs, names, strict=True))
            )

        self.agree(*self.runner.run(everybody()))

    @rule(pause=st.sampled_from(sorted(PAUSES)))
    def pass_time(self, pause: str) -> None:
        self.clock.advance(PAUSES[pause])
        self.runner.run(self.database.advance(PAUSES[pause]))

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        self.runner.run(self.store.sweep(limit))

    @precondition(lambda self: not self.is_restarted)
    @rule()
    def restart(self) -> None:
        """Once a history: on a server it takes longer than all the rest."""
        self.is_restarted = True
        self.runner.run(self.store.close())
        self.open()

    @rule(operation=operations)
    def read(self, operation: int) -> None:
        self.runner.run(self.pairs[operation].look(self.store))
        self.agree()

    @invariant()
    def tokens_increase(self) -> None:
        assert all(increasing(pair.theirs.tokens) for pair in self.pairs)

    def teardown(self) -> None:
        for pair in self.pairs:
            self.runner.run(pair.look(self.store))
            assert self.runner.run(pair.audit_differences(self.store)) == []
        self.agree()


# The store in memory is the model.
@pytest.mark.parametrize("database", sorted(STORES.keys() - {"memory"}), indirect=True)
def test_the_store_and_the_model_tell_the_same_history(database: Database) -> None:
    with asyncio.Runner() as runner:
        kept = {"database": database, "runner": runner, "clock": ManualClock()}
        machine = type("Told", (Machine,), kept)
        machine.open()
        try:
            run_state_machine_as_test(machine, settings=SETTINGS)
        finally:
            runner.run(machine.store.close())
