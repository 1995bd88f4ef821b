"""What of its journals a host tells, with and without the durable store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.core.operation import Complete, OutcomeCommand, State, microseconds
from gateway.observe.facts import Events, Fact
from gateway.protect.journaling import Journaling
from gateway.store.base import NotApplied
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import REPLAY_SECONDS, Hand, Speech, do
from tests.support.faulty_store import FaultyStore, refused
from tests.support.memory_store import MemoryStore


class Desk:
    """A journal, and claims of which the outcome is brought there."""

    def __init__(self, directory: Path) -> None:
        self.now_us = microseconds(50)
        self.memory = "memory"
        self.unsent: set[UUID] = set()
        self.facts: list[Fact] = []
        self.store = FaultyStore(MemoryStore())
        self.journal = SqliteJournal(directory / "journal", "shop", clock_us=lambda: self.now_us)
        self.journaling = self.neighbour(self.journal)

    def neighbour(self, journal: SqliteJournal) -> Journaling:
        """A process with this journal, on the same store."""
        return Journaling(
            journal,
            self.store,
            Events(self.facts.append),
            memory_of=self._memory_of,
            unsent_of=self._unsent_of,
            wall_us=lambda: self.now_us,
        )

    async def _memory_of(self, _: UUID) -> str:
        return self.memory

    async def _unsent_of(self, _: UUID) -> set[UUID]:
        return self.unsent

    async def keep(self, say: Speech = Hand.complete) -> Hand:
        """The outcome of a new claim."""
        hand = Hand()
        await do(self.store, hand, Hand.claim)
        command = say(hand)
        assert isinstance(command, OutcomeCommand)
        assert hand.record is not None
        if isinstance(command, Complete):
            command = replace(command, granted=hand.record)
        await self.journaling.keep(hand.record, command, detail="by a test")
        return hand

    async def found(self, hand: Hand) -> State | None:
        """The state that is told."""
        found = await self.journaling.find(hand.operation_id)
        return None if found is None else found.state


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    it = Desk(tmp_path)
    await it.store.start()
    await it.journal.start()
    yield it
    await it.journal.close()


@pytest.mark.parametrize(
    ("memory", "later_us"),
    [("another", 0), ("", 0), ("memory", microseconds(REPLAY_SECONDS)), ("memory", -1)],
    ids=["another memory", "no note", "window over", "clock set back"],
)
async def test_a_response_that_may_not_be_told_without_the_store(desk: Desk, memory: str, later_us: int) -> None:
    """The store may be another one, or its window over: repeats are asked to come back."""
    hand = await desk.keep()
    desk.store.break_("read", fault=refused())
    desk.memory = memory
    desk.now_us += later_us
    with pytest.raises(NotApplied):
        await desk.found(hand)
    desk.store.mend()
    assert await desk.found(hand) is State.COMPLETED


async def test_a_response_that_was_recorded_just_now(desk: Desk) -> None:
    """The store alone is asked then. Who read the record before that is told what the store has by now."""
    hand = await desk.keep()
    await do(desk.store, hand, Hand.complete)
    assert await desk.found(hand) is None
    (entry,) = await desk.journal.waiting(None, limit=1, bytes_max=1_000_000)
    await desk.journal.forget([entry.entry_id])
    assert not desk.journal.holds(hand.operation_id)
    assert await desk.found(hand) is None
    found = await desk.journaling.find(hand.operation_id, is_told_next=True)
    assert found is not None
    assert found.state is State.COMPLETED
