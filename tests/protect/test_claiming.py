"""Claims whose answers are lost, refused, late or cancelled: never two executions, never a key that nobody ends."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.lifecycle import settle as settled
from gateway.core.operation import Abandon, Disprove, Record, Release, Snapshot, State
from gateway.protect.claiming import Admission, Claiming, Granted, Seen, Unavailable
from gateway.store.base import Amnesic, Unreadable, Unstorable
from tests.conformance.hand import REMEMBER_US, SAME, new_identity
from tests.support.coordination import INFO, LEASE_SECONDS, claiming_on, request_for
from tests.support.faulty_store import Fault, FaultyStore, Gate, dropped, lost, refused, withheld
from tests.support.memory_store import Memory, MemoryStore
from tests.support.virtual_time import in_virtual_time, settle


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


def unavailable(admission: Admission) -> Unavailable:
    assert isinstance(admission, Unavailable)
    return admission


def seen(admission: Admission) -> Snapshot:
    assert isinstance(admission, Seen)
    return admission.snapshot


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
    assert it.claiming.pursued == 0


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
@pytest.mark.parametrize(
    ("is_executed_anyway", "state"), [(False, State.RELEASED), (True, State.IN_DOUBT)], ids=["refuse", "forward"]
)
@in_virtual_time
async def test_a_claim_given_up_is_ended(fault: Fault, is_executed_anyway: bool, state: State) -> None:
    """One whose answers are all lost is ended once the store answers: in doubt only where the request ran anyway."""
    it = await bench()
    it.store.break_("claim", fault=fault)
    answer = unavailable(await it.claim(is_executed_anyway=is_executed_anyway))
    assert not answer.is_definite
    assert it.claiming.pursued == 1
    it.store.mend()
    await it.claiming.wait_pursuits_ended()
    assert it.state() is state


@pytest.mark.parametrize(
    ("fault", "state"), [(lost(), State.RELEASED), (dropped(), State.ABSENT)], ids=["effect", "no-effect"]
)
@in_virtual_time
async def test_a_claim_that_a_forgetful_store_has_granted_is_ended(fault: Fault, state: State) -> None:
    """Nothing was sent under it, and nobody else could say so."""
    it = await bench()
    forgetful = Fault(Amnesic("what became of this key may be forgotten"), has_effect=False)
    it.store.on("claim", fault, forgetful, forgetful)
    answer = unavailable(await it.claim())
    assert answer.is_amnesic
    await it.claiming.wait_pursuits_ended()
    assert it.state() is state


@pytest.mark.parametrize("read", [None, refused(), withheld()], ids=["free", "away", "withheld"])
@in_virtual_time
async def test_a_key_that_is_not_known_is_executed_as_the_route_chose(read: Fault | None) -> None:
    """Where the store cannot be read either, or has nothing, the request goes on without it; but never where it has."""
    it = await bench()
    it.store.on("claim", refused())
    if read is not None:
        it.store.on("read", read)
    answer = unavailable(await it.claim(is_executed_anyway=True))
    assert answer.is_definite
    assert answer.is_refused == (read is not None and isinstance(read.error, Unreadable))


@pytest.mark.parametrize("fault", [lost(), dropped(), refused()], ids=["effect", "no-effect", "refused"])
@in_virtual_time
async def test_ending_a_pursued_claim_is_repeated(fault: Fault) -> None:
    """The release of a pursued claim may get lost as well; it is said until it is answered, and grants nothing anew."""
    it = await bench()
    it.store.break_("claim", fault=lost())
    await it.claim()
    it.store.mend()
    it.store.on("release", fault, fault)
    await it.claiming.wait_pursuits_ended()
    assert it.record is not None
    assert (it.record.state, it.record.attempts, it.record.token) == (State.RELEASED, 1, 1)


@in_virtual_time
async def test_a_pursued_claim_leaves_another_alone() -> None:
    """A claim that never arrived is not granted behind the back of the one that did."""
    it = await bench()
    it.store.break_("claim", fault=dropped())
    await it.claim()
    it.store.mend()
    record = granted(await it.claim(it.gateway()))
    await it.claiming.wait_pursuits_ended()
    assert it.record == record


@in_virtual_time
async def test_two_claims_that_cross_on_their_way_have_one_grant() -> None:
    """A claim that was on its way while another gateway's was granted sees that one's record."""
    it = await bench()
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim())
    await gate.reached.wait()
    record = granted(await it.claim(it.gateway()))
    gate.opened.set()
    answer = seen(await asking)
    assert answer.record == it.record == record


@in_virtual_time
async def test_a_grant_counts_from_before_its_call() -> None:
    """What the lease is trusted by is the moment before the claim was said, however late its answer came."""
    it = await bench()
    now_seconds = [100.0]
    claiming = claiming_on(it.store, clock=lambda: now_seconds[0])
    gate = it.store.stop_after("claim")
    asking = asyncio.create_task(it.claim(claiming))
    await gate.reached.wait()
    now_seconds[0] += LEASE_SECONDS
    gate.opened.set()
    answer = await asking
    assert isinstance(answer, Granted)
    assert answer.started_seconds == 100.0


@in_virtual_time
async def test_a_refusal_after_a_lost_answer_proves_nothing() -> None:
    """The first statement may have arrived, whatever is said of the later ones."""
    it = await bench()
    it.store.on("claim", lost())
    it.store.break_("claim", fault=refused())
    answer = unavailable(await it.claim())
    assert not answer.is_definite
    assert it.state() is State.CLAIMED
    it.store.mend()
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED


@in_virtual_time
async def test_a_refusal_for_good_after_a_lost_answer() -> None:
    """It is no absence of the store, so nothing is forwarded, and the claim that may have arrived is released."""
    it = await bench()
    it.store.on("claim", lost())
    it.store.break_("claim", fault=Fault(Unstorable("too long"), has_effect=False))
    answer = unavailable(await it.claim(is_executed_anyway=True))
    assert answer.is_refused
    it.store.mend()
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED


@pytest.mark.parametrize(
    ("losses", "is_definite", "state"),
    [
        ([withheld()], True, State.ABSENT),
        ([lost(), *[withheld()] * 4], False, State.RELEASED),
        ([lost(), withheld(), *[lost()] * 3], False, State.RELEASED),
        ([lost(), withheld(), replace(lost(), after=Gate())], False, State.RELEASED),
        ([lost(), withheld(), *[refused()] * 3], False, State.RELEASED),
    ],
    ids=["at-once", "after-a-lost-answer", "before-lost-answers", "before-none", "before-refusals"],
)
@in_virtual_time
async def test_a_record_that_cannot_be_shown(losses: list[Fault], is_definite: bool, state: State) -> None:
    """A route that does without a store that is away does not do without one that knows the key."""
    it = await bench()
    it.store.on("claim", *losses)
    answer = unavailable(await it.claim(is_executed_anyway=True))
    assert (answer.is_refused, answer.is_definite) == (True, is_definite)
    await it.claiming.wait_pursuits_ended()
    assert it.state() is state


@in_virtual_time
async def test_others_that_keep_changing_the_record() -> None:
    """Whoever never gets to claim what is free all the time is refused by a store that answers."""
    it = await bench()
    first = granted(await it.claim())
    await it.store.apply(Release(it.operation_id, first.token, first.attempt_id, REMEMBER_US))
    other = it.gateway()
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim(is_executed_anyway=True))
    while not asking.done():
        await gate.reached.wait()
        record = granted(await it.claim(other))
        await it.store.apply(Release(it.operation_id, record.token, record.attempt_id, REMEMBER_US))
        passed, gate = gate, it.store.stop_before("claim")
        passed.opened.set()
        await settle()
    answer = unavailable(await asking)
    assert (answer.is_refused, answer.is_definite) == (True, True)
    assert it.state() is State.RELEASED


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
@pytest.mark.parametrize(
    ("patience_seconds", "waited_seconds"), [(30.0, 5.0), (2.0, 2.0), (0.05, 1.0)], ids=["ample", "short", "none"]
)
@in_virtual_time
async def test_a_store_that_is_a_black_hole(fault: Fault, patience_seconds: float, waited_seconds: float) -> None:
    """Its caller hears so after about one statement's time or its own patience, and what was claimed is released."""
    it = await bench()
    gate = Gate()
    it.store.on("claim", replace(fault, before=gate if not fault.has_effect else None, after=gate))
    began = asyncio.get_running_loop().time()
    answer = await it.claiming.claim(request_for(it.identity, SAME, patience_seconds=patience_seconds), INFO)
    assert asyncio.get_running_loop().time() - began == waited_seconds
    assert isinstance(answer, Unavailable)
    assert (answer.is_definite, answer.is_refused) == (False, False)
    assert it.state() is (State.CLAIMED if fault.has_effect else State.ABSENT)
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED


@in_virtual_time
async def test_a_lease_that_was_over_before_its_answer() -> None:
    """Such a claim grants nothing any more, and is released, because nobody sent anything under it."""
    it = await bench()
    gate = it.store.stop_after("claim")
    it.store.on("claim", lost())
    asking = asyncio.create_task(it.claim())
    await gate.reached.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert it.state() is State.CLAIMED
    it.memory.clock.advance(LEASE_SECONDS)
    assert it.state() is State.IN_DOUBT
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED


@in_virtual_time
async def test_a_repeat_that_comes_back_lapsed() -> None:
    """A claim that was applied, but whose lease ended before that became known, is given up and released: no route
    forwards its request all the same."""
    it = await bench()
    it.store.on("claim", lost())
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim())
    await gate.reached.wait()
    it.memory.clock.advance(LEASE_SECONDS)
    gate.opened.set()
    answer = await asking
    assert isinstance(answer, Unavailable)
    assert answer.is_refused
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("is_executed_anyway", [False, True], ids=["refuse", "forward"])
@in_virtual_time
async def test_a_cancelled_claim_is_released(side: str, is_executed_anyway: bool) -> None:
    """Whoever is cancelled while claiming executes nothing, on any route, so the claim is released if it was made."""
    it = await bench()
    gate = it.store.stop_before("claim") if side == "before" else it.store.stop_after("claim")
    asking = asyncio.create_task(it.claim(is_executed_anyway=is_executed_anyway))
    await gate.reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.RELEASED
    assert isinstance(await it.claim(), Granted)


@in_virtual_time
async def test_a_pursuit_never_claims_what_was_released_since() -> None:
    """A lost retry that is said again after others were there finds its token gone."""
    it = await bench()
    first = granted(await it.claim())
    await it.store.apply(Release(it.operation_id, first.token, first.attempt_id, REMEMBER_US))
    it.store.on("claim", Fault(), *[dropped()] * 5)
    assert isinstance(await it.claim(), Unavailable)
    other = granted(await it.claim(it.gateway()))
    await it.store.apply(Release(it.operation_id, other.token, other.attempt_id, REMEMBER_US))
    before = it.record
    await it.claiming.wait_pursuits_ended()
    assert it.record == before


@in_virtual_time
async def test_a_claim_disproved_while_its_answer_was_lost() -> None:
    """What an operator freed meanwhile may be claimed, under a new attempt and a higher token."""
    it = await bench()
    it.store.on("claim", lost())
    gate = it.store.stop_before("claim")
    asking = asyncio.create_task(it.claim())
    await gate.reached.wait()
    it.memory.clock.advance(LEASE_SECONDS)
    await it.store.apply(Disprove(it.operation_id, 1, new_identity().operation_id, REMEMBER_US))
    gate.opened.set()
    record = granted(await asking)
    assert (record.token, record.attempts) == (2, 2)
    assert it.claiming.pursued == 0


@in_virtual_time
async def test_close_gives_pursuits_up() -> None:
    """What the store never answers is given up at the end, counted, and left to lapse."""
    it = await bench()
    it.store.break_("claim", fault=lost())
    await it.claim()
    assert await it.claiming.close() == 1
    assert it.claiming.pursued == 0
    it.memory.clock.advance(LEASE_SECONDS)
    assert it.state() is State.IN_DOUBT


@in_virtual_time
async def test_a_defect_of_the_store_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A pursuit that ends by an error of the program says so; nobody else would hear of it."""
    it = await bench()
    it.store.break_("claim", fault=Fault(ZeroDivisionError("defect"), has_effect=False))
    with caplog.at_level(logging.ERROR, "gateway"), pytest.raises(ZeroDivisionError):
        await it.claim()
    with caplog.at_level(logging.ERROR, "gateway"):
        await it.claiming.wait_pursuits_ended()
        await settle()
    assert "pursued" in caplog.text


async def in_doubt() -> tuple[Bench, Record]:
    """An operation whose first attempt was sent, and nobody knows what became of it."""
    it = await bench()
    record = granted(await it.claim())
    await it.store.apply(Abandon(it.operation_id, record.token, record.attempt_id, "reset"))
    it.store.said.clear()
    return it, record


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
@pytest.mark.parametrize("is_executed_anyway", [False, True], ids=["refuse", "forward"])
@in_virtual_time
async def test_a_takeover_given_up_stays_in_doubt(fault: Fault, is_executed_anyway: bool) -> None:
    """Its request hears that the operation is in doubt and is not forwarded; what was granted is abandoned."""
    it, _ = await in_doubt()
    it.store.break_("takeover", fault=fault)
    request = request_for(it.identity, SAME, is_executed_anyway=is_executed_anyway, takes_over=True)
    answer = seen(await it.claiming.claim(request, INFO))
    assert answer.state is State.IN_DOUBT
    it.store.mend()
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.IN_DOUBT


@pytest.mark.parametrize("side", ["before", "after"])
@in_virtual_time
async def test_a_cancelled_takeover_stays_in_doubt(side: str) -> None:
    """Nothing was sent under it, but what was sent before may have had its effect."""
    it, _ = await in_doubt()
    gate = it.store.stop_before("takeover") if side == "before" else it.store.stop_after("takeover")
    asking = asyncio.create_task(it.claiming.claim(request_for(it.identity, SAME, takes_over=True), INFO))
    await gate.reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await it.claiming.wait_pursuits_ended()
    assert it.state() is State.IN_DOUBT
