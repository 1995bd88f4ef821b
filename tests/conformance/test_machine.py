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
from tests.conformance.hand import Speech, increasing
from tests.conformance.pair import Pair
from tests.conformance.stores import STORES, Database
from tests.support.memory_store import ManualClock

OPERATIONS = 3
SETTINGS = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Entitled speakers more often than the others: histories that come to nothing show nothing.
speeches = st.one_of(st.sampled_from(sorted(MOVES)), st.sampled_from(sorted(MOVES | SPEECHES)))
operations = st.integers(0, OPERATIONS - 1)


def speech(name: str) -> Speech:
    return (MOVES | SPEECHES)[name]


class Seat:
    """The event loop and the store under test, which all examples of one run share; each brings its own operations."""

    def __init__(self, database: Database, runner: asyncio.Runner) -> None:
        self.database = database
        self.runner = runner
        self.clock = ManualClock()
        self.store: Store = database.open_store()
        runner.run(self.store.start())

    def restart(self) -> None:
        self.runner.run(self.store.close())
        self.store = self.database.open_store()
        self.runner.run(self.store.start())


class Machine(RuleBasedStateMachine):
    """A history of a few operations; told to the store and the model of its seat."""

    seat: ClassVar[Seat]

    def __init__(self) -> None:
        super().__init__()
        self.is_restarted = False
        self.pairs = [Pair.new(self.seat.clock) for _ in range(OPERATIONS)]

    def agree(self, *told: list[str]) -> None:
        assert [*told, *(pair.differences(exact=self.seat.database.exact) for pair in self.pairs)] == [
            [] for _ in range(OPERATIONS + len(told))
        ]

    @rule(operation=operations, name=speeches)
    def say(self, operation: int, name: str) -> None:
        self.agree(self.seat.runner.run(self.pairs[operation].say(self.seat.store, speech(name))))

    @rule(names=st.tuples(*[speeches] * OPERATIONS))
    def say_at_once(self, names: tuple[str, ...]) -> None:
        async def everybody() -> list[list[str]]:
            return await asyncio.gather(
                *(pair.say(self.seat.store, speech(name)) for pair, name in zip(self.pairs, names, strict=True))
            )

        self.agree(*self.seat.runner.run(everybody()))

    @rule(pause=st.sampled_from(sorted(PAUSES)))
    def pass_time(self, pause: str) -> None:
        self.seat.clock.advance(PAUSES[pause])
        self.seat.runner.run(self.seat.database.advance(PAUSES[pause]))

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        self.seat.runner.run(self.seat.store.sweep(limit))

    @precondition(lambda self: not self.is_restarted)
    @rule()
    def restart(self) -> None:
        """Once a history: on a server it takes longer than all the rest."""
        self.is_restarted = True
        self.seat.restart()

    @rule(operation=operations)
    def read(self, operation: int) -> None:
        self.seat.runner.run(self.pairs[operation].look(self.seat.store))
        self.agree()

    @invariant()
    def tokens_increase(self) -> None:
        assert all(increasing(pair.theirs.tokens) for pair in self.pairs)

    def teardown(self) -> None:
        for pair in self.pairs:
            self.seat.runner.run(pair.look(self.seat.store))
            assert self.seat.runner.run(pair.audit_differences(self.seat.store)) == []
        self.agree()


def tell(database: Database, how: settings = SETTINGS) -> None:
    """Many histories, each told to the store and to the model."""
    with asyncio.Runner() as runner:
        seat = Seat(database, runner)
        try:
            run_state_machine_as_test(type("Seated", (Machine,), {"seat": seat}), settings=how)
        finally:
            runner.run(seat.store.close())


# The store in memory is the model.
@pytest.mark.parametrize("database", sorted(STORES.keys() - {"memory"}), indirect=True)
def test_the_store_and_the_model_tell_the_same_history(database: Database) -> None:
    tell(database)
