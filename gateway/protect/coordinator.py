"""What happens to a request on a protected route, step by step, in the order of the verdict table.

`respond` takes these steps:

1. Refuse the request if the gateway is overloaded or shutting down (rule 3).
2. Identify it: its key, scope, body and fingerprints (rules 4 to 7). What is at home in another region is sent there.
3. Reply from a completed record, if this process or the fast tier has it (rules 9 to 11).
4. If the operation is in flight here, wait for its result (rules 9 to 16).
5. Otherwise claim and execute it (rules 8, 17 and 19), or accept it to be delivered later (rules 8, 17 and 18); where a
   record forbids that, reply from the record (rules 9 to 16).
6. Before anybody is told that an outcome is not known yet, or cannot be looked up, ask the journals of this host.
7. Where the reply is to be fetched from the service, do that for this caller (rule 10).

An event of an inbox is accepted after step 2, or acknowledged as a repeat (rules 8, 9 and 18): its sender never waits.

Each operation in flight is one `Operation` with one task, which outlives its callers. The first caller's request is
executed, and duplicates wait for its result: any number of them costs one claim. A duplicate never claims or takes
over; if its operation gets no claim, it starts over. Cancelling a caller cancels nothing else. Only `drain` ends an
operation early, and then applies its final command.

An operation whose outcome is in a journal is no longer in flight. Until the durable store has the outcome, repeats get
their replies from there: at once where it is in the files of this process, else by step 6.
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
from gateway.observe.tracing import Tracing
from gateway.protect.accepting import Accepted, Accepting
from gateway.protect.body import WholeBody
from gateway.protect.claiming import Claiming, Granted, Seen, Unavailable
from gateway.protect.conclusion import Conclusion
from gateway.protect.duplicates import Duplicates
from gateway.protect.fetching import Fetching
from gateway.protect.identification import Identifying
from gateway.protect.inbox import Receiving
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Leases
from gateway.protect.operation import Drained, Operation, Operations
from gateway.protect.probing import Prober
from gateway.protect.problem import refuse
from gateway.protect.regions import Region, Regions
from gateway.protect.repeats import Repeats
from gateway.protect.reply import Reply, Source, ToFetch
from gateway.protect.request import Request, Untouched
from gateway.protect.route import AcceptPolicy, Route
from gateway.protect.trace import answered
from gateway.protect.waiting import Waiting
from gateway.store.base import Store

_LOG = logging.getLogger("gateway")

# How often a request waits as a duplicate or becomes the first caller before it gives up.
_ROUNDS_MAX: Final = 4
# A repeat that waited for the first request still gets this long for its own fetch.
_FETCH_SECONDS_MIN: Final = 1.0
_SHUTTING_DOWN: Final = "The gateway is shutting down."
_UNKNOWN: Final = (Verdict.IN_FLIGHT, Verdict.IN_DOUBT, Verdict.STORE_UNAVAILABLE)


LookUp = Callable[[UUID], asyncio.Future[Snapshot | None] | None]


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
        accepting: Accepting,
        repeats: Repeats,
        events: Events,
        in_flight_max: int,
        recall: Callable[[UUID], Snapshot | None],
        look_up: LookUp | None,
        regions: Regions | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Needs a running event loop. `recall` returns the record of a completed operation if this process remembers
        it. `look_up` reads it from the fast tier, where that costs less than a claim, and returns None while the tier
        is down; it is None where there is no such tier.
        """
        self._identifying = identifying
        self._in_flight_max = in_flight_max
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._accepting = accepting
        self._events = events
        self._repeats = repeats
        self._operations = Operations(store, journaling, claiming, leases, events, repeats.count)
        self._duplicates = Duplicates(
            store=store,
            journaling=journaling,
            leases=leases,
            waiting=waiting,
            prober=prober,
            accepting=accepting,
        )
        self._recall = recall
        self._receiving = Receiving(accepting, journaling, events, recall)
        self._fetching = Fetching()
        self._look_up = look_up
        self._regions = regions
        self._tracing = tracing
        self._lookups: dict[int, asyncio.Future[Snapshot | None]] = {}
        self._is_draining = False
        self._loop = asyncio.get_running_loop()

    def adopt(
        self, identifying: Identifying, in_flight_max: int, regions: Regions | None, tracing: Tracing | None
    ) -> None:
        """Identify and trace the requests that begin from now on by this, admit so many, and send them to these
        regions."""
        self._identifying, self._in_flight_max = identifying, in_flight_max
        self._regions, self._tracing = regions, tracing

    @property
    def in_flight(self) -> int:
        """How many operations are in flight in this process."""
        return len(self._operations)

    @property
    def operations(self) -> Operations:
        """The operations in flight in this process."""
        return self._operations

    @property
    def waiters(self) -> int:
        """How many duplicates wait for an operation, here or in another gateway."""
        return self._duplicates.waiters

    @property
    def oldest_in_flight_seconds(self) -> float:
        """How long the oldest operation here has been in flight, 0 without one."""
        return self._operations.oldest_seconds

    async def respond(self, request: Request, route: Route) -> Reply | Untouched:
        """The reply to a request that passed rule 2, or the request itself, to be forwarded unprotected.

        Closes the request's body, unless it returns `Untouched`. Raises what the body raises when it is cut short.
        Cancelling this does not stop an operation that has started.
        """
        request.arrived = self._loop.time()
        head, tracing = request.head, self._tracing
        if tracing is not None and (begun := tracing.begin(head, request.hop)) is not None:
            request.head, request.context = begun
        reply: Reply | Untouched | None = self._refuse_if_overloaded(route)
        if reply is None and self._regions is not None:
            reply = self._regions.receive(request, route.shape)
        if reply is None:
            reply = await self._identifying.identify(request, route)
        if reply is None:
            reply = await self._reply_to(request)
        if isinstance(reply, Reply):
            if reply.verdict is not None and not request.is_reported_there:
                self._events.publish(answered(request, route, reply.verdict, reply))
        elif request.context is not None:
            # It has no spans, so the service gets the parent that the caller named.
            reply.request.head = head
        return reply

    async def drain(self, timeout_seconds: float) -> Drained:
        """Refuse new requests, and wait for the operations in flight.

        After `timeout_seconds`, end the remaining ones by their final commands, which claim no more than is known.
        """
        self._is_draining = True
        drained = await self._operations.drain(timeout_seconds)
        await self._duplicates.close()
        await self._repeats.close()
        return drained

    # -- the steps ----------------------------------------------------------------------------------------------------

    async def _reply_to(self, request: Request) -> Reply | Untouched:
        """Steps 3 to 7, for a request that is identified."""
        operation_id, route = request.identity.operation_id, request.route
        request.operation_id = operation_id
        if self._regions is not None and (home := self._regions.elsewhere(operation_id)) is not None:
            return await self._send_home(self._regions, home, request)
        if route.inbox is not None and route.accept is not None:
            return await self._receiving.receive(request, route.inbox, route.accept)
        reply: Reply | Untouched | None = None
        is_journaled = self._journaling.holds(operation_id)
        if operation_id.int not in self._operations.in_flight and not is_journaled:
            snapshot = self._recall(operation_id)
            if snapshot is not None or self._look_up is not None:
                reply = await self._reply_from_copy(snapshot, request)
                is_journaled = reply is None and self._journaling.holds(operation_id)
        if reply is None:
            reply = await self._join_or_execute(request, is_journaled=is_journaled)
        if isinstance(reply, Untouched):
            return reply
        if reply.verdict in _UNKNOWN:
            reply = await self._unless_journaled(reply, request)
        # As this caller was identified: what a client says of itself may have been replaced.
        return reply if reply.to_fetch is None else await self._fetch(reply.to_fetch, request)

    async def _join_or_execute(self, request: Request, *, is_journaled: bool) -> Reply | Untouched:
        """Steps 4 and 5: wait for the operation if it is in flight here, or start or accept it as its first caller."""
        order, operation_id = next(self._operations.orders), request.identity.operation_id
        found: Reply | Untouched | Seen | None = None
        is_asked = False
        try:
            for _ in range(_ROUNDS_MAX):
                in_flight = operation_id.int in self._operations.in_flight
                if is_journaled and not in_flight:
                    is_asked, found = True, await self._duplicates.reply_from_journal(request)
                elif in_flight or self._is_draining:
                    found = await self._wait_as_duplicate(request, order)
                elif (refusal := self._refuse_if_overloaded(request.route, starts_claim=True)) is not None:
                    return refusal
                elif request.is_async and request.route.accept is not None:
                    found = await self._accept(request, request.route.accept)
                else:
                    # Rule 19.
                    operation = self._operations.begin(request)
                    try:
                        ended = await operation.first
                    except asyncio.CancelledError:
                        operation.left()
                        raise
                    if isinstance(ended, Conclusion):
                        return ended.reply
                    if isinstance(ended, Unavailable):
                        found = await self._reply_without_claim(request, operation, ended)
                    else:
                        found = ended or self._duplicates.still_in_flight(operation, status=504)
                if isinstance(found, Seen):
                    found = await self._reply_from_seen(found, request)
                if found is not None:
                    return found
                is_journaled = not is_asked and self._journaling.holds(operation_id)
            return _refuse(request, Verdict.OVERLOADED, detail="Other requests keep changing the record of this key.")
        finally:
            if request.owner is None and not isinstance(found, Untouched):
                request.taken.close()

    async def _send_home(self, regions: Regions, home: Region, request: Request) -> Reply:
        """The reply of another region's gateway, which reports it; this one only counts what it sent there."""
        try:
            reply = await regions.send(
                home,
                request.head,
                request.taken.outbound(),
                request.hop,
                shape=request.route.shape,
                operation_id=request.identity.operation_id,
                wait_seconds=request.route.target.answer_within_seconds,
            )
        finally:
            request.taken.close()
        request.is_reported_there = reply.source is Source.SERVICE
        return reply

    async def _reply_from_copy(self, snapshot: Snapshot | None, request: Request) -> Reply | None:
        """Step 3, with the copy of this process or, without one, of the fast tier. Closes the request's body, unless
        there is no reply yet."""
        reply = None
        try:
            if snapshot is None and self._look_up is not None:
                snapshot = await self._look_up_copy(request.identity.operation_id, self._look_up)
            if snapshot is not None:
                reply = self._duplicates.reply_without_waiting(snapshot, request)
        except BaseException:
            request.taken.close()
            raise
        if reply is not None:
            request.taken.close()
        return reply

    async def _unless_journaled(self, reply: Reply, request: Request) -> Reply:
        """Step 6: what the journals of this host know, if this reply says that by the record the outcome is not
        known."""
        if request.is_executed or request.identity.operation_id.int in self._operations.in_flight:
            return reply
        # With another status, a doubt is about an attempt of this process.
        if reply.verdict is Verdict.IN_DOUBT and reply.status != 409:
            return reply
        is_of_record = reply.verdict is not Verdict.STORE_UNAVAILABLE
        return await self._duplicates.reply_from_journal(request, is_told_next=is_of_record) or reply

    async def _accept(self, request: Request, policy: AcceptPolicy) -> Reply | Seen:
        """Rule 18."""
        accepted = await self._accepting.accept(request, policy)
        if not isinstance(accepted, Accepted):
            return accepted
        self._repeats.count(request)
        return await self._duplicates.reply_to_acceptance(accepted.snapshot, request, policy)

    async def _reply_from_seen(self, seen: Seen, request: Request) -> Reply | None:
        """Rules 9 to 17 for what forbids a claim; None where it does no longer."""
        if seen.content_holder is not None:
            return self._repeats.refuse(request, seen.content_holder)
        return await self._duplicates.reply_from_record(seen.snapshot, request)

    async def _wait_as_duplicate(self, request: Request, order: int) -> Reply | Untouched | None:
        """Rules 8 to 16: the reply to a duplicate; None when the operation is over, and the request starts over."""
        operation = self._operations.get(request.identity.operation_id)
        if operation is None:
            return _refuse(request, Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        admission = await operation.wait_admission()
        match admission:
            case Granted(record, now_us) if operation.delivery is not None:
                # Its result may not be the last one: what becomes of a kept request is in the record.
                return await self._duplicates.reply_from_record(Snapshot(record, now_us), request)
            case Granted():
                return await self._duplicates.reply_from_operation(operation, request)
            case Seen(_, UUID() as content_holder):
                # It asks for what its first caller asked for, unless its body is another one.
                is_same = request.content_to_hold == operation.request.content_to_hold
                return self._repeats.refuse(request, content_holder) if is_same else None
            case Seen(snapshot):
                may_be_stale = operation.order < order
                return await self._duplicates.reply_from_record(snapshot, request, may_be_stale=may_be_stale)
            case Unavailable():
                return await self._reply_without_claim(request, operation, admission)
            case _:
                assert_never(admission)

    async def _fetch(self, wanted: ToFetch, request: Request) -> Reply:
        """Rule 10 for a response that is fetched from the service. Any number of repeats may end a wait together."""
        if (refusal := self._refuse_if_overloaded(request.route)) is not None:
            return refusal
        left_seconds = request.route.target.answer_within_seconds - (self._loop.time() - request.arrived)
        return await self._fetching.fetch(wanted, request, max(left_seconds, _FETCH_SECONDS_MIN))

    # -- the decisions ------------------------------------------------------------------------------------------------

    def _refuse_if_overloaded(self, route: Route, *, starts_claim: bool = False) -> Reply | None:
        """Rule 3. Pursued claims count only against new claims: repeats still get a response that is known here."""
        # What is executed, looked up, fetched or accepted here, deliveries not counted.
        requested = self._operations.requested + len(self._lookups)
        requested += self._accepting.in_progress + self._fetching.in_progress
        if self._regions is not None:
            requested += self._regions.in_progress
        if starts_claim:
            requested += len(self._claiming.pursuits)
        if self._is_draining:
            detail = _SHUTTING_DOWN
        elif self._leases.clock() > self._leases.stalled_from_seconds:
            detail = "The gateway was stalled and is catching up."
        elif requested >= self._in_flight_max:
            detail = "Too many requests are in flight."
        else:
            return None
        return refuse(Verdict.OVERLOADED, shape=route.shape, detail=detail)

    async def _look_up_copy(self, operation_id: UUID, look_up: LookUp) -> Snapshot | None:
        """The record in the fast tier. Concurrent requests for one operation share one lookup."""
        number = operation_id.int
        lookup = self._lookups.get(number)
        if lookup is None:
            lookup = look_up(operation_id)
            if lookup is None:
                return None
            self._lookups[number] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(number))
        await asyncio.wait((lookup,))
        return None if lookup.cancelled() or lookup.exception() is not None else lookup.result()

    async def _reply_without_claim(
        self, request: Request, operation: Operation, admission: Unavailable
    ) -> Reply | Untouched:
        """Rule 8, as the route chose; or a refusal when a drain cut off the claim.

        A duplicate may come in by another route than the operation. It is forwarded only if both routes allow that:
        where the operation's route promises that nothing was executed, no duplicate may be.
        """
        _LOG.debug("a claim was not possible: %s", admission.detail)
        if self._is_draining:
            return _refuse(request, Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        if admission.is_amnesic:
            # The store is reachable, and reports that it may have forgotten this key.
            return _refuse(request, Verdict.STORE_AMNESIA)
        may_forward = request.route.forwards_unprotected and operation.request.route.forwards_unprotected
        if may_forward and not admission.is_refused:
            if (reply := await self._duplicates.reply_from_journal(request)) is not None:
                return reply
            request.body = WholeBody(request.taken)
            return Untouched(request, Verdict.UNPROTECTED)
        return _refuse(request, Verdict.STORE_UNAVAILABLE)


def _refuse(request: Request, verdict: Verdict, *, detail: str | None = None) -> Reply:
    return refuse(
        verdict,
        shape=request.route.shape,
        operation_id=request.identity.operation_id,
        detail=detail,
    )
