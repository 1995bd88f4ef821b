"""The timer goes on whatever happens in a pass."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from gateway.store.base import Indefinite, NotApplied
from gateway.upkeep.duty import repeat
from tests.upkeep.hand import Alarm


class Passes:
    """Passes that end as they are told to, and count."""

    def __init__(self) -> None:
        self.endings: list[float | Exception] = []
        self.count = 0

    async def __call__(self) -> float:
        self.count += 1
        ending = self.endings.pop(0) if self.endings else 10.0
        if isinstance(ending, Exception):
            raise ending
        return ending


@pytest.fixture
def passes() -> Passes:
    return Passes()


@pytest.fixture
async def alarm(passes: Passes) -> AsyncIterator[Alarm]:
    """The sleeps of a timer that runs, the first one begun."""
    alarm = Alarm()
    async with alarm.running(repeat(passes, pause_seconds=10.0, sleep=alarm.sleep)):
        yield alarm


async def test_pauses_are_twice_as_long_while_passes_fail(alarm: Alarm, passes: Passes) -> None:
    """A store that is down is asked half as often, however long that lasts; once it answers, all is as before."""
    passes.endings = [NotApplied("down")] * 7 + [Indefinite("lost")]
    for _ in range(9):
        await alarm.pass_one()
    for pause in alarm.asked[1:9]:
        assert 16.0 <= pause <= 24.0
    assert 8.0 <= alarm.asked[9] <= 12.0


async def test_an_error_of_the_program_is_told_and_ends_nothing(
    alarm: Alarm, passes: Passes, caplog: pytest.LogCaptureFixture
) -> None:
    """Upkeep that stopped would be noticed by nobody, until the disk is full. Who knows that the store is down says so
    itself: the timer adds nothing for every pass."""
    passes.endings = [NotApplied("down"), RuntimeError("a defect")]
    for _ in range(3):
        await alarm.pass_one()
    assert passes.count == 3
    assert "RuntimeError: a defect" in caplog.text
    assert [record.levelno for record in caplog.records if record.levelno > logging.DEBUG] == [logging.ERROR]
