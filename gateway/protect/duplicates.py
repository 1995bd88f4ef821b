"""Replies to requests that are not executed: from the record, the journal, or the operation in flight.

Owns how duplicates wait: how long, how many at once, and what they get afterwards. It claims nothing. Where a record
turns out to be free it returns None, and the coordinator decides what comes next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from gateway.core.message import header_values
from gateway.core.operation import MICROSECONDS, Content, Snapshot, State
from gateway.core.recovery import Probe, for_repeats
from gateway.core.verdict import Claimable, Doubt, Fetch, Refuse, Replay, Undelivered, Verdict, Wait
from gateway.observe.facts import Events, RepeatNoticed, RepeatResult
from gateway.observe.logs import Tasks
from gateway.protect.accepting import Accepting
from gateway.protect.claiming import Leases
from gateway.protect.compose import (
    Conclusion,
    accepted_reply,
    in_flight,
    own_reply,
    reply_by_judgement,
    reply_by_record,
    shared_reply,
)
from gateway.protect.forwarding import preference_applied, wait_preference
from gateway.protect.journaling import UNENDED, Journaling
from gateway.protect.operation import Operation
from gateway.protect.probing import Prober
from gateway.protect.reply import Reply
from gateway.protect.request import Request, Slices, scope_name
from gateway.protect.route import AcceptPolicy, Route
from gateway.store.base import Indefinite, Store, StoreError, end_tasks

# -- waiting -----------------------------------------------------------------------------------------------------------
#
# Waits for what others do with an operation. Requests that wait for the same of one operation share one reader.
#
# A waiting request never claims or takes over: it gets the record once that is as it waits for. News from the store
# wakes the reader, which also polls with growing pauses in case news is lost. A request whose time is over gets the
# record as it was read last. The reader ends with its last request.

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_PAUSE_GROWTH: Final = 1.6


Until = Callable[[Snapshot], bool]
"""What is waited for; equal ones are waited for together."""


def is_unclaimed(snapshot: Snapshot) -> bool:
    """Nobody executes it."""
    return snapshot.state is not State.CLAIMED


def is_delivered(snapshot: Snapshot) -> bool:
    """Its request is no longer kept, or nothing delivers it until somebody decides."""
    record = snapshot.record
    return record is None or record.delivery is None or record.state in (State.DEAD_LETTER, State.IN_DOUBT)


@dataclass(slots=True)
class _Reader:
    task: asyncio.Task[Snapshot] = field(init=False)
    latest: Snapshot | None = None
    waiters: int = 0


class Waiting:
    """The readers of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[tuple[UUID, Until], _Reader] = {}
        self._slices = Slices()
        self._is_closed = False

    async def wait(self, operation_id: UUID, timeout_seconds: float, until: Until = is_unclaimed) -> Snapshot | None:
        """The record once it is as `until` says, or as it was read last when the time is over.

        None if it could not be read at all.
        """
        if self._is_closed:
            return None
        awaited = operation_id, until
        reader = self._readers.get(awaited)
        if reader is None or reader.task.done():
            # A reader that has ended, and whose waiters have yet to wake, may have read before this request came.
            reader = self._readers[awaited] = _Reader()
            reader.task = asyncio.get_running_loop().create_task(self._read_until(operation_id, until, reader))
        reader.waiters += 1
        try:
            await self._slices.until(reader.task, timeout_seconds)
        finally:
            reader.waiters -= 1
            if self._readers.get(awaited) is reader and (reader.task.done() or reader.waiters == 0):
                # Removed at once, so that the next request does not join a reader that is ending.
                del self._readers[awaited]
                reader.task.cancel()
        if reader.task.done() and not reader.task.cancelled():
            return reader.task.result()
        return reader.latest

    async def _read_until(self, operation_id: UUID, until: Until, reader: _Reader) -> Snapshot:
        pause = _PAUSE_SECONDS_MIN
        async with self._store.watch(operation_id) as watch:
            while True:
                # Read after the watch was opened, so that every later change is news.
                try:
                    snapshot = await self._store.read(operation_id)
                except StoreError:
                    pass
                else:
                    reader.latest = snapshot
                    if until(snapshot):
                        return snapshot
                await watch.wait_changed(pause)
                pause = min(pause * _PAUSE_GROWTH, _PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        """End every reader. Requests that wait now get what was read last; later ones get None."""
        self._is_closed = True
        await end_tasks(reader.task for reader in self._readers.values())


# -- duplicates --------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

_LOG = logging.getLogger("gateway")

# A duplicate that does not wait for the operation still gives the store this long.
_READ_SECONDS_MIN: Final = 1.0


@dataclass(slots=True, eq=False, repr=False)
class Duplicates:
    """The duplicates of one gateway process. Owns `waiting` and `prober`, and closes them.

    The caller closes the request's body. A duplicate that has to wait closes it before: it will not be executed.
    """

    store: Store
    journaling: Journaling
    leases: Leases
    waiting: Waiting
    prober: Prober
    accepting: Accepting
    waiters_on: Counter[str] = field(init=False, default_factory=Counter)
    """How many wait, by route."""
    loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)

    @property
    def waiters(self) -> int:
        return self.waiters_on.total()

    def reply_without_waiting(self, snapshot: Snapshot, request: Request) -> Reply | None:
        """Rules 9 to 11: the reply if the record alone decides it, a replay or a final refusal. None otherwise."""
        judgement = request.judge(snapshot)
        if not isinstance(judgement, Replay | Fetch | Refuse):
            return None
        request.saw(judgement.record)
        return reply_by_judgement(judgement, snapshot, request)

    async def reply_from_journal(self, request: Request, *, is_told_next: bool = False) -> Reply | None:
        """Rules 9 to 16 for an outcome in the journals of this host; None where they have none that matters.

        `is_told_next`: as in `Journaling.find`.
        """
        operation_id = request.identity.operation_id
        try:
            snapshot = await self.journaling.find(operation_id, is_told_next=is_told_next)
        except StoreError as error:
            _LOG.warning("operation %s is not told from the journals of this host: %s", operation_id, error)
            return request.refuse(Verdict.STORE_UNAVAILABLE)
        if snapshot is None:
            return None
        request.saw(snapshot.record)
        return reply_by_record(snapshot, request)

    async def reply_to_acceptance(self, snapshot: Snapshot, request: Request, policy: AcceptPolicy) -> Reply:
        """Rule 18: the reply to a request that was accepted just now. It waits where its caller prefers that."""
        latest = await self._wait_for_delivery(snapshot, request)
        if latest.record is not None and not isinstance(request.judge(latest), Undelivered):
            request.saw(latest.record)
            return own_reply(reply_by_record(latest, request))
        latest = snapshot if latest.record is None else latest
        return accepted_reply(latest, policy.status_prefix, request.route, request.head.headers, is_replayed=False)

    async def reply_from_operation(self, operation: Operation, request: Request) -> Reply:
        """Rules 9 and 15 for a duplicate of an operation that this process is executing."""
        route, record = request.route, operation.record
        request.saw(record)
        claimed = Snapshot(record, record.claimed_us)
        if isinstance(request.judge(claimed), Refuse):
            return reply_by_record(claimed, request)
        result: Conclusion | None = None
        request.taken.close()
        try:
            overtaken = await self._read_if_overtaken(operation, self._remaining_seconds(request))
            if overtaken is None:
                result = await self._in_a_place(route, operation.wait_result, self._remaining_seconds(request))
                if result is None or not result.is_recorded:
                    # The lease may have ended during the wait.
                    overtaken = await self._read_if_overtaken(operation, self._remaining_seconds(request))
        except StoreError as error:
            _LOG.debug("an operation may have been taken over, and the store cannot be read: %s", error)
            return request.refuse(Verdict.STORE_UNAVAILABLE)
        if overtaken is not None:
            reply = await self.reply_from_record(overtaken, request)
            return reply_by_record(overtaken, request) if reply is None else reply
        if result is None:
            return self.still_in_flight(operation)
        if isinstance(result.others, Snapshot):
            return reply_by_record(result.others, request)
        return shared_reply(result.others or result.reply, request.head.headers)

    async def reply_from_record(self, snapshot: Snapshot, request: Request) -> Reply | None:
        """Rules 9 to 16 for a record that forbade a claim; None when the record is free and may be claimed."""
        route, operation_id = request.route, request.identity.operation_id
        request.saw(snapshot.record)
        if snapshot.state in UNENDED and (reply := await self.reply_from_journal(request)) is not None:
            # Before a wait or a probe.
            return reply
        judgement = request.judge(snapshot)
        match judgement:
            case Claimable():
                return None
            case Doubt(record, is_same) | Undelivered(record, is_same) if record.state is State.IN_DOUBT:
                if (
                    is_same
                    and not request.is_async
                    and isinstance(for_repeats(route.recovery, record, is_same=is_same), Probe)
                ):
                    wait_seconds = self._remaining_seconds(request)
                    found = await self._in_a_place(route, self.prober.resolve, route, operation_id, wait_seconds)
                    if found is not None:
                        return await self.reply_from_record(found, request)
            case Undelivered(record, is_same):
                if is_same and route.accept is not None:
                    snapshot = await self.accepting.requeue(snapshot, route.accept)
                request.taken.close()
                return reply_by_record(await self._wait_for_delivery(snapshot, request), request)
            case Wait():
                wait_seconds = self._remaining_seconds(request)
                request.taken.close()
                latest = await self._in_a_place(route, self.waiting.wait, operation_id, wait_seconds)
                if latest is not None:
                    return reply_by_record(latest, request)
        return reply_by_judgement(judgement, snapshot, request)

    def still_in_flight(self, operation: Operation, status: int | None = None) -> Reply:
        """Rule 15 for an operation of this process. It renews its lease, so a whole one always remains."""
        ran_seconds = self.loop.time() - operation.started_seconds
        return in_flight(
            operation.record,
            operation.request.route,
            ran_seconds=ran_seconds,
            remaining_seconds=self.leases.lease_seconds,
            status=status,
        )

    async def close(self) -> None:
        await self.waiting.close()
        await self.prober.close()

    async def _read_if_overtaken(self, operation: Operation, wait_seconds: float) -> Snapshot | None:
        """The record, if it has moved on without the attempt that runs here; None if it has not.

        No caller may get the result of an overtaken attempt, so duplicates must not wait for it.
        Raises `StoreError` where the lease is over and the record cannot be read.
        """
        if operation.is_exclusive():
            return None
        try:
            async with asyncio.timeout(max(wait_seconds, _READ_SECONDS_MIN)):
                snapshot = await self.store.read(operation.request.identity.operation_id)
        except TimeoutError as error:
            raise Indefinite("the store did not respond in time") from error
        record = snapshot.record
        if record is None or record.attempt_id != operation.record.attempt_id:
            return snapshot
        return None if record.state in (State.CLAIMED, State.IN_DOUBT) else snapshot

    async def _wait_for_delivery(self, snapshot: Snapshot, request: Request) -> Snapshot:
        """The record once the request is delivered, or as it is after the time that its caller waits."""
        wait_seconds = self._remaining_seconds(request)
        does_not_wait = request.is_async and request.preferred is None
        if does_not_wait or wait_seconds <= 0 or is_delivered(snapshot):
            return snapshot
        operation_id = request.identity.operation_id
        latest = await self._in_a_place(request.route, self.waiting.wait, operation_id, wait_seconds, is_delivered)
        return snapshot if latest is None else latest

    def _remaining_seconds(self, request: Request) -> float:
        """How long this request may still wait. Earlier waits, for a probe or another operation, count."""
        now = self.loop.time()
        if request.wait_until is None:
            policy, preferred = request.route.in_flight, wait_preference(request.head.headers)
            wait_seconds = policy.wait
            if preferred is not None:
                wait_seconds = min(preferred, policy.max_wait)
                request.preferred = int(wait_seconds)
            request.wait_until = now + wait_seconds
            request.waits_from_seconds = time.monotonic() - request.began
        return max(0.0, request.wait_until - now)

    async def _in_a_place(
        self, route: Route, wait: Callable[P, Awaitable[T | None]], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What this wait gives, in one of the route's places for waiting duplicates; None where none is free."""
        if self.waiters_on[route.name] >= route.in_flight.max_waiters:
            return None
        self.waiters_on[route.name] += 1
        try:
            return await wait(*args, **kwargs)
        finally:
            self.waiters_on[route.name] -= 1


def with_preference(reply: Reply, preferred: int | None) -> Reply:
    """The reply with the caller's preference for how long it waits, if that decided and nothing else did."""
    if preferred is None or header_values(reply.headers, b"preference-applied"):
        return reply
    return replace(reply, headers=(*reply.headers, preference_applied(preferred)))


# -- repeats under another key -----------------------------------------------------------------------------------------
#
# Notices requests that a caller sends again under another key, and replies to those that are refused.
#
# Counting is best effort: this process remembers what it saw, up to a number, and Redis has what other gateways saw.
# It decides nothing and no request waits for it. What is refused, the durable store decides, with the claim.

# Some 200 bytes each.
_REMEMBERED_MAX: Final = 50_000
# Lookups in Redis that are under way. Beyond that, only this process's memory counts.
_LOOKUPS_MAX: Final = 1_000

FirstOf = Callable[[bytes, UUID, int], Awaitable[UUID | None]]
"""Remembers who sent a content first: its digest, the operation, and for how many milliseconds. Returns who did; None
where that cannot be known. May raise `StoreError`, also at the call."""


class Repeats:
    """The repeats that one gateway process notices. Lives on one event loop."""

    def __init__(self, events: Events, first_of: FirstOf | None, clock: Callable[[], float]) -> None:
        """`clock` counts seconds and never goes back."""
        self._events = events
        self._first_of = first_of
        self._clock = clock
        # By content: the operation that had it first, and until when, the oldest first.
        self._seen: OrderedDict[bytes, tuple[UUID, float]] = OrderedDict()
        self._lookups = Tasks("a repeat was not looked up because of a bug")

    def count(self, request: Request) -> None:
        """A request is about to be executed or was accepted: count it if its caller sent it before."""
        policy, content, operation_id = request.route.repeats, request.content, request.identity.operation_id
        if policy is None:
            return
        if content is None:
            self._publish(request, RepeatResult.INCOMPARABLE, None)
        elif not policy.refuses and not content.is_distinct:
            first = self._remember(content, operation_id)
            if first != operation_id:
                self._publish(request, RepeatResult.COUNTED, first)
            elif self._first_of is not None and len(self._lookups) < _LOOKUPS_MAX:
                self._lookups.spawn(self._look_up(request, content, self._first_of))

    def refuse(self, request: Request, first: UUID) -> Reply:
        """Rule 17: the reply to a request whose content another operation holds."""
        self._publish(request, RepeatResult.REFUSED, first)
        return request.refuse(Verdict.LIKELY_DUPLICATE, first_operation=first)

    async def close(self) -> None:
        await end_tasks(self._lookups)

    def _remember(self, content: Content, operation_id: UUID) -> UUID:
        """The operation that had the content first: this one, if no other had."""
        now = self._clock()
        first, until = self._seen.get(content.digest, (operation_id, 0.0))
        if now < until:
            return first
        self._seen.pop(content.digest, None)
        self._seen[content.digest] = (operation_id, now + content.within_us / MICROSECONDS)
        while len(self._seen) > _REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return operation_id

    async def _look_up(self, request: Request, content: Content, first_of: FirstOf) -> None:
        operation_id = request.identity.operation_id
        try:
            first = await first_of(content.digest, operation_id, content.within_us // 1_000)
        except StoreError as error:
            _LOG.debug("who sent a content first could not be asked: %s", error)
            return
        if first is not None and first != operation_id:
            self._publish(request, RepeatResult.COUNTED, first)

    def _publish(self, request: Request, result: RepeatResult, first: UUID | None) -> None:
        identity = request.identity
        self._events.publish(
            RepeatNoticed(request.route.name, result, identity.operation_id, first, scope_name(identity.scope_digest))
        )
