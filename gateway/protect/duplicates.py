"""What a request gets that is not executed: from the record, from the journal, or from the run of another.

Owns the waiting of duplicates: how long, how many at once, and what they hear when it is over. It claims nothing, and
tells nobody to claim: where the record turns out to be free, it says None, and whoever orders the steps goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import UUID

from gateway.core.operation import Snapshot, State
from gateway.core.recovery import Probe, for_repeats
from gateway.core.verdict import Claimable, Doubt, Refuse, Replay, Verdict, Wait
from gateway.protect.compose import by_judgement, by_record, in_flight, shared_with
from gateway.protect.identification import KeyedRequest
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Leases
from gateway.protect.operation import AttemptResult, Operation
from gateway.protect.preference import preference_applied, wait_preference
from gateway.protect.probing import Prober
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply
from gateway.protect.route import Route
from gateway.protect.trace import RequestTrace
from gateway.protect.waiting import Waiting
from gateway.store.base import Indefinite, Store, StoreError

_LOG = logging.getLogger("gateway")

# Whoever does not want to wait for others waits so long for the store.
_READ_SECONDS_MIN: Final = 1.0


class Duplicates:
    """Repeats of requests, for one gateway process. Owns `waiting` and `prober`: closes them.

    Whoever asks closes the request's body. One that has to wait lets go of it before: it will not be executed.
    """

    def __init__(
        self,
        *,
        store: Store,
        journaling: Journaling,
        leases: Leases,
        waiting: Waiting,
        prober: Prober,
        recall: Callable[[UUID], Snapshot | None],
    ) -> None:
        """To be made with the event loop running. `recall` gives the record of a completed operation, where that needs
        no waiting."""
        self._store = store
        self._journaling = journaling
        self._leases = leases
        self._waiting = waiting
        self._prober = prober
        self._recall = recall
        self._waiters: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()

    @property
    def waiters(self) -> int:
        """How many wait for an operation, here or in another gateway."""
        return self._waiters.total()

    def by_memory(self, request: KeyedRequest, trace: RequestTrace) -> Reply | None:
        """Rules 9 to 11 for an operation that nobody works on and that this process remembers as completed, at once."""
        snapshot = self._recall(request.identity.operation_id)
        return None if snapshot is None else self.by_itself(snapshot, request, trace)

    def by_itself(self, snapshot: Snapshot, request: KeyedRequest, trace: RequestTrace) -> Reply | None:
        """The reply where the record alone decides it, and nobody is waited for: a replay, or a refusal for good.

        None where there is more to it; see `by_sight`.
        """
        judgement = request.judge(snapshot)
        if not isinstance(judgement, Replay | Refuse):
            return None
        trace.attempt = judgement.record.attempts
        return by_judgement(judgement, snapshot, request, free_verdict=Verdict.RELEASED)

    async def by_journal(self, request: KeyedRequest, trace: RequestTrace) -> Reply | None:
        """Rules 9 to 14 for an operation whose outcome the durable store has yet to take; None when it has it."""
        try:
            snapshot = await self._journaling.find(request.identity.operation_id)
        except StoreError as error:
            _LOG.error("the journal cannot be read: %s", error)
            return refuse(
                Verdict.IN_DOUBT, shape=request.route.shape, status=503, operation_id=request.identity.operation_id
            )
        if snapshot is None:
            return None
        trace.attempt = 0 if snapshot.record is None else snapshot.record.attempts
        return _after_wait(snapshot, request)

    async def by_operation(self, operation: Operation, request: KeyedRequest, trace: RequestTrace) -> Reply:
        """Rules 9 and 13 for a request that this process is executing already."""
        return _with_preference(await self._join(operation, request, trace), trace)

    async def by_sight(
        self, snapshot: Snapshot, request: KeyedRequest, trace: RequestTrace, *, may_be_stale: bool = False
    ) -> Reply | None:
        """Rules 9 to 14 for a record that somebody else made; None when it is free and may be claimed after all.

        `may_be_stale`: it may have been read before the request came. Then only a completed record counts, which stays
        so; for any other it is None too.
        """
        if may_be_stale and snapshot.state is not State.COMPLETED:
            return None
        reply = await self._by_sight(snapshot, request, trace)
        return None if reply is None else _with_preference(reply, trace)

    def still_running(self, operation: Operation, status: int | None = None) -> Reply:
        """Rule 13 for a run of this process, which renews its lease while it lives: a whole one always remains."""
        ran_seconds = self._loop.time() - operation.started_seconds
        return in_flight(
            operation.record,
            operation.request.route,
            ran_seconds=ran_seconds,
            remaining_seconds=self._leases.lease_seconds,
            status=status,
        )

    async def close(self) -> None:
        """End every wait, and every question to an upstream."""
        await self._waiting.close()
        await self._prober.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _join(self, operation: Operation, request: KeyedRequest, trace: RequestTrace) -> Reply:
        route, record = request.route, operation.record
        trace.attempt = record.attempts
        claimed = Snapshot(record, record.claimed_us)
        if isinstance(request.judge(claimed), Refuse):
            return _after_wait(claimed, request)
        result: AttemptResult | None = None
        request.body.close()
        try:
            overtaken = await self._overtaken(operation, self._patience_seconds(request, trace))
            if overtaken is None:
                with self._place(route) as has_place:
                    if has_place:
                        result = await operation.wait_result(self._patience_seconds(request, trace))
                if result is None or not result.is_recorded:
                    # Meanwhile the lease may have ended.
                    overtaken = await self._overtaken(operation, self._patience_seconds(request, trace))
        except StoreError as error:
            _LOG.debug("nobody can tell what others made of an operation: %s", error)
            return refuse(Verdict.STORE_UNAVAILABLE, shape=route.shape, operation_id=request.identity.operation_id)
        if overtaken is not None:
            reply_by_record = await self._by_sight(overtaken, request, trace)
            return _after_wait(overtaken, request) if reply_by_record is None else reply_by_record
        if result is None:
            return self.still_running(operation)
        if isinstance(result.others, Reply):
            return shared_with(result.others, request.head.headers)
        return _after_wait(result.others, request)

    async def _overtaken(self, operation: Operation, wait_seconds: float) -> Snapshot | None:
        """The record, when it has gone on without the attempt that runs here; None when it has not, or may not.

        Such an attempt waits for an answer that nobody will get: its duplicates must not wait for it, nor hear how it
        ended. Raises `StoreError` where it may have gone on, and nobody can tell.
        """
        if operation.is_exclusive():
            return None
        try:
            async with asyncio.timeout(max(wait_seconds, _READ_SECONDS_MIN)):
                snapshot = await self._store.read(operation.request.identity.operation_id)
        except TimeoutError as error:
            raise Indefinite("the store did not answer in time") from error
        record = snapshot.record
        if record is None or record.attempt_id != operation.record.attempt_id:
            return snapshot
        return None if record.state in (State.CLAIMED, State.IN_DOUBT) else snapshot

    async def _by_sight(self, snapshot: Snapshot, request: KeyedRequest, trace: RequestTrace) -> Reply | None:
        route, operation_id = request.route, request.identity.operation_id
        trace.attempt = 0 if snapshot.record is None else snapshot.record.attempts
        judgement = request.judge(snapshot)
        match judgement:
            case Claimable():
                return None
            case Doubt(record, is_same):
                if is_same and isinstance(for_repeats(route.recovery, record, is_same=is_same), Probe):
                    found = None
                    wait_seconds = self._patience_seconds(request, trace)
                    with self._place(route) as has_place:
                        if has_place:
                            found = await self._prober.resolve(route, operation_id, wait_seconds)
                    if found is not None:
                        return await self._by_sight(found, request, trace)
            case Wait():
                latest = None
                wait_seconds = self._patience_seconds(request, trace)
                request.body.close()
                with self._place(route) as has_place:
                    if has_place:
                        latest = await self._waiting.wait_settled(operation_id, wait_seconds)
                if latest is not None:
                    return _after_wait(latest, request)
        return by_judgement(judgement, snapshot, request, free_verdict=Verdict.RELEASED)

    def _patience_seconds(self, request: KeyedRequest, trace: RequestTrace) -> float:
        """How long this request waits from now on; what it waited before, for a probe or for others, is part of it."""
        now = self._loop.time()
        if trace.wait_until is None:
            wait_seconds, trace.preferred = _patience(request)
            trace.wait_until = now + wait_seconds
        return max(0.0, trace.wait_until - now)

    @contextmanager
    def _place(self, route: Route) -> Iterator[bool]:
        """A place among those who wait on this route, if there is one."""
        has_place = self._waiters[route.name] < route.in_flight.waiters_max
        self._waiters[route.name] += has_place
        try:
            yield has_place
        finally:
            self._waiters[route.name] -= has_place


def _after_wait(snapshot: Snapshot, request: KeyedRequest) -> Reply:
    """What a waiter gets when its wait is over: what the record says, never a claim."""
    return by_record(snapshot, request, free_verdict=Verdict.RELEASED)


def _patience(request: KeyedRequest) -> tuple[float, int | None]:
    """How long a duplicate waits, in seconds, and the caller's preference if that decided."""
    policy = request.route.in_flight
    preferred = wait_preference(request.head.headers)
    if preferred is None:
        return policy.wait_seconds, None
    return min(preferred, policy.wait_seconds_max), min(preferred, int(policy.wait_seconds_max))


def _with_preference(reply: Reply, trace: RequestTrace) -> Reply:
    if trace.preferred is None:
        return reply
    return replace(reply, headers=(*reply.headers, preference_applied(trace.preferred)))
