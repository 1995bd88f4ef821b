"""Of the processes on one store, one at a time does what is done for all."""

from __future__ import annotations

import asyncio

import pytest

from gateway.observe.facts import BacklogTaken, Events, EventsCounted, Fact, TallyTaken
from gateway.store.operations import Swept, Tally
from gateway.upkeep.duty import LEASE_SECONDS, Duty, Sweeper, TallyTaker, Turns
from tests.conformance.hand import SERVICE
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import ManualClock, MemoryStore
from tests.upkeep.hand import Alarm, Scripted, no_pause

NAMES = {Duty.SWEEP: "sweep", Duty.TALLY: "tally shop 1"}


class Process:
    """One that asks for turns; `clock` is its own, which stands still only when a test says so."""

    def __init__(self, store: MemoryStore) -> None:
        self.clock = ManualClock(0)
        self.turns = Turns(store, NAMES, clock=lambda: self.clock() / 1e6)


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
    slow = FaultyStore(store)
    answer = slow.stop_after("take_turns")
    one.turns = Turns(slow.cold, NAMES, clock=lambda: one.clock() / 1e6)
    asking = asyncio.create_task(one.turns.run_once())
    await answer.reached.wait()
    pass_time(store, *pair, seconds=LEASE_SECONDS - 1)
    answer.opened.set()
    await asking
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


async def test_a_sweep_ends_with_the_turn(store: Scripted) -> None:
    """Of a long one, no batch begins after it."""
    turns = [True, True, False]
    store.sweeps = [Swept(retired=1, more=True) for _ in range(5)]
    await Sweeper(store, Events(), has_turn=lambda: turns.pop(0), sleep=no_pause).run_once()
    assert len(store.limits) == 2


async def test_whoever_counts_no_more_reports_nothing(store: Scripted, facts: list[Fact]) -> None:
    """The numbers of the one that counts now are not beside older ones of another."""
    alarm, turns = Alarm(), [False, True, False, False]
    store.tallies = [Tally({"create_order": 1}, 7.0)]
    taker = TallyTaker(
        store, Events(facts.append), service=SERVICE, accepting={}, has_turn=lambda: turns.pop(0), sleep=alarm.sleep
    )
    async with alarm.running(taker.run()):
        for _ in range(4):
            await alarm.pass_one()
    assert facts == [
        TallyTaken((("create_order", 1),), 7.0),
        TallyTaken((), 0.0),
        BacklogTaken({}, (), 0),
        EventsCounted({}),
    ]
