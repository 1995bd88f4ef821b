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

The first caller's request is executed, and duplicates wait for its result: any number of them costs one claim. A
duplicate never claims or takes over; if its operation gets no claim, it starts over. Cancelling a caller cancels
nothing else. Only `drain` ends an operation early, and then applies its final command.

An operation whose outcome is in a journal is no longer in flight. Until the durable store has the outcome, repeats get
their replies from there: at once where it is in the files of this process, else by step 6.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, assert_never
from uuid import UUID

from gateway.core.message import logged
from gateway.core.operation import Snapshot, State
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, Kind, RequestAnswered
from gateway.observe.tracing import Tracing
from gateway.protect.accepting import Accepting
from gateway.protect.claiming import Claiming, Granted, Leases, Seen, Unavailable
from gateway.protect.compose import Conclusion, passed_on
from gateway.protect.duplicates import Duplicates, Repeats, Waiting, with_preference
from gateway.protect.forwarding import fetched_request
from gateway.protect.identification import Identifying
from gateway.protect.inbox import Receiving
from gateway.protect.journaling import Journaling
from gateway.protect.operation import Drained, Operation, Operations
from gateway.protect.probing import Prober
from gateway.protect.regions import Regions
from gateway.protect.reply import Reply, Source, ToFetch, refuse
from gateway.protect.request import Request, Untouched, scope_name
from gateway.protect.route import AcceptPolicy, Route
from gateway.store.base import Store
from gateway.upstream import UpstreamResponse, status_of

_LOG = logging.getLogger("gateway")

# How often a request waits as a duplicate or becomes the first caller before it gives up.
_ROUNDS_MAX: Final = 4
# A repeat that waited for the first request still gets this long for its own fetch.
_FETCH_SECONDS_MIN: Final = 1.0
_SHUTTING_DOWN: Final = "The gateway is shutting down."
# Refusals that operators want to know the caller of.
_MISUSED: Final = (Verdict.KEY_REUSED, Verdict.LIKELY_DUPLICATE)
# Replies that repeat one that there was.
_REPLAYS: Final = (Verdict.REPLAYED, Verdict.RECOVERED, Verdict.FETCHED, Verdict.EVENT_DUPLICATE)
_UNKNOWN: Final = (Verdict.IN_FLIGHT, Verdict.IN_DOUBT, Verdict.STORE_UNAVAILABLE)


LookUp = Callable[[UUID], asyncio.Future[Snapshot | None] | None]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Coordinator:
    """The protected half of one gateway process.

    `recall` returns the record of a completed operation if this process remembers it: those in `cached`, by the
    integers of their ids, for the most part. `look_up` reads it from the fast tier, where that costs less than a claim,
    and returns None while the tier is down; it is None where there is no such tier.
    """

    identifying: Identifying
    store: Store
    journaling: Journaling
    claiming: Claiming
    leases: Leases
    waiting: Waiting
    prober: Prober
    accepting: Accepting
    repeats: Repeats
    events: Events
    in_flight_max: int
    recall: Callable[[UUID], Snapshot | None]
    cached: Container[int]
    look_up: LookUp | None
    regions: Regions | None = None
    tracing: Tracing | None = None
    operations: Operations = field(init=False)
    """The operations in flight in this process."""
    duplicates: Duplicates = field(init=False)
    receiving: Receiving = field(init=False)
    lookups: dict[int, asyncio.Future[Snapshot | None]] = field(init=False, default_factory=dict)
    fetches: int = field(init=False, default=0)
    """How many replies wait for the head of a response that is fetched."""
    is_draining: bool = field(init=False, default=False)
    loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.operations = Operations(
            self.store, self.journaling, self.claiming, self.leases, self.events, self.repeats.count
        )
        self.duplicates = Duplicates(
            self.store, self.journaling, self.leases, self.waiting, self.prober, self.accepting
        )
        self.receiving = Receiving(self.accepting, self.journaling, self.events, self.recall)

    @property
    def in_flight(self) -> int:
        return len(self.operations)

    @property
    def waiters(self) -> int:
        return self.duplicates.waiters

    async def respond(self, request: Request, route: Route) -> Reply | Untouched:
        """The reply to a request that passed rule 2, or the request itself, to be forwarded unprotected.

        Closes the request's body, unless it returns `Untouched`. Raises what the body raises when it is cut short.
        Cancelling this does not stop an operation that has started.
        """
        request.arrived = self.loop.time()
        head, tracing = request.head, self.tracing
        if tracing is not None and (begun := tracing.begin(head, request.hop)) is not None:
            request.head, request.context = begun
        reply: Reply | Untouched | None = self._refuse_if_overloaded(route)
        if reply is None and self.regions is not None:
            reply = self.regions.receive(request, route.shape)
        if reply is None:
            reply = await self.identifying.identify(request, route)
        if reply is None:
            operation_id = request.operation_id = request.identity.operation_id
            try:
                if self.regions is not None and (home := self.regions.elsewhere(operation_id)) is not None:
                    reply = await self._send_home(self.regions, home, request)
                elif route.inbox is not None and route.accept is not None:
                    reply = await self.receiving.receive(request, route.inbox, route.accept)
                else:
                    reply = await self._reply_to(request, operation_id)
                    if isinstance(reply, Reply) and (
                        reply.verdict in _UNKNOWN or request.preferred is not None or reply.to_fetch
                    ):
                        reply = await self._completed(reply, request)
            finally:
                # Unless somebody else has its body by then.
                if request.owner is None and not request.is_executed and not isinstance(reply, Untouched):
                    request.taken.close()
        if isinstance(reply, Reply):
            if reply.verdict is not None and not request.is_reported_there:
                self.events.publish(_answered(request, route, reply.verdict, reply))
        elif request.context is not None:
            # It has no spans, so the service gets the parent that the caller named.
            reply.request.head = head
        return reply

    async def drain(self, timeout_seconds: float) -> Drained:
        """Refuse new requests, and wait for the operations in flight.

        After `timeout_seconds`, end the remaining ones by their final commands, which claim no more than is known.
        """
        self.is_draining = True
        drained = await self.operations.drain(timeout_seconds)
        await self.duplicates.close()
        await self.repeats.close()
        return drained

    # -- the steps ----------------------------------------------------------------------------------------------------

    async def _reply_to(self, request: Request, operation_id: UUID) -> Reply | Untouched:
        """Steps 3 to 5: reply from a copy, wait for the operation if it is in flight here, or start or accept it as its
        first caller."""
        is_journaled, is_asked = self.journaling.journal.holds(operation_id), False
        if operation_id.int not in self.operations.in_flight and not is_journaled:
            snapshot = self.recall(operation_id) if operation_id.int in self.cached else None
            if snapshot is None and self.look_up is not None:
                snapshot = await self._look_up_copy(operation_id, self.look_up)
                is_journaled = self.journaling.journal.holds(operation_id)
            reply = None if snapshot is None else self.duplicates.reply_without_waiting(snapshot, request)
            if reply is not None:
                return reply
        order = next(self.operations.orders)
        for _ in range(_ROUNDS_MAX):
            found: Reply | Untouched | None
            in_flight = operation_id.int in self.operations.in_flight
            if is_journaled and not in_flight:
                is_asked, found = True, await self.duplicates.reply_from_journal(request)
            elif in_flight or self.is_draining:
                found = await self._wait_as_duplicate(request, order)
            elif (refusal := self._refuse_if_overloaded(request.route, starts_claim=True)) is not None:
                return refusal
            elif request.is_async and request.route.accept is not None:
                found = await self._accept(request, request.route.accept)
            else:
                # Rule 19.
                operation = self.operations.begin(request)
                try:
                    ended = await operation.first
                except asyncio.CancelledError:
                    operation.left()
                    raise
                if isinstance(ended, Conclusion):
                    return ended.reply
                found = await self._reply_unless_executed(request, operation, ended)
            if found is not None:
                return found
            is_journaled = not is_asked and self.journaling.journal.holds(operation_id)
        return request.refuse(Verdict.OVERLOADED, detail="Other requests keep changing the record of this key.")

    async def _send_home(self, regions: Regions, home: str, request: Request) -> Reply:
        """The reply of another region's gateway, which reports it; this one only counts what it sent there."""
        reply = await regions.send(
            home,
            request.head,
            request.taken.outbound(),
            request.hop,
            shape=request.route.shape,
            operation_id=request.identity.operation_id,
            wait_seconds=request.route.target.answer_within_seconds,
        )
        request.is_reported_there = reply.source is Source.SERVICE
        return reply

    async def _unless_journaled(self, reply: Reply, request: Request) -> Reply:
        """Step 6: what the journals of this host know, if this reply says that by the record the outcome is not
        known."""
        if request.is_executed or request.identity.operation_id.int in self.operations.in_flight:
            return reply
        # With another status, a doubt is about an attempt of this process.
        if reply.verdict is Verdict.IN_DOUBT and reply.status != 409:
            return reply
        is_of_record = reply.verdict is not Verdict.STORE_UNAVAILABLE
        return await self.duplicates.reply_from_journal(request, is_told_next=is_of_record) or reply

    async def _completed(self, reply: Reply, request: Request) -> Reply:
        """Steps 6 and 7, and what the caller prefers."""
        if reply.verdict in _UNKNOWN:
            reply = await self._unless_journaled(reply, request)
        if request.preferred is not None and not request.is_executed:
            reply = with_preference(reply, request.preferred)
        # As this caller was identified: what a client says of itself may have been replaced.
        return reply if reply.to_fetch is None else await self._fetch(reply.to_fetch, request)

    async def _accept(self, request: Request, policy: AcceptPolicy) -> Reply | None:
        """Rule 18."""
        accepted = await self.accepting.accept(request, policy)
        if isinstance(accepted, Seen):
            return await self._reply_from_seen(accepted, request)
        if isinstance(accepted, Reply):
            return accepted
        self.repeats.count(request)
        return await self.duplicates.reply_to_acceptance(accepted.snapshot, request, policy)

    async def _reply_unless_executed(
        self, request: Request, operation: Operation, ended: Seen | Unavailable | None
    ) -> Reply | Untouched | None:
        """The reply to a first caller whose request was not executed, or is not ended in its time; None where it starts
        over."""
        if isinstance(ended, Unavailable):
            return await self._reply_without_claim(request, operation, ended)
        if isinstance(ended, Seen):
            return await self._reply_from_seen(ended, request)
        return self.duplicates.still_in_flight(operation, status=504)

    async def _reply_from_seen(self, seen: Seen, request: Request) -> Reply | None:
        """Rules 9 to 17 for what forbids a claim; None where it does no longer."""
        if seen.content_holder is not None:
            return self.repeats.refuse(request, seen.content_holder)
        return await self.duplicates.reply_from_record(seen.snapshot, request)

    async def _wait_as_duplicate(self, request: Request, order: int) -> Reply | Untouched | None:
        """Rules 8 to 16: the reply to a duplicate; None when the operation is over, and the request starts over."""
        operation = self.operations.get(request.identity.operation_id)
        if operation is None:
            return request.refuse(Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        admission = await operation.wait_admission()
        match admission:
            case Granted(record, now_us) if operation.delivery is not None:
                # Its result may not be the last one: what becomes of a kept request is in the record.
                return await self.duplicates.reply_from_record(Snapshot(record, now_us), request)
            case Granted():
                return await self.duplicates.reply_from_operation(operation, request)
            case Seen(_, UUID() as content_holder):
                # It asks for what its first caller asked for, unless its body is another one.
                is_same = request.content_to_hold == operation.request.content_to_hold
                return self.repeats.refuse(request, content_holder) if is_same else None
            case Seen(snapshot):
                # One that was read before this request came counts where it is completed, because it stays so.
                is_stale = operation.order < order and snapshot.state is not State.COMPLETED
                return None if is_stale else await self.duplicates.reply_from_record(snapshot, request)
            case Unavailable():
                return await self._reply_without_claim(request, operation, admission)
            case _:
                assert_never(admission)

    async def _fetch(self, wanted: ToFetch, request: Request) -> Reply:
        """Rule 10 for a response that is fetched from the service: a GET of what the first request made, by the caller
        of the repeat. The response of the service, whatever its status; 502 to 504 where there is none in time.

        The service decides again what this caller may see, so no two callers share a fetch, and nothing of it is
        stored. Any number of repeats may end a wait together.
        """
        # Nobody else has it any more.
        request.taken.close()
        if (refusal := self._refuse_if_overloaded(request.route)) is not None:
            return refusal
        target, began = request.route.target, time.monotonic()
        left_seconds = target.answer_within_seconds - (self.loop.time() - request.arrived)
        self.fetches += 1
        try:
            # Among the protected ones, whose number is bounded: unprotected ones may hold connections for any time.
            result = await target.upstream.exchange(
                fetched_request(request.head, request.hop, target.forwarding, wanted.target),
                protected=True,
                may_send=lambda: True,
                response_timeout_seconds=max(left_seconds, _FETCH_SECONDS_MIN),
            )
        finally:
            self.fetches -= 1
        request.upstream_seconds = time.monotonic() - began
        if isinstance(result, UpstreamResponse):
            request.upstream_status = result.head.status
            return passed_on(result, Verdict.FETCHED)
        return refuse(
            Verdict.UPSTREAM_UNREACHABLE,
            shape=request.route.shape,
            status=status_of(result.reason),
            record=wanted.record,
            case="unfetched",
        )

    # -- the decisions ------------------------------------------------------------------------------------------------

    def _refuse_if_overloaded(self, route: Route, *, starts_claim: bool = False) -> Reply | None:
        """Rule 3. Pursued claims count only against new claims: repeats still get a response that is known here."""
        # What is executed, looked up, fetched or accepted here, deliveries not counted.
        requested = self.operations.requested + len(self.lookups)
        requested += self.accepting.in_progress + self.fetches
        if self.regions is not None:
            requested += self.regions.in_progress
        if starts_claim:
            requested += len(self.claiming.pursuits)
        if self.is_draining:
            detail = _SHUTTING_DOWN
        elif self.leases.clock() > self.leases.stalled_from_seconds:
            detail = "The gateway was stalled and is catching up."
        elif requested >= self.in_flight_max:
            detail = "Too many requests are in flight."
        else:
            return None
        return refuse(Verdict.OVERLOADED, shape=route.shape, detail=detail)

    async def _look_up_copy(self, operation_id: UUID, look_up: LookUp) -> Snapshot | None:
        """The record in the fast tier. Concurrent requests for one operation share one lookup."""
        number = operation_id.int
        lookup = self.lookups.get(number)
        if lookup is None:
            lookup = look_up(operation_id)
            if lookup is None:
                return None
            self.lookups[number] = lookup
            lookup.add_done_callback(lambda _: self.lookups.pop(number))
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
        if self.is_draining:
            return request.refuse(Verdict.OVERLOADED, detail=_SHUTTING_DOWN)
        if admission.is_amnesic:
            # The store is reachable, and reports that it may have forgotten this key.
            return request.refuse(Verdict.STORE_AMNESIA)
        may_forward = request.route.forwards_unprotected and operation.request.route.forwards_unprotected
        if may_forward and not admission.is_refused:
            if (reply := await self.duplicates.reply_from_journal(request)) is not None:
                return reply
            request.body = request.taken
            return Untouched(request, Verdict.UNPROTECTED)
        return request.refuse(Verdict.STORE_UNAVAILABLE)


def _answered(request: Request, route: Route, verdict: Verdict, reply: Reply) -> RequestAnswered:
    """The event that the request got this reply now, with this verdict."""
    duration_seconds = time.monotonic() - request.began
    if request.is_executed:
        kind = Kind.EXECUTED
    elif verdict is Verdict.ACCEPTED:
        kind = Kind.ACCEPTED
    elif request.wait_until is not None:
        kind = Kind.WAITED
    else:
        kind = Kind.REPLAYED if verdict in _REPLAYS else Kind.REFUSED
    head, operation_id = request.head, request.operation_id
    is_misused = verdict in _MISUSED and operation_id is not None
    by_name = head.headers.by_name
    request_id, parent = by_name.get(b"x-request-id"), by_name.get(b"traceparent")
    # By their order, which takes half as long: every reply has one.
    return RequestAnswered(
        route.name,
        verdict,
        reply.status,
        duration_seconds,
        head.method.decode("latin-1"),
        operation_id,
        request.upstream_status,
        request.attempt,
        None if request_id is None else logged(request_id[0]),
        None if parent is None else logged(parent[0]),
        request.upstream_seconds,
        reply.why,
        reply.differs,
        reply.first_operation,
        scope_name(request.identity.scope_digest) if is_misused else None,
        kind,
        request.context,
        request.origin,
        duration_seconds - request.waits_from_seconds if kind is Kind.WAITED else None,
    )
