"""The flusher: what the journal kept gets into the store, in order, once, and nothing that was refused is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest

from gateway.core.operation import Command, Complete, Event, OutcomeCommand, Result, State, operation_id_of
from gateway.observe.facts import Events, Fact, FlushRefused
from gateway.store.base import Indefinite, NotApplied, StoreError, Unstorable
from gateway.store.journal.journal import HostJournals, SqliteJournal
from gateway.upkeep.leftover import Flusher
from tests.conformance.hand import Hand, do, state
from tests.support.memory_store import MemoryStore
from tests.upkeep.hand import Alarm


class Moody(MemoryStore):
    """A store that fails as it is told: `failures` once each, `moods` of an operation while they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[StoreError] = []
        self.moods: dict[UUID, StoreError] = {}
        self.said: list[Command] = []

    async def apply(self, command: Command) -> Result:
        self.said.append(command)
        if self.failures:
            raise self.failures.pop(0)
        if operation_id_of(command) in self.moods:
            raise self.moods[operation_id_of(command)]
        return await super().apply(command)


class Home:
    """A store, a journal and a flusher between them."""

    def __init__(self, directory: Path) -> None:
        self.store = Moody()
        self.directory = directory / "journal"
        self.journal = SqliteJournal(self.directory, "shop")
        self.facts: list[Fact] = []
        self.alarm = Alarm()
        self.now = 0.0
        self.flusher = Flusher(
            self.store, self.journal, Events(self.facts.append), clock=lambda: self.now, sleep=self.alarm.sleep
        )

    async def claimed(self, count: int) -> list[Hand]:
        hands = [Hand() for _ in range(count)]
        for hand in hands:
            await do(self.store, hand, Hand.claim)
        self.store.said.clear()
        return hands

    async def keep(self, hands: list[Hand]) -> None:
        """Journal an answer for each."""
        for hand in hands:
            command = hand.complete()
            assert isinstance(command, Complete)
            await self.journal.append("charge", command)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    home = Home(tmp_path)
    await home.store.start()
    await home.journal.start()
    try:
        yield home
    finally:
        await home.journal.close()
        await home.store.close()


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [("erased", "the record is absent without it"), ("rejected", "rejected: too large")],
    ids=["fenced", "rejected"],
)
async def test_a_refused_outcome_is_kept(home: Home, meanwhile: str, why: str) -> None:
    """It is told with its operation, listed, and not tried again; its neighbours are recorded."""
    first, second = await home.claimed(2)
    await home.keep([first, second])
    if meanwhile == "rejected":
        home.store.moods[first.operation_id] = Unstorable("too large")
    else:
        await do(home.store, first, Hand.release, Hand.erase)
    await home.flusher.run_once()
    assert await state(home.store, second) is State.COMPLETED
    assert (home.journal.tally.waiting, home.journal.tally.refused) == (0, 1)
    (entry,) = HostJournals(home.directory, "shop").view(is_refused=True, limit=10).entries
    assert (entry.operation_id, entry.refused_why) == (first.operation_id, why)
    told = [fact for fact in home.facts if isinstance(fact, FlushRefused)]
    assert told == [FlushRefused("charge", first.operation_id, first.token, Event.COMPLETE, why)]
    said = len(home.store.said)
    await home.flusher.run_once()
    assert len(home.store.said) == said


# What a journal has of an attempt, and what was said to the store since the attempt began.
CLAIMED, KEPT = (Hand.claim,), (Hand.accept, Hand.dispatch)
_NO_ALARM = {
    # The store took it although nobody heard, and the key was claimed again.
    "release-overtaken": (CLAIMED, Hand.release, (Hand.release, Hand.retry, Hand.complete)),
    # Somebody found out what its gateway does not know.
    "doubt-proved": (CLAIMED, Hand.abandon, (Hand.abandon, Hand.prove)),
    # That nothing happened is known without it, and somebody has decided since what is to become of the request.
    "postpone-withdrawn": (KEPT, Hand.postpone, (Hand.postpone, Hand.withdraw)),
    "postpone-reinstated": (KEPT, Hand.postpone, (Hand.abandon, Hand.reinstate)),
    # A doubt that whoever took over has ended, or that is what the outcome said too.
    "release-taken-over-and-ended": (CLAIMED, Hand.release, (Hand.abandon, Hand.takeover, Hand.complete)),
    "abandon-taken-over": (CLAIMED, Hand.abandon, (Hand.abandon, Hand.takeover)),
}
_FOR_SOMEBODY_TO_LOOK_AT = {
    # That nothing happened, of an attempt that is in the record as done.
    "release-gainsaid": (CLAIMED, Hand.release, (Hand.abandon, Hand.prove)),
    # It would end a doubt that a takeover carries.
    "release-taken-over": (CLAIMED, Hand.release, (Hand.abandon, Hand.takeover)),
}


@pytest.mark.parametrize("case", [*_NO_ALARM, *_FOR_SOMEBODY_TO_LOOK_AT])
async def test_an_outcome_that_others_went_on_from(home: Home, case: str) -> None:
    """It changes nothing, and is kept as refused only where it says something that nobody knows."""
    begun, outcome, since = (_NO_ALARM | _FOR_SOMEBODY_TO_LOOK_AT)[case]
    hand = Hand()
    await do(home.store, hand, *begun)
    await home.journal.append("charge", outcome(hand))
    await do(home.store, hand, *since)
    before = await state(home.store, hand)
    await home.flusher.run_once()
    refused = int(case in _FOR_SOMEBODY_TO_LOOK_AT)
    assert (home.journal.tally.waiting, home.journal.tally.refused) == (0, refused)
    assert len([fact for fact in home.facts if isinstance(fact, FlushRefused)]) == refused
    assert await state(home.store, hand) is before


@pytest.mark.parametrize(
    ("outcome", "after"), [(Hand.postpone, State.ACCEPTED), (Hand.bury, State.DEAD_LETTER)], ids=["postpone", "bury"]
)
@pytest.mark.parametrize("is_applied", [False, True], ids=["unknown", "applied"])
async def test_the_end_of_a_delivery_reaches_the_store(
    home: Home, outcome: Callable[[Hand], OutcomeCommand], after: State, *, is_applied: bool
) -> None:
    """Once, whether or not the store took it before; the request stays kept."""
    hand = Hand()
    kept = hand.accept().kept
    await do(home.store, hand, Hand.accept, Hand.dispatch)
    await home.journal.append("charge", outcome(hand))
    if is_applied:
        await do(home.store, hand, outcome)
    await home.flusher.run_once()
    assert (home.journal.tally.waiting, home.journal.tally.refused) == (0, 0)
    assert await state(home.store, hand) is after
    assert hand.record is not None
    assert hand.record.delivery is not None
    assert hand.record.delivery.answers == 1
    assert await home.store.cold.read_kept(hand.operation_id) == kept


async def test_a_silent_store_is_asked_with_one(home: Home) -> None:
    """Nothing is lost while the store is away, and finding that out again costs one statement. By itself it goes on
    with pauses that grow to a second and no further; then everything is recorded."""
    await home.keep(await home.claimed(100))
    home.store.failures = [NotApplied("away")] * 65
    for asked in (64, 65):
        with pytest.raises(NotApplied):
            await home.flusher.run_once()
        assert len(home.store.said) == asked
        assert home.journal.tally.waiting == 100
    home.store.failures = [NotApplied("away")] * 20
    async with home.alarm.running(home.flusher.run()):
        while home.journal.tally.waiting:
            await home.alarm.pass_one()
    assert max(home.alarm.asked) < 1.5
    assert home.alarm.asked[8] > 0.7


async def test_one_that_stays_without_an_answer_holds_nobody_up(home: Home) -> None:
    """The others are recorded; nothing of its own operation overtakes it."""
    stuck, other = await home.claimed(2)
    await home.keep([stuck, other])
    early = stuck.complete()
    await do(home.store, stuck, Hand.release, Hand.retry)
    await home.keep([stuck])
    home.store.said.clear()
    home.store.moods[stuck.operation_id] = NotApplied("away")
    await home.flusher.run_once()
    assert [command for command in home.store.said if operation_id_of(command) == stuck.operation_id] == [early]
    assert await state(home.store, other) is State.COMPLETED
    home.store.moods.clear()
    await home.flusher.run_once()
    # The first claim's outcome comes after its release; the second claim's is recorded.
    assert (home.journal.tally.waiting, home.journal.tally.refused) == (0, 1)
    assert await state(home.store, stuck) is State.COMPLETED


async def test_one_that_the_store_never_takes_is_no_silent_store(home: Home) -> None:
    """Tried alone it fails as if the store were away; what comes after it is recorded all the same, and it stays."""
    (stuck,) = await home.claimed(1)
    await home.keep([stuck])
    home.store.moods[stuck.operation_id] = Indefinite("no answer in time")
    for _ in range(2):
        with pytest.raises(Indefinite):
            await home.flusher.run_once()
    others = await home.claimed(3)
    await home.keep(others)
    await home.flusher.run_once()
    assert [await state(home.store, other) for other in others] == [State.COMPLETED] * 3
    assert home.journal.tally.waiting == 1
    home.store.moods.clear()
    await home.flusher.run_once()
    assert await state(home.store, stuck) is State.COMPLETED


async def test_a_silent_store_hears_an_operation_s_outcomes_in_their_order(home: Home) -> None:
    """Also while it is asked with one after the other, a later one overtakes none that was not taken."""
    stuck, other = await home.claimed(2)
    await home.keep([stuck])
    early = stuck.complete()
    await do(home.store, stuck, Hand.release, Hand.retry)
    await home.keep([stuck, other])
    home.store.said.clear()
    for hand in (stuck, other):
        home.store.moods[hand.operation_id] = NotApplied("away")
    for _ in range(6):
        with pytest.raises(NotApplied):
            await home.flusher.run_once()
    assert {command for command in home.store.said if operation_id_of(command) == stuck.operation_id} == {early}
