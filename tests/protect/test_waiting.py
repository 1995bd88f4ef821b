"""Waiting for operations of other gateways: one reader for all, who only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from gateway.core.operation import Abandon, Applied, Claim, Command, Complete, Release, Snapshot, State
from gateway.protect.duplicates import Waiting
from tests.conformance.hand import ANSWER, REMEMBER_US, REPLAY_US, SAME, new_identity
from tests.support.faulty_store import Fault, FaultyStore, dropped, refused
from tests.support.memory_store import Memory, MemoryStore
from tests.support.virtual_time import in_virtual_time, settle

LEASE_SECONDS = 30.0


class Bench:
    """One operation that another gateway has claimed."""

    def __init__(self, kind: type[FaultyStore]) -> None:
        self.memory = Memory()
        self.store = kind(MemoryStore(self.memory))
        self.waiting = Waiting(self.store)
        self.identity = new_identity()
        self.attempt_id = new_identity().operation_id

    @property
    def operation_id(self) -> UUID:
        return self.identity.operation_id

    async def claim(self) -> None:
        await self.store.start()
        claim = Claim(self.identity, self.attempt_id, "other", SAME, int(LEASE_SECONDS * 1e6))
        assert isinstance(await self.store.apply(claim), Applied)
        self.store.said.clear()

    def say(self, event: str) -> None:
        """What the holder says of it, unseen by the faults."""
        ids = (self.operation_id, 1, self.attempt_id)
        commands: dict[str, Command] = {
            "complete": Complete(*ids, ANSWER, REPLAY_US, REMEMBER_US),
            "release": Release(*ids, REMEMBER_US),
            "abandon": Abandon(*ids, "reset"),
        }
        assert isinstance(MemoryStore(self.memory).apply_now(commands[event]), Applied)

    def wait(self, timeout_seconds: float = 20.0) -> asyncio.Task[Snapshot | None]:
        return asyncio.create_task(self.waiting.wait(self.operation_id, timeout_seconds))


async def bench(kind: type[FaultyStore] = FaultyStore) -> Bench:
    made = Bench(kind)
    await made.claim()
    return made


async def seconds(work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> float:
    """How long it took, in virtual time."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    await work
    return loop.time() - started


def state_of(snapshot: Snapshot | None) -> State | None:
    return None if snapshot is None else snapshot.state


@pytest.mark.parametrize("fault", [refused(), dropped()], ids=["refused", "no-answer"])
@in_virtual_time
async def test_a_store_that_is_away_is_asked_again(fault: Fault) -> None:
    """Errors are no news: the reader goes on until the store answers."""
    it = await bench()
    it.store.break_("read", fault=fault)
    task = it.wait()
    await asyncio.sleep(5)
    it.say("complete")
    await settle()
    assert not task.done()
    it.store.mend()
    assert state_of(await task) is State.COMPLETED


@in_virtual_time
async def test_a_herd_costs_one_reader() -> None:
    """However many wait for one operation, its record is read once for all of them."""
    it = await bench()
    tasks = [it.wait() for _ in range(100)]
    await settle()
    assert it.store.said == ["read"]
    it.say("complete")
    answers = await asyncio.gather(*tasks)
    assert {state_of(answer) for answer in answers} == {State.COMPLETED}
    assert it.store.said == ["read", "read"]


@in_virtual_time
async def test_who_comes_when_the_reader_ends_gets_a_new_one() -> None:
    """The answer to a former wait is never given for the present one."""
    it = await bench()
    first = it.wait()
    await settle()
    it.say("release")
    assert state_of(await first) is State.RELEASED
    again = Claim(it.identity, new_identity().operation_id, "other", SAME, int(LEASE_SECONDS * 1e6), read_token=1)
    assert isinstance(await it.store.apply(again), Applied)
    assert state_of(await it.wait(1.0)) is State.CLAIMED


class OvertakenStore(FaultyStore):
    """What is read of an operation that nobody holds is over by the time that it is heard."""

    overtake: Callable[[], object] | None = None

    async def read(self, operation_id: UUID) -> Snapshot:
        snapshot = await super().read(operation_id)
        if self.overtake is not None and snapshot.state is not State.CLAIMED:
            asyncio.get_running_loop().call_soon(self.overtake)
            self.overtake = None
        return snapshot


@in_virtual_time
async def test_who_comes_before_the_news_are_heard_gets_a_new_reader() -> None:
    """Also between the reader's end and the waking of those who waited for it."""
    it = await bench(OvertakenStore)
    first = it.wait()
    await settle()
    second: list[asyncio.Task[Snapshot | None]] = []

    def overtake() -> None:
        again = Claim(it.identity, new_identity().operation_id, "other", SAME, int(LEASE_SECONDS * 1e6), read_token=1)
        assert isinstance(MemoryStore(it.memory).apply_now(again), Applied)
        second.append(it.wait(1.0))

    it.store.overtake = overtake  # type: ignore[attr-defined]
    it.say("release")
    assert state_of(await first) is State.RELEASED
    assert state_of(await second[0]) is State.CLAIMED


@in_virtual_time
async def test_close_ends_every_wait() -> None:
    """Whoever waits, or comes later, learns nothing more; nobody is left to read."""
    it = await bench()
    task = it.wait()
    await settle()
    await it.waiting.close()
    assert state_of(await task) is State.CLAIMED
    assert await seconds(late := it.wait()) == 0
    assert await late is None
