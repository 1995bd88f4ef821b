"""The sweeper writes down what time has done, and gives way to whoever works."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.observe.facts import Events, Fact, SweepDone
from gateway.store.base import NotApplied
from gateway.store.operations import Swept
from gateway.upkeep.duty import Sweeper
from tests.support.memory_store import ManualClock
from tests.upkeep.hand import Alarm, Scripted, no_pause

FULL = Swept(retired=500, more=True)


async def test_a_pause_follows_each_batch_as_long_as_the_batch(store: Scripted, facts: list[Fact]) -> None:
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
    await Sweeper(store, Events(facts.append), clock=lambda: clock() / 1e6, sleep=sleep).run_once()
    assert pauses == pytest.approx([0.01, 0.2, 5.0])
    (told,) = facts
    assert isinstance(told, SweepDone)
    assert told.duration_seconds == pytest.approx(60.3 + 5.21)


async def test_what_was_done_before_an_error_is_told(store: Scripted, facts: list[Fact]) -> None:
    """The books balance although a pass failed half-way, or was cancelled."""
    alarm = Alarm()
    store.sweeps = [FULL, NotApplied("down"), FULL, FULL]
    with pytest.raises(NotApplied):
        await Sweeper(store, Events(facts.append), sleep=no_pause).run_once()
    async with alarm.running(Sweeper(store, Events(facts.append), sleep=alarm.sleep).run_once()):
        pass
    assert [told.retired for told in facts if isinstance(told, SweepDone)] == [500, 500]


async def test_it_comes_back_soon_where_work_is_left(store: Scripted, facts: list[Fact]) -> None:
    """However much there is, a pass ends, and a backlog is worked off pass by pass; otherwise it waits its time."""
    alarm = Alarm()
    store.sweeps = [FULL] * 45
    async with alarm.running(Sweeper(store, Events(facts.append), clock=lambda: 0.0, sleep=alarm.sleep).run()):
        while len(facts) < 3:
            await alarm.pass_one()
        assert sum(alarm.asked[:-1]) < 3.0
        for _ in range(20):
            await alarm.pass_one()
    assert [told.retired for told in facts if isinstance(told, SweepDone)] == [20 * 500, 20 * 500, 5 * 500]


async def test_without_the_turn_it_sweeps_at_the_start_and_after_a_step_of_the_clock(store: Scripted) -> None:
    """Nobody else may have seen that the store's clock was set back, and callers wait for a sweep then: an outage hides
    no step."""
    alarm, steps = Alarm(), [0]
    changes: Any = {"has_turn": lambda: False, "clock_steps": lambda: steps[0], "sleep": alarm.sleep}
    async with alarm.running(Sweeper(store, Events(), **changes).run()):
        for swept in (1, 4):
            for _ in range(5):
                await alarm.pass_one()
            assert len(store.limits) == swept
            steps[0] += 1
            store.sweeps = [NotApplied("down"), NotApplied("down")]
