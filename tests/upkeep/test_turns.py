"""Of the processes on one store, one at a time does what is done for all."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import pytest

from gateway.observe.facts import BacklogTaken, Events, EventsCounted, TallyTaken
from gateway.store.base import NotApplied
from gateway.store.operations import Swept, Tally
from gateway.upkeep.duty import LEASE_SECONDS, Duty, Sweeper, TallyTaker, Turns
from tests.conformance.hand import SERVICE
from tests.support.memory_store import ManualClock, MemoryStore
from tests.upkeep.hand import Alarm, Ear, Scripted, no_pause

NAMES = {Duty.SWEEP: "sweep", Duty.TALLY: "tally shop 1"}


class Slow(MemoryStore):
    """Whose answer to a question takes as long as `on_answer` lets it."""

    def on_answer(self) -> None:
        """Replaced by a test."""

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        taken = await super().take_turns(holder, names, lease_us)
        self.on_answer()
        return taken


class Process:
    """One that asks for turns; `clock` is its own, which stands still only when a test says so."""

    def __init__(self, store: MemoryStore) -> None:
        self.clock = ManualClock(0)
        self.turns = Turns(store, NAMES, clock=lambda: self.clock() / 1e6)


@pytest.fixture
async def store() -> Scripted:
    store = Scripted()
    await store.start()
    return store


@pytest.fixture
def pair(store: Scripted) -> tuple[Process, Process]:
    return Process(store), Process(store)


def pass_time(store: Scripted, *processes: Process, seconds: float) -> None:
    for clock in (store.memory.clock, *(process.clock for process in processes)):
        clock.advance(seconds)


async def test_whoever_was_frozen_has_no_turn_when_it_goes_on(store: Scripted, pair: tuple[Process, Process]) -> None:
    """It knows by its own clock, before it has asked anybody."""
    one, other = pair
    await one.turns.run_once()
    pass_time(store, *pair, seconds=LEASE_SECONDS)
    assert not one.turns.has(Duty.SWEEP)
    await other.turns.run_once()
    await one.turns.run_once()
    assert (one.turns.has(Duty.SWEEP), other.turns.has(Duty.SWEEP)) == (False, True)


async def test_a_slow_answer_makes_no_turn_longer(store: Scripted, pair: tuple[Process, Process]) -> None:
    """It is believed from before the question on: the store may have leased it that early."""
    one, other = pair
    slow = Slow(store.memory)
    await slow.start()
    slow.on_answer = lambda: pass_time(store, *pair, seconds=LEASE_SECONDS - 1)  # type: ignore[method-assign]
    one.turns = Turns(slow, NAMES, clock=lambda: one.clock() / 1e6)
    await one.turns.run_once()
    assert one.turns.has(Duty.SWEEP)
    pass_time(store, *pair, seconds=1)
    assert not one.turns.has(Duty.SWEEP)
    await other.turns.run_once()
    assert other.turns.has(Duty.SWEEP)


async def test_a_stop_leaves_the_turn(store: Scripted, pair: tuple[Process, Process]) -> None:
    """At once, and it is not asked for any more."""
    one, other = pair
    await one.turns.run_once()
    one.turns.stop()
    assert not one.turns.has(Duty.SWEEP)
    await one.turns.leave()
    await one.turns.run_once()
    await other.turns.run_once()
    assert (one.turns.has(Duty.SWEEP), other.turns.has(Duty.SWEEP)) == (False, True)


async def test_a_holder_asks_early_enough_to_ask_again(store: Scripted) -> None:
    """If the store fails once, the turn is kept all the same. Whoever lacks one asks sooner."""
    alarm, other = Alarm(), Turns(store, NAMES)
    await other.run_once()
    async with alarm.running(Turns(store, NAMES, sleep=alarm.sleep).run()):
        await alarm.pass_one()
        await other.leave()
        await alarm.pass_one()
        await store.close()
        await alarm.pass_one()
    _, without, held, failed = alarm.asked
    assert without <= 6 <= held
    assert held + failed < LEASE_SECONDS - 3


async def test_a_sweep_ends_with_the_turn(store: Scripted) -> None:
    """Of a long one, no batch begins after it."""
    turns = [True, True, False]
    store.sweeps = [Swept(retired=1, more=True) for _ in range(5)]
    await Sweeper(store, Events(), has_turn=lambda: turns.pop(0), sleep=no_pause).run_once()
    assert len(store.limits) == 2


async def test_whoever_counts_no_more_reports_nothing(store: Scripted) -> None:
    """The numbers of the one that counts now are not beside older ones of another."""
    ear, alarm, turns = Ear(), Alarm(), [False, True, False, False]
    store.tallies = [Tally({"create_order": 1}, 7.0)]
    taker = TallyTaker(
        store, Events(ear), service=SERVICE, accepting={}, has_turn=lambda: turns.pop(0), sleep=alarm.sleep
    )
    async with alarm.running(taker.run()):
        for _ in range(4):
            await alarm.pass_one()
    assert ear.facts == [
        TallyTaken((("create_order", 1),), 7.0),
        TallyTaken((), 0.0),
        BacklogTaken({}, (), 0),
        EventsCounted({}),
    ]


async def test_while_the_store_is_away_a_turn_is_believed_until_it_ends(store: Scripted) -> None:
    """Nobody else can have it before."""
    process = Process(store)
    await process.turns.run_once()
    await store.close()
    with pytest.raises(NotApplied):
        await process.turns.run_once()
    process.clock.advance(LEASE_SECONDS - 1)
    assert process.turns.has(Duty.SWEEP)
    process.clock.advance(1)
    assert not process.turns.has(Duty.SWEEP)
