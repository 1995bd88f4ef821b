"""How long a claim is trusted, on a clock that only the test moves."""

from __future__ import annotations

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
async def test_a_slow_operation_keeps_its_lease() -> None:
    """Renewed at every third, and not before, a claim is trusted and claimed for as long as its attempt runs."""
    it = Bench()
    lease = await it.hold()
    await it.beat(LEASE_SECONDS / 3 - 0.001)
    assert it.store.said == ["claim"]
    for _ in range(100):
        await it.beat(it.leases.pass_seconds)
        assert lease.is_trusted()
    assert it.record.lease_until_us > it.memory.clock()
    assert it.store.said.count("renew") == pytest.approx(100 / 4, abs=2)
    it.leases.held.pop(lease)
    it.store.said.clear()
    await it.beat(LEASE_SECONDS)
    assert it.store.said == []


@pytest.mark.parametrize(
    ("gateway_seconds", "store_seconds", "left_seconds"),
    [(10.0, 0.0, TRUST_SECONDS - 10.0), (0.0, -3600.0, TRUST_SECONDS)],
    ids=["later", "clock-set-back"],
)
@in_virtual_time
async def test_a_claim_that_was_repeated_is_trusted_for_what_remains(
    gateway_seconds: float, store_seconds: float, left_seconds: float
) -> None:
    """The lease began when the first of the two took effect; a store's clock that is set back stretches none."""
    it = Bench()
    await it.store.start()
    claim = Claim(it.identity, new_identity().operation_id, "here", SAME, int(LEASE_SECONDS * 1e6))
    await it.store.apply(claim)
    it.pass_time(gateway_seconds)
    it.memory.clock.advance(store_seconds)
    result = await it.store.apply(claim)
    assert isinstance(result, Applied)
    assert result.snapshot.record is not None
    lease = it.leases.hold(result.snapshot.record, result.snapshot.now_us, it.now_seconds)
    it.pass_time(left_seconds + 0.001)
    assert not lease.is_trusted()


@in_virtual_time
async def test_a_slow_renewal_stretches_no_lease() -> None:
    """The answer to a renewal counts from before it was asked for; while it is on its way none is asked for beside."""
    it = Bench()
    lease = await it.hold()
    gate = it.store.stop_after("renew")
    await it.beat(10.0)
    for _ in range(3):
        await it.beat(3.0)
    assert it.store.said.count("renew") == 1
    it.pass_time(TRUST_SECONDS - 8)
    gate.opened.set()
    await settle()
    assert not lease.is_trusted()


@pytest.mark.parametrize(
    "fault",
    [lost(), dropped(), refused(), Fault(ZeroDivisionError("defect"), has_effect=False)],
    ids=["effect", "no-effect", "refused", "defect"],
)
@in_virtual_time
async def test_an_error_renews_nothing_and_ends_nothing(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is trusted to its own end and no longer, and the next pass tries again; a defect is told."""
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
    assert ("renewal" in caplog.text) == isinstance(fault.error, ZeroDivisionError)
    it.store.mend()
    await it.beat(1.0)
    assert lease.is_trusted()


@pytest.mark.parametrize("event", ["complete", "release", "abandon", "takeover"])
@in_virtual_time
async def test_whoever_changes_the_record_ends_trust(event: str) -> None:
    """A fenced renewal says that the record went on without us, long before the lease would have ended."""
    it = Bench()
    lease = await it.hold()
    ids = (it.identity.operation_id, lease.token, lease.attempt_id)
    if event == "complete":
        await it.store.apply(Complete(*ids, ANSWER, REPLAY_US, REMEMBER_US))
    else:
        await it.store.apply(Release(*ids, REMEMBER_US) if event == "release" else Abandon(*ids, "reset"))
    if event == "takeover":
        await it.store.apply(Takeover(*ids[:2], new_identity().operation_id, "other", int(1e12)))
    await it.beat(10.0)
    assert not lease.is_trusted()
    assert it.losses == 1


@in_virtual_time
async def test_a_stalled_loop_claims_nothing() -> None:
    """After more than a third of a lease without a pass, but for the start, nothing may be claimed until the next."""
    it = Bench()
    it.pass_time(60.0)
    it.leases.run_once()
    it.facts.clear()
    it.pass_time(LEASE_SECONDS / 3)
    assert not it.leases.is_stalled()
    it.pass_time(0.001)
    assert it.leases.is_stalled()
    it.leases.run_once()
    assert not it.leases.is_stalled()
    assert [fact for fact in it.facts if isinstance(fact, LoopStalled)]
