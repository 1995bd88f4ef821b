"""The operations in flight in this process. Each has one task, which gets the claim and runs the attempt.

Owns an operation from its claim to its final command, the command that ends the claim, whatever its callers do
meanwhile. Only a drain ends an operation early, and then applies its final command. This module knows no duplicates and
decides nothing about a request.

Invariant: an operation is in flight at most once. When its task ends, the outcome is in the record or in the journal.
If a drain could write to neither, it reports that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final
from uuid import UUID

from gateway.core.operation import EVENT_OF, Applied, Event, OutcomeCommand, Record, RequestInfo
from gateway.core.recovery import Resend
from gateway.observe.facts import Events, OperationClaimed, OperationSettled, OperationTakenOver
from gateway.protect.attempt import Attempts
from gateway.protect.claiming import Claiming, Granted, Terms, Unavailable
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Leases
from gateway.protect.limits import Limits
from gateway.protect.operation import DeliveryAttempt, Operation, abort_stream
from gateway.protect.request import Request
from gateway.protect.slices import Slices
from gateway.protect.trace import request_info
from gateway.store.base import NO_PLACE, Indefinite, NotApplied, Store, StoreError

_LOG = logging.getLogger("gateway")

# How long a drain tries to apply the final command of an attempt to the store.
_FINAL_COMMAND_SECONDS: Final = 3.0
_FINAL_COMMAND_PAUSE_SECONDS: Final = 0.2


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
        self._attempts = Attempts(store, journaling, events, claiming.marks)
        self._leases = leases
        self._events = events
        self._on_new = on_new
        self._loop = asyncio.get_running_loop()
        self._slices = Slices()
        self._limits = Limits(self._loop)
        self.in_flight: dict[int, Operation] = {}
        """By the integers of their ids: every request is looked up here first, and hashing a UUID calls a Python
        function. Read only."""
        self.requested = 0
        """How many of them a caller's request began. The others deliver kept requests, and have limits of their own."""
        self.orders = count()
        """Draws the next number in the order in which operations start and duplicates arrive."""
        self._tasks: dict[asyncio.Task[None], Operation] = {}

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
        return self._loop.time() - min(operation.started_seconds for operation in self.in_flight.values())

    def begin(self, request: Request, delivery: DeliveryAttempt | None = None) -> Operation:
        """Start the task of an operation that is not in flight: a request's, or the delivery of a kept one."""
        operation = Operation(
            request, next(self.orders), self._events, self._loop, self._slices, self._limits, delivery
        )
        self.requested += delivery is None
        self.in_flight[request.identity.operation_id.int] = operation
        task = self._loop.create_task(self._run(operation))
        self._tasks[task] = operation
        task.add_done_callback(self._task_ended)
        return operation

    async def _run(self, operation: Operation) -> None:
        """Claim, send, record. Outlives every caller."""
        request, delivery = operation.request, operation.delivery
        try:
            terms = _terms_of(request)
            if delivery is None:
                admission = await self._claiming.claim(request.identity, request.fingerprints_to_record(), terms)
            else:
                admission = await self._claiming.claim_kept(delivery.record, terms)
            if not isinstance(admission, Granted):
                operation.not_granted(admission)
                return
            self._granted(operation, admission, terms.request)
            began, conclusion = time.monotonic(), None
            try:
                conclusion = await self._attempts.send(operation)
                if delivery is not None:
                    self._attempts.publish_attempted(operation, began, conclusion)
                await self._attempts.record(operation, conclusion)
            except BaseException as error:
                if delivery is not None and conclusion is None:
                    self._attempts.publish_attempted(operation, began, None)
                if conclusion is not None:
                    abort_stream(conclusion.reply)
                self._attempts.interrupt(operation)
                if isinstance(error, Exception) and (command := operation.final_command) is not None:
                    # Nothing else ends the claim, and its key would be left in doubt although nothing may have been
                    # sent.
                    await self._end_early(operation, command, "the gateway failed")
                raise
            finally:
                self._leases.drop(operation.lease)
                if operation.is_settled:
                    self._claiming.marks.unmark(operation.place)
        finally:
            self._remove(operation)

    def _granted(self, operation: Operation, admission: Granted, info: RequestInfo | None) -> None:
        request, record = operation.request, admission.record
        route_name, operation_id = request.route.name, record.identity.operation_id
        is_takeover = record.carried_us is not None
        lease = self._leases.hold(record, admission.now_us, admission.started_seconds)
        self._events.publish(
            OperationClaimed(route_name, operation_id, record.token, record.attempts, is_takeover=is_takeover)
        )
        if is_takeover and info is not None:
            self._events.publish(OperationTakenOver(route_name, operation_id, record.token, record.attempts, info))
        if request.route.repeats is not None and operation.delivery is None and not is_takeover:
            self._on_new(request)
        operation.granted(admission, lease)

    def _remove(self, operation: Operation) -> None:
        del self.in_flight[operation.request.identity.operation_id.int]
        self.requested -= operation.delivery is None

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        operation = self._tasks.pop(task)
        if operation.request.owner is operation and not operation.is_claimed:
            # Cancelled during the claim, or before the task's first step.
            if self.in_flight.get(operation.request.identity.operation_id.int) is operation:
                self._remove(operation)
            operation.not_granted(Unavailable("the claim was cut off", is_definite=False, is_refused=True))
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("an operation failed because of a bug", exc_info=error)

    async def drain(self, timeout_seconds: float) -> Drained:
        """Wait for the operations in flight; after `timeout_seconds`, end the remaining ones by their final
        commands."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
                await self._claiming.wait_pursuits_ended()
        except TimeoutError:
            pass
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        final_commands = [
            self._end_early(operation, operation.final_command, "the gateway stopped")
            for operation in left.values()
            if operation.final_command is not None
        ]
        return sum(await asyncio.gather(self._end_pursuits(), *final_commands), Drained())

    async def _end_pursuits(self) -> Drained:
        """Release claims that were cut off just now, if the store responds soon."""
        return Drained(unrecorded=await self._claiming.close(_FINAL_COMMAND_SECONDS))

    async def _end_early(self, operation: Operation, command: OutcomeCommand, why: str) -> Drained:
        """Apply the final command. Until it is durable, what the attempt has sent stays marked."""
        drained = await self._apply_final_command(operation.record, command, why)
        if not drained.unrecorded:
            # Once: a drain may end again what ended in this very step, and the place would be free twice.
            place, operation.place = operation.place, NO_PLACE
            self._claiming.marks.unmark(place)
        return drained

    async def _apply_final_command(self, record: Record, command: OutcomeCommand, why: str) -> Drained:
        """Apply the final command of an attempt that ended early to the store or, if that fails, keep it in the
        journal."""
        is_late = False
        try:
            async with asyncio.timeout(_FINAL_COMMAND_SECONDS):
                while True:
                    try:
                        result = await self._store.apply(command)
                    except (NotApplied, Indefinite):
                        is_late = True
                        await asyncio.sleep(_FINAL_COMMAND_PAUSE_SECONDS)
                    else:
                        if isinstance(result, Applied):
                            self._publish_settled(record, EVENT_OF[type(command)], why, is_late=is_late)
                        return Drained(recorded=1)
        except (TimeoutError, StoreError):
            pass
        try:
            await self._journaling.keep(record, command, detail=why)
        except StoreError:
            return Drained(unrecorded=1)
        return Drained(journaled=1)

    def _publish_settled(self, record: Record, event: Event, why: str, *, is_late: bool) -> None:
        identity = record.identity
        self._events.publish(
            OperationSettled(identity.route, identity.operation_id, record.token, event, why, None, is_late)
        )


def _terms_of(request: Request) -> Terms:
    route = request.route
    return Terms(
        remember_us=route.retention.remember_us,
        accepts_recipe_change=route.accepts_recipe_change,
        is_executed_anyway=route.forwards_unprotected,
        takes_over=isinstance(route.recovery, Resend),
        probe=request.probe,
        request=request_info(request.head),
        content=None if route.repeats is None else request.content_to_hold,
        patience_seconds=route.target.answer_within_seconds,
    )
