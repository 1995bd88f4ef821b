"""What happens to a request on a protected route, from top to bottom, in the order of the verdict table.

`respond` reads: may it be looked at now (rule 3); what is it, and whose (rules 4 to 7); is it answered by what was
completed before (rules 9 to 11); do others work on it (rules 9 to 14); else claim and execute it (rules 8 and 15).

Each operation that this process works on is one `Operation` with one task, which outlives its callers. The first caller
waits for its result, and every other one joins it: a herd of duplicates costs one claim. Duplicates never claim or take
over. Cancelling a caller cancels nothing else; only `drain` ends an operation early, and then says its last word.

An operation whose outcome is in the journal is not in flight any more. Until the durable store has the outcome, its
duplicates are answered from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, assert_never
from uuid import UUID

from gateway.core.operation import Snapshot
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events
from gateway.protect.body import WholeBody
from gateway.protect.claiming import Claiming, Granted, Seen, Unavailable
from gateway.protect.duplicates import Duplicates
from gateway.protect.identification import Identifying, KeyedRequest
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Leases
from gateway.protect.operation import Operation
from gateway.protect.operations import Drained, Operations
from gateway.protect.probing import Prober
from gateway.protect.problem import refuse
from gateway.protect.reply import Incoming, Reply, Untouched
from gateway.protect.route import Route
from gateway.protect.trace import RequestTrace
from gateway.protect.waiting import Waiting
from gateway.store.base import Store

_LOG = logging.getLogger("gateway")

# Joining an operation that turns out not to hold a claim, and becoming the next first caller, ends after a few rounds.
_JOINS_MAX: Final = 4
_SHUTTING_DOWN: Final = "The gateway is shutting down."


class Coordinator:
    """The protected half of one gateway process."""

    def __init__(
        self,
        *,
        identifying: Identifying,
        store: Store,
        journaling: Journaling,
        claiming: Claiming,
        leases: Leases,
        waiting: Waiting,
        prober: Prober,
        events: Events,
        in_flight_max: int,
        recall: Callable[[UUID], Snapshot | None],
        look: Callable[[UUID], asyncio.Future[Snapshot | None] | None],
    ) -> None:
        """To be made with the event loop running. `recall` gives the record of a completed operation, where that needs
        no waiting; `look` looks it up where that costs less than a claim, and gives None where there is no such tier.
        """
        self._identifying = identifying
        self._in_flight_max = in_flight_max
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._events = events
        self._operations = Operations(store, journaling, claiming, leases, events)
        self._duplicates = Duplicates(
            store=store,
            journaling=journaling,
            leases=leases,
            waiting=waiting,
            prober=prober,
            recall=recall,
        )
        self._look = look
        self._lookups: dict[int, asyncio.Future[Snapshot | None]] = {}
        self._is_draining = False
        self._loop = asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        """Operations that this process is working on."""
        return len(self._operations)

    @property
    def waiters(self) -> int:
        """Duplicates that wait for one of them, here or in another gateway."""
        return self._duplicates.waiters

    @property
    def oldest_in_flight_seconds(self) -> float:
        """How long the oldest of them has been worked on."""
        return self._operations.oldest_seconds

    async def respond(self, incoming: Incoming, route: Route) -> Reply | Untouched:
        """The response to a request that passed rule 2, or the request back where nothing protects it.

        The body of the request is closed, but where it is `Untouched`. Raises what the body raises when it is cut
        short. Cancelled, it leaves an operation that was begun going on.
        """
        trace = RequestTrace(incoming.head, route, self._loop.time())
        reply = await self._respond(incoming, route, trace)
        if isinstance(reply, Reply) and reply.verdict is not None:
            self._events.publish(trace.answered(reply.verdict, reply.status, reply.why))
        return reply

    async def drain(self, timeout_seconds: float) -> Drained:
        """Refuse what comes from now on, and let operations in flight come to their end.

        What has not after `timeout_seconds` is ended truthfully, by its last word.
        """
        self._is_draining = True
        drained = await self._operations.drain(timeout_seconds)
        await self._duplicates.close()
        return drained

    # -- the way of a request -----------------------------------------------------------------------------------------

    async def _respond(self, incoming: Incoming, route: Route, trace: RequestTrace) -> Reply | Untouched:
        refusal = self._overload(route)
        if refusal is not None:
            return refusal
        request = await self._identifying.identify(incoming, route)
        if not isinstance(request, KeyedRequest):
            return request
        trace.operation_id = request.identity.operation_id
        if not self._is_worked_on(request):
            try:
                reply = self._duplicates.by_memory(request, trace) or await self._by_fast_tier(request, trace)
            except BaseException:
                request.body.close()
                raise
            if reply is not None:
                request.body.close()
                return reply
        return await self._operate(request, trace)

    async def _operate(self, request: KeyedRequest, trace: RequestTrace) -> Reply | Untouched:
        """Rules 8 to 15: join those who work on the operation, or become its first caller."""
        order = self._operations.next_order()
        operation: Operation | None = None
        found: Reply | Untouched | Seen | None = None
        try:
            for _ in range(_JOINS_MAX):
                if not self._is_worked_on(request) and not self._is_draining:
                    refusal = self._overload(request.route, begins_claim=True)
                    if refusal is not None:
                        return refusal
                    operation = self._operations.begin(request)
                    found = await self._lead(operation, trace)
                else:
                    found = await self._join(request, trace, order)
                if isinstance(found, Seen):
                    found = await self._duplicates.by_sight(found.snapshot, request, trace)
                if found is not None:
                    return found
            return _refuse(request, Verdict.OVERLOADED, detail="Others keep changing the record of this key.")
        finally:
            is_operations = operation is not None and operation.keeps_body
            if not is_operations and not isinstance(found, Untouched):
                request.body.close()

    async def _lead(self, operation: Operation, trace: RequestTrace) -> Reply | Untouched | Seen:
        """Rules 8 and 15 for the first caller, whose request is the one that is executed."""
        answer_within_seconds = operation.request.route.target.answer_within_seconds
        result = await operation.wait_first(answer_within_seconds - (self._loop.time() - trace.arrived))
        match result:
            case Seen():
                return result
            case Unavailable():
                return self._unavailable(operation.request, operation, result)
        trace.attempt = operation.record.attempts
        if result is None:
            return self._duplicates.still_running(operation, status=504)
        trace.upstream_status, trace.upstream_seconds = result.upstream_status, result.upstream_seconds
        return result.reply

    async def _join(self, request: KeyedRequest, trace: RequestTrace, order: int) -> Reply | Untouched | None:
        """Rules 8 to 14 for a duplicate of an operation in flight; None when nobody works on it any more."""
        operation = self._operations.get(request.identity.operation_id)
        if operation is None and self._journaling.holds(request.identity.operation_id):
            return await self._duplicates.by_journal(request, trace)
        if operation is None:
            return _refuse(request, Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        admission = await operation.wait_admission()
        match admission:
            case Granted():
                return await self._duplicates.by_operation(operation, request, trace)
            case Seen(snapshot):
                may_be_stale = operation.order < order
                return await self._duplicates.by_sight(snapshot, request, trace, may_be_stale=may_be_stale)
            case Unavailable():
                return self._unavailable(request, operation, admission)
            case _:
                assert_never(admission)

    # -- its decisions ------------------------------------------------------------------------------------------------

    def _overload(self, route: Route, *, begins_claim: bool = False) -> Reply | None:
        """Rule 3. Claims that are pursued keep others from being begun, and no repeat from an answer that is here."""
        pursued = self._claiming.pursued if begins_claim else 0
        if self._is_draining:
            detail = _SHUTTING_DOWN
        elif self._leases.is_stalled():
            detail = "The gateway was held up and is catching up."
        elif len(self._operations) + len(self._lookups) + pursued >= self._in_flight_max:
            detail = "Too many requests are in flight."
        else:
            return None
        return _overloaded(route, detail)

    def _is_worked_on(self, request: KeyedRequest) -> bool:
        """Whether the operation is in flight here, or has an outcome that the durable store has yet to take."""
        operation_id = request.identity.operation_id
        return self._operations.get(operation_id) is not None or self._journaling.holds(operation_id)

    async def _by_fast_tier(self, request: KeyedRequest, trace: RequestTrace) -> Reply | None:
        """Rules 9 to 11 by a copy in the fast tier, which is asked once for all who come before it has answered."""
        number = request.identity.operation_id.int
        lookup = self._lookups.get(number)
        if lookup is None:
            lookup = self._look(request.identity.operation_id)
            if lookup is None:
                return None
            self._lookups[number] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(number))
        await asyncio.wait((lookup,))
        snapshot = None if lookup.cancelled() or lookup.exception() is not None else lookup.result()
        return None if snapshot is None else self._duplicates.by_itself(snapshot, request, trace)

    def _unavailable(self, request: KeyedRequest, operation: Operation, admission: Unavailable) -> Reply | Untouched:
        """Rule 8, as the route chose; or a claim that was cut off by a drain.

        What became of the operation's claim is settled as its own route chose: where that says that nothing was
        executed, no duplicate is.
        """
        _LOG.debug("a claim was not possible: %s", admission.detail)
        if self._is_draining:
            return _refuse(request, Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        if admission.is_amnesic:
            # This store is there, and says that the key may have been used.
            return _refuse(request, Verdict.STORE_AMNESIA)
        is_wanted = request.route.forwards_unprotected and operation.request.route.forwards_unprotected
        if is_wanted and not admission.is_refused:
            incoming = Incoming(request.head, WholeBody(request.body), request.hop)
            return Untouched(incoming, Verdict.UNPROTECTED)
        return _refuse(request, Verdict.STORE_UNAVAILABLE)


def _overloaded(route: Route, detail: str) -> Reply:
    return refuse(Verdict.OVERLOADED, shape=route.shape, detail=detail)


def _refuse(request: KeyedRequest, verdict: Verdict, *, detail: str | None = None) -> Reply:
    return refuse(
        verdict,
        shape=request.route.shape,
        operation_id=request.identity.operation_id,
        detail=detail,
    )
