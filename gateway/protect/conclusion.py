"""What an attempt ended in: a command for the store, and the replies that follow once it is applied.

Values in, values out, but for the draw and the clock of a kept request that is postponed. `operation` does the waiting.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from gateway.core import delivery
from gateway.core.delivery import DeliveryPolicy
from gateway.core.identity.body import MISSING
from gateway.core.message import ResponseHead, StoredResponse
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
    Snapshot,
)
from gateway.core.outcome import (
    Outcome,
    conclude_answered,
    conclude_not_sent,
    conclude_unknown,
    windows_us,
)
from gateway.core.recovery import answered_doubt, for_repeats
from gateway.core.replay import REDACTED_HEADER, resource_in, stored_response
from gateway.core.verdict import Verdict
from gateway.observe.facts import DeliveryAttempted, DeliveryResult
from gateway.protect.forwarding import response_headers
from gateway.protect.problem import advised, refuse
from gateway.protect.reply import REPLAYED_HEADER, Reply, ResponseStream, Source
from gateway.protect.request import Request
from gateway.upstream import SentNothing, Unknown, status_of

# The upstream was not tried: the cause is in the request or on this side.
_UNTRIED: Final = frozenset(
    (SentNothing.REQUEST_INVALID, SentNothing.CLOSED, SentNothing.LOCAL, SentNothing.LEASE_LOST)
)


@dataclass(slots=True)
class Conclusion:
    """What is known of an attempt, and then what became of its record.

    `command` records it. Once that is applied, `reply` goes to the first caller and `others` to the duplicates that
    waited: one reply for all of them, or the record, from which each gets its own; until then it is None where their
    replies are to follow from the record. `detail` is for the log. `is_sent`: whether something was sent; None where
    the upstream was not tried.

    `is_recorded`: the store has this outcome, or will get it because the journal has a response. Otherwise another
    gateway may take the operation over once the lease is over, and its result may differ. `pause_us`: a kept request
    that was postponed is due at most so long after this, by the store's clock; None where it was not.
    """

    command: OutcomeCommand
    reply: Reply
    others: Reply | Snapshot | None
    detail: str
    upstream_seconds: float | None = None
    upstream_status: int | None = None
    is_sent: bool | None = True
    is_recorded: bool = False
    pause_us: int | None = None


def not_sent(request: Request, record: Record, reason: SentNothing, detail: str) -> Conclusion:
    """No byte was sent."""
    outcome = conclude_not_sent(carries_doubt=record.carries_doubt)
    why = f"{reason}: {detail}"
    # In doubt because of an earlier attempt. A 503 would mean that this attempt's response is yet to be recorded.
    status = 502 if outcome.verdict is Verdict.IN_DOUBT else status_of(reason)
    reply = replace(refusal(request, record, outcome.verdict, status), why=why)
    command = _command(request, record, outcome, reason.value)
    is_sent = None if reason in _UNTRIED else False
    return Conclusion(command, reply, _shared(record, reply), why, is_sent=is_sent)


def unknown(
    request: Request,
    record: Record,
    reason: Unknown,
    detail: str,
    upstream_seconds: float,
    head: ResponseHead | None = None,
) -> Conclusion:
    """A byte may have been sent, and no complete response came; `head` is that of one that was cut short."""
    outcome = conclude_unknown()
    upstream_status, resource, doubt = None, None, reason.value
    if head is not None:
        upstream_status = head.status
        resource = resource_in(request.route.keep.reference, head.headers.by_name)
        doubt = answered_doubt(head.status, reason)
    reply = refusal(request, record, outcome.verdict, status_of(reason), resource)
    command = _command(request, record, outcome, doubt, resource=resource)
    why = f"{reason}: {detail}"
    return Conclusion(command, reply, _shared(record, reply), why, upstream_seconds, upstream_status)


def answered(
    request: Request,
    record: Record,
    head: ResponseHead,
    by_name: Mapping[bytes, list[bytes]],
    body: bytes | ResponseStream,
    length: int | None,
    upstream_seconds: float,
    document: Any = MISSING,
    *,
    is_first: bool,
) -> Conclusion:
    """A response came: whole, as bytes, or only its head where the body is not taken whole.

    `by_name` has the values of its headers. `document` is its JSON body, `MISSING` where that was not read. `is_first`:
    as in `claiming.Granted`.
    """
    method, route = request.head.method, request.route
    keep = route.keep
    kept = body if isinstance(body, bytes) and 0 < keep.body_bytes_max >= len(body) else None
    stored = stored_response(method, head, kept, keep, request.version)
    outcome = conclude_answered(
        head.status,
        by_name,
        route.policy,
        carries_doubt=record.carried_us is not None,
        is_first_attempt=is_first,
        is_stored=stored.body is not None,
        document=document,
    )
    resource, verdict = resource_in(keep.reference, by_name, document), outcome.verdict
    reply = Reply(
        head.status, head.reason, response_headers(head.headers), body, verdict, length, source=Source.SERVICE
    )
    # For the duplicates that wait now, where the record does not have the response as they are to get it.
    shared: Reply | None = None
    is_shared = isinstance(body, bytes) and not keep.is_fetched
    if outcome.event is Event.COMPLETE:
        windows = windows_us(by_name, route.retention.replay_us, route.retention.remember_us)
        ids = record.identity.operation_id, record.token, record.attempt_id
        command: OutcomeCommand = Complete(*ids, stored, *windows, resource, granted=record)
        if is_shared and verdict is Verdict.STORED and REDACTED_HEADER in stored.headers:
            # They are the same caller: they get the values that the record does not have.
            headers = (*keep.kept_headers(method, head), REPLAYED_HEADER)
            replay = replace(reply, headers=headers, verdict=Verdict.REPLAYED, source=Source.RECORD)
            shared = _shared(record, replay)
    else:
        recovery = for_repeats(route.recovery, record, is_same=True)
        command = _command(request, record, outcome, answered_doubt(head.status), head, resource)
        if is_shared and outcome.event in (Event.RELEASE, Event.ABANDON):
            repeat = replace(reply, headers=keep.kept_headers(method, head), source=Source.RECORD)
            shared = _shared(record, advised(repeat, recovery))
        reply = advised(reply, recovery)
    return Conclusion(command, reply, shared, f"answered {head.status}", upstream_seconds, head.status)


def unreadable(request: Request, record: Record, why: str) -> Conclusion:
    """The kept request cannot be opened, so nothing was sent."""
    reply = replace(refusal(request, record, Verdict.UPSTREAM_UNREACHABLE, 502), why=why)
    command = delivery.bury(record, delivery.UNREADABLE, delivery.UNREADABLE, is_answered=False)
    return Conclusion(command, reply, None, why, is_sent=None)


def refusal(request: Request, record: Record, verdict: Verdict, status: int, resource: str | None = None) -> Reply:
    """A problem document about this operation. `resource` is what its response has just named."""
    return refuse(
        verdict,
        shape=request.route.shape,
        status=status,
        operation_id=record.identity.operation_id,
        record=record if resource is None else replace(record, resource=resource),
        recovery=for_repeats(request.route.recovery, record, is_same=True),
    )


def attempted(
    request: Request,
    record: Record,
    command: OutcomeCommand,
    duration_seconds: float,
    upstream_status: int | None = None,
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
        record.identity.route,
        record.identity.operation_id,
        record.token,
        record.attempts,
        result,
        detail,
        upstream_status,
        duration_seconds,
        pause_seconds,
        record.request,
        request.head.text(b"traceparent"),
    )


def without_response(conclusion: Conclusion) -> Conclusion | None:
    """The conclusion without the response, for a store that can never take it; None when nothing can be left out."""
    command = conclusion.command
    if not isinstance(command, Complete) or command.response == _status_only(command.response):
        return None
    return replace(
        conclusion,
        command=replace(command, response=_status_only(command.response)),
        reply=replace(conclusion.reply, verdict=Verdict.RESPONSE_NOT_STORED),
        others=None,
    )


def _shared(record: Record, reply: Reply) -> Reply | None:
    """What duplicates get that waited: of a kept request, what the record says, because it is not over."""
    return reply if record.delivery is None else None


def _command(
    request: Request,
    record: Record,
    outcome: Outcome,
    failure: str,
    head: ResponseHead | None = None,
    resource: str | None = None,
) -> OutcomeCommand:
    """What records an attempt without a response that counts. `head` is that of the response that came."""
    ids = record.identity.operation_id, record.token, record.attempt_id
    match outcome.event:
        case Event.RELEASE | Event.FORGET if record.delivery is not None:
            return _undelivered(request, record, failure, head)
        case Event.RELEASE:
            return Release(*ids, request.route.retention.remember_us, failure)
        case Event.FORGET:
            return Forget(*ids, failure)
        case Event.ABANDON:
            return Abandon(*ids, failure, resource)
        case event:
            raise ValueError(f"no such attempt ends in {event}")


def _undelivered(request: Request, record: Record, failure: str, head: ResponseHead | None) -> Postpone | Bury:
    """The attempt had no effect, and the request is kept. `head` is of the response, None without one."""
    accept = request.route.accept
    policy = DeliveryPolicy() if accept is None else accept.delivery
    draw = random.random()  # noqa: S311  spreads load, keeps no secret
    if head is None:
        return delivery.conclude_unsent(record, policy, failure, draw)
    pause_us = delivery.retry_after_us(head.headers, time.time())
    return delivery.conclude_answered(record, policy, head.status, pause_us, failure, draw)


def _status_only(response: StoredResponse) -> StoredResponse:
    return StoredResponse(response.status, b"", (), None, response.version)
