"""What of the journal a process answers from: answers alone, until the durable store has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.core.operation import State
from gateway.observe.facts import Events, Fact, JournalFailed, OutcomeJournaled
from gateway.protect import journaling
from gateway.protect.journaling import Journaling
from gateway.store.base import Indefinite, NotApplied
from gateway.store.journal import OutcomeCommand
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import REPLAY_SECONDS, Hand, Speech, do
from tests.support.memory_store import MemoryStore


class Desk:
    """A journal, and claims of which the outcome is brought there."""

    def __init__(self, directory: Path) -> None:
        self.now_seconds = 50.0
        self.facts: list[Fact] = []
        self.journal = SqliteJournal(directory / "journal", "shop")
        self.journaling = Journaling(self.journal, Events(self.facts.append), clock=lambda: self.now_seconds)

    async def keep(self, say: Speech = Hand.complete) -> Hand:
        """The outcome of a new claim."""
        hand = await claimed()
        command = say(hand)
        assert isinstance(command, OutcomeCommand)
        assert hand.record is not None
        await self.journaling.keep(hand.record, command, detail="by a test")
        return hand


async def claimed() -> Hand:
    store, hand = MemoryStore(), Hand()
    await store.start()
    await do(store, hand, Hand.claim)
    return hand


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    it = Desk(tmp_path)
    await it.journal.start()
    yield it
    await it.journal.close()


async def test_an_answer_is_told_from_the_journal(desk: Desk) -> None:
    """What is kept is found as the record that it makes, and nothing is said of any other operation."""
    hand = await desk.keep()
    (told,) = desk.facts
    assert isinstance(told, OutcomeJournaled)
    assert desk.journaling.holds(hand.operation_id)
    found = await desk.journaling.find(hand.operation_id)
    assert found is not None
    assert found.state is State.COMPLETED
    assert not desk.journaling.holds(uuid4())
    assert await desk.journaling.find(uuid4()) is None


async def test_an_answer_that_is_being_written(desk: Desk) -> None:
    """It is held already, for it may be flushed before we hear that it was written; nobody is told it yet."""
    hand = await claimed()
    assert hand.record is not None
    keeping = asyncio.create_task(desk.journaling.keep(hand.record, hand.complete(), detail="by a test"))
    await asyncio.sleep(0)
    assert desk.journaling.holds(hand.operation_id)
    assert await desk.journaling.find(hand.operation_id) is None
    await keeping


@pytest.mark.parametrize("say", [Hand.release, Hand.forget, Hand.abandon], ids=["release", "forget", "abandon"])
async def test_nobody_is_told_what_is_not_final(desk: Desk, say: Speech) -> None:
    """The store may have it without our having heard so, and somebody have gone on with the operation."""
    hand = await desk.keep(say)
    assert desk.journal.tally.waiting == 1
    assert not desk.journaling.holds(hand.operation_id)


async def test_what_the_disk_did_not_take_is_not_told(desk: Desk) -> None:
    """Nothing is held then; the first failure of a row is told as such."""
    for _ in range(2):
        await desk.journal.close()
        for is_first in (True, False):
            with pytest.raises(NotApplied):
                await desk.keep()
            told = desk.facts.pop()
            assert isinstance(told, JournalFailed)
            assert told.is_first is is_first
        await desk.journal.start()
        hand = await desk.keep()
        assert desk.journaling.holds(hand.operation_id)


async def test_a_disk_that_does_not_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for no longer than that, and what became of the outcome is not known."""
    monkeypatch.setattr(journaling, "_APPEND_SECONDS", 0.0)
    with pytest.raises(Indefinite):
        await desk.keep()


async def test_an_answer_that_was_flushed(desk: Desk) -> None:
    """The store is asked from then on; that it has an earlier attempt's outcome changes nothing."""
    hand = await desk.keep()
    desk.journaling.flushed(hand.operation_id, hand.token - 1)
    assert desk.journaling.holds(hand.operation_id)
    desk.journaling.flushed(hand.operation_id, hand.token)
    assert not desk.journaling.holds(hand.operation_id)


async def test_an_answer_that_is_in_the_journal_no_more(desk: Desk) -> None:
    """Somebody who was about to read it is sent to the store."""
    hand = await desk.keep()
    (entry,) = await desk.journal.waiting(None, limit=1, bytes_max=1_000_000)
    await desk.journal.forget([entry.entry_id])
    assert await desk.journaling.find(hand.operation_id) is None
    assert not desk.journaling.holds(hand.operation_id)


async def test_an_answer_whose_window_may_be_over(desk: Desk) -> None:
    """If the store took it when it was told first, it has let it go by now, and is asked."""
    hand = await desk.keep()
    desk.now_seconds += REPLAY_SECONDS
    assert await desk.journaling.find(hand.operation_id) is None
    assert not desk.journaling.holds(hand.operation_id)
