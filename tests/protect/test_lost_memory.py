"""What duplicates hear of an operation that the durable store has forgotten while it was executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.verdict import Verdict
from gateway.store.base import EpochChanged, NotApplied
from tests.support.coordination import Office, coordination, heard
from tests.support.eventually import eventually
from tests.support.memory_store import MemoryStore


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


async def fail_over(*offices: Office) -> None:
    """The store goes over to a standby that had not heard of the last operations, and every gateway notices."""
    memory = offices[0].memory
    memory.records.clear()
    memory.identity = "a standby that was promoted"
    for office in offices:
        with pytest.raises(EpochChanged):
            await office.tiers.cold.tally()
    for office in offices:

        async def is_back(office: Office = office) -> bool:
            try:
                await office.tiers.cold.tally()
            except NotApplied:
                return False
            return True

        await eventually(is_back)


async def test_a_duplicate_of_what_was_forgotten_elsewhere(tmp_path: Path) -> None:
    """Who waits in another gateway waits on, and is not told that the first request had no effect."""
    async with (
        coordination(tmp_path / "one", store_on=FailingOver) as office,
        coordination(tmp_path / "two", store_on=FailingOver, memory=office.memory, behind=office.upstream) as other,
    ):
        first, hold = await office.begin()
        waiter = other.ask(headers=[("Prefer", "wait=1")])
        await other.wait_for_waiters()
        await fail_over(office, other)
        assert heard(await waiter) == (409, Verdict.IN_FLIGHT)
        assert heard(await other.reply()) == (503, Verdict.STORE_AMNESIA)
        hold.set()
        await first
