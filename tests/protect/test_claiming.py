"""Claims whose answers are lost, refused, late or cancelled: never two executions, never a key that nobody ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.lifecycle import settle as settled
from gateway.core.operation import Abandon, Disprove, Record, Snapshot, State
from gateway.protect.claiming import Admission, Claiming, Granted, Seen, Unavailable
from gateway.store.base import Amnesic, Unreadable, Unstorable
from tests.conformance.hand import REMEMBER_US, SAME, new_identity
from tests.support.coordination import INFO, LEASE_SECONDS, claiming_on, request_for
from tests.support.faulty_store import Fault, FaultyStore, Gate, dropped, lost, refused, withheld
from tests.support.memory_store import Memory, MemoryStore
from tests.support.virtual_time import in_virtual_time


class Bench:
    """One operation, claimed by one gateway on a store that can fail."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.store = FaultyStore(MemoryStore(self.memory))
        self.identity = new_identity()
        self.claiming = self.gateway()

    def gateway(self) -> Claiming:
        return claiming_on(self.store)

    async def claim(self, claiming: Claiming | None = None, *, is_executed_anyway: bool = False) -> Admission:
        request = request_for(self.identity, SAME, is_executed_anyway=is_executed_anyway)
        return await (claiming or self.claiming).claim(request, INFO)

    @property
    def operation_id(self) -> UUID:
        return self.identity.operation_id

    @property
    def record(self) -> Record | None:
        return settled(self.memory.records.get(self.operation_id), self.memory.clock())

    def state(self) -> State:
        return State.ABSENT if self.record is None else self.record.state


async def bench() -> Bench:
    made = Bench()
    await made.store.start()
    return made


def granted(admission: Admission) -> Record:
    assert isinstance(admission, Granted)
    return admission.record


def seen(admission: Admission) -> Snapshot:
    assert isinstance(admission, Seen)
    return admission.snapshot


def given_up(admission: Admission) -> Unavailable:
    assert isinstance(admission, Unavailable)
    return admission


async def ended(it: Bench) -> State:
    """The state once no claim is pursued any more."""
    it.store.mend()
    await it.claiming.wait_pursuits_ended()
    return it.state()


@pytest.mark.parametrize(
    "losses", [[lost()], [dropped()], [lost(), dropped(), refused(), lost()], [lost(), withheld(), lost()]], ids=str
)
@in_virtual_time
async def test_a_lost_answer_is_asked_for_again(losses: list[Fault]) -> None:
    """Said again with the same attempt id, a claim is granted once whether or not it had arrived before."""
    it = await bench()
    it.store.on("claim", *losses)
    record = granted(await it.claim())
    assert (record.attempts, record.token) == (1, 1)
    assert len(it.claiming.pursuits) == 0


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
@pytest.mark.parametrize(
    "ending", [None, lost(), dropped(), refused()], ids=["heard", "effect", "no-effect", "refused"]
)
@pytest.mark.parametrize("is_executed_anyway", [False, True], ids=["refuse", "forward"])
@in_virtual_time
async def test_a_claim_given_up_is_ended(fault: Fault, ending: Fault | None, is_executed_anyway: bool) -> None:
    """One whose answers are all lost is ended once the store answers, however often that is lost: in doubt only where
    the request ran anyway; and nothing is granted anew."""
    it = await bench()
    it.store.break_("claim", fault=fault)
    assert not given_up(await it.claim(is_executed_anyway=is_executed_anyway)).is_definite
    assert len(it.claiming.pursuits) == 1
    it.store.mend()
    if ending is not None:
        it.store.on("abandon" if is_executed_anyway else "release", ending, ending)
    await it.claiming.wait_pursuits_ended()
    assert it.record is not None
    state = State.IN_DOUBT if is_executed_anyway else State.RELEASED
    assert (it.record.state, it.record.attempts, it.record.token) == (state, 1, 1)


GONE = Fault(Amnesic("what became of this key may be forgotten"), has_effect=False)


TOO_LONG = Fault(Unstorable("too long"), has_effect=False)


@pytest.mark.parametrize(
    ("losses", "is_definite", "is_refused", "state"),
    [
        ([lost(), *[refused()] * 4], False, False, State.RELEASED),
        ([lost(), *[TOO_LONG] * 4], False, True, State.RELEASED),
        ([withheld()], True, True, State.ABSENT),
        ([lost(), *[withheld()] * 4], False, True, State.RELEASED),
        ([lost(), withheld(), *[lost()] * 3], False, True, State.RELEASED),
        ([lost(), withheld(), replace(lost(), after=Gate())], False, True, State.RELEASED),
        ([lost(), withheld(), *[refused()] * 3], False, True, State.RELEASED),
    ],
    ids=["refused", "for-good", "withheld", "withheld-later", "then-lost", "then-nothing", "then-refused"],
)
@in_virtual_time
async def test_refusals_after_a_lost_answer(
    losses: list[Fault], is_definite: bool, is_refused: bool, state: State
) -> None:
    """The first statement may have arrived, whatever is said later; and a store that knows the key is not away."""
    it = await bench()
    it.store.on("claim", *losses)
    answer = given_up(await it.claim(is_executed_anyway=is_refused))
    assert (answer.is_refused, answer.is_definite) == (is_refused, is_definite)
    assert await ended(it) is state


@pytest.mark.parametrize(
    ("fault", "state"), [(lost(), State.RELEASED), (dropped(), State.ABSENT)], ids=["effect", "no"]
)
@in_virtual_time
async def test_a_claim_that_a_forgetful_store_has_granted_is_ended(fault: Fault, state: State) -> None:
    """Nothing was sent under it, and nobody else could say so."""
    it = await bench()
    it.store.on("claim", fault, GONE, GONE)
    assert given_up(await it.claim()).is_amnesic
    assert await ended(it) is state


@pytest.mark.parametrize("read", [None, refused(), withheld()], ids=["free", "away", "withheld"])
@in_virtual_time
async def test_a_key_that_is_not_known_is_executed_as_the_route_chose(read: Fault | None) -> None:
    """Where the store cannot be read either, or has nothing, the request goes on without it; but never where it has."""
    it = await bench()
    it.store.on("claim", refused())
    if read is not None:
        it.store.on("read", read)
    answer = given_up(await it.claim(is_executed_anyway=True))
    assert answer.is_definite
    assert answer.is_refused == (read is not None and isinstance(read.error, Unreadable))


@in_virtual_time
async def test_two_claims_that_cross_on_their_way_have_one_grant() -> None:
    """A claim that was on its way while another gateway's was granted sees that one's record, and leaves it alone."""
    it = await bench()
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim())
    await gate.reached.wait()
    record = granted(await it.claim(it.gateway()))
    gate.opened.set()
    assert seen(await asking).record == it.record == record
    it.store.break_("claim", fault=dropped())
    await it.claim()
    await ended(it)
    assert it.record == record


@in_virtual_time
async def test_a_grant_counts_from_before_its_call() -> None:
    """What the lease is trusted by is the moment before the claim was said, however late its answer came."""
    it, now_seconds = await bench(), [100.0]
    gate = it.store.stop_after("claim")
    asking = asyncio.create_task(it.claim(claiming_on(it.store, clock=lambda: now_seconds[0])))
    await gate.reached.wait()
    now_seconds[0] += LEASE_SECONDS
    gate.opened.set()
    answer = await asking
    assert isinstance(answer, Granted)
    assert answer.started_seconds == 100.0


@pytest.mark.parametrize("is_disproved", [False, True], ids=["lapsed", "disproved"])
@in_virtual_time
async def test_a_repeat_that_comes_back_lapsed(is_disproved: bool) -> None:
    """A claim whose lease ended before it was known is given up and forwarded nowhere; what was freed is claimed."""
    it = await bench()
    it.store.on("claim", lost())
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim(is_executed_anyway=True))
    await gate.reached.wait()
    it.memory.clock.advance(LEASE_SECONDS)
    if is_disproved:
        await it.store.apply(Disprove(it.operation_id, 1, new_identity().operation_id, REMEMBER_US))
    gate.opened.set()
    answer = await asking
    if is_disproved:
        assert (granted(answer).token, granted(answer).attempts, len(it.claiming.pursuits)) == (2, 2, 0)
    else:
        assert given_up(answer).is_refused
        assert await ended(it) is State.RELEASED


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("is_executed_anyway", [False, True], ids=["refuse", "forward"])
@pytest.mark.parametrize("is_takeover", [False, True], ids=["claim", "takeover"])
@in_virtual_time
async def test_a_cancelled_claim_is_released(side: str, is_executed_anyway: bool, is_takeover: bool) -> None:
    """Whoever is cancelled while claiming executes nothing, on any route; what was sent before stays in doubt."""
    it = await (in_doubt() if is_takeover else bench())
    verb = "takeover" if is_takeover else "claim"
    gate = it.store.stop_before(verb) if side == "before" else it.store.stop_after(verb)
    request = request_for(it.identity, SAME, is_executed_anyway=is_executed_anyway, takes_over=is_takeover)
    asking = asyncio.create_task(it.claiming.claim(request, INFO))
    await gate.reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # Its lease may be over by then.
    it.memory.clock.advance(LEASE_SECONDS)
    assert await ended(it) is (State.IN_DOUBT if is_takeover else State.RELEASED)
    assert isinstance(await it.claim(), Seen if is_takeover else Granted)


@in_virtual_time
async def test_close_gives_pursuits_up() -> None:
    """What the store never answers is given up at the end, counted, and left to lapse."""
    it = await bench()
    it.store.break_("claim", fault=lost())
    await it.claim()
    assert (await it.claiming.close(), len(it.claiming.pursuits)) == (1, 0)
    it.memory.clock.advance(LEASE_SECONDS)
    assert it.state() is State.IN_DOUBT


async def in_doubt() -> Bench:
    """An operation whose first attempt was sent, and nobody knows what became of it."""
    it = await bench()
    record = granted(await it.claim())
    await it.store.apply(Abandon(it.operation_id, record.token, record.attempt_id, "reset"))
    it.store.said.clear()
    return it


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
@pytest.mark.parametrize("is_executed_anyway", [False, True], ids=["refuse", "forward"])
@in_virtual_time
async def test_a_takeover_given_up_stays_in_doubt(fault: Fault, is_executed_anyway: bool) -> None:
    """Its request hears that the operation is in doubt and is not forwarded; what was granted is abandoned."""
    it = await in_doubt()
    it.store.break_("takeover", fault=fault)
    request = request_for(it.identity, SAME, is_executed_anyway=is_executed_anyway, takes_over=True)
    assert seen(await it.claiming.claim(request, INFO)).state is State.IN_DOUBT
    assert await ended(it) is State.IN_DOUBT
