"""A look at the fast tier before a claim: what it finds is replayed, and whatever else it comes to changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from gateway.core.operation import Snapshot
from gateway.core.verdict import Verdict
from gateway.store.base import Indefinite
from tests.support.coordination import coordination, heard
from tests.support.eventually import eventually
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
