"""The status of an operation, as its caller sees it: a JSON document, and the headers beside it.

Pure. It shows nothing of the key, the scope, the request or the upstream. Times are the store's.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import orjson

from gateway.core.delivery import DeliveryPolicy, resend_us
from gateway.core.message import Headers
from gateway.core.operation import MICROSECONDS, NO_ATTEMPT, Record, Snapshot, State, is_withdrawn
from gateway.core.recovery import Resend, doubted_status, for_repeats
from gateway.core.replay import is_address
from gateway.core.verdict import Verdict
from gateway.protect.preference import RESPOND_ASYNC, preference_applied, prefers_async
from gateway.protect.problem import Shape, refuse, rfc3339
from gateway.protect.reply import Reply, reason_phrase
from gateway.protect.route import Route

DONE: Final = frozenset((State.COMPLETED, State.TOMBSTONE, State.RELEASED))
"""States in which nothing more happens by itself."""
_STALLED: Final = frozenset((State.IN_DOUBT, State.DEAD_LETTER))

_RETRY_SECONDS_MAX: Final = 60
_STALLED_SECONDS: Final = 300
# The share of a `Retry-After` by which it differs, so that callers who got it together do not return together.
_SPREAD: Final = 0.2


def resends_of(route: Route) -> DeliveryPolicy | None:
    """By which policy kept requests in doubt are sent again; None where they are not."""
    return route.accept.delivery if isinstance(route.recovery, Resend) and route.accept is not None else None


def is_stalled(record: Record, resends: DeliveryPolicy | None) -> bool:
    """Whether somebody must decide. The operation may still be executed, or may have been."""
    return record.state in _STALLED and _next_attempt_us(record, resends) is None


def operation_url(prefix: bytes, record: Record) -> bytes:
    """Where the status of this operation is; `prefix` as in `route.AcceptPolicy`."""
    return prefix + str(record.identity.operation_id).encode()


def etag(snapshot: Snapshot) -> bytes:
    """The entity tag of the status: weak, because its times may be corrected (RFC 9110 section 8.8.3)."""
    record = snapshot.record
    if record is None:
        raise ValueError("what does not exist has no status")
    # The clock changes the state, and neither token nor last event; nor does the turn of a lane.
    turn = "-waits" if _waits_for_lane(record) else ""
    return f'W/"{record.token}-{record.last_event}-{record.state}{turn}"'.encode()


def status_reply(
    snapshot: Snapshot, prefix: bytes, route: Route, *, status: int = 200, verdict: Verdict | None = None
) -> Reply:
    """The status of an operation that exists, of this route."""
    record = snapshot.record
    if record is None:
        raise ValueError("what does not exist has no status")
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
    record = snapshot.record
    if record is None:
        raise ValueError("what does not exist was not accepted")
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


def retry_after_seconds(snapshot: Snapshot, route: Route) -> int | None:
    """When the status is worth another look; None where it is done."""
    record = snapshot.record
    if record is None or record.state in DONE:
        return None
    if is_stalled(record, resends_of(route)):
        seconds = float(_STALLED_SECONDS)
    else:
        # An attempt that runs is expected to run as long again; so is the wait for those before it in the lane.
        next_us = _next_attempt_us(record, resends_of(route))
        waits_us = snapshot.now_us - record.claimed_us if next_us is None else next_us - snapshot.now_us
        seconds = min(max(waits_us / MICROSECONDS, 1.0), _RETRY_SECONDS_MAX)
    # Drawn from the record and the time: callers of one operation get different ones.
    draw = crc32(b"%b%d" % (record.identity.operation_id.bytes, snapshot.now_us)) / 0xFFFFFFFF
    return max(1, round(seconds * (1 + _SPREAD * (2 * draw - 1))))


def _next_attempt_us(record: Record, resends: DeliveryPolicy | None) -> int | None:
    """From when on the next attempt may start by itself; None where there is none, or others come first."""
    if record.delivery is None:
        return None
    if record.state is State.ACCEPTED:
        return None if record.delivery.is_behind else record.delivery.next_attempt_us
    return resend_us(record, resends) if record.state is State.IN_DOUBT and resends is not None else None


def _retry_after(snapshot: Snapshot, route: Route) -> Headers:
    seconds = retry_after_seconds(snapshot, route)
    return () if seconds is None else ((b"Retry-After", b"%d" % seconds),)


def _document(record: Record, prefix: bytes, route: Route) -> bytes:
    delivery, state = record.delivery, record.state
    url = operation_url(prefix, record).decode()
    resends = resends_of(route)
    next_us = _next_attempt_us(record, resends)
    return orjson.dumps(
        {
            "id": str(record.identity.operation_id),
            "state": state.value,
            "done": state in DONE,
            "stalled": is_stalled(record, resends),
            "accepted_at": _accepted_at(record),
            "attempts": record.attempts,
            "next_attempt_at": None if next_us is None else rfc3339(next_us),
            "waits_for_lane": _waits_for_lane(record),
            "deliver_until": rfc3339(delivery.deliver_until_us) if delivery else None,
            "last_attempt": _last_attempt(record),
            "result": _result(record, url),
            "problem": _problem(record, route),
            "links": {"self": url, "result": f"{url}/result"},
        }
    )


def _accepted_at(record: Record) -> str | None:
    if record.attempt_id == NO_ATTEMPT:
        return None
    return rfc3339(record.first_claimed_us if record.delivery is None else record.delivery.accepted_us)


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
    return {"at": rfc3339(record.claimed_us), "result": result, "status": status, "reason": reason}


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
        "expires_at": rfc3339(record.replay_until_us) if is_kept and record.replay_until_us else None,
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
