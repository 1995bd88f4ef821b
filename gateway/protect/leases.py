"""Renews the leases of live claims, and knows at any moment whether a claim may still be trusted.

Owns the leases of the attempts in this process. It knows the store's `renew`, but neither requests nor upstreams.

Theory of operation
-------------------
*State.* A lease is held from its grant until its attempt drops it. It is trusted until a moment on the boot-time clock.
It is lost once that moment has passed, or once the store reports that the record has changed without us.

*Trust window.* The store returned "so much remains" to a call that began at `started`. It read its clock after
`started`, so the lease ends no earlier than `started + remaining`. A margin is subtracted for the pause between reading
the clock and the first byte on the wire: max(1 s, a sixth of the lease). A slow reply of the store cannot stretch a
lease, and after a suspend all leases are over.

*Renewal.* Most operations finish within their first lease and cost nothing here. The others are renewed when a third of
the lease has passed, all in one pass, which the store makes one statement of. A pass never waits for an earlier one.

*Failure.* After an error, the lease stays trusted until its own end, and the next pass tries again. `Lapsed` and
`Fenced` end trust at once. Losing trust stops sending. It does not stop an attempt that was sent: its outcome may still
be recorded if nobody took over.

*A stalled loop* renews nothing either, and could admit requests the moment it continues; `is_stalled` detects that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Applied, Fenced, Lapsed, Record, Renew, Result, Snapshot, microseconds
from gateway.observe.facts import Events, LeaseLost, LoopStalled
from gateway.store.base import Store, StoreError, boot_seconds

_LOG = logging.getLogger("gateway")


@dataclass(slots=True, eq=False)
class Lease:
    """The trust in one claim. `trusted_until_seconds` is on `clock`, the boot-time clock."""

    operation_id: UUID
    token: int
    attempt_id: UUID
    clock: Callable[[], float]
    trusted_until_seconds: float = 0.0
    renew_at_seconds: float = 0.0
    is_renewing: bool = False

    def is_trusted(self) -> bool:
        """Whether the claim is surely still exclusive. Check it in the same step as the first write."""
        return self.clock() < self.trusted_until_seconds


@dataclass(slots=True, eq=False, repr=False)
class Leases:
    """All leases of this process. `lease_seconds` is the length that claims and renewals ask for."""

    store: Store
    events: Events
    _: KW_ONLY
    lease_seconds: float
    clock: Callable[[], float] = boot_seconds
    held: dict[Lease, None] = field(init=False, default_factory=dict)
    """What is renewed, in the order of the grants: whoever ends an attempt takes its lease out."""
    margin_seconds: float = field(init=False)
    stalled_from_seconds: float = field(init=False)
    renewals: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.margin_seconds = max(1.0, self.lease_seconds / 6)
        self._beat(self.clock())

    @property
    def pass_seconds(self) -> float:
        """How often `run_once` must be called: often enough that a renewal has two tries before trust ends."""
        return self.lease_seconds / 12

    def hold(self, record: Record, now_us: int, started_seconds: float, lease: Lease | None = None) -> Lease:
        """Trust a claim that was granted, or renewed if it has a lease, from now on. `now_us` is the store's time then.

        `started_seconds` is the clock's reading from before the call of the store.
        """
        if lease is None:
            lease = Lease(record.identity.operation_id, record.token, record.attempt_id, self.clock)
            self.held[lease] = None
        # At most what was asked for: more remains only if the store's clock was set back, and a sweep corrects that.
        remaining_seconds = min((record.lease_until_us - now_us) / MICROSECONDS, self.lease_seconds)
        lease.trusted_until_seconds = started_seconds + remaining_seconds - self.margin_seconds
        lease.renew_at_seconds = started_seconds + self.lease_seconds / 3
        return lease

    def is_stalled(self) -> bool:
        """Whether the loop was just stalled for longer than a third of a lease: nothing should be claimed now."""
        return self.clock() > self.stalled_from_seconds

    def run_once(self) -> None:
        """Record that the loop runs, and start the renewals that are due."""
        now = self.clock()
        # The last pass was a third of a lease before it would have counted as stalled.
        lag = now - (self.stalled_from_seconds - self.lease_seconds / 3) - self.pass_seconds
        self._beat(now)
        if lag > self.lease_seconds / 6:
            self.events.publish(LoopStalled(lag))
        for lease in self.held:
            if lease.renew_at_seconds <= now and not lease.is_renewing:
                lease.is_renewing = True
                task = asyncio.get_running_loop().create_task(self._renew(lease))
                self.renewals.add(task)
                task.add_done_callback(self._renewal_ended)

    def _renewal_ended(self, task: asyncio.Task[None]) -> None:
        self.renewals.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a renewal failed because of a bug", exc_info=error)

    async def run(self) -> None:
        """Call `run_once` for ever. The time before counts as no stall: a store may have taken long to start."""
        self._beat(self.clock())
        try:
            while True:
                self.run_once()
                await asyncio.sleep(self.pass_seconds)
        finally:
            for task in self.renewals:
                task.cancel()
            await asyncio.gather(*self.renewals, return_exceptions=True)

    def _beat(self, now: float) -> None:
        self.stalled_from_seconds = now + self.lease_seconds / 3

    async def _renew(self, lease: Lease) -> None:
        started = self.clock()
        command = Renew(lease.operation_id, lease.token, lease.attempt_id, microseconds(self.lease_seconds))
        try:
            result = await self.store.apply(command)
        except StoreError:
            return
        finally:
            lease.is_renewing = False
        if lease in self.held:
            self._apply_result(lease, result, started)

    def _apply_result(self, lease: Lease, result: Result, started_seconds: float) -> None:
        match result:
            case Applied(Snapshot(Record() as record, now_us)):
                self.hold(record, now_us, started_seconds, lease)
            case Applied(snapshot) | Lapsed(snapshot) | Fenced(snapshot):
                lease.trusted_until_seconds = 0.0
                lease.renew_at_seconds = float("inf")
                self.events.publish(LeaseLost(lease.operation_id, lease.token, str(snapshot.state)))
