"""How long a claim is trusted, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.core.operation import Abandon, Applied, Claim, Complete, Record, Release, Takeover
from gateway.observe.facts import Events, Fact, LeaseLost, LoopStalled
from gateway.protect.claiming import Lease, Leases
from tests.conformance.hand import ANSWER, REMEMBER_US, REPLAY_US, SAME, new_identity
from tests.support.faulty_store import Fault, FaultyStore, dropped, lost, refused
from tests.support.memory_store import Memory, MemoryStore
from tests.support.virtual_time import in_virtual_time, settle

LEASE_SECONDS = 30.0
# A sixth of the lease is kept for the pause between looking at the clock and the first byte.
TRUST_SECONDS = 25.0


class Bench:
    """One held claim. `pass_time` moves the gateway's clock and the store's alike."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        self.now_seconds = 50.0
        self.memory = Memory()
        self.store = FaultyStore(MemoryStore(self.memory))
        self.facts: list[Fact] = []
        self.leases = Leases(
            self.store, Events(self.facts.append), lease_seconds=lease_seconds, clock=lambda: self.now_seconds
        )
        self.identity = new_identity()

    def pass_time(self, seconds: float) -> None:
        self.now_seconds += seconds
        self.memory.clock.advance(seconds)

    async def hold(self, *, answer_seconds: float = 0.0) -> Lease:
        """Claim, with an answer that takes so long to arrive, and hold the lease."""
        await self.store.start()
        started = self.now_seconds
        lease_us = int(self.leases.lease_seconds * 1e6)
        result = await self.store.apply(Claim(self.identity, new_identity().operation_id, "here", SAME, lease_us))
        assert isinstance(result, Applied)
        assert result.snapshot.record is not None
        self.pass_time(answer_seconds)
        return self.leases.hold(result.snapshot.record, result.snapshot.now_us, started)

    async def beat(self, seconds: float) -> None:
        """Let that much time pass, and then one pass of the renewals."""
        self.pass_time(seconds)
        self.leases.run_once()
        await settle()

    @property
    def record(self) -> Record:
        return self.memory.records[self.identity.operation_id]

    @property
    def losses(self) -> int:
        return sum(isinstance(fact, LeaseLost) for fact in self.facts)


@in_virtual_time
async def test_trust_ends_a_margin_before_the_lease() -> None:
    """Nobody sends in the last sixth of a lease."""
    it = Bench()
    lease = await it.hold()
    it.pass_time(TRUST_SECONDS - 0.001)
    assert lease.is_trusted()
    it.pass_time(0.002)
    assert not lease.is_trusted()


@in_virtual_time
async def test_short_operations_cost_no_renewal() -> None:
    """Nothing is renewed in the first third of a lease."""
    it = Bench()
    lease = await it.hold()
    await it.beat(LEASE_SECONDS / 3 - 0.001)
    it.leases.held.pop(lease)
    await it.beat(LEASE_SECONDS)
    assert it.store.said == ["claim"]


@in_virtual_time
async def test_a_slow_operation_keeps_its_lease() -> None:
    """Renewed at every third, a claim is trusted and claimed for as long as its attempt runs."""
    it = Bench()
    lease = await it.hold()
    for _ in range(100):
        await it.beat(it.leases.pass_seconds)
        assert lease.is_trusted()
    assert it.record.lease_until_us > it.memory.clock()
    assert it.store.said.count("renew") == pytest.approx(100 / 4, abs=2)


@in_virtual_time
async def test_a_store_clock_that_is_set_back_takes_no_lease() -> None:
    """Who holds a claim while the store's clock goes back by a day holds it on, and renews it by the new time."""
    it = Bench()
    lease = await it.hold()
    it.memory.clock.advance(-86_400.0)
    await it.store.cold.sweep(100)
    for _ in range(20):
        await it.beat(it.leases.pass_seconds)
        assert lease.is_trusted()
    assert it.losses == 0
    assert it.memory.clock() < it.record.lease_until_us <= it.memory.clock() + LEASE_SECONDS * 1e6


@in_virtual_time
async def test_a_claim_that_was_repeated_is_trusted_for_what_remains() -> None:
    """The lease began when the first of the two took effect, not when the answer to the second came."""
    it = Bench()
    await it.store.start()
    claim = Claim(it.identity, new_identity().operation_id, "here", SAME, int(LEASE_SECONDS * 1e6))
    await it.store.apply(claim)
    it.pass_time(10.0)
    result = await it.store.apply(claim)
    assert isinstance(result, Applied)
    assert result.snapshot.record is not None
    lease = it.leases.hold(result.snapshot.record, result.snapshot.now_us, it.now_seconds)
    it.pass_time(TRUST_SECONDS - 10.0 + 0.001)
    assert not lease.is_trusted()


@in_virtual_time
async def test_a_store_clock_that_is_set_back_stretches_no_lease() -> None:
    """A claim whose answer was lost, repeated after the step, is trusted for no longer than was asked for."""
    it = Bench()
    await it.store.start()
    claim = Claim(it.identity, new_identity().operation_id, "here", SAME, int(LEASE_SECONDS * 1e6))
    await it.store.apply(claim)
    it.memory.clock.advance(-3600.0)
    result = await it.store.apply(claim)
    assert isinstance(result, Applied)
    assert result.snapshot.record is not None
    lease = it.leases.hold(result.snapshot.record, result.snapshot.now_us, it.now_seconds)
    it.pass_time(TRUST_SECONDS + 0.001)
    assert not lease.is_trusted()


@in_virtual_time
async def test_a_slow_renewal_stretches_no_lease() -> None:
    """The answer to a renewal counts from before it was asked for."""
    it = Bench()
    lease = await it.hold()
    gate = it.store.stop_after("renew")
    await it.beat(10.0)
    it.pass_time(TRUST_SECONDS + 1)
    gate.opened.set()
    await settle()
    assert not lease.is_trusted()


@in_virtual_time
async def test_one_renewal_at_a_time() -> None:
    """While the store is slow, passes do not pile renewals up."""
    it = Bench()
    await it.hold()
    gate = it.store.stop_before("renew")
    for _ in range(5):
        await it.beat(3.0)
    assert gate.reached.is_set()
    assert it.store.said.count("renew") == 1
    gate.opened.set()
    await settle()


@pytest.mark.parametrize("fault", [lost(), dropped(), refused()], ids=["effect", "no-effect", "refused"])
@in_virtual_time
async def test_an_error_renews_nothing_and_ends_nothing(fault: Fault) -> None:
    """The lease is trusted to its own end and no longer, and the next pass tries again."""
    it = Bench()
    lease = await it.hold()
    it.store.break_("renew", fault=fault)
    await it.beat(10.0)
    await it.beat(TRUST_SECONDS - 10.0 - 0.001)
    assert lease.is_trusted()
    assert it.store.said.count("renew") == 2
    it.pass_time(0.002)
    assert not lease.is_trusted()
    assert it.losses == 0
    it.store.mend()
    await it.beat(1.0)
    assert lease.is_trusted()


@in_virtual_time
async def test_a_lapsed_lease_is_lost_at_once() -> None:
    """A renewal that comes too late ends trust, is told once, and is not repeated."""
    it = Bench()
    lease = await it.hold()
    it.store.break_("renew", fault=refused())
    await it.beat(LEASE_SECONDS)
    it.store.mend()
    for _ in range(3):
        await it.beat(3.0)
    assert not lease.is_trusted()
    assert it.losses == 1
    assert it.store.said.count("renew") == 2


@pytest.mark.parametrize("event", ["complete", "release", "abandon", "takeover"])
@in_virtual_time
async def test_whoever_changes_the_record_ends_trust(event: str) -> None:
    """A fenced renewal says that the record went on without us, long before the lease would have ended."""
    it = Bench()
    lease = await it.hold()
    ids = (it.identity.operation_id, lease.token, lease.attempt_id)
    match event:
        case "complete":
            await it.store.apply(Complete(*ids, ANSWER, REPLAY_US, REMEMBER_US))
        case "release":
            await it.store.apply(Release(*ids, REMEMBER_US))
        case _:
            await it.store.apply(Abandon(*ids, "reset"))
    if event == "takeover":
        await it.store.apply(
            Takeover(it.identity.operation_id, lease.token, new_identity().operation_id, "other", int(1e12))
        )
    await it.beat(10.0)
    assert not lease.is_trusted()
    assert it.losses == 1


@in_virtual_time
async def test_the_answer_to_a_renewal_after_the_attempt_ended() -> None:
    """It is no loss of a lease: there is none any more."""
    it = Bench()
    lease = await it.hold()
    gate = it.store.stop_before("renew")
    await it.beat(10.0)
    await it.store.apply(Release(it.identity.operation_id, lease.token, lease.attempt_id, REMEMBER_US))
    it.leases.held.pop(lease)
    gate.opened.set()
    await settle()
    assert it.losses == 0


@in_virtual_time
async def test_a_stalled_loop_claims_nothing() -> None:
    """After more than a third of a lease without a pass nothing may be claimed until the next, which tells of it."""
    it = Bench()
    it.leases.run_once()
    it.pass_time(LEASE_SECONDS / 3)
    assert not it.leases.is_stalled()
    it.pass_time(0.001)
    assert it.leases.is_stalled()
    it.leases.run_once()
    assert not it.leases.is_stalled()
    assert [fact for fact in it.facts if isinstance(fact, LoopStalled)]


@in_virtual_time
async def test_a_slow_start_is_no_stall() -> None:
    """The time before the passes began, in which a store was connected to, says nothing of the loop."""
    it = Bench()
    it.pass_time(60.0)
    running = asyncio.create_task(it.leases.run())
    await settle()
    assert not it.leases.is_stalled()
    assert it.facts == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_the_passes_end_with_their_renewals() -> None:
    """Cancelled, the timer leaves no renewal under way."""
    it = Bench()
    await it.hold()
    gate = it.store.stop_before("renew")
    it.pass_time(10.0)
    running = asyncio.create_task(it.leases.run())
    await gate.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_a_defect_of_the_store_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A renewal that ends by an error of the program says so, and the next pass tries again."""
    it = Bench()
    lease = await it.hold()
    it.store.on("renew", Fault(ZeroDivisionError("defect"), has_effect=False))
    with caplog.at_level(logging.ERROR, "gateway"):
        await it.beat(10.0)
    assert "renewal" in caplog.text
    await it.beat(10.0)
    it.pass_time(10.0)
    assert lease.is_trusted()
