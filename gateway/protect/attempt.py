"""One attempt: forwards a claimed request once, and gets what is then known into the record.

Owns the claim from its grant to its end, in a task of its own, so that no client's going away touches it. Things happen
in the one safe order: the first byte leaves under a trusted lease only; a response is in the record before anybody sees
it; and one whose body is not kept is in the record before its first byte goes out. Where the store does not take it,
the journal stands in for the record. The write is repeated until one of them has it, and until then nobody is told that
anything is known.

The operation's `last_word` is at any moment the command that ends the claim truthfully, should everything stop here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, assert_never

from gateway.core.lifecycle import settle
from gateway.core.operation import (
    EVENT_OF,
    Applied,
    Complete,
    Fenced,
    Forget,
    Lapsed,
    OutcomeCommand,
    Release,
    Result,
    Snapshot,
    microseconds,
)
from gateway.core.replay import is_event_stream
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, OperationSettled, WriteRefused
from gateway.protect.answer_stream import AnswerStream
from gateway.protect.compose import by_record, expires_header
from gateway.protect.conclusion import ClaimedRequest, Conclusion, without_answer
from gateway.protect.forwarding import Execution, protected_request
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Lease
from gateway.protect.operation import AttemptResult, Operation, abort_stream
from gateway.protect.reply import Reply
from gateway.protect.stopwatch import Stopwatch
from gateway.store.base import Indefinite, Store, StoreError, Unstorable
from gateway.upstream import BodyLost, Lost, NotSent, TooLong, UpstreamResponse

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0
# How long a store that does not take the outcome is asked again before the journal is.
_PATIENCE_SECONDS: Final = 1.0
# The same for one that says nothing at all, rather than that it cannot.
_SILENCE_SECONDS: Final = 3.0


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
    ) -> None:
        self._operation = operation
        self._claimed = claimed
        self._lease = lease
        self._store = store
        self._journaling = journaling
        self._events = events
        self._loop = loop

    async def run(self) -> None:
        """Forward, conclude, record. Cancelled, it leaves the operation's `last_word` to whoever cancelled it."""
        try:
            conclusion = await self._forward()
            try:
                await self._settle(conclusion)
            except BaseException:
                abort_stream(conclusion.reply)
                raise
        finally:
            if not self._operation.has_result:
                reply = self._interrupted()
                self._operation.publish(AttemptResult(reply, reply))

    def _interrupted(self) -> Reply:
        """What can be said when everything stops here: as much as `last_word` says, which may still be recorded."""
        if isinstance(self._operation.last_word, Release | Forget):
            return self._claimed.refuse(Verdict.OVERLOADED, 503)
        return self._claimed.refuse(Verdict.IN_DOUBT, 503)

    async def _forward(self) -> Conclusion:
        request = self._claimed.request
        target = request.route.target
        stopwatch = Stopwatch()
        execution = Execution(
            request.identity.operation_id,
            self._claimed.record.token,
            target.key,
            target.key_headers,
            request.canonical_key,
        )
        try:
            result = await target.upstream.exchange(
                protected_request(request.head, request.hop, target.forwarding, execution),
                request.body.outbound(),
                protected=True,
                may_send=self._may_send,
            )
            match result:
                case NotSent(reason, detail):
                    return self._claimed.not_sent(reason, detail)
                case Lost(reason, detail):
                    return self._claimed.unknown(reason, detail, stopwatch.seconds)
                case UpstreamResponse():
                    return await self._take(result, stopwatch)
                case _:
                    assert_never(result)
        finally:
            request.body.close()

    def _may_send(self) -> bool:
        if not self._lease.is_trusted():
            return False
        self._operation.last_word = self._claimed.abandon("interrupted")
        return True

    async def _take(self, answer: UpstreamResponse, stopwatch: Stopwatch) -> Conclusion:
        limit = self._claimed.request.route.keep.body_bytes_max
        prefix = b""
        if limit > 0 and not is_event_stream(answer.head.headers):
            try:
                body = await answer.body.read_all(limit)
            except BaseException:
                answer.close()
                raise
            match body:
                case bytes():
                    return self._claimed.answered(answer.head, body, len(body), stopwatch.seconds)
                case BodyLost(reason, detail):
                    return self._claimed.unknown(reason, detail, stopwatch.seconds, answer.head.status)
                case TooLong(prefix):
                    pass
                case _:
                    assert_never(body)
        answer.body.allow_to_outlast()
        stream = AnswerStream(answer, prefix)
        return self._claimed.answered(answer.head, stream, answer.length, stopwatch.seconds)

    async def _settle(self, conclusion: Conclusion) -> None:
        """Get the conclusion into the store or, failing that, the journal, and tell how the attempt ended.

        Both are tried for as long as it takes. A command that the store took after all and that is in the journal too
        is harmless: said again, it is recognised.
        """
        patient_until = self._loop.time() + _PATIENCE_SECONDS
        pause = _PAUSE_SECONDS_MIN
        is_late = False
        said_seconds: float | None = None
        while True:
            self._operation.last_word = conclusion.command
            started = self._lease.clock()
            if said_seconds is None:
                said_seconds = started
            try:
                result = await self._apply(conclusion.command)
            except Unstorable:
                less = without_answer(conclusion)
                if less is None:
                    raise
                conclusion = less
            except StoreError:
                is_late = True
                if self._loop.time() >= patient_until:
                    outcome = await self._journal(conclusion, said_seconds)
                    if outcome is not None:
                        self._operation.last_word = None
                        self._operation.publish(outcome)
                        return
                    self._publish_unrecorded(conclusion)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            else:
                self._operation.last_word = None
                waited_us = microseconds(self._lease.clock() - started)
                self._operation.publish(self._result_of(result, conclusion, waited_us, is_late=is_late))
                return

    async def _apply(self, command: OutcomeCommand) -> Result:
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                return await self._store.apply(command)
        except TimeoutError:
            raise Indefinite("the store did not answer in time") from None

    async def _journal(self, conclusion: Conclusion, said_seconds: float) -> AttemptResult | None:
        """Bring the conclusion onto the local disk. None when that failed too, and nothing may be told as known."""
        try:
            snapshot = await self._journaling.keep(
                self._claimed.record,
                conclusion.command,
                detail=conclusion.detail,
                upstream_seconds=conclusion.upstream_seconds,
                said_seconds=said_seconds,
            )
        except StoreError:
            return None
        reply = conclusion.reply
        if reply.verdict is Verdict.STORED:
            reply = replace(reply, verdict=Verdict.JOURNALED)
        others = snapshot if conclusion.shared is None else conclusion.shared
        is_answer = isinstance(conclusion.command, Complete)
        return AttemptResult(
            reply, others, conclusion.upstream_status, conclusion.upstream_seconds, is_recorded=is_answer
        )

    def _publish_unrecorded(self, conclusion: Conclusion) -> None:
        """Tell those who wait now that nothing durable took the outcome. Who comes later waits for the write.

        That nothing was sent is true whatever the record says.
        """
        is_unsent = conclusion.outcome.verdict is Verdict.UPSTREAM_UNREACHABLE
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
                reply = conclusion.reply
                # Recognised so late that it is replayed no more, it has no such time.
                if reply.verdict is Verdict.STORED and snapshot.record is not None and snapshot.record.replay_until_us:
                    headers = (*reply.headers, expires_header(snapshot.record))
                    # Written out, for every new key comes here: `replace` looks at each field by its name.
                    reply = Reply(reply.status, reply.reason, headers, reply.body, reply.verdict, reply.length)
                others = conclusion.shared
                if others is None:
                    # Held up here, others may have come when what the store saw was over.
                    now_us = snapshot.now_us + waited_us
                    others = Snapshot(settle(snapshot.record, now_us), now_us)
                return AttemptResult(
                    reply, others, conclusion.upstream_status, conclusion.upstream_seconds, is_recorded=True
                )
            case Lapsed(snapshot) | Fenced(snapshot):
                self._events.publish(
                    WriteRefused(identity.route, identity.operation_id, token, event, str(snapshot.state))
                )
                abort_stream(conclusion.reply)
                reply = by_record(snapshot, request, free_verdict=Verdict.IN_DOUBT)
                # A store that has forgotten the attempt cannot say that it had no effect: nor do others hear that.
                is_forgotten = snapshot.record is None or snapshot.record.token < token
                others = reply if is_forgotten else snapshot
                return AttemptResult(
                    reply, others, conclusion.upstream_status, conclusion.upstream_seconds, is_recorded=True
                )
            case _:
                assert_never(result)
