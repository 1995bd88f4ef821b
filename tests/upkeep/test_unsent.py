"""What workers that were killed had under way: their claims end, and no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.core.lifecycle import LAPSED_DOUBT
from gateway.core.operation import Identity, State
from gateway.observe.facts import Events, Fact, OperationSettled
from gateway.store.files import EndedWorker, MarkedAttempt
from gateway.upkeep.leftover import UnsentWorker
from tests.conformance.hand import REMEMBER_US, Hand, Speech, do
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.memory_store import Memory, MemoryStore

ARRIVAL_SECONDS = 10.0


@dataclass
class Left:
    """What an ended worker left, as `EndedWorker`."""

    attempts: tuple[MarkedAttempt, ...]
    sent: tuple[MarkedAttempt, ...] = ()
    is_removed: bool = False
    is_left: bool = False

    def leave(self) -> None:
        self.is_left = True

    def remove(self) -> None:
        self.is_removed = True


@dataclass
class Marks:
    """The marks of a host: of `AttemptFiles` what is read."""

    ended: list[Left] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    readable: threading.Event = field(default_factory=threading.Event)

    def take_ended(self) -> list[EndedWorker]:
        self.begun.set()
        self.readable.wait()
        taken: list[EndedWorker] = [*self.ended]
        self.ended = []
        return taken


@dataclass
class Bench:
    memory: Memory
    store: FaultyStore
    worker: UnsentWorker
    marks: Marks
    facts: list[Fact]
    now: list[float]

    def left(self, hand: Hand, *, is_sent: bool = False) -> Left:
        """A worker ended, and had sent nothing under this hand's last claim, or may have."""
        attempts = (MarkedAttempt(hand.operation_id, hand.attempt_id),)
        left = Left((), attempts) if is_sent else Left(attempts)
        self.marks.ended.append(left)
        return left

    def state(self, hand: Hand) -> State:
        record = self.memory.records.get(hand.operation_id)
        return State.ABSENT if record is None else record.state


@asynccontextmanager
async def bench(remember_us: Callable[[Identity], int | None] = lambda _: REMEMBER_US) -> AsyncIterator[Bench]:
    memory, marks, now = Memory(), Marks(), [0.0]
    marks.readable.set()
    facts: list[Fact] = []
    store = FaultyStore(MemoryStore(memory))
    await store.start()
    times: Any = {"arrival_seconds": ARRIVAL_SECONDS, "clock": lambda: now[0]}
    worker = UnsentWorker(store, cast(Any, marks), Events(facts.append), remember_us=remember_us, **times)
    yield Bench(memory, store, worker, marks, facts, now)
    await store.close()


KEPT, CLAIMED, TAKEN = (Hand.accept, Hand.dispatch), (Hand.claim,), (Hand.claim, Hand.abandon, Hand.takeover)
UNSENT, SENT = False, True
Said = tuple[Speech, ...]
# What was said before a worker ended, whether it may have sent something, what is said since, and what it comes to.
ENDS: dict[str, tuple[Said, bool, Said, State]] = {
    "nothing was sent": (CLAIMED, UNSENT, (), State.RELEASED),
    "something was sent": (CLAIMED, SENT, (), State.IN_DOUBT),
    "of a kept request": (KEPT, SENT, (), State.IN_DOUBT),
    "a kept request waits to be delivered again": (KEPT, UNSENT, (), State.ACCEPTED),
    "what an earlier attempt did stays in doubt": (TAKEN, UNSENT, (), State.IN_DOUBT),
    # It ended, was reported in doubt, or is by now a claim of somebody who lives: that is not touched.
    "released and claimed again": (CLAIMED, UNSENT, (Hand.release, Hand.retry), State.CLAIMED),
    "completed": (CLAIMED, SENT, (Hand.complete,), State.COMPLETED),
    "in doubt already": (CLAIMED, SENT, (Hand.abandon,), State.IN_DOUBT),
    "taken over": (CLAIMED, SENT, (Hand.abandon, Hand.takeover), State.CLAIMED),
}


@pytest.mark.parametrize("case", ENDS)
async def test_what_a_claim_comes_to(case: str) -> None:
    """By what was sent under it, and by what came before it and since. A doubt is that of a lease that has just ended,
    so that recovery counts from now."""
    said, is_sent, since, state = ENDS[case]
    async with bench() as it:
        hand = Hand()
        await do(it.store, hand, *said)
        left = it.left(hand, is_sent=is_sent)
        await do(it.store, hand, *since)
        before = it.memory.records[hand.operation_id]
        for _ in range(2):
            await it.worker.run_once()
            it.now[0] += ARRIVAL_SECONDS
        assert left.is_removed
        assert it.state(hand) is state
        record = it.memory.records[hand.operation_id]
        assert not since or record == before
        assert len([fact for fact in it.facts if isinstance(fact, OperationSettled)]) == (0 if since else 1)
        if is_sent and not since:
            assert (record.doubt, record.lease_until_us) == (LAPSED_DOUBT, it.memory.clock())


async def test_an_operation_without_a_route_lapses() -> None:
    """Nobody can say for how long it is to be remembered."""
    async with bench(lambda _: None) as it:
        hand = Hand()
        await do(it.store, hand, Hand.claim)
        left = it.left(hand)
        await it.worker.run_once()
        assert it.state(hand) is State.CLAIMED
        assert left.is_removed


@pytest.mark.parametrize(
    ("is_sent", "state"), [(False, State.RELEASED), (True, State.IN_DOUBT)], ids=["unsent", "sent"]
)
@pytest.mark.parametrize("verb", ["read", "write"])
async def test_while_the_store_is_away_nothing_is_forgotten(is_sent: bool, state: State, verb: str) -> None:
    """It is tried again, however long that takes."""
    async with bench() as it:
        hand = Hand()
        await do(it.store, hand, Hand.claim)
        left = it.left(hand, is_sent=is_sent)
        it.store.break_(*(["read"] if verb == "read" else ["abandon", "release"]), fault=refused())
        it.now[0] = 100 * ARRIVAL_SECONDS
        await it.worker.run_once()
        assert not left.is_removed
        it.store.mend()
        it.now[0] *= 2
        await it.worker.run_once()
        assert left.is_removed
        assert it.state(hand) is state


async def test_a_disk_that_stalls_holds_nobody_up() -> None:
    """The gateway goes on while it waits for the files; one that stops meanwhile leaves them to others."""
    async with bench() as it:
        it.marks.readable.clear()
        left = it.left(Hand())
        looking = asyncio.create_task(it.worker.run_once())
        await eventually(it.marks.begun.is_set)
        looking.cancel()
        it.marks.readable.set()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert left.is_left
        assert not left.is_removed


async def test_a_claim_that_arrives_late_ends_too() -> None:
    """The store may get it after the process that sent it has ended."""
    async with bench() as it:
        hand = Hand()
        left = it.left(hand)
        await it.worker.run_once()
        assert not left.is_removed
        await do(it.store, hand, Hand.claim)
        it.now[0] = ARRIVAL_SECONDS - 1
        await it.worker.run_once()
        assert it.state(hand) is State.RELEASED
        assert left.is_removed
