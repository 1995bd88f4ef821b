"""Keeps live claims alive, and says at any moment whether a claim may still be trusted.

Owns the leases of the attempts that run in this process. It knows the store's `renew` and nothing of requests or
upstreams.

Theory of operation
-------------------
*State.* A lease is held from its grant until its attempt drops it. It is trusted until a moment on the boot-time clock,
and lost once that moment passed or the store said that the record went on without us.

*Trust window.* The store answered "so much remains" to a call that began at `started`. Whenever it looked at its clock,
that was after `started`, so the lease ends no earlier than `started + remaining`. From that a margin is taken for the
pause between looking at the clock and the first byte on the wire: max(1 s, a sixth of the lease). A slow reply cannot
stretch a lease, and a suspended machine finds its leases over.

*Renewal.* Most operations finish inside their first lease and cost nothing here. The others are renewed once a third of
the lease has gone, all in one pass; the store makes one statement of it. A pass never waits for a previous one.

*Failure.* An error renews nothing: the lease stays trusted until its own end and the next pass tries again. `Lapsed`
and `Fenced` end trust at once. Losing trust stops sending; it does not stop an attempt that was sent, whose answer may
still be recorded when nobody took over.

*A stuck loop* renews nothing either, and could admit requests in the moment it comes back: `is_stalled` says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Applied, Fenced, Lapsed, Record, Renew, Result, Snapshot, microseconds
from gateway.observe.facts import Events, LeaseLost, LoopStalled
from gateway.store.base import Store, StoreError, boot_seconds

_LOG = logging.getLogger("gateway")


class Lease:
    """The trust in one claim. `trusted_until_seconds` is on `clock`, the boot-time clock."""

    __slots__ = (
        "attempt_id",
        "clock",
        "is_renewing",
        "operation_id",
        "renew_at_seconds",
        "token",
        "trusted_until_seconds",
    )

    def __init__(self, operation_id: UUID, token: int, attempt_id: UUID, clock: Callable[[], float]) -> None:
        self.operation_id = operation_id
        self.token = token
        self.attempt_id = attempt_id
        self.trusted_until_seconds = 0.0
        self.renew_at_seconds = 0.0
        self.is_renewing = False
        self.clock = clock

    def is_trusted(self) -> bool:
        """Whether the claim is surely still exclusive; to be asked in the same step as the first write."""
        return self.clock() < self.trusted_until_seconds


class Leases:
    """All leases of this process. `lease_seconds` is the length that claims and renewals ask for."""

    def __init__(
        self, store: Store, events: Events, *, lease_seconds: float, clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        # A set that keeps the order in which they were granted.
        self._held: dict[Lease, None] = {}
        self.lease_seconds = lease_seconds
        self.margin_seconds = max(1.0, lease_seconds / 6)
        self._last_beat_seconds = clock()
        self._renewals: set[asyncio.Task[None]] = set()

    @property
    def pass_seconds(self) -> float:
        """How often `run_once` must be called: often enough that a renewal has two tries before trust ends."""
        return self.lease_seconds / 12

    def hold(self, record: Record, now_us: int, started_seconds: float) -> Lease:
        """Begin to trust a granted claim, as the store gave it at its `now_us`.

        `started_seconds` is the clock's reading from before the granting call.
        """
        lease = Lease(record.identity.operation_id, record.token, record.attempt_id, self._clock)
        self._trust(lease, record, now_us, started_seconds)
        self._held[lease] = None
        return lease

    def drop(self, lease: Lease) -> None:
        """The attempt ended, however it did."""
        self._held.pop(lease, None)

    def is_stalled(self) -> bool:
        """Whether the loop has just been stuck for longer than a third of a lease: nothing should be claimed now."""
        return self._clock() - self._last_beat_seconds > self.lease_seconds / 3

    def run_once(self) -> None:
        """Note that the loop runs, and start the renewals that are due."""
        now = self._clock()
        lag = now - self._last_beat_seconds - self.pass_seconds
        self._last_beat_seconds = now
        if lag > self.lease_seconds / 6:
            self._events.publish(LoopStalled(lag))
        for lease in self._held:
            if lease.renew_at_seconds <= now and not lease.is_renewing:
                lease.is_renewing = True
                task = asyncio.get_running_loop().create_task(self._renew(lease))
                self._renewals.add(task)
                task.add_done_callback(self._renewal_ended)

    def _renewal_ended(self, task: asyncio.Task[None]) -> None:
        self._renewals.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a renewal failed because of a bug", exc_info=error)

    async def run(self) -> None:
        """Call `run_once` for ever. What was before says nothing of the loop: a store may have taken long to start."""
        self._last_beat_seconds = self._clock()
        try:
            while True:
                self.run_once()
                await asyncio.sleep(self.pass_seconds)
        finally:
            for task in self._renewals:
                task.cancel()
            await asyncio.gather(*self._renewals, return_exceptions=True)

    async def _renew(self, lease: Lease) -> None:
        started = self._clock()
        command = Renew(lease.operation_id, lease.token, lease.attempt_id, microseconds(self.lease_seconds))
        try:
            result = await self._store.apply(command)
        except StoreError:
            return
        finally:
            lease.is_renewing = False
        if lease in self._held:
            self._take(lease, result, started)

    def _take(self, lease: Lease, result: Result, started_seconds: float) -> None:
        match result:
            case Applied(Snapshot(Record() as record, now_us)):
                self._trust(lease, record, now_us, started_seconds)
            case Applied(snapshot) | Lapsed(snapshot) | Fenced(snapshot):
                lease.trusted_until_seconds = 0.0
                lease.renew_at_seconds = float("inf")
                self._events.publish(LeaseLost(lease.operation_id, lease.token, str(snapshot.state)))

    def _trust(self, lease: Lease, record: Record, now_us: int, started_seconds: float) -> None:
        # No more was asked for. A store's clock that was set back since shows more, and a sweep takes that away.
        remaining_seconds = min((record.lease_until_us - now_us) / MICROSECONDS, self.lease_seconds)
        lease.trusted_until_seconds = started_seconds + remaining_seconds - self.margin_seconds
        lease.renew_at_seconds = started_seconds + self.lease_seconds / 3
