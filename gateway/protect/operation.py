"""The operations in flight in this process: each has one task, which claims, sends and records, and callers that wait.

Owns an operation from its claim to its final command, the command that ends the claim. It knows no duplicates and
decides nothing about a request.

The order is the only safe one: the first byte is sent only under a trusted lease; a response is in the record before
any caller gets it; and one whose body is not kept is in the record before its first byte goes out. If the store does
not take the outcome, the journal stands in for the record. The write is retried until one of them has it; until then no
caller gets the outcome as known.

Where nothing could be sent and duplicates wait for the result, the connect is tried again, a few times, under the same
claim: a thousand of them do not share one failure to connect, nor does each of them try.

The first caller is the one whose request is executed. It waits once, for whichever comes first: a claim that was not
granted, the conclusion of the attempt, or the end of its patience. Only it can take a streamed response; if it has left
by then, the stream is aborted.

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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from typing import Final, assert_never
from uuid import UUID

from gateway.core import immutable
from gateway.core.identity.body import MISSING
from gateway.core.lifecycle import settle
from gateway.core.message import Headers
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Abandon,
    Applied,
    Complete,
    Forget,
    OutcomeCommand,
    Postpone,
    Record,
    Release,
    Result,
    Snapshot,
)
from gateway.core.outcome import CONFLICT, IS_EVENT_STREAM, end_unused
from gateway.core.verdict import Verdict
from gateway.observe.facts import (
    EndedUnanswered,
    Events,
    OperationClaimed,
    OperationSettled,
    OperationTakenOver,
    WriteRefused,
)
from gateway.protect.claiming import Admission, Claiming, Granted, Lease, Leases, Limit, Limits, Seen, Unavailable
from gateway.protect.compose import (
    Conclusion,
    UpstreamStream,
    answered,
    attempted,
    expires_header,
    not_sent,
    refusal,
    reply_by_record,
    unknown,
    unreadable,
    without_response,
)
from gateway.protect.forwarding import protected_request
from gateway.protect.inbox import signed_again
from gateway.protect.journaling import Journaling
from gateway.protect.reply import Reply, read_document
from gateway.protect.request import Request, Slices, request_info
from gateway.store.base import Indefinite, NotApplied, Store, StoreError, Unstorable, end_tasks
from gateway.store.files import NO_PLACE, AttemptFiles
from gateway.upstream import Lost, NotSent, SentNothing, TooLong, UpstreamResponse

_LOG = logging.getLogger("gateway")

# How long a drain tries to apply the final command of an attempt to the store.
_FINAL_COMMAND_SECONDS: Final = 3.0
_FINAL_COMMAND_PAUSE_SECONDS: Final = 0.2
_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0
# The pauses before the connects that are tried for duplicates which wait.
_CONNECT_PAUSES_SECONDS: Final = (0.1, 0.3)
# The next connect may succeed where these failed.
_UNREACHED: Final = frozenset(
    (
        SentNothing.POOL_TIMEOUT,
        SentNothing.DNS,
        SentNothing.REFUSED,
        SentNothing.UNREACHABLE,
        SentNothing.CONNECT_TIMEOUT,
    )
)
# How long the store is retried before the journal is tried, too.
_STORE_RETRY_SECONDS: Final = 1.0
# How long one call of a store that does not respond may take.
_APPLY_SECONDS_MAX: Final = 3.0
_CONFLICT_BYTES_MAX: Final = 64 * 1024
# In longer bodies values are replaced in a thread: it takes milliseconds.
_REDACTED_BYTES_MAX: Final = 64 * 1024


@immutable
class DeliveryAttempt:
    """That an operation is in flight because its kept request is delivered.

    `record` is as it was read before the claim. `unopenable` is why the request cannot be opened, so that it is not
    sent; None where it was. `on_send` is called right before the first byte goes out.
    """

    record: Record
    unopenable: str | None = None
    on_send: Callable[[], None] = lambda: None


class Stage(Enum):
    """How far an operation in flight is, which decides how it ends if everything stops now.

        claiming --> granted ---------> known --> settled
           |            |                 ^
           v            +--> sent --------+
        refused

    A conclusion that the store can never take is `KNOWN` again without its response. What is published is no stage:
    callers are told of an end also where it could not be recorded.
    """

    CLAIMING = "claiming"  # the result of the claim is not known
    REFUSED = "refused"  # there is no claim
    GRANTED = "granted"  # no byte has left under it
    SENT = "sent"  # a byte may have left
    KNOWN = "known"  # `command` records the outcome
    SETTLED = "settled"  # the store or the journal has it


# An access through the class costs a lookup each time, and each request has five.
_CLAIMING, _REFUSED, _GRANTED, _SENT, _KNOWN, _SETTLED = Stage


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

    `record`, `lease`, `is_first` and `place` are those of the granted claim.
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
    place: int = field(init=False, default=NO_PLACE)
    stage: Stage = field(init=False, default=_CLAIMING)
    command: OutcomeCommand = field(init=False)
    result: Conclusion | None = field(init=False, default=None)
    """The final one, once it was published."""
    waiters: int = field(init=False, default=0)
    """How many duplicates wait for the result."""
    _admission: Admission | None = field(init=False, default=None)
    # The futures are there as soon as a duplicate waits for them.
    _admitted: asyncio.Future[None] | None = field(init=False, default=None)
    _ended: asyncio.Future[Conclusion] | None = field(init=False, default=None)

    @property
    def final_command(self) -> OutcomeCommand | None:
        """The command that ends the claim if everything stops now; it never claims more than is known. None where there
        is no claim to end."""
        match self.stage:
            case Stage.GRANTED:
                return end_unused(self.record, self.request.route.retention.remember_us, "interrupted")
            case Stage.SENT:
                record = self.record
                return Abandon(record.identity.operation_id, record.token, record.attempt_id, "interrupted")
            case Stage.KNOWN:
                return self.command
            case Stage.CLAIMING | Stage.REFUSED | Stage.SETTLED:
                return None
            case other:
                assert_never(other)

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
        return isinstance(self._admission, Granted) and self.lease.is_trusted()

    # -- for its task -------------------------------------------------------------------------------------------------

    def granted(self, admission: Granted, lease: Lease) -> None:
        """The claim was granted, and an attempt starts under it."""
        self.record, self.lease, self.is_first = admission.record, lease, admission.is_first
        self.place, self.stage = admission.place, _GRANTED
        if self.delivery is None:
            request = self.request
            request.is_executed, request.attempt, request.origin = True, admission.record.attempts, admission.origin
        self._admission = admission
        if self._admitted is not None:
            self._admitted.set_result(None)
        if self.delivery is None and self not in self.operations.limits.due:
            self.end()

    def not_granted(self, admission: Seen | Unavailable) -> None:
        """The claim was not granted, and nothing is executed."""
        self.operations.limits.due.pop(self, None)
        self.request.owner = None
        self.stage, self._admission = _REFUSED, admission
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
        if self.stage is not _CLAIMING and not self.first.done():
            self.first.set_result(None)

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


@dataclass(slots=True, eq=False, repr=False)
class Operations:
    """The operations in flight in one gateway process. `on_new` gets each request that is about to be executed for its
    caller."""

    store: Store
    journaling: Journaling
    claiming: Claiming
    leases: Leases
    events: Events
    on_new: Callable[[Request], None]
    loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    slices: Slices = field(init=False, default_factory=Slices)
    limits: Limits = field(init=False)
    marks: AttemptFiles = field(init=False)
    in_flight: dict[int, Operation] = field(init=False, default_factory=dict)
    """By the integers of their ids: every request is looked up here first, and hashing a UUID calls a Python function.
    Read only."""
    requested: int = field(init=False, default=0)
    """How many of them a caller's request began. The others deliver kept requests, and have limits of their own."""
    orders: count[int] = field(init=False, default_factory=count)
    """Draws the next number in the order in which operations start and duplicates arrive."""

    def __post_init__(self) -> None:
        self.limits, self.marks = Limits(self.loop), self.claiming.marks

    def __len__(self) -> int:
        return len(self.in_flight)

    @property
    def by_route(self) -> Counter[str]:
        return Counter(operation.request.route.name for operation in self.in_flight.values())

    def get(self, operation_id: UUID) -> Operation | None:
        return self.in_flight.get(operation_id.int)

    @property
    def oldest_seconds(self) -> float:
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
            self.limits.due[operation] = None
            if operation.when < self.limits.sweep.at:
                self.limits.sweep.by(operation.when)
        return operation

    async def _run(self, operation: Operation) -> None:
        """Claim, send, record. Outlives every caller."""
        request, delivery, route = operation.request, operation.delivery, operation.request.route
        try:
            info = request_info(request.head)
            if delivery is None:
                admission = await self.claiming.claim(request, info)
            else:
                admission = await self.claiming.claim_kept(delivery.record, route, info)
            if not isinstance(admission, Granted):
                operation.not_granted(admission)
                return
            record, operation_id = admission.record, request.identity.operation_id
            is_takeover = record.carried_us is not None
            lease = self.leases.hold(record, admission.now_us, admission.started_seconds)
            self.events.publish(
                OperationClaimed(route.name, operation_id, record.token, record.attempts, is_takeover=is_takeover)
            )
            if is_takeover:
                self.events.publish(OperationTakenOver(route.name, operation_id, record.token, record.attempts, info))
            elif route.repeats is not None and delivery is None:
                self.on_new(request)
            operation.granted(admission, lease)
            conclusion = None
            try:
                conclusion = await self._send(operation)
                await self._record(operation, conclusion)
            except BaseException as error:
                if conclusion is not None:
                    abort_stream(conclusion.reply)
                self._interrupt(operation)
                if isinstance(error, Exception) and (command := operation.final_command) is not None:
                    # Nothing else ends the claim, and its key would be left in doubt although nothing may have been
                    # sent.
                    await self._end_early(operation, command, "the gateway failed")
                raise
        except Exception:  # noqa: BLE001 - whatever it is, there is nobody else to hear of it
            _LOG.exception("an operation failed because of a bug")
        finally:
            self._ended(operation)
            if operation.stage is _SETTLED:
                self.marks.unmark(operation.place)

    # -- send ---------------------------------------------------------------------------------------------------------

    async def _send(self, operation: Operation) -> Conclusion:
        """Send the request once under its claim; returns what is known then."""
        request, record = operation.request, operation.record
        route, delivery = request.route, operation.delivery
        target, head = route.target, request.head
        replaced: Headers = ()
        began, conclusion = time.monotonic(), None
        try:
            if delivery is not None and delivery.unopenable is not None:
                conclusion = unreadable(request, record, delivery.unopenable)
                return conclusion
            if record.delivery is not None:
                if route.inbox is not None:
                    head = await signed_again(route.inbox, head, request.taken, record.identity.operation_id)
                replaced = () if route.accept is None else route.accept.headers
            policy, canonical_key = target.forwarding, request.canonical_key
            head = protected_request(head, request.hop, policy, record, canonical_key, replaced)
            may_send = partial(self._may_send, operation)
            pauses_seconds = iter(_CONNECT_PAUSES_SECONDS)
            while True:
                taken = request.taken
                content = taken.outbound() if taken.is_closed else taken.content
                body = content if isinstance(content, bytes) else taken.outbound()
                result = await target.upstream.exchange(head, body, protected=True, may_send=may_send)
                if type(result) is not NotSent or not _is_tried_again(operation, result.reason):
                    break
                if not (pause_seconds := next(pauses_seconds, 0.0)):
                    break
                await asyncio.sleep(pause_seconds)
            match result:
                case UpstreamResponse():
                    conclusion = await self._read(operation, result, began)
                case NotSent(reason, detail):
                    conclusion = not_sent(request, record, reason, detail)
                case Lost(reason, detail):
                    conclusion = unknown(request, record, reason, detail, time.monotonic() - began)
                case _:
                    assert_never(result)
            return conclusion
        finally:
            # The final command ends the claim. A renewal that arrives behind it has lost nothing.
            self.leases.held.pop(operation.lease, None)
            request.taken.close()
            if delivery is not None:
                self._publish_attempted(operation, began, conclusion)

    def _may_send(self, operation: Operation) -> bool:
        lease = operation.lease
        if lease.clock() >= lease.trusted_until_seconds:
            return False
        if operation.delivery is not None:
            operation.delivery.on_send()
        operation.stage = _SENT
        # Last: a kill between the mark and the first byte leaves a doubt about nothing.
        self.marks.mark_sent(operation.place)
        return True

    async def _read(self, operation: Operation, response: UpstreamResponse, began: float) -> Conclusion:
        """Read the response as far as it is kept, and conclude."""
        request, record, head = operation.request, operation.record, response.head
        keep = request.route.keep
        # What a conflict says in its body decides, whatever of it is stored.
        is_conflict = head.status == CONFLICT
        limit = max(keep.taken_bytes_max, _CONFLICT_BYTES_MAX) if is_conflict else keep.taken_bytes_max
        prefix = b""
        if limit > 0 and not any(map(IS_EVENT_STREAM, head.headers.by_name.get(b"content-type", ()))):
            try:
                body = await response.body.read_all(limit)
            except BaseException:
                response.close()
                raise
            seconds = time.monotonic() - began
            match body:
                case bytes():
                    document = MISSING
                    if keep.reads_bodies or is_conflict:
                        document = await read_document(head.headers, body, takes_text=is_conflict)
                    whole = (request, record, head, body, len(body), seconds, document)
                    if keep.redaction is not None and len(body) > _REDACTED_BYTES_MAX:
                        return await asyncio.to_thread(answered, *whole, is_first=operation.is_first)
                    return answered(*whole, is_first=operation.is_first)
                case Lost(reason, detail):
                    return unknown(request, record, reason, detail, seconds, head)
                case TooLong(prefix):
                    pass
                case _:
                    assert_never(body)
        response.body.allow_to_outlast()
        stream, seconds = UpstreamStream(response, prefix), time.monotonic() - began
        return answered(request, record, head, stream, response.length, seconds, is_first=operation.is_first)

    # -- record -------------------------------------------------------------------------------------------------------

    async def _record(self, operation: Operation, conclusion: Conclusion) -> None:
        """Record the conclusion in the store or, if that fails, the journal; then publish it.

        Retries both for as long as it takes. A command that is in the journal although the store took it is harmless:
        the store recognises it when it is applied again.
        """
        journal_after = self.limits.loop.time() + _STORE_RETRY_SECONDS
        pause, is_late = _PAUSE_SECONDS_MIN, False
        while True:
            operation.stage, operation.command = _KNOWN, conclusion.command
            started = operation.lease.clock()
            try:
                with Limit(self.limits, self.limits.loop.time() + _APPLY_SECONDS_MAX):
                    result = await self.store.apply(conclusion.command)
            except Unstorable:
                smaller = without_response(conclusion)
                if smaller is None:
                    raise
                conclusion = smaller
            except (StoreError, TimeoutError):
                is_late = True
                if self.limits.loop.time() >= journal_after:
                    if await self._keep(operation, conclusion):
                        return
                    self._publish_unrecorded(operation, conclusion)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            else:
                operation.stage, conclusion.is_recorded = _SETTLED, True
                if isinstance(result, Applied):
                    self._read_applied(operation, result.snapshot, conclusion, started, is_late=is_late)
                else:
                    self._read_refused(operation, result.snapshot, conclusion)
                operation.publish(conclusion)
                return

    def _interrupt(self, operation: Operation) -> None:
        """Reply to those who wait that everything stops now. It claims no more than the final command, which may still
        be recorded."""
        if operation.result is not None:
            return
        record = operation.record
        # Without one, the outcome is in the store, and a bug keeps it from being told.
        ids = record.identity.operation_id, record.token, record.attempt_id
        command = operation.final_command or Abandon(*ids, "interrupted")
        verdict = Verdict.OVERLOADED if isinstance(command, Release | Forget | Postpone) else Verdict.IN_DOUBT
        reply = refusal(operation.request, record, verdict, 503)
        operation.publish(Conclusion(command, reply, reply, "interrupted", is_sent=None))

    async def _keep(self, operation: Operation, conclusion: Conclusion) -> bool:
        """Write the conclusion to the journal and publish it. False when that failed, too: then no caller may get it as
        known."""
        command = conclusion.command
        try:
            snapshot = await self.journaling.keep(
                operation.record, command, detail=conclusion.detail, upstream_seconds=conclusion.upstream_seconds
            )
        except StoreError:
            return False
        operation.stage = _SETTLED
        if conclusion.reply.verdict is Verdict.STORED:
            conclusion.reply = replace(conclusion.reply, verdict=Verdict.JOURNALED)
        if conclusion.others is None:
            conclusion.others = snapshot
        conclusion.is_recorded = isinstance(command, Complete)
        conclusion.pause_us = command.pause_us if isinstance(command, Postpone) else None
        operation.publish(conclusion)
        return True

    def _publish_unrecorded(self, operation: Operation, conclusion: Conclusion) -> None:
        """Reply to those who wait now that the outcome could not be recorded. Later callers wait for the write.

        That nothing was sent is true whatever the record is, so it is reported as it is; but a kept request may be sent
        by then.
        """
        reply = conclusion.reply
        if reply.verdict is not Verdict.UPSTREAM_UNREACHABLE or conclusion.others is None:
            reply = refusal(operation.request, operation.record, Verdict.IN_DOUBT, 503)
        operation.publish(Conclusion(conclusion.command, reply, reply, conclusion.detail, is_sent=None), is_final=False)
        abort_stream(conclusion.reply)

    def _read_applied(
        self, operation: Operation, snapshot: Snapshot, conclusion: Conclusion, started: float, *, is_late: bool
    ) -> None:
        """Complete the conclusion by the record that the store made of it. `started` is from before the call."""
        record, command, reply, others = operation.record, conclusion.command, conclusion.reply, conclusion.others
        identity, recorded = record.identity, snapshot.record
        self.events.publish(
            OperationSettled(
                identity.route,
                identity.operation_id,
                record.token,
                EVENT_OF[type(command)],
                conclusion.detail,
                conclusion.upstream_seconds,
                is_late,
            )
        )
        # A completion that was recognised after its replay window has no such time.
        if reply.verdict is Verdict.STORED and recorded is not None and recorded.replay_until_us:
            expires = expires_header(recorded.replay_until_us // MICROSECONDS)
            # The constructor, because `replace` reads each field by name and every new key comes here.
            conclusion.reply = Reply(
                reply.status,
                reply.reason,
                (*reply.headers, expires),
                reply.body,
                Verdict.STORED,
                reply.length,
                source=reply.source,
            )
            if isinstance(others, Reply):
                conclusion.others = replace(others, headers=(*others.headers, expires))
        if not isinstance(others, Reply):
            # While this waited for the store, what it saw may have expired; mostly its replay window has just begun.
            now_us = snapshot.now_us + int((operation.lease.clock() - started) * MICROSECONDS)
            if recorded is not None and recorded.replay_until_us <= now_us:
                recorded = settle(recorded, now_us)
            conclusion.others = Snapshot(recorded, now_us)
        conclusion.pause_us = command.pause_us if isinstance(command, Postpone) else None

    def _read_refused(self, operation: Operation, snapshot: Snapshot, conclusion: Conclusion) -> None:
        """Complete the conclusion by the record that has moved on without this attempt."""
        record, event = operation.record, EVENT_OF[type(conclusion.command)]
        self.events.publish(
            WriteRefused(record.identity.route, record.identity.operation_id, record.token, event, str(snapshot.state))
        )
        abort_stream(conclusion.reply)
        conclusion.reply = reply_by_record(snapshot, operation.request, free_verdict=Verdict.IN_DOUBT)
        # A store that has forgotten the attempt does not know that it had no effect: duplicates must not read that from
        # its record.
        is_forgotten = snapshot.record is None or snapshot.record.token < record.token
        conclusion.others = conclusion.reply if is_forgotten else snapshot

    def _publish_attempted(self, operation: Operation, began: float, conclusion: Conclusion | None) -> None:
        """Publish how an attempt to deliver ended; without a conclusion, it was interrupted."""
        command = operation.final_command if conclusion is None else conclusion.command
        if command is not None:
            status = None if conclusion is None else conclusion.upstream_status
            seconds = time.monotonic() - began
            self.events.publish(attempted(operation.request, operation.record, command, seconds, status))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ended(self, operation: Operation) -> None:
        """Nothing of this operation is under way any more."""
        request = operation.request
        del self.in_flight[request.identity.operation_id.int]
        self.requested -= operation.delivery is None
        if operation.stage is not _CLAIMING:
            # Without this, the two would keep each other until the collector finds them.
            request.owner = None
        else:
            operation.not_granted(Unavailable("the claim was cut off", is_definite=False, is_refused=True))

    async def wait_ended(self) -> None:
        while self.in_flight:
            await asyncio.wait([operation.task for operation in self.in_flight.values()])
        await self.claiming.wait_pursuits_ended()

    async def drain(self, timeout_seconds: float) -> Drained:
        """Wait for the operations in flight; after `timeout_seconds`, end the remaining ones by their final
        commands."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self.wait_ended()
        left = list(self.in_flight.values())
        await end_tasks(operation.task for operation in left)
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
        return Drained(unrecorded=await self.claiming.close(_FINAL_COMMAND_SECONDS))

    async def _end_early(self, operation: Operation, command: OutcomeCommand, why: str) -> Drained:
        """Apply the final command of an attempt to the store or, if that fails, keep it in the journal. Until it is
        durable, what the attempt has sent stays marked."""
        record, is_late, drained = operation.record, False, Drained(recorded=1)
        result: Result | None = None
        try:
            async with asyncio.timeout(_FINAL_COMMAND_SECONDS):
                while result is None:
                    try:
                        result = await self.store.apply(command)
                    except (NotApplied, Indefinite):
                        is_late = True
                        await asyncio.sleep(_FINAL_COMMAND_PAUSE_SECONDS)
        except (TimeoutError, StoreError):
            drained = Drained(journaled=1)
            try:
                await self.journaling.keep(record, command, detail=why)
            except StoreError:
                return Drained(unrecorded=1)
        if isinstance(result, Applied):
            identity, event = record.identity, EVENT_OF[type(command)]
            self.events.publish(
                OperationSettled(identity.route, identity.operation_id, record.token, event, why, None, is_late)
            )
        # Once: a drain may end again what ended in this very step, and the place would be free twice.
        place, operation.place = operation.place, NO_PLACE
        self.marks.unmark(place)
        return drained


def _is_tried_again(operation: Operation, reason: SentNothing) -> bool:
    """Whether a connect that failed may be tried again: duplicates wait, which are not to fail by one of them."""
    return reason in _UNREACHED and operation.waiters > 0 and operation.lease.is_trusted()


def abort_stream(reply: Reply) -> None:
    if not isinstance(reply.body, bytes):
        reply.body.abort()
