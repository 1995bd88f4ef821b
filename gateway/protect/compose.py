"""Builds replies from records and responses, alike for the first caller, a waiting duplicate and a late retry.

Pure. Other modules decide which reply a request gets; this one decides what it looks like.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never, cast

from gateway.core.message import Headers, header_values
from gateway.core.operation import MICROSECONDS, Event, Record, Snapshot, State, is_withdrawn
from gateway.core.recovery import for_repeats, retry_after_seconds
from gateway.core.replay import fetch_target
from gateway.core.verdict import Claimable, Doubt, Fetch, Judgement, Refuse, Replay, Undelivered, Verdict, Wait
from gateway.protect.decoding import is_unaccepted
from gateway.protect.forwarding import response_headers
from gateway.protect.problem import INCOMPARABLE, OTHER_VERSION, refuse
from gateway.protect.reply import REPLAYED_HEADER, BodyCut, Reply, Source, ToFetch, http_date
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.protect.status import accepted_reply, operation_url
from gateway.protect.status import retry_after_seconds as status_retry_after_seconds
from gateway.upstream import BodyLost, Framing, UpstreamResponse

# -- compose -----------------------------------------------------------------------------------------------------------


def expires_header(record: Record) -> tuple[bytes, bytes]:
    """Until when the record is replayed: an HTTP date on the store's clock, the same in every reply."""
    return b"Idempotency-Expires", http_date(record.replay_until_us // MICROSECONDS)


def replay_of(record: Record, request_headers: Headers) -> Reply:
    """The recorded response, in a coding that this request accepts. Where it has none, all repeats get the same."""
    if record.replay is not None:
        return cast(Reply, record.replay)
    stored = record.response
    if stored is None or stored.body is None:
        raise ValueError("only a record with a body can be replayed")
    # When it expires is unknown until the durable store has the record.
    expires = (expires_header(record),) if record.replay_until_us else ()
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
            return _undelivered(snapshot, record, request, is_same=is_same)
        case Claimable() if free_verdict is Verdict.RELEASED and snapshot.record and is_withdrawn(snapshot.record):
            return refuse(Verdict.WITHDRAWN, shape=route.shape, record=snapshot.record)
        case Claimable():
            # For a holder, the store has forgotten the attempt, and with it all that a repeat could recover from.
            return refuse(
                free_verdict,
                shape=route.shape,
                status=502 if free_verdict is Verdict.IN_DOUBT else None,
                operation_id=request.identity.operation_id,
            )
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
        case=None if why is None else INCOMPARABLE,
        differs=request.differences(record),
    )
    return reply if why is None else replace(reply, why=why)


def refuse_by(verdict: Verdict, record: Record, route: Route) -> Reply:
    """Rules 11 and 12, with the route's statuses."""
    status, case = None, None
    if verdict is Verdict.KEY_EXPIRED:
        status = route.retention.expired_status
        case = OTHER_VERSION if record.state is State.COMPLETED else None
    return refuse(verdict, shape=route.shape, status=status, record=record, case=case)


def _to_fetch(record: Record, resource: str, request: Request) -> Reply:
    """Rule 10 for what is fetched; rule 11 where its resource is not at the service, or cannot be asked for."""
    route, forwarding = request.route, request.route.target.forwarding
    hosts = (*header_values(request.head.headers, b"host"), forwarding.authority, forwarding.host or b"")
    target = fetch_target(route.keep.fetch_path, resource, hosts)
    reply = refuse_by(Verdict.RESPONSE_NOT_STORED, record, route)
    return reply if target is None else replace(reply, to_fetch=ToFetch(target, record))


def _undelivered(snapshot: Snapshot, record: Record, request: Request, *, is_same: bool) -> Reply:
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
        operation_id=record.identity.operation_id,
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
        operation_id=record.identity.operation_id,
        record=record,
        retry_after_seconds=max(1, int(min(ran_seconds, remaining_seconds))),
    )


# -- responses that stream ---------------------------------------------------------------------------------------------
#
# Passes an upstream's response on to a client, its body as it comes.


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
        if isinstance(data, BodyLost):
            raise BodyCut(data.detail)
        return data

    def abort(self) -> None:
        """Give up the rest."""
        self._response.close()
