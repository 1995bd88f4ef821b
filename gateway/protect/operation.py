"""The operations in flight in this process: each has one task, which claims, sends and records, and callers that wait.

Owns an operation from its claim to its final command, the command that ends the claim, whatever its callers do
meanwhile. Only a drain ends an operation early, and then applies its final command. This module knows no duplicates and
decides nothing about a request.

The first caller is the one whose request is executed. It waits once, for whichever comes first: a claim that was not
granted, the conclusion of the attempt, or the end of its patience. Only it can take a streamed response. If it has left
by then, the stream is aborted, and the event is published that its request would have had.

Invariant: an operation is in flight at most once. When its task ends, the outcome is in the record or in the journal.
If a drain could write to neither, it reports that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import EVENT_OF, Abandon, Applied, OutcomeCommand, Record, Result
from gateway.core.outcome import end_unused
from gateway.observe.facts import EndedUnanswered, Events, OperationClaimed, OperationSettled, OperationTakenOver
from gateway.protect.attempt import Attempts, abort_stream
from gateway.protect.claiming import Admission, Claiming, Granted, Seen, Unavailable
from gateway.protect.conclusion import Conclusion
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Lease, Leases
from gateway.protect.limits import Limits
from gateway.protect.request import Request
from gateway.protect.slices import Slices
from gateway.protect.trace import request_info
from gateway.store.base import NO_PLACE, Indefinite, NotApplied, Store, StoreError

_LOG = logging.getLogger("gateway")

# How long a drain tries to apply the final command of an attempt to the store.
_FINAL_COMMAND_SECONDS: Final = 3.0
_FINAL_COMMAND_PAUSE_SECONDS: Final = 0.2


@immutable
class DeliveryAttempt:
    """That an operation is in flight because its kept request is delivered.

    `record` is as it was read before the claim. `unopenable` is why the request cannot be opened, so that it is not
    sent; None where it was. `on_send` is called right before the first byte goes out.
    """

    record: Record
    unopenable: str | None = None
    on_send: Callable[[], None] = lambda: None


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One operation in flight. The result of its claim, its admission, comes first; if that is `Granted`, an attempt
    is under way.

    `order`: see `Operations.orders`. `delivery` is set where a kept request is delivered: then its first caller is
    the worker, which wants no response. The operation owns the body of its request; when its claim is not granted, the
    body goes back to the first caller.

    `first` is for the first caller: the result, or why there is no claim; None once its time is over. The result of the
    claim is waited for even then, because that comes soon. A caller that is cancelled meanwhile calls `left`. Once it
    is done, it takes no result.

    `record`, `lease` and `is_first` are those of the granted claim. `has_sent`: a byte may have left under it.
    `command` records its outcome, once that is known; `is_settled`: store or journal have it.
    """

    operations: Operations
    request: Request
    delivery: DeliveryAttempt | None
    order: int
    started_seconds: float
    first: asyncio.Future[Conclusion | Seen | Unavailable | None]
    when: float = math.inf
    """When the first caller's patience ends, on the loop's clock."""
    task: asyncio.Task[None] = field(init=False)
    record: Record = field(init=False)
    lease: Lease = field(init=False)
    is_first: bool = field(init=False)
    is_claimed: bool = field(init=False, default=False)
    has_sent: bool = field(init=False, default=False)
    command: OutcomeCommand | None = field(init=False, default=None)
    is_settled: bool = field(init=False, default=False)
    place: int = field(init=False, default=NO_PLACE)
    result: Conclusion | None = field(init=False, default=None)
    """The final one, once it was published."""
    waiters: int = field(init=False, default=0)
    """How many duplicates wait for the result."""
    _is_overdue: bool = field(init=False, default=False)
    _admission: Admission | None = field(init=False, default=None)
    # The futures are there as soon as a duplicate waits for them.
    _admitted: asyncio.Future[None] | None = field(init=False, default=None)
    _ended: asyncio.Future[Conclusion] | None = field(init=False, default=None)

    @property
    def final_command(self) -> OutcomeCommand | None:
        """The command that ends the claim if everything stops now; it never claims more than is known. None where there
        is no claim to end."""
        if not self.is_claimed or self.is_settled:
            return None
        if self.command is not None:
            return self.command
        record = self.record
        if self.has_sent:
            return Abandon(record.identity.operation_id, record.token, record.attempt_id, "interrupted")
        return end_unused(record, self.request.route.retention.remember_us, "interrupted")

    # -- for callers --------------------------------------------------------------------------------------------------

    def left(self) -> None:
        """The first caller was cancelled while it waited for `first`. A result that came in the same step has no reader
        any more."""
        if not self.first.cancelled() and isinstance(unread := self.first.result(), Conclusion):
            self._drop(unread, is_final=unread is self.result)

    async def wait_ended(self) -> Conclusion | Seen | Unavailable:
        """For a first caller that wants no response, once: how the attempt ended, or why there is no claim.

        Waits until nothing is left to be recorded. Cancelling this cancels nothing else.
        """
        first = await self.first
        if isinstance(first, Seen | Unavailable):
            return first
        if first is not None:
            abort_stream(first.reply)
        while self.result is None:
            await asyncio.wait((self._next_result(),))
        return self.result

    async def wait_admission(self) -> Admission:
        """The result of the claim. Cancelling this cancels nothing else."""
        while self._admission is None:
            if self._admitted is None:
                self._admitted = self.operations.loop.create_future()
            await self.operations.slices.until(self._admitted)
        return self._admission

    async def wait_result(self, timeout_seconds: float) -> Conclusion | None:
        """How the attempt ended, or None if that is not known in time. Cancelling this cancels nothing else."""
        if self.result is not None:
            return self.result
        result = self._next_result()
        self.waiters += 1
        try:
            await self.operations.slices.until(result, timeout_seconds)
        finally:
            self.waiters -= 1
        return result.result() if result.done() else None

    def is_exclusive(self) -> bool:
        """Whether the claim surely still belongs to this operation. When False, it may or may not."""
        return self.is_claimed and self.lease.is_trusted()

    # -- for its task -------------------------------------------------------------------------------------------------

    def granted(self, admission: Granted, lease: Lease) -> None:
        """The claim was granted, and an attempt starts under it."""
        self.record, self.lease, self.is_first = admission.record, lease, admission.is_first
        self.place = admission.place
        self.is_claimed = True
        if self.delivery is None:
            request = self.request
            request.is_executed, request.attempt, request.origin = True, admission.record.attempts, admission.origin
        self._admission = admission
        if self._admitted is not None:
            self._admitted.set_result(None)
        if self._is_overdue:
            self.end()

    def not_granted(self, admission: Seen | Unavailable) -> None:
        """The claim was not granted, and nothing is executed."""
        self.operations.limits.due.pop(self, None)
        self.request.owner = None
        self._admission = admission
        if self._admitted is not None:
            self._admitted.set_result(None)
        if self.first.done():
            self.request.taken.close()
        else:
            self.first.set_result(admission)

    def publish(self, result: Conclusion, *, is_final: bool = True) -> None:
        """The attempt ended. Not `is_final`: the write goes on, and duplicates to come wait for its result."""
        self.operations.limits.due.pop(self, None)
        if is_final:
            self.result = result
        if self.first.done():
            self._drop(result, is_final=is_final)
        else:
            if self.delivery is None:
                request = self.request
                request.upstream_status, request.upstream_seconds = result.upstream_status, result.upstream_seconds
            self.first.set_result(result)
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended.set_result(result)

    def end(self) -> None:
        """End the first caller's wait, as soon as the result of the claim is known: its patience is over."""
        self._is_overdue = True
        if self.is_claimed and not self.first.done():
            self.first.set_result(None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _next_result(self) -> asyncio.Future[Conclusion]:
        if self._ended is None:
            self._ended = self.operations.loop.create_future()
        return self._ended

    def _drop(self, result: Conclusion, *, is_final: bool) -> None:
        """Abort the reply to a first caller that has left, and publish the event that its request would have had."""
        reply, request = result.reply, self.request
        abort_stream(reply)
        if is_final and reply.verdict is not None:
            self.operations.events.publish(
                EndedUnanswered(
                    route=request.route.name,
                    verdict=reply.verdict,
                    status=reply.status,
                    duration_seconds=time.monotonic() - request.began,
                    operation_id=request.identity.operation_id,
                    upstream_status=result.upstream_status,
                    attempt=self.record.attempts,
                    request=request_info(request.head),
                )
            )


@dataclass(frozen=True, slots=True)
class Drained:
    """How many attempts a drain ended early, by where their final command is: in the store, the journal, or neither.

    A claim whose result is unknown and that could not be ended counts as `unrecorded`, too.
    """

    recorded: int = 0
    journaled: int = 0
    unrecorded: int = 0

    def __add__(self, other: Drained) -> Drained:
        return Drained(
            self.recorded + other.recorded, self.journaled + other.journaled, self.unrecorded + other.unrecorded
        )


class Operations:
    """The operations in flight in one gateway process."""

    def __init__(
        self,
        store: Store,
        journaling: Journaling,
        claiming: Claiming,
        leases: Leases,
        events: Events,
        on_new: Callable[[Request], None],
    ) -> None:
        """Needs a running event loop. `on_new` gets each request that is about to be executed for its caller."""
        self._store = store
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._on_new = on_new
        # What all operations share.
        self.events = events
        self.loop = asyncio.get_running_loop()
        self.slices = Slices()
        self.limits = Limits(self.loop)
        self._attempts = Attempts(store, journaling, events, claiming.marks, self.limits)
        self.in_flight: dict[int, Operation] = {}
        """By the integers of their ids: every request is looked up here first, and hashing a UUID calls a Python
        function. Read only."""
        self.requested = 0
        """How many of them a caller's request began. The others deliver kept requests, and have limits of their own."""
        self.orders = count()
        """Draws the next number in the order in which operations start and duplicates arrive."""

    def __len__(self) -> int:
        return len(self.in_flight)

    @property
    def by_route(self) -> Counter[str]:
        """How many there are of each route."""
        return Counter(operation.request.route.name for operation in self.in_flight.values())

    def get(self, operation_id: UUID) -> Operation | None:
        """The operation with this id, if it is in flight here."""
        return self.in_flight.get(operation_id.int)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest operation has been in flight, 0 without one."""
        if not self.in_flight:
            return 0.0
        return self.loop.time() - min(operation.started_seconds for operation in self.in_flight.values())

    def begin(self, request: Request, delivery: DeliveryAttempt | None = None) -> Operation:
        """Start the task of an operation that is not in flight: a request's, or the delivery of a kept one."""
        operation = request.owner = Operation(
            self, request, delivery, next(self.orders), self.loop.time(), self.loop.create_future()
        )
        self.in_flight[request.identity.operation_id.int] = operation
        operation.task = self.loop.create_task(self._run(operation))
        if delivery is None:
            self.requested += 1
            operation.when = request.arrived + request.route.target.answer_within_seconds
            self.limits.add(operation)
        return operation

    async def _run(self, operation: Operation) -> None:
        """Claim, send, record. Outlives every caller."""
        request, delivery, route = operation.request, operation.delivery, operation.request.route
        try:
            info = request_info(request.head)
            if delivery is None:
                admission = await self._claiming.claim(request, info)
            else:
                admission = await self._claiming.claim_kept(delivery.record, route, info)
            if not isinstance(admission, Granted):
                operation.not_granted(admission)
                return
            record, operation_id = admission.record, request.identity.operation_id
            is_takeover = record.carried_us is not None
            lease = self._leases.hold(record, admission.now_us, admission.started_seconds)
            self.events.publish(
                OperationClaimed(route.name, operation_id, record.token, record.attempts, is_takeover=is_takeover)
            )
            if is_takeover:
                self.events.publish(OperationTakenOver(route.name, operation_id, record.token, record.attempts, info))
            elif route.repeats is not None and delivery is None:
                self._on_new(request)
            operation.granted(admission, lease)
            conclusion = None
            try:
                conclusion = await self._attempts.send(operation)
                await self._attempts.record(operation, conclusion)
            except BaseException as error:
                if conclusion is not None:
                    abort_stream(conclusion.reply)
                self._attempts.interrupt(operation)
                if isinstance(error, Exception) and (command := operation.final_command) is not None:
                    # Nothing else ends the claim, and its key would be left in doubt although nothing may have been
                    # sent.
                    await self._end_early(operation, command, "the gateway failed")
                raise
            finally:
                self._leases.held.pop(lease, None)
                if operation.is_settled:
                    self._claiming.marks.unmark(operation.place)
        except Exception:  # noqa: BLE001 - whatever it is, there is nobody else to hear of it
            _LOG.exception("an operation failed because of a bug")
        finally:
            self._ended(operation)

    def _ended(self, operation: Operation) -> None:
        """Nothing of this operation is under way any more."""
        request = operation.request
        del self.in_flight[request.identity.operation_id.int]
        self.requested -= operation.delivery is None
        if operation.is_claimed:
            # Without this, the two would keep each other until the collector finds them.
            request.owner = None
        elif request.owner is operation:
            operation.not_granted(Unavailable("the claim was cut off", is_definite=False, is_refused=True))

    async def drain(self, timeout_seconds: float) -> Drained:
        """Wait for the operations in flight; after `timeout_seconds`, end the remaining ones by their final
        commands."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.in_flight:
                    await asyncio.wait([operation.task for operation in self.in_flight.values()])
                await self._claiming.wait_pursuits_ended()
        except TimeoutError:
            pass
        left = list(self.in_flight.values())
        for operation in left:
            operation.task.cancel()
        await asyncio.gather(*(operation.task for operation in left), return_exceptions=True)
        for operation in left:
            if self.in_flight.get(operation.request.identity.operation_id.int) is operation:
                # Its task was cancelled before its first step.
                self._ended(operation)
        final_commands = [
            self._end_early(operation, operation.final_command, "the gateway stopped")
            for operation in left
            if operation.final_command is not None
        ]
        return sum(await asyncio.gather(self._end_pursuits(), *final_commands), Drained())

    async def _end_pursuits(self) -> Drained:
        """Release claims that were cut off just now, if the store responds soon."""
        return Drained(unrecorded=await self._claiming.close(_FINAL_COMMAND_SECONDS))

    async def _end_early(self, operation: Operation, command: OutcomeCommand, why: str) -> Drained:
        """Apply the final command of an attempt to the store or, if that fails, keep it in the journal. Until it is
        durable, what the attempt has sent stays marked."""
        record, is_late, drained = operation.record, False, Drained(recorded=1)
        result: Result | None = None
        try:
            async with asyncio.timeout(_FINAL_COMMAND_SECONDS):
                while result is None:
                    try:
                        result = await self._store.apply(command)
                    except (NotApplied, Indefinite):
                        is_late = True
                        await asyncio.sleep(_FINAL_COMMAND_PAUSE_SECONDS)
        except (TimeoutError, StoreError):
            drained = Drained(journaled=1)
            try:
                await self._journaling.keep(record, command, detail=why)
            except StoreError:
                return Drained(unrecorded=1)
        if isinstance(result, Applied):
            identity, event = record.identity, EVENT_OF[type(command)]
            self.events.publish(
                OperationSettled(identity.route, identity.operation_id, record.token, event, why, None, is_late)
            )
        # Once: a drain may end again what ended in this very step, and the place would be free twice.
        place, operation.place = operation.place, NO_PLACE
        self._claiming.marks.unmark(place)
        return drained
