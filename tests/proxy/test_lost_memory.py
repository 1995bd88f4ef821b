"""What duplicates hear of an operation that the durable store has forgotten while it was executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.core.operation import State
from gateway.core.verdict import Word
from gateway.observe.facts import Herald
from gateway.store.base import EpochChanged, NotApplied
from gateway.store.epoch import SeenFile
from gateway.store.front import Front
from tests.support.coordination import LEASE_SECONDS, coordination, heard
from tests.support.eventually import eventually
from tests.support.memory_store import Memory, MemoryStore

WINDOW_US = 3_600_000_000


class FailingOver(MemoryStore):
    """A store behind whose address another memory may come to be."""

    met = ""

    async def start(self) -> None:
        await super().start()
        self.met = self.memory.identity

    def _check_started(self) -> None:
        super()._check_started()
        if self.met != self.memory.identity:
            raise EpochChanged("another memory")


@dataclass
class Fronts:
    """The fronts of the gateways, as `coordination` asks for them."""

    directory: Path
    made: list[Front] = field(default_factory=list)

    def __call__(self, memory: Memory) -> Front:
        seen_file = SeenFile(self.directory / f"seen-{len(self.made)}.json")
        front = Front(
            FailingOver(memory), Herald(), "shop", {}, frozenset(), seen_file=seen_file, amnesia_window_us=WINDOW_US
        )
        self.made.append(front)
        return front

    async def fail_over(self, memory: Memory) -> None:
        """The store goes over to a standby that had not heard of the last operations, and every gateway notices."""
        memory.records.clear()
        memory.identity = "a standby that was promoted"
        for front in self.made:
            with pytest.raises(EpochChanged):
                await front.tally()
        for front in self.made:

            async def is_back(front: Front = front) -> bool:
                try:
                    await front.tally()
                except NotApplied:
                    return False
                return True

            await eventually(is_back)


@pytest.fixture
def fronts(tmp_path: Path) -> Fronts:
    return Fronts(tmp_path)


async def test_a_duplicate_of_what_was_forgotten_here(tmp_path: Path, fronts: Fronts) -> None:
    """Once the lease is over nobody can tell, and so nobody is told that the first request had no effect."""
    async with coordination(tmp_path, store_on=fronts) as office:
        first, hold = await office.begin()
        await fronts.fail_over(office.memory)
        office.pass_time(LEASE_SECONDS)
        office.leases.run_once()
        assert heard(await office.reply(headers=[("Prefer", "wait=0")])) == (503, Word.STORE_UNAVAILABLE)
        hold.set()
        assert heard(await first) == (502, Word.IN_DOUBT)


async def test_a_duplicate_of_what_was_forgotten_elsewhere(tmp_path: Path, fronts: Fronts) -> None:
    """Who waits in another gateway waits on, and is not told that the first request had no effect."""
    async with (
        coordination(tmp_path / "one", store_on=fronts) as office,
        coordination(tmp_path / "two", store_on=fronts, memory=office.memory, behind=office.upstream) as other,
    ):
        first, hold = await office.begin()
        waiter = other.ask(headers=[("Prefer", "wait=1")])
        await other.wait_for_waiters()
        await fronts.fail_over(office.memory)
        assert heard(await waiter) == (409, Word.IN_FLIGHT)
        assert heard(await other.reply()) == (503, Word.STORE_AMNESIA)
        hold.set()
        await first


async def test_who_waited_for_what_was_forgotten_meanwhile(tmp_path: Path, fronts: Fronts) -> None:
    """They hear what the first caller hears: that nobody knows what was recorded of it, and not that nothing was."""
    async with coordination(tmp_path, store_on=fronts) as office:
        first, hold = await office.begin()
        waiter = office.ask()
        await office.wait_for_waiters()
        await fronts.fail_over(office.memory)
        hold.set()
        assert heard(await first) == heard(await waiter) == (502, Word.IN_DOUBT)
        assert office.state is State.ABSENT
