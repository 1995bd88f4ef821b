"""A look at the fast tier before a claim: what it finds is replayed, and whatever else it comes to changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from gateway.core.operation import Snapshot, State
from gateway.core.verdict import Verdict
from gateway.protect import claiming
from gateway.store.base import Indefinite
from tests.support.coordination import LEASE_SECONDS, coordination, heard
from tests.support.eventually import eventually
from tests.support.faulty_store import dropped
from tests.support.memory_store import Memory, MemoryStore
from tests.support.upstream import Answer

SPOOLED = b'{"data":"' + b"x" * 300_000 + b'"}'
BODIES = pytest.mark.parametrize("body", [b"{}", SPOOLED], ids=["short", "spooled"])


class FastTier:
    """What is asked of it, to be answered by the test."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Snapshot | None]] = []

    def look(self, _: UUID) -> asyncio.Future[Snapshot | None]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def wait_asked(self, count: int = 1) -> None:
        await eventually(lambda: len(self.asked) == count, what="the fast tier is asked")

    async def wait_looking(self, count: int) -> None:
        """Return when so many wait for the first answer, beside the coordinator and the tiers."""
        await eventually(lambda: len(self.asked[0]._callbacks or ()) == count + 2, what="all are looking")


async def completed(directory: Path, memory: Memory, body: bytes) -> Snapshot:
    """The record of what another gateway has answered."""
    async with coordination(directory, memory=memory) as other:
        assert heard(await other.reply(body=body)) == (200, Verdict.STORED)
    (operation_id,) = memory.records
    return MemoryStore(memory).read_now(operation_id)


@BODIES
@pytest.mark.parametrize("finding", ["nothing", "error", "cancelled"])
async def test_what_is_not_found_is_executed(tmp_path: Path, finding: str, body: bytes) -> None:
    """Whatever became of the look: the store decides."""
    fast = FastTier()
    async with coordination(tmp_path, look=fast.look) as office:
        task = office.ask(body=body)
        await fast.wait_asked()
        looked = fast.asked[0]
        match finding:
            case "nothing":
                looked.set_result(None)
            case "error":
                looked.set_exception(Indefinite("no answer"))
            case _:
                looked.cancel()
        assert heard(await task) == (200, Verdict.STORED)
        assert len(office.upstream.requests) == 1


@BODIES
async def test_a_herd_looks_once(tmp_path: Path, body: bytes) -> None:
    """And takes one place; of those who found nothing one executes, and the others hear what came of it."""
    fast, hold = FastTier(), asyncio.Event()
    # A body that is still coming in takes a place of its own.
    places = 2 if body is not SPOOLED else 10
    async with coordination(tmp_path, look=fast.look, in_flight_max=places) as office:
        office.upstream.on("/charges", Answer(hold=hold))
        tasks = [office.ask(body=body) for _ in range(2)]
        await fast.wait_asked()
        tasks += [office.ask(body=body) for _ in range(3)]
        await fast.wait_looking(len(tasks))
        fast.asked[0].set_result(None)
        await eventually(lambda: office.coordinator.waiters == 4, what="the others wait")
        hold.set()
        assert sorted([heard(await task) for task in tasks]) == [(200, Verdict.REPLAYED)] * 4 + [(200, Verdict.STORED)]
        assert (len(fast.asked), len(office.upstream.requests)) == (1, 1)


@BODIES
async def test_claims_without_an_answer_keep_no_copy_back(
    tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are pursued on a store that says nothing, what needs no claim is replayed, and no more are begun."""
    # Given up at once, and pursued for the first answer.
    monkeypatch.setattr(claiming, "_PAUSES_SECONDS", (0.0,))
    memory, copies = Memory(), list[Snapshot]()

    def look(_: UUID) -> asyncio.Future[Snapshot | None]:
        looked: asyncio.Future[Snapshot | None] = asyncio.get_running_loop().create_future()
        looked.set_result(copies[0] if copies else None)
        return looked

    snapshot = await completed(tmp_path / "other", memory, body)
    async with coordination(tmp_path, memory=memory, look=look, in_flight_max=3) as office:
        office.store.break_("claim", fault=dropped())
        for key in ("a", "b", "c"):
            assert heard(await office.reply(key, body)) == (503, Verdict.STORE_UNAVAILABLE)
        assert (office.claiming.pursued, office.coordinator.in_flight) == (3, 0)
        assert heard(await office.reply("d", body)) == (503, Verdict.OVERLOADED)
        copies.append(snapshot)
        assert heard(await office.reply(body=body)) == (200, Verdict.REPLAYED)


@BODIES
async def test_who_leaves_while_looking_has_asked_for_nothing(tmp_path: Path, body: bytes) -> None:
    """Nothing is claimed for it, and its place is free."""
    fast = FastTier()
    async with coordination(tmp_path, look=fast.look, in_flight_max=1) as office:
        task = office.ask(body=body)
        await fast.wait_asked()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not fast.asked[0].done():
            fast.asked[0].set_result(None)
        again = office.ask("another")
        await fast.wait_asked(2)
        fast.asked[1].set_result(None)
        assert heard(await again) == (200, Verdict.STORED)
        assert (office.store.said, office.state) == (["claim", "complete"], State.COMPLETED)


@pytest.mark.parametrize("what", ["drain", "stuck loop"])
async def test_what_begins_meanwhile(tmp_path: Path, what: str) -> None:
    """Neither who looked nor who came to that look is taken on, once a drain begins or the loop is stuck."""
    fast = FastTier()
    async with coordination(tmp_path, look=fast.look) as office:
        tasks = [office.ask() for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        if what == "drain":
            await office.coordinator.drain(0)
        else:
            office.pass_time(LEASE_SECONDS)
        fast.asked[0].set_result(None)
        assert [heard(await task) for task in tasks] == [(503, Verdict.OVERLOADED)] * 2
        assert office.store.said == []
