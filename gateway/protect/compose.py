"""Builds replies from records and responses, alike for the first caller, a waiting duplicate and a late retry: of a
record, of a response that streams, of an attempt that ended, which is a command for the store, too, and of the status
of an operation. Other modules decide which reply a request gets.

Values in, values out, but for the draw and the clock of a kept request that is postponed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, assert_never, cast
from zlib import crc32

import orjson

from gateway.core import delivery
from gateway.core.delivery import DeliveryPolicy, resend_us
from gateway.core.identity.body import MISSING
from gateway.core.message import Headers, ResponseHead, header_values
from gateway.core.operation import (
    MICROSECONDS,
    NO_ATTEMPT,
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
    State,
    is_withdrawn,
    moment,
)
from gateway.core.outcome import (
    REDACTED_HEADER,
    RETENTION,
    Outcome,
    conclude_answered,
    conclude_not_sent,
    conclude_unknown,
    fetch_target,
    is_address,
    resource_in,
    stored_response,
    windows_us,
)
from gateway.core.recovery import Resend, answered_doubt, doubted_status, for_repeats, retry_after_seconds
from gateway.core.verdict import Claimable, Doubt, Fetch, Judgement, Refuse, Replay, Undelivered, Verdict, Wait
from gateway.observe.facts import DeliveryAttempted, DeliveryResult
from gateway.protect.forwarding import RESPOND_ASYNC, preference_applied, prefers_async, response_headers
from gateway.protect.reply import (
    REPLAYED_HEADER,
    BodyCut,
    Reply,
    ResponseStream,
    Shape,
    Source,
    ToFetch,
    advised,
    http_date,
    is_unaccepted,
    reason_phrase,
    refuse,
)
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.upstream import Framing, Lost, SentNothing, Unknown, UpstreamResponse, status_of

# -- a record ----------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def expires_header(unix_seconds: int) -> tuple[bytes, bytes]:
    """Until when a record is replayed: an HTTP date on the store's clock, the same in every reply."""
    return b"Idempotency-Expires", http_date(unix_seconds)


def replay_of(record: Record, request_headers: Headers) -> Reply:
    """The recorded response, in a coding that this request accepts. Where it has none, all repeats get the same."""
    if record.replay is not None:
        return cast(Reply, record.replay)
    stored = record.response
    if stored is None or stored.body is None:
        raise ValueError("only a record with a body can be replayed")
    # When it expires is unknown until the durable store has the record.
    expires = (expires_header(record.replay_until_us // MICROSECONDS),) if record.replay_until_us else ()
    is_coded = any(name.lower() == b"content-encoding" for name, _ in stored.headers)
    decode_for = _unaccepted_by(request_headers, stored.headers, stored.body) if is_coded else None
    verdict = Verdict.RECOVERED if record.last_event is Event.PROVE else Verdict.REPLAYED
    reply = Reply(
        stored.status,
        stored.reason,
        (*stored.headers, REPLAYED_HEADER, *expires),
        stored.body,
        verdict,
        len(stored.body),
        decode_for,
        source=Source.RECORD,
    )
    if not is_coded:
        object.__setattr__(record, "replay", reply)
    return reply


def own_reply(reply: Reply) -> Reply:
    """A replay as the reply to the request itself that was executed."""
    if reply.verdict is not Verdict.REPLAYED:
        return reply
    headers = tuple(header for header in reply.headers if header != REPLAYED_HEADER)
    return replace(reply, headers=headers, verdict=Verdict.STORED)


def shared_reply(reply: Reply, request_headers: Headers) -> Reply:
    """The reply that the first caller got, in a coding that this request accepts."""
    if not isinstance(reply.body, bytes):
        return reply
    return replace(reply, decode_for=_unaccepted_by(request_headers, reply.headers, reply.body))


def _unaccepted_by(request_headers: Headers, headers: Headers, body: bytes) -> tuple[bytes, ...] | None:
    """The request's `Accept-Encoding` values if they do not accept the body's coding."""
    accepted = header_values(request_headers, b"accept-encoding")
    return tuple(accepted) if is_unaccepted(headers, body, accepted) else None


def reply_by_record(snapshot: Snapshot, request: Request, *, free_verdict: Verdict = Verdict.RELEASED) -> Reply:
    """Rules 9 to 16 for a request that does not claim. `free_verdict`: as in `reply_by_judgement`."""
    return reply_by_judgement(request.judge(snapshot), snapshot, request, free_verdict=free_verdict)


def reply_by_judgement(
    judgement: Judgement, snapshot: Snapshot, request: Request, *, free_verdict: Verdict = Verdict.RELEASED
) -> Reply:
    """The reply to a request that neither claims nor waits.

    `free_verdict` is the verdict for a free record: `released` for a duplicate, which may try again, and `in-doubt` for
    a holder whose own result was fenced off. A duplicate of what was called off gets `withdrawn`.
    """
    route = request.route
    match judgement:
        case Replay(record):
            return replay_of(record, request.head.headers)
        case Fetch(record, resource):
            return _to_fetch(record, resource, request)
        case Refuse(Verdict.KEY_REUSED, record):
            return mismatch(record, request, status=route.settings.mismatch_status)
        case Refuse(verdict, record):
            return refuse_by(verdict, record, route)
        case Doubt(record, is_same):
            return in_doubt(snapshot, record, route, is_same=is_same)
        case Wait(record):
            return in_flight(
                record,
                route,
                ran_seconds=(snapshot.now_us - record.claimed_us) / MICROSECONDS,
                remaining_seconds=(record.lease_until_us - snapshot.now_us) / MICROSECONDS,
            )
        case Undelivered(record, is_same):
            return _undelivered_reply(snapshot, record, request, is_same=is_same)
        case Claimable() if free_verdict is Verdict.RELEASED and snapshot.record and is_withdrawn(snapshot.record):
            return refuse(Verdict.WITHDRAWN, shape=route.shape, record=snapshot.record)
        case Claimable():
            # For a holder, the store has forgotten the attempt, and with it all that a repeat could recover from.
            return request.refuse(free_verdict, status=502 if free_verdict is Verdict.IN_DOUBT else None)
        case _:
            assert_never(judgement)


def mismatch(record: Record, request: Request, *, status: int) -> Reply:
    """Rule 9, also where nobody can tell whether the request is the recorded one."""
    why = request.why_incomparable(record)
    reply = refuse(
        Verdict.KEY_REUSED,
        shape=request.route.shape,
        status=status,
        record=record,
        case=None if why is None else "incomparable",
        differs=request.differences(record),
    )
    return reply if why is None else replace(reply, why=why)


def refuse_by(verdict: Verdict, record: Record, route: Route) -> Reply:
    """Rules 11 and 12, with the route's statuses."""
    is_expired = verdict is Verdict.KEY_EXPIRED
    return refuse(
        verdict,
        shape=route.shape,
        status=route.retention.expired_status if is_expired else None,
        record=record,
        case="other-version" if is_expired and record.state is State.COMPLETED else None,
    )


def _to_fetch(record: Record, resource: str, request: Request) -> Reply:
    """Rule 10 for what is fetched; rule 11 where its resource is not at the service, or cannot be asked for."""
    route, forwarding = request.route, request.route.target.forwarding
    hosts = (*header_values(request.head.headers, b"host"), forwarding.authority, forwarding.host or b"")
    target = fetch_target(route.keep.fetch_path, resource, hosts)
    reply = refuse_by(Verdict.RESPONSE_NOT_STORED, record, route)
    return reply if target is None else replace(reply, to_fetch=ToFetch(target, record))


def _undelivered_reply(snapshot: Snapshot, record: Record, request: Request, *, is_same: bool) -> Reply:
    """Rules 13 and 14. `is_same`: as in `Undelivered`."""
    route = request.route
    prefix = None if route.accept is None else route.accept.status_prefix
    location = None if prefix is None else operation_url(prefix, record)
    is_dead = record.state is State.DEAD_LETTER
    if request.is_async and prefix is not None and (not is_dead or requeues(route)):
        return accepted_reply(snapshot, prefix, route, request.head.headers, is_replayed=True)
    if is_dead:
        return refuse(Verdict.DEAD_LETTER, shape=route.shape, record=record, location=location)
    if record.state is State.IN_DOUBT:
        return in_doubt(snapshot, record, route, is_same=is_same, location=location)
    return refuse(
        Verdict.IN_FLIGHT,
        shape=route.shape,
        status=route.in_flight.status,
        record=record,
        detail="It was accepted, and is not delivered yet.",
        retry_after_seconds=status_retry_after_seconds(snapshot, route),
        location=location,
    )


def requeues(route: Route) -> bool:
    """Whether a repeat may deliver a dead letter of this route again."""
    return route.accept is not None and route.accept.requeue_after_us is not None


def in_doubt(
    snapshot: Snapshot, record: Record, route: Route, *, is_same: bool, location: bytes | None = None
) -> Reply:
    """Rule 16, with what a repeat can achieve. `is_same`: as in `Doubt`. `location` is where its status is."""
    recovery = for_repeats(route.recovery, record, is_same=is_same)
    return refuse(
        Verdict.IN_DOUBT,
        shape=route.shape,
        record=record,
        recovery=recovery,
        retry_after_seconds=retry_after_seconds(recovery, snapshot),
        location=location,
    )


def in_flight(
    record: Record, route: Route, *, ran_seconds: float, remaining_seconds: float, status: int | None = None
) -> Reply:
    """Rule 15 after the wait. `Retry-After` is as long as the operation has run so far, within its lease."""
    return refuse(
        Verdict.IN_FLIGHT,
        shape=route.shape,
        status=route.in_flight.status if status is None else status,
        record=record,
        retry_after_seconds=max(1, int(min(ran_seconds, remaining_seconds))),
    )


# -- a response that streams -------------------------------------------------------------------------------------------


def passed_on(response: UpstreamResponse, verdict: Verdict | None = None, headers: Headers | None = None) -> Reply:
    """The response as a reply. `headers` None takes those that a service may send to a client."""
    head = response.head
    headers = response_headers(head.headers) if headers is None else headers
    if response.body.is_done and (response.framing is Framing.LENGTH or response.framing is Framing.NONE):
        # A body that is here completely can go out in one write.
        return Reply(head.status, head.reason, headers, response.body.take(), verdict, source=Source.SERVICE)
    stream = UpstreamStream(response)
    return Reply(head.status, head.reason, headers, stream, verdict, response.length, source=Source.SERVICE)


class UpstreamStream:
    """A `reply.ResponseStream` over an upstream's response. `prefix` is the part of its body that was read already."""

    __slots__ = ("_prefix", "_response")

    def __init__(self, response: UpstreamResponse, prefix: bytes = b"") -> None:
        self._response = response
        self._prefix = prefix

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut`."""
        if self._prefix:
            prefix, self._prefix = self._prefix, b""
            return prefix
        data = await self._response.body.read()
        if isinstance(data, Lost):
            raise BodyCut(data.detail)
        return data

    def abort(self) -> None:
        self._response.close()


# -- an attempt that ended ---------------------------------------------------------------------------------------------

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
    body: bytes | ResponseStream,
    length: int | None,
    upstream_seconds: float,
    document: Any = MISSING,
    *,
    is_first: bool,
) -> Conclusion:
    """A response came: whole, as bytes, or only its head where the body is not taken whole.

    `document` is its JSON body, `MISSING` where that was not read. `is_first`: as in `claiming.Granted`.
    """
    method, route, by_name = request.head.method, request.route, head.headers.by_name
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
    # Mostly it names none.
    names_resource = keep.reference != "location" or b"location" in by_name
    resource = resource_in(keep.reference, by_name, document) if names_resource else None
    verdict = outcome.verdict
    reply = Reply(
        head.status, head.reason, response_headers(head.headers), body, verdict, length, source=Source.SERVICE
    )
    # For the duplicates that wait now, where the record does not have the response as they are to get it.
    shared: Reply | None = None
    is_shared = isinstance(body, bytes) and not keep.is_fetched
    if outcome.event is Event.COMPLETE:
        windows = route.retention.replay_us, route.retention.remember_us
        if RETENTION in by_name:
            windows = windows_us(by_name, *windows)
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
    if not isinstance(command, Complete) or command.response == command.response.status_alone:
        return None
    return replace(
        conclusion,
        command=replace(command, response=command.response.status_alone),
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


# -- the status of an operation ----------------------------------------------------------------------------------------
#
# As its caller sees it: a JSON document, and the headers beside it. It shows nothing of the key, the scope, the request
# or the upstream. Times are the store's.

DONE: Final = frozenset((State.COMPLETED, State.TOMBSTONE, State.RELEASED))
"""States in which nothing more happens by itself."""
_STALLED: Final = frozenset((State.IN_DOUBT, State.DEAD_LETTER))

_RETRY_SECONDS_MAX: Final = 60
_STALLED_SECONDS: Final = 300
# The share of a `Retry-After` by which it differs, so that callers who got it together do not return together.
_SPREAD: Final = 0.2


def is_stalled(record: Record, route: Route) -> bool:
    """Whether somebody must decide. The operation may still be executed, or may have been."""
    return record.state in _STALLED and _next_attempt_us(record, route) is None


def operation_url(prefix: bytes, record: Record) -> bytes:
    """Where the status of this operation is; `prefix` as in `route.AcceptPolicy`."""
    return prefix + str(record.identity.operation_id).encode()


def _existing(snapshot: Snapshot) -> Record:
    if snapshot.record is None:
        raise ValueError("what does not exist has no status")
    return snapshot.record


def etag(snapshot: Snapshot) -> bytes:
    """The entity tag of the status: weak, because its times may be corrected (RFC 9110 section 8.8.3)."""
    record = _existing(snapshot)
    # The clock changes the state, and neither token nor last event; nor does the turn of a lane.
    turn = "-waits" if _waits_for_lane(record) else ""
    return f'W/"{record.token}-{record.last_event}-{record.state}{turn}"'.encode()


def status_reply(
    snapshot: Snapshot, prefix: bytes, route: Route, *, status: int = 200, verdict: Verdict | None = None
) -> Reply:
    record = _existing(snapshot)
    headers: Headers = (
        (b"Content-Type", b"application/json"),
        (b"Cache-Control", b"no-store"),
        (b"ETag", etag(snapshot)),
        *_retry_after(snapshot, route),
    )
    return Reply(status, reason_phrase(status), headers, _document(record, prefix, route), verdict)


def accepted_reply(
    snapshot: Snapshot, prefix: bytes, route: Route, preferences: Headers, *, is_replayed: bool
) -> Reply:
    """The 202 for a request that is kept. `preferences` are the headers of this request."""
    record = _existing(snapshot)
    headers = [
        (b"Content-Type", b"application/json"),
        (b"Cache-Control", b"no-store"),
        (b"Location", operation_url(prefix, record)),
        *_retry_after(snapshot, route),
    ]
    if prefers_async(preferences):
        headers.append(preference_applied(RESPOND_ASYNC))
    if is_replayed:
        headers.append((b"Idempotent-Replayed", b"true"))
    return Reply(202, reason_phrase(202), tuple(headers), _document(record, prefix, route), Verdict.ACCEPTED)


def status_retry_after_seconds(snapshot: Snapshot, route: Route) -> int | None:
    """When the status is worth another look; None where it is done."""
    record = snapshot.record
    if record is None or record.state in DONE:
        return None
    if is_stalled(record, route):
        seconds = float(_STALLED_SECONDS)
    else:
        # An attempt that runs is expected to run as long again; so is the wait for those before it in the lane.
        next_us = _next_attempt_us(record, route)
        waits_us = snapshot.now_us - record.claimed_us if next_us is None else next_us - snapshot.now_us
        seconds = min(max(waits_us / MICROSECONDS, 1.0), _RETRY_SECONDS_MAX)
    # Drawn from the record and the time: callers of one operation get different ones.
    draw = crc32(b"%b%d" % (record.identity.operation_id.bytes, snapshot.now_us)) / 0xFFFFFFFF
    return max(1, round(seconds * (1 + _SPREAD * (2 * draw - 1))))


def _next_attempt_us(record: Record, route: Route) -> int | None:
    """From when on the next attempt may start by itself; None where there is none, or others come first."""
    if record.delivery is None:
        return None
    if record.state is State.ACCEPTED:
        return None if record.delivery.is_behind else record.delivery.next_attempt_us
    # Where the route sends what is in doubt again.
    if record.state is State.IN_DOUBT and isinstance(route.recovery, Resend) and route.accept is not None:
        return resend_us(record, route.accept.delivery)
    return None


def _retry_after(snapshot: Snapshot, route: Route) -> Headers:
    seconds = status_retry_after_seconds(snapshot, route)
    return () if seconds is None else ((b"Retry-After", b"%d" % seconds),)


def _document(record: Record, prefix: bytes, route: Route) -> bytes:
    delivery, state = record.delivery, record.state
    url = operation_url(prefix, record).decode()
    next_us = _next_attempt_us(record, route)
    return orjson.dumps(
        {
            "id": str(record.identity.operation_id),
            "state": state.value,
            "done": state in DONE,
            "stalled": is_stalled(record, route),
            "accepted_at": _accepted_at(record),
            "attempts": record.attempts,
            "next_attempt_at": None if next_us is None else moment(next_us),
            "waits_for_lane": _waits_for_lane(record),
            "deliver_until": moment(delivery.deliver_until_us) if delivery else None,
            "last_attempt": _last_attempt(record),
            "result": _result(record, url),
            "problem": _problem(record, route),
            "links": {"self": url, "result": f"{url}/result"},
        }
    )


def _accepted_at(record: Record) -> str | None:
    if record.attempt_id == NO_ATTEMPT:
        return None
    return moment(record.first_claimed_us if record.delivery is None else record.delivery.accepted_us)


def _waits_for_lane(record: Record) -> bool:
    """Whether other operations have to be delivered first."""
    return record.state is State.ACCEPTED and record.delivery is not None and record.delivery.is_behind


def _last_attempt(record: Record) -> dict[str, Any] | None:
    """The last attempt that ended, and what is known of it."""
    if record.attempts == 0:
        return None
    delivery, status, reason = record.delivery, None, None
    match record.state:
        case State.COMPLETED | State.TOMBSTONE:
            result, status = "completed", None if record.response is None else record.response.status
        case State.IN_DOUBT:
            result, status, reason = "in_doubt", doubted_status(record.doubt), record.doubt
        case State.CLAIMED:
            return None
        case _:
            result = "released"
            if delivery is not None:
                status, reason = doubted_status(delivery.failure), delivery.reason or delivery.failure
    return {"at": moment(record.claimed_us), "result": result, "status": status, "reason": reason}


def _result(record: Record, url: str) -> dict[str, Any] | None:
    response = record.response
    if response is None:
        return None
    is_kept = record.state is State.COMPLETED
    return {
        "status": response.status,
        "resource": record.resource,
        "location": record.resource if record.resource is not None and is_address(record.resource) else None,
        "url": f"{url}/result" if is_kept and response.body is not None else None,
        "expires_at": moment(record.replay_until_us) if is_kept and record.replay_until_us else None,
    }


def _problem(record: Record, route: Route) -> orjson.Fragment | None:
    """What is wrong, as a problem document whatever the form of the route's problems."""
    verdict = _PROBLEMS.get(record.state)
    if verdict is None and is_withdrawn(record):
        verdict = Verdict.WITHDRAWN
    if verdict is None:
        return None
    recovery = for_repeats(route.recovery, record, is_same=True)
    body = refuse(verdict, shape=Shape(type_base=route.shape.type_base), record=record, recovery=recovery).body
    return orjson.Fragment(body) if isinstance(body, bytes) else None


_PROBLEMS: Final = {State.IN_DOUBT: Verdict.IN_DOUBT, State.DEAD_LETTER: Verdict.DEAD_LETTER}
