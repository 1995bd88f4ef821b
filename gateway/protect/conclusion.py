"""Turns the result of an upstream exchange into a command for the store and the replies that follow once it is applied.

Pure: values in, values out. `attempt` does the waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core import delivery
from gateway.core.delivery import DeliveryPolicy
from gateway.core.identity.pointer import MISSING
from gateway.core.immutable import immutable
from gateway.core.message import ResponseHead, StoredResponse, values_by_name
from gateway.core.operation import (
    MICROSECONDS,
    Abandon,
    Bury,
    Complete,
    Event,
    Forget,
    OutcomeCommand,
    Postpone,
    Record,
    Release,
)
from gateway.core.outcome import (
    Outcome,
    conclude_answered,
    conclude_not_sent,
    conclude_unknown,
    end_unused,
    windows_us,
)
from gateway.core.reading import resource_in
from gateway.core.recovery import Recovery, answered_doubt, for_repeats
from gateway.core.redaction import REDACTED_HEADER
from gateway.core.replay import stored_response
from gateway.core.verdict import Verdict
from gateway.observe.facts import DeliveryAttempted, DeliveryResult
from gateway.protect.forwarding import response_headers
from gateway.protect.identification import KeyedRequest
from gateway.protect.problem import advised, refuse
from gateway.protect.reply import REPLAYED_HEADER, Reply, ResponseStream, Source
from gateway.upstream import SentNothing, Unknown, status_of

# The upstream was not tried: the cause is in the request or on this side.
_UNTRIED: Final = frozenset(
    (SentNothing.REQUEST_INVALID, SentNothing.CLOSED, SentNothing.LOCAL, SentNothing.LEASE_LOST)
)


@immutable
class Conclusion:
    """What is known of an attempt.

    `command` records it. Once that is applied, `reply` goes to the first caller and `shared` to the duplicates that
    waited; where `shared` is None, their replies follow from the record. `detail` is for the log. `is_sent`: whether
    something was sent; None where the upstream was not tried.
    """

    outcome: Outcome
    command: OutcomeCommand
    reply: Reply
    shared: Reply | None
    detail: str
    upstream_seconds: float | None = None
    upstream_status: int | None = None
    is_sent: bool | None = True


@immutable
class ClaimedRequest:
    """A request and the claim under which it is executed. `is_first`: as in `claiming.Granted`.

    `draw` is drawn uniformly from [0, 1), and `now_seconds` is this host's time since the epoch, both for the pauses of
    a kept request.
    """

    request: KeyedRequest
    record: Record
    is_first: bool
    draw: float = 0.0
    now_seconds: float = 0.0

    def not_sent(self, reason: SentNothing, detail: str) -> Conclusion:
        """No byte was sent."""
        outcome = conclude_not_sent(carries_doubt=self.record.carries_doubt)
        why = f"{reason}: {detail}"
        # In doubt because of an earlier attempt. A 503 would mean that this attempt's response is yet to be recorded.
        status = 502 if outcome.verdict is Verdict.IN_DOUBT else status_of(reason)
        reply = replace(self.refuse(outcome.verdict, status), why=why)
        return Conclusion(
            outcome,
            self._command(outcome, reason.value),
            reply,
            self._shared(reply),
            why,
            is_sent=None if reason in _UNTRIED else False,
        )

    def unknown(
        self, reason: Unknown, detail: str, upstream_seconds: float, head: ResponseHead | None = None
    ) -> Conclusion:
        """A byte may have been sent, and no complete response came; `head` is that of one that was cut short."""
        outcome = conclude_unknown()
        upstream_status = None if head is None else head.status
        resource = (
            None if head is None else resource_in(self.request.route.keep.reference, values_by_name(head.headers))
        )
        reply = self.refuse(outcome.verdict, status_of(reason), resource)
        return Conclusion(
            outcome,
            self._command(
                outcome,
                reason.value if upstream_status is None else answered_doubt(upstream_status, reason),
                resource=resource,
            ),
            reply,
            self._shared(reply),
            f"{reason}: {detail}",
            upstream_seconds,
            upstream_status,
        )

    def answered(
        self,
        head: ResponseHead,
        body: bytes | ResponseStream,
        length: int | None,
        upstream_seconds: float,
        document: Any = MISSING,
    ) -> Conclusion:
        """A response came: whole, as bytes, or only its head where the body is not taken whole.

        `document` is its JSON body, `MISSING` where that was not read.
        """
        method, route = self.request.head.method, self.request.route
        keep, by_name = route.keep, values_by_name(head.headers)
        is_shared = isinstance(body, bytes) and not keep.is_fetched
        kept = body if isinstance(body, bytes) and keep.keeps_body(by_name, len(body)) else None
        stored = stored_response(method, head, kept, keep, self.request.version)
        outcome = conclude_answered(
            head.status,
            by_name,
            route.policy,
            carries_doubt=self.record.carries_doubt,
            is_first_attempt=self.is_first,
            is_stored=stored.body is not None,
            document=document,
        )
        resource = resource_in(keep.reference, by_name, document)
        shared = None
        if is_shared and outcome.event in (Event.RELEASE, Event.ABANDON):
            headers, verdict = keep.kept_headers(method, head), outcome.verdict
            reply = Reply(head.status, head.reason, headers, body, verdict, length, source=Source.RECORD)
            shared = self._shared(advised(reply, self._recovery))
        elif outcome.verdict is Verdict.STORED and REDACTED_HEADER in stored.headers:
            # Those that wait now are the same caller: they get the values that the record does not have.
            headers = (*keep.kept_headers(method, head), REPLAYED_HEADER)
            verdict = Verdict.REPLAYED
            shared = self._shared(Reply(head.status, head.reason, headers, body, verdict, length, source=Source.RECORD))
        reply = Reply(
            head.status,
            head.reason,
            response_headers(head.headers),
            body,
            outcome.verdict,
            length,
            source=Source.SERVICE,
        )
        if outcome.event is not Event.COMPLETE:
            reply = advised(reply, self._recovery)
        return Conclusion(
            outcome,
            self._command(outcome, answered_doubt(head.status), head, stored, resource),
            reply,
            shared,
            f"answered {head.status}",
            upstream_seconds,
            head.status,
        )

    def unreadable(self, why: str) -> Conclusion:
        """The kept request cannot be opened, so nothing was sent."""
        outcome = Outcome(Event.BURY, Verdict.UPSTREAM_UNREACHABLE)
        reply = replace(self.refuse(outcome.verdict, 502), why=why)
        command = delivery.bury(self.record, delivery.UNREADABLE, delivery.UNREADABLE, is_answered=False)
        return Conclusion(outcome, command, reply, None, why, is_sent=None)

    def end_unused(self) -> Release | Postpone | Abandon:
        """Nothing was sent under this claim, and nothing will be."""
        return end_unused(self.record, self.request.route.retention.remember_us, "interrupted")

    def abandon(self, doubt: str, resource: str | None = None) -> Abandon:
        """Something may have been sent under this claim. `resource`: as in `Complete`."""
        return Abandon(*self._ids, doubt, resource)

    def refuse(self, verdict: Verdict, status: int, resource: str | None = None) -> Reply:
        """A problem document about this operation. `resource` is what its response has just named."""
        record = self.record if resource is None else replace(self.record, resource=resource)
        return refuse(
            verdict,
            shape=self.request.route.shape,
            status=status,
            operation_id=self.request.identity.operation_id,
            record=record,
            recovery=self._recovery,
        )

    def attempted(
        self, command: OutcomeCommand, duration_seconds: float, upstream_status: int | None = None
    ) -> DeliveryAttempted:
        """The event that an attempt to deliver ended by this command."""
        pause_seconds: float | None = None
        match command:
            case Complete():
                result, detail = DeliveryResult.COMPLETED, ""
            case Postpone(pause_us=pause_us, failure=detail):
                result, pause_seconds = DeliveryResult.POSTPONED, pause_us / MICROSECONDS
            case Bury(reason=detail):
                result = DeliveryResult.DEAD_LETTER
            case Abandon(doubt=detail):
                result = DeliveryResult.IN_DOUBT
            case Release() | Forget():
                raise ValueError("a kept request is never released by an attempt")
            case _:
                assert_never(command)
        return DeliveryAttempted(
            self.record.identity.route,
            self.record.identity.operation_id,
            self.record.token,
            self.record.attempts,
            result,
            detail,
            upstream_status,
            duration_seconds,
            pause_seconds,
            self.record.request,
            self.request.head.text(b"traceparent"),
        )

    def _shared(self, reply: Reply) -> Reply | None:
        """What duplicates get that waited: of a kept request, what the record says, because it is not over."""
        return reply if self.record.delivery is None else None

    @property
    def _recovery(self) -> Recovery:
        """What a repeat does about a doubt."""
        return for_repeats(self.request.route.recovery, self.record, is_same=True)

    @property
    def _ids(self) -> tuple[UUID, int, UUID]:
        return self.request.identity.operation_id, self.record.token, self.record.attempt_id

    def _command(
        self,
        outcome: Outcome,
        failure: str,
        head: ResponseHead | None = None,
        stored: StoredResponse | None = None,
        resource: str | None = None,
    ) -> OutcomeCommand:
        match outcome.event:
            case Event.COMPLETE if head is not None and stored is not None:
                retention = self.request.route.retention
                windows = windows_us(values_by_name(head.headers), retention.replay_us, retention.remember_us)
                return Complete(*self._ids, stored, *windows, resource, granted=self.record)
            case Event.RELEASE | Event.FORGET if self.record.delivery is not None:
                return self._undelivered(failure, head)
            case Event.RELEASE:
                return Release(*self._ids, self.request.route.retention.remember_us)
            case Event.FORGET:
                return Forget(*self._ids)
            case Event.ABANDON:
                return self.abandon(failure, resource)
            case event:
                raise ValueError(f"no attempt ends in {event}")

    def _undelivered(self, failure: str, head: ResponseHead | None) -> Postpone | Bury:
        """The attempt had no effect, and the request is kept. `head` is of the response, None without one."""
        accept = self.request.route.accept
        policy = DeliveryPolicy() if accept is None else accept.delivery
        if head is None:
            return delivery.conclude_unsent(self.record, policy, failure, self.draw)
        pause_us = delivery.retry_after_us(head.headers, self.now_seconds)
        return delivery.conclude_answered(self.record, policy, head.status, pause_us, failure, self.draw)


def without_response(conclusion: Conclusion) -> Conclusion | None:
    """The conclusion without the response, for a store that can never take it; None when nothing can be left out."""
    command = conclusion.command
    if not isinstance(command, Complete) or command.response == _status_only(command.response):
        return None
    outcome = Outcome(Event.COMPLETE, Verdict.RESPONSE_NOT_STORED)
    return replace(
        conclusion,
        outcome=outcome,
        command=replace(command, response=_status_only(command.response)),
        reply=replace(conclusion.reply, verdict=outcome.verdict),
        shared=None,
    )


def _status_only(response: StoredResponse) -> StoredResponse:
    return StoredResponse(response.status, b"", (), None, response.version)
