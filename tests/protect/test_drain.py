"""The end of a coordinator at every moment of a request: recorded, released or in doubt, and nobody left waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.operation import State
from gateway.core.verdict import Verdict
from gateway.protect import operation as runs
from gateway.protect.operation import Drained
from gateway.protect.reply import Reply
from gateway.protect.request import Untouched
from gateway.store.files import AttemptFiles, MarkedAttempt
from tests.support.coordination import Office, Pieces, coordination, heard
from tests.support.eventually import eventually
from tests.support.faulty_store import Gate, lost, refused
from tests.support.upstream import Answer, silent_tls


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A final command is repeated at once."""
    monkeypatch.setattr(runs, "_FINAL_COMMAND_PAUSE_SECONDS", 0.01)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store never takes is tried for a tenth of a second."""
    monkeypatch.setattr(runs, "_FINAL_COMMAND_SECONDS", 0.1)


async def sent(office: Office, *answers: Answer) -> asyncio.Task[Reply | Untouched]:
    """A request that the upstream has, and answers so; without an answer, never."""
    office.upstream.on("/charges", *(answers or (Answer(hold=asyncio.Event()),)))
    task = office.ask()
    await office.upstream.wait_for_requests(1)
    return task


def left_by_ended(directory: Path) -> list[MarkedAttempt]:
    """What another worker of the host reads of those that have ended."""
    ended = AttemptFiles(directory / "attempts").take_ended()
    found = [attempt for each in ended for attempt in each.attempts]
    for each in ended:
        each.remove()
    return found


async def test_nothing_is_admitted_any_more(tmp_path: Path) -> None:
    """Who comes during or after a drain may repeat elsewhere, and so may one whose body is whole only after it."""
    async with coordination(tmp_path) as office:
        rest = asyncio.Event()
        task = office.ask(body=Pieces(b'{"a":', rest, b"1}"))
        await asyncio.sleep(0)
        assert await office.coordinator.drain(0) == Drained()
        rest.set()
        assert heard(await office.reply()) == heard(await task) == (503, Verdict.OVERLOADED)
        assert office.store.said == []


async def test_in_the_pursuit_of_a_claim(tmp_path: Path, impatience: None) -> None:
    """A claim that the store never answers for is given up, and counted as unrecorded. It stays marked as unsent."""
    async with coordination(tmp_path) as office:
        gate = Gate()
        office.store.on("claim", replace(lost(), before=gate))
        office.store.break_("claim", fault=lost())
        task = office.ask()
        await gate.reached.wait()
        gate.opened.set()
        await asyncio.sleep(0)
        assert await office.coordinator.drain(0) == Drained(unrecorded=1)
        assert heard(await task) == (503, Verdict.OVERLOADED)
        assert office.state is State.CLAIMED
        office.attempt_files.close()
        assert left_by_ended(tmp_path) == [MarkedAttempt(office.record.identity.operation_id, office.record.attempt_id)]


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "not-ended"])
async def test_what_was_not_sent_stays_marked_until_its_claim_has_ended(
    request: pytest.FixtureRequest, tmp_path: Path, *, is_ended: bool
) -> None:
    """A gateway that is killed in its last seconds leaves no doubt about what it never sent."""
    if not is_ended:
        request.getfixturevalue("impatience")
    async with silent_tls() as url, coordination(tmp_path, upstream={"url": url, "connect_timeout": "20s"}) as office:
        task = office.ask()
        await eventually(lambda: office.memory.records != {})
        gate = office.store.stop_after("release") if is_ended else None
        if gate is None:
            office.store.break_("release", fault=refused())
            await office.journal.close()
        drain = asyncio.create_task(office.coordinator.drain(0))
        if gate is not None:
            await gate.reached.wait()
            gate.opened.set()
        assert await drain == (Drained(recorded=1) if is_ended else Drained(unrecorded=1))
        await task
        unsent = MarkedAttempt(office.record.identity.operation_id, office.record.attempt_id)
        office.attempt_files.close()
        assert left_by_ended(tmp_path) == ([] if is_ended else [unsent])


async def test_in_the_answer(tmp_path: Path) -> None:
    """What was sent and not answered whole is in doubt, which says why, and its connection is given up."""
    async with coordination(tmp_path) as office:
        task = await sent(office, Answer(body=(b"a", asyncio.Event(), b"z")))
        await eventually(lambda: office.client.stats.answered == 1)
        assert await office.coordinator.drain(0) == Drained(recorded=1)
        assert heard(await task) == (503, Verdict.IN_DOUBT)
        assert (office.state, office.record.doubt) == (State.IN_DOUBT, "interrupted")
        await eventually(lambda: office.open_connections == 0)


@pytest.mark.parametrize(
    ("status", "event", "state", "verdict"),
    [
        (200, "complete", State.COMPLETED, Verdict.IN_DOUBT),
        (503, "release", State.RELEASED, Verdict.OVERLOADED),
        (401, "forget", State.RELEASED, Verdict.OVERLOADED),
        (502, "abandon", State.IN_DOUBT, Verdict.IN_DOUBT),
    ],
)
@pytest.mark.parametrize("side", ["before", "after"])
async def test_in_the_write(tmp_path: Path, side: str, status: int, event: str, state: State, verdict: Verdict) -> None:
    """The outcome is said once more, whether or not it had taken effect: the same one, by the same attempt."""
    async with coordination(tmp_path) as office:
        office.upstream.on("/charges", Answer(status))
        gate = office.store.stop_before(event) if side == "before" else office.store.stop_after(event)
        task = office.ask()
        await gate.reached.wait()
        assert await office.coordinator.drain(0) == Drained(recorded=1)
        assert heard(await task) == (503, verdict)
        assert (office.state, office.store.said) == (state, ["claim", event, event])


async def test_those_who_wait_for_another_gateway(tmp_path: Path) -> None:
    """They hear that the operation is still running, at once."""
    async with coordination(tmp_path, route={"in_flight": {"wait": "20s"}}) as office:
        first = await sent(office)
        async with coordination(tmp_path, memory=office.memory, behind=office.upstream) as other:
            waiter = other.ask(route=replace(other.route, in_flight=office.route.in_flight))
            await other.wait_for_waiters()
            assert await other.coordinator.drain(0) == Drained()
            assert heard(await waiter) == (409, Verdict.IN_FLIGHT)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("steps", range(1, 60, 2))
async def test_at_any_step(tmp_path: Path, steps: int) -> None:
    """However far it came, a request ends recorded, released, in doubt or not begun, and every caller is answered."""
    async with coordination(tmp_path) as office:
        callers: list[asyncio.Task[Reply | Untouched]] = [office.ask() for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        drained = await office.coordinator.drain(0)
        assert drained.unrecorded == 0
        for caller in callers:
            assert isinstance(await caller, Reply)
        if office.memory.records:
            assert office.state in (State.COMPLETED, State.RELEASED, State.IN_DOUBT)
            if office.state is State.RELEASED:
                assert office.upstream.effects == []
