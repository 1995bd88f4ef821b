"""One attempt: sends a claimed request once, and records the outcome.

Runs in the operation's task, so that a client that leaves does not affect it. The order is the only safe one: the first
byte is sent only under a trusted lease; a response is in the record before any caller gets it; and one whose body is
not kept is in the record before its first byte goes out. If the store does not take the outcome, the journal stands in
for the record. The write is retried until one of them has it; until then no caller gets the outcome as known.

Where nothing could be sent and duplicates wait for the result, the connect is tried again, a few times, under the same
claim: a thousand of them do not share one failure to connect, nor does each of them try.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from gateway.core.identity.pointer import MISSING
from gateway.core.lifecycle import settle
from gateway.core.message import Headers, values_by_name
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Abandon,
    Applied,
    Complete,
    Forget,
    Postpone,
    Release,
    Snapshot,
)
from gateway.core.outcome import CONFLICT
from gateway.core.replay import is_event_stream
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, OperationSettled, WriteRefused
from gateway.protect.compose import expires_header, reply_by_record
from gateway.protect.conclusion import (
    Conclusion,
    answered,
    attempted,
    not_sent,
    refusal,
    unknown,
    unreadable,
    without_response,
)
from gateway.protect.decoding import read_document
from gateway.protect.forwarding import Execution, protected_request
from gateway.protect.journaling import Journaling
from gateway.protect.limits import Limit, Limits
from gateway.protect.reply import Reply
from gateway.protect.upstream_reply import UpstreamStream
from gateway.protect.verification import signed_again
from gateway.store.base import AttemptMarks, Store, StoreError, Unstorable
from gateway.upstream import BodyLost, Lost, NotSent, SentNothing, TooLong, UpstreamResponse

if TYPE_CHECKING:
    from gateway.protect.operation import Operation

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


@dataclass(slots=True, eq=False, repr=False)
class Attempts:
    """The attempts of one gateway process. Each operation is sent and recorded once, in its own task."""

    store: Store
    journaling: Journaling
    events: Events
    marks: AttemptMarks
    limits: Limits

    # -- send ---------------------------------------------------------------------------------------------------------

    async def send(self, operation: Operation) -> Conclusion:
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
            execution = Execution(
                record.identity.operation_id,
                record.token,
                target.key,
                target.key_headers,
                request.canonical_key,
                record.attempts,
                replaced,
            )
            head = protected_request(head, request.hop, target.forwarding, execution)
            may_send = partial(self._may_send, operation)
            pauses_seconds = iter(_CONNECT_PAUSES_SECONDS)
            while True:
                body = request.taken.outbound()
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
            request.taken.close()
            if delivery is not None:
                self._publish_attempted(operation, began, conclusion)

    def _may_send(self, operation: Operation) -> bool:
        lease = operation.lease
        if lease.clock() >= lease.trusted_until_seconds:
            return False
        if operation.delivery is not None:
            operation.delivery.on_send()
        operation.has_sent = True
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
        by_name = values_by_name(head.headers)
        if limit > 0 and not is_event_stream(by_name):
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
                    whole = (request, record, head, by_name, body, len(body), seconds, document)
                    if keep.redaction is not None and len(body) > _REDACTED_BYTES_MAX:
                        return await asyncio.to_thread(answered, *whole, is_first=operation.is_first)
                    return answered(*whole, is_first=operation.is_first)
                case BodyLost(reason, detail):
                    return unknown(request, record, reason, detail, seconds, head)
                case TooLong(prefix):
                    pass
                case _:
                    assert_never(body)
        response.body.allow_to_outlast()
        stream, seconds = UpstreamStream(response, prefix), time.monotonic() - began
        return answered(request, record, head, by_name, stream, response.length, seconds, is_first=operation.is_first)

    # -- record -------------------------------------------------------------------------------------------------------

    async def record(self, operation: Operation, conclusion: Conclusion) -> None:
        """Record the conclusion in the store or, if that fails, the journal; then publish it.

        Retries both for as long as it takes. A command that is in the journal although the store took it is harmless:
        the store recognises it when it is applied again.
        """
        journal_after = self.limits.loop.time() + _STORE_RETRY_SECONDS
        pause, is_late = _PAUSE_SECONDS_MIN, False
        while True:
            operation.command = conclusion.command
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
                operation.is_settled, conclusion.is_recorded = True, True
                if isinstance(result, Applied):
                    self._read_applied(operation, result.snapshot, conclusion, started, is_late=is_late)
                else:
                    self._read_refused(operation, result.snapshot, conclusion)
                operation.publish(conclusion)
                return

    def interrupt(self, operation: Operation) -> None:
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
        operation.is_settled = True
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
            expires = expires_header(recorded)
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
            # While this waited for the store, what it saw may have expired.
            now_us = snapshot.now_us + int((operation.lease.clock() - started) * MICROSECONDS)
            conclusion.others = Snapshot(settle(recorded, now_us), now_us)
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


def _is_tried_again(operation: Operation, reason: SentNothing) -> bool:
    """Whether a connect that failed may be tried again: duplicates wait, which are not to fail by one of them."""
    return reason in _UNREACHED and operation.waiters > 0 and operation.lease.is_trusted()


def abort_stream(reply: Reply) -> None:
    """Abort the reply's stream, if it has one."""
    if not isinstance(reply.body, bytes):
        reply.body.abort()
