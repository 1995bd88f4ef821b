"""One attempt: forwards a claimed request once, and records the outcome.

Owns the claim from its grant to its end, in the operation's task, so that a client that leaves does not affect it. The
order is the only safe one: the first byte is sent only under a trusted lease; a response is in the record before any
caller gets it; and one whose body is not kept is in the record before its first byte goes out. If the store does not
take the outcome, the journal stands in for the record. The write is retried until one of them has it; until then no
caller gets the outcome as known.

Where nothing could be sent and duplicates wait for the result, the connect is tried again, a few times, under the same
claim: a thousand of them do not share one failure to connect, nor does each of them try.

The operation's `final_command` is always the command that ends the claim if everything stops now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from gateway.core.identity.pointer import MISSING
from gateway.core.lifecycle import settle
from gateway.core.message import values_by_name
from gateway.core.operation import (
    EVENT_OF,
    Applied,
    Complete,
    Fenced,
    Forget,
    Lapsed,
    Postpone,
    Release,
    Result,
    Snapshot,
    microseconds,
)
from gateway.core.outcome import CONFLICT
from gateway.core.replay import is_event_stream
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, OperationSettled, WriteRefused
from gateway.protect.compose import expires_header, reply_by_record
from gateway.protect.conclusion import ClaimedRequest, Conclusion, without_response
from gateway.protect.decoding import read_document
from gateway.protect.forwarding import Execution, protected_request
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Lease
from gateway.protect.operation import AttemptResult, Operation, abort_stream
from gateway.protect.reply import Reply
from gateway.protect.upstream_reply import UpstreamStream
from gateway.protect.verification import signed_again
from gateway.store.base import Store, StoreError, Unstorable
from gateway.upstream import BodyLost, Lost, NotSent, SentNothing, TooLong, UpstreamResponse

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


class Attempt:
    """The attempt under the granted claim of an operation. `run` it once, in the operation's task."""

    def __init__(
        self,
        operation: Operation,
        claimed: ClaimedRequest,
        lease: Lease,
        store: Store,
        journaling: Journaling,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        *,
        on_send: Callable[[], None],
    ) -> None:
        """`on_send` is called in the step in which the first byte goes out, and before that byte."""
        self._operation = operation
        self._claimed = claimed
        self._lease = lease
        self._store = store
        self._journaling = journaling
        self._events = events
        self._loop = loop
        self._on_send = on_send
        self._began = time.monotonic()

    @property
    def _seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._began

    async def run(self) -> None:
        """Forward, conclude, record. A caller that cancels this must apply the operation's `final_command`."""
        delivery, is_concluded = self._operation.delivery, False
        try:
            if delivery is None or delivery.unopenable is None:
                conclusion = await self._forward()
            else:
                conclusion = self._claimed.unreadable(delivery.unopenable)
            is_concluded = True
            if delivery is not None:
                self._events.publish(
                    self._claimed.attempted(conclusion.command, self._seconds, conclusion.upstream_status)
                )
            try:
                await self._settle(conclusion)
            except BaseException:
                abort_stream(conclusion.reply)
                raise
        finally:
            if not self._operation.has_result:
                final_command = self._operation.final_command
                if delivery is not None and not is_concluded and final_command is not None:
                    self._events.publish(self._claimed.attempted(final_command, self._seconds))
                reply = self._interrupted()
                self._operation.publish(AttemptResult(reply, reply))

    def _interrupted(self) -> Reply:
        """The reply when everything stops now. It claims no more than `final_command`, which may still be recorded."""
        if isinstance(self._operation.final_command, Release | Forget | Postpone):
            return self._claimed.refuse(Verdict.OVERLOADED, 503)
        return self._claimed.refuse(Verdict.IN_DOUBT, 503)

    async def _forward(self) -> Conclusion:
        request, record = self._claimed.request, self._claimed.record
        target, accept = request.route.target, request.route.accept
        execution = Execution(
            request.identity.operation_id,
            record.token,
            target.key,
            target.key_headers,
            request.canonical_key,
            record.attempts,
            () if accept is None or record.delivery is None else accept.headers,
        )
        try:
            head, inbox = request.head, request.route.inbox
            if inbox is not None and record.delivery is not None:
                head = await signed_again(inbox, head, request.body, request.identity.operation_id)
            forwarded = protected_request(head, request.hop, target.forwarding, execution)
            pauses = iter(_CONNECT_PAUSES_SECONDS)
            while True:
                result = await target.upstream.exchange(
                    forwarded, request.body.outbound(), protected=True, may_send=self._may_send
                )
                if not self._is_for_others(result) or (pause_seconds := next(pauses, None)) is None:
                    break
                await asyncio.sleep(pause_seconds)
            match result:
                case NotSent(reason, detail):
                    return self._claimed.not_sent(reason, detail)
                case Lost(reason, detail):
                    return self._claimed.unknown(reason, detail, self._seconds)
                case UpstreamResponse():
                    return await self._read_response(result)
                case _:
                    assert_never(result)
        finally:
            request.body.close()

    def _is_for_others(self, result: UpstreamResponse | NotSent | Lost) -> bool:
        """Whether to try once more: nothing was sent, and duplicates wait, which are not to fail by one connect."""
        is_unreached = isinstance(result, NotSent) and result.reason in _UNREACHED
        return is_unreached and self._operation.has_waiters and self._lease.is_trusted()

    def _may_send(self) -> bool:
        if not self._lease.is_trusted():
            return False
        if (delivery := self._operation.delivery) is not None:
            delivery.on_send()
        self._operation.final_command = self._claimed.abandon("interrupted")
        # Last: a kill between the mark and the first byte leaves a doubt about nothing.
        self._on_send()
        return True

    async def _read_response(self, response: UpstreamResponse) -> Conclusion:
        keep = self._claimed.request.route.keep
        # What a conflict says in its body decides, whatever of it is stored.
        is_conflict = response.head.status == CONFLICT
        limit = max(keep.taken_bytes_max, _CONFLICT_BYTES_MAX) if is_conflict else keep.taken_bytes_max
        prefix = b""
        if limit > 0 and not is_event_stream(values_by_name(response.head.headers)):
            try:
                body = await response.body.read_all(limit)
            except BaseException:
                response.close()
                raise
            match body:
                case bytes():
                    head = response.head
                    document = MISSING
                    if keep.reads_bodies or is_conflict:
                        document = await read_document(head.headers, body, takes_text=is_conflict)
                    conclude = partial(self._claimed.answered, head, body, len(body), self._seconds, document)
                    is_slow = keep.redaction is not None and len(body) > _REDACTED_BYTES_MAX
                    return await asyncio.to_thread(conclude) if is_slow else conclude()
                case BodyLost(reason, detail):
                    return self._claimed.unknown(reason, detail, self._seconds, response.head)
                case TooLong(prefix):
                    pass
                case _:
                    assert_never(body)
        response.body.allow_to_outlast()
        stream = UpstreamStream(response, prefix)
        return self._claimed.answered(response.head, stream, response.length, self._seconds)

    async def _settle(self, conclusion: Conclusion) -> None:
        """Record the conclusion in the store or, if that fails, the journal; then publish the result.

        Retries both for as long as it takes. A command that is in the journal although the store took it is harmless:
        the store recognises it when it is applied again.
        """
        journal_after = self._loop.time() + _STORE_RETRY_SECONDS
        pause = _PAUSE_SECONDS_MIN
        is_late = False
        while True:
            self._operation.final_command = conclusion.command
            started = self._lease.clock()
            try:
                async with asyncio.timeout(_APPLY_SECONDS_MAX):
                    result = await self._store.apply(conclusion.command)
            except Unstorable:
                smaller = without_response(conclusion)
                if smaller is None:
                    raise
                conclusion = smaller
            except (StoreError, TimeoutError):
                is_late = True
                if self._loop.time() >= journal_after:
                    outcome = await self._journal(conclusion)
                    if outcome is not None:
                        self._operation.final_command = None
                        self._operation.publish(outcome)
                        return
                    self._publish_unrecorded(conclusion)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            else:
                self._operation.final_command = None
                waited_us = microseconds(self._lease.clock() - started)
                self._operation.publish(self._result_of(result, conclusion, waited_us, is_late=is_late))
                return

    async def _journal(self, conclusion: Conclusion) -> AttemptResult | None:
        """Write the conclusion to the journal. None when that failed too: then no caller may get it as known."""
        try:
            snapshot = await self._journaling.keep(
                self._claimed.record,
                conclusion.command,
                detail=conclusion.detail,
                upstream_seconds=conclusion.upstream_seconds,
            )
        except StoreError:
            return None
        reply = conclusion.reply
        if reply.verdict is Verdict.STORED:
            reply = replace(reply, verdict=Verdict.JOURNALED)
        others = snapshot if conclusion.shared is None else conclusion.shared
        command = conclusion.command
        return AttemptResult(
            reply,
            others,
            conclusion.upstream_status,
            conclusion.upstream_seconds,
            is_recorded=isinstance(command, Complete),
            is_sent=conclusion.is_sent,
            pause_us=command.pause_us if isinstance(command, Postpone) else None,
        )

    def _publish_unrecorded(self, conclusion: Conclusion) -> None:
        """Reply to those who wait now that the outcome could not be recorded. Later callers wait for the write.

        That nothing was sent is true whatever the record is, so it is reported as it is; but a kept request may be sent
        by then.
        """
        is_unsent = conclusion.outcome.verdict is Verdict.UPSTREAM_UNREACHABLE and conclusion.shared is not None
        reply = conclusion.reply if is_unsent else self._claimed.refuse(Verdict.IN_DOUBT, 503)
        self._operation.publish(AttemptResult(reply, reply), is_final=False)
        abort_stream(conclusion.reply)

    def _result_of(self, result: Result, conclusion: Conclusion, waited_us: int, *, is_late: bool) -> AttemptResult:
        request, token = self._claimed.request, self._claimed.record.token
        identity, event = request.identity, EVENT_OF[type(conclusion.command)]
        others: Reply | Snapshot | None
        match result:
            case Applied(snapshot):
                self._events.publish(
                    OperationSettled(
                        identity.route,
                        identity.operation_id,
                        token,
                        event,
                        conclusion.detail,
                        conclusion.upstream_seconds,
                        is_late,
                    )
                )
                reply = _with_expiry(conclusion.reply, snapshot)
                others = None if conclusion.shared is None else _with_expiry(conclusion.shared, snapshot)
                if others is None:
                    # While this waited for the store, what it saw may have expired.
                    now_us = snapshot.now_us + waited_us
                    others = Snapshot(settle(snapshot.record, now_us), now_us)
                command = conclusion.command
                return AttemptResult(
                    reply,
                    others,
                    conclusion.upstream_status,
                    conclusion.upstream_seconds,
                    is_recorded=True,
                    is_sent=conclusion.is_sent,
                    pause_us=command.pause_us if isinstance(command, Postpone) else None,
                )
            case Lapsed(snapshot) | Fenced(snapshot):
                self._events.publish(
                    WriteRefused(identity.route, identity.operation_id, token, event, str(snapshot.state))
                )
                abort_stream(conclusion.reply)
                reply = reply_by_record(snapshot, request, free_verdict=Verdict.IN_DOUBT)
                # A store that has forgotten the attempt does not know that it had no effect: duplicates must not read
                # that from its record.
                is_forgotten = snapshot.record is None or snapshot.record.token < token
                others = reply if is_forgotten else snapshot
                return AttemptResult(
                    reply,
                    others,
                    conclusion.upstream_status,
                    conclusion.upstream_seconds,
                    is_recorded=True,
                    is_sent=conclusion.is_sent,
                )
            case _:
                assert_never(result)


def _with_expiry(reply: Reply, snapshot: Snapshot) -> Reply:
    """The reply with the end of its replay window, where it is one that is replayed."""
    record = snapshot.record
    # A completion that was recognised after its replay window has no such time.
    if reply.verdict not in (Verdict.STORED, Verdict.REPLAYED) or record is None or not record.replay_until_us:
        return reply
    headers = (*reply.headers, expires_header(record))
    # The constructor, because `replace` reads each field by name and every new key comes here.
    return Reply(reply.status, reply.reason, headers, reply.body, reply.verdict, reply.length, source=reply.source)
