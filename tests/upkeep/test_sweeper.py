"""The sweeper writes down what time has done, and gives way to whoever works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from gateway.core.operation import Claim, Complete, Event, Release, State
from gateway.observe.facts import Events, SweepDone
from gateway.store.base import Indefinite, NotApplied, StoreError
from gateway.store.operations import LAPSES_NAMED_MAX, Swept
from gateway.upkeep.duty import Sweeper
from tests.conformance.hand import ANSWER, LEASE_US, REMEMBER_SECONDS, REMEMBER_US, REPLAY_US, SAME, new_identity
from tests.support.memory_store import ManualClock
from tests.upkeep.hand import Alarm, Ear, Scripted, no_pause

FULL = Swept(retired=500, more=True)


@pytest.fixture
async def store() -> Scripted:
    store = Scripted()
    await store.start()
    return store


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def sweeper(store: Scripted, ear: Ear) -> Sweeper:
    return Sweeper(store, Events(ear), sleep=no_pause)


async def make_one_of_each(store: Scripted) -> None:
    """An operation that completes, one that is released, one whose holder dies."""
    for ending in (Event.COMPLETE, Event.RELEASE, None):
        identity, attempt_id = new_identity(), uuid4()
        claimed = await store.apply(Claim(identity, attempt_id, "holder", SAME, LEASE_US))
        assert claimed.snapshot.record is not None
        ids = (identity.operation_id, claimed.snapshot.record.token, attempt_id)
        if ending is Event.COMPLETE:
            await store.apply(Complete(*ids, ANSWER, REPLAY_US, REMEMBER_US))
        elif ending is Event.RELEASE:
            await store.apply(Release(*ids, REMEMBER_US))


async def test_what_time_has_done_is_written_down_and_told(store: Scripted, sweeper: Sweeper, ear: Ear) -> None:
    """A pass moves on what is due, sums up over its batches, and states the sum once."""
    for _ in range(400):
        await make_one_of_each(store)
    store.memory.clock.advance(REMEMBER_SECONDS)
    swept = await sweeper.run_once()
    # What completed and is due twice over goes all the way in one write.
    assert (swept.lapsed, swept.retired + swept.collected, swept.more) == (400, 800, False)
    assert {record.state for record in store.memory.records.values()} == {State.IN_DOUBT}
    assert store.limits == [500, 500, 500]
    (told,) = ear.facts
    assert isinstance(told, SweepDone)
    assert (told.lapsed, told.retired, told.collected) == (swept.lapsed, swept.retired, swept.collected)
    assert len(told.named) == LAPSES_NAMED_MAX
    assert {operation_id for _, operation_id in told.named} <= store.memory.records.keys()


async def test_a_pause_follows_each_batch_as_long_as_the_batch(store: Scripted, ear: Ear) -> None:
    """The slower the store, the more of its time is left to requests: at least half, within bounds."""
    clock, pauses = ManualClock(0), []

    async def batch() -> Swept:
        clock.advance(durations.pop(0))
        return FULL if durations else Swept()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    durations = [0.0, 0.2, 60.0, 0.1]
    store.sweeps = [batch] * 4
    await Sweeper(store, Events(ear), clock=lambda: clock() / 1e6, sleep=sleep).run_once()
    assert pauses == pytest.approx([0.01, 0.2, 5.0])
    (told,) = ear.facts
    assert isinstance(told, SweepDone)
    assert told.duration_seconds == pytest.approx(60.3 + 5.21)


async def test_stopped_during_a_pause_no_batch_follows(store: Scripted, sweeper: Sweeper, ear: Ear) -> None:
    """A stop is heard between two batches, and a gateway that drains leaves the store alone."""

    async def batch() -> Swept:
        sweeper.stop()
        return FULL

    store.sweeps = [batch, FULL]
    assert (await sweeper.run_once()).retired == 500
    assert await sweeper.run_once() == Swept()
    assert (len(store.limits), len(ear.facts)) == (1, 1)


@pytest.mark.parametrize("error", [NotApplied("down"), Indefinite("lost")], ids=["not-applied", "indefinite"])
async def test_what_was_done_before_an_error_is_told(
    store: Scripted, sweeper: Sweeper, ear: Ear, error: StoreError
) -> None:
    """The books balance although a pass failed half-way, or was cancelled."""
    alarm = Alarm()
    store.sweeps = [FULL, error, FULL, FULL]
    with pytest.raises(type(error)):
        await sweeper.run_once()
    async with alarm.running(Sweeper(store, Events(ear), sleep=alarm.sleep).run_once()):
        pass
    assert [told.retired for told in ear.facts if isinstance(told, SweepDone)] == [500, 500]


class Hours:
    """Lets a sweeper run, and its time pass with its pauses; `swept_at` are the seconds at which a pass ended."""

    def __init__(self, store: Scripted, ear: Ear, *, has_turn: bool = True) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.swept_at: list[float] = []
        self._ear, self._alarm = ear, Alarm()
        self._sweeper = Sweeper(
            store,
            Events(ear),
            has_turn=lambda: has_turn,
            clock_steps=lambda: self.steps,
            clock=lambda: self.seconds,
            sleep=self._alarm.sleep,
        )

    async def pass_until(self, seconds: float) -> None:
        """Until so many seconds after the start."""
        while self.seconds < seconds:
            before = len(self._ear.facts)
            await self._alarm.pass_one()
            if len(self._ear.facts) > before:
                self.swept_at.append(self.seconds)
            self.seconds += self._alarm.asked[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Hours]:
        """While this is entered, it runs."""
        async with self._alarm.running(self._sweeper.run()):
            self.swept_at += [0.0] * len(self._ear.facts)
            self.seconds += self._alarm.asked[-1]
            yield self


async def test_it_comes_back_soon_where_work_is_left(store: Scripted, ear: Ear) -> None:
    """However much there is, a pass ends, and a backlog is worked off pass by pass; otherwise it waits its time."""
    store.sweeps = [FULL] * 60
    async with Hours(store, ear).running() as it:
        await it.pass_until(100.0)
    assert [told.retired for told in ear.facts if isinstance(told, SweepDone)][:4] == [20 * 500] * 3 + [0]
    first, fourth, *later = (it.swept_at[0], *it.swept_at[3:])
    assert fourth - first <= 3.0
    assert 24.0 <= later[0] - fourth <= 38.0
    assert len(later) in (2, 3)


async def test_without_the_turn_it_sweeps_at_the_start_and_after_a_step_of_the_clock(store: Scripted, ear: Ear) -> None:
    """Nobody else may have seen that the store's clock was set back, and callers wait for a sweep then."""
    async with Hours(store, ear, has_turn=False).running() as it:
        await it.pass_until(100.0)
        assert it.swept_at == [0.0]
        it.steps += 1
        store.sweeps = [FULL] * 25
        await it.pass_until(200.0)
    _, after, *more = it.swept_at
    assert 100.0 <= after <= 102.0
    assert len(more) == 1
    assert more[0] - after <= 1.0


async def test_a_sweep_after_a_step_is_made_again_where_it_failed(store: Scripted, ear: Ear) -> None:
    """An outage of the store hides no step."""
    async with Hours(store, ear, has_turn=False).running() as it:
        it.steps += 1
        store.sweeps = [NotApplied("down"), NotApplied("down")]
        await it.pass_until(60.0)
    assert len(store.limits) == 4
