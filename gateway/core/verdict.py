"""What a request gets: one ordered table of rules, and the decision on a record.

`RULES` is the order of precedence; the first rule that applies decides. The edge and the coordinator apply rules 1 to
8; `judge`, a pure function of the settled record and the request's fingerprints, applies rules 9 to 19, but for rule
17, which the store applies together with the claim. A verdict has the same name in the header, the problem document,
the metric and the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, assert_never

from gateway.core import immutable
from gateway.core.operation import Fingerprint, Record, Snapshot, State


class Verdict(StrEnum):
    REQUEST_INVALID = "request-invalid"
    OVERLOADED = "overloaded"
    KEY_MISSING = "key-missing"
    UNKEYED = "unkeyed"
    SCOPE_MISSING = "scope-missing"
    SCOPE_UNSUITABLE = "scope-unsuitable"
    IDENTITY_UNAVAILABLE = "identity-unavailable"
    BODY_TOO_LARGE = "body-too-large"
    SIGNATURE_MISSING = "signature-missing"
    SIGNATURE_INVALID = "signature-invalid"
    SIGNATURE_STALE = "signature-stale"
    EVENT_UNSUPPORTED = "event-unsupported"
    KEY_INVALID = "key-invalid"
    ORDER_MISSING = "order-missing"
    STORE_UNAVAILABLE = "store-unavailable"
    STORE_AMNESIA = "store-amnesia"
    UNPROTECTED = "unprotected"
    KEY_REUSED = "key-reused"
    EVENT_DUPLICATE = "event-duplicate"
    REPLAYED = "replayed"
    RECOVERED = "recovered"
    FETCHED = "fetched"
    RESPONSE_NOT_STORED = "response-not-stored"
    KEY_EXPIRED = "key-expired"
    ACCEPTED = "accepted"
    BACKLOG_FULL = "backlog-full"
    DEAD_LETTER = "dead-letter"
    WITHDRAWN = "withdrawn"
    LIKELY_DUPLICATE = "likely-duplicate"
    IN_FLIGHT = "in-flight"
    IN_DOUBT = "in-doubt"
    STORED = "stored"
    JOURNALED = "journaled"
    RELEASED = "released"
    UPSTREAM_UNREACHABLE = "upstream-unreachable"


@immutable
class Rule:
    """A line of the verdict table: when it applies, what the client gets, and with which verdicts."""

    number: int
    when: str
    reply: str
    verdicts: tuple[Verdict, ...]


_V = Verdict

RULES: Final[tuple[Rule, ...]] = (
    Rule(1, "no route matches", "forwarded untouched, streamed", ()),
    Rule(2, "the request is ambiguous HTTP, or repeats a key, scope or credential header", "400",
         (_V.REQUEST_INVALID,)),
    Rule(3, "the gateway is overloaded, draining or stalled", "503 with `Retry-After`", (_V.OVERLOADED,)),
    Rule(4, "there is no key: the route requires one / does not", "400 / forwarded untouched, streamed",
         (_V.KEY_MISSING, _V.UNKEYED)),
    Rule(5,
         "the caller is missing or ambiguous for the scope, or named by something that will change / cannot be "
         "verified now",
         "401 with `WWW-Authenticate` where a credential is missing or not accepted, else 400 / 503 with `Retry-After`",
         (_V.SCOPE_MISSING, _V.SCOPE_UNSUITABLE, _V.IDENTITY_UNAVAILABLE)),
    Rule(6, "the body is over the route's limit", "413", (_V.BODY_TOO_LARGE,)),
    Rule(7,
         "the sender of a webhook did not sign it, or not just now / it holds several events / the key is malformed "
         "or too long, or the place in the order is not known", "401 / 415 / 400",
         (_V.SIGNATURE_MISSING, _V.SIGNATURE_INVALID, _V.SIGNATURE_STALE, _V.EVENT_UNSUPPORTED, _V.KEY_INVALID,
          _V.ORDER_MISSING)),
    Rule(8, "the durable store is needed, and it lost data or cannot be reached (then the route refuses / forwards)",
         "503 with `Retry-After`, not forwarded / forwarded without protection",
         (_V.STORE_UNAVAILABLE, _V.STORE_AMNESIA, _V.UNPROTECTED)),
    Rule(9, "the key was used for a different request, whatever its outcome / an inbox has the event already",
         "422 (a route may choose 409 or 400) / 200 or 202, as the sender expects",
         (_V.KEY_REUSED, _V.EVENT_DUPLICATE)),
    Rule(10, "completed, and the response is stored / or fetched again from the service",
         "the recorded response with `Idempotent-Replayed: true` / the service's response to a GET by this caller, "
         "502 where it cannot be reached", (_V.REPLAYED, _V.RECOVERED, _V.FETCHED, _V.UPSTREAM_UNREACHABLE)),
    Rule(11,
         "completed, but the response was not stored (streamed, too large, or not to be redacted), or cannot be "
         "fetched", "409 with the first status and what was made", (_V.RESPONSE_NOT_STORED,)),
    Rule(12, "completed, and its replay window is over, or its response is in another version of the API",
         "410 with what was made (a route may choose 409 or 204)", (_V.KEY_EXPIRED,)),
    Rule(13, "the request was accepted, and its delivery has no known end yet",
         "202 with the state of the operation; where the caller does not ask for that, waits, then 409 with `Location`",
         (_V.ACCEPTED, _V.IN_FLIGHT, _V.IN_DOUBT, _V.WITHDRAWN)),
    Rule(14, "the request was accepted, and its delivery was given up (a dead letter)",
         "409 with `Location` (a route may deliver it again, with 202)", (_V.DEAD_LETTER, _V.ACCEPTED)),
    Rule(15, "the first request is still running", "waits, then 409 with `Retry-After` (a route may choose 429)",
         (_V.IN_FLIGHT,)),
    Rule(16, "something was sent, and its outcome is not known",
         "by the route's recovery: sent again, probed, or held; 409 while the doubt lasts, with `Retry-After` where a"
         " repeat may end it", (_V.IN_DOUBT,)),
    Rule(17,
         "the key is new, but the caller sent the same content under another one not long ago, or its outcome is not "
         "known yet (where the route refuses that)",
         "409 with `first_operation`, unless the request says `Idempotency-Distinct: true`", (_V.LIKELY_DUPLICATE,)),
    Rule(18,
         "the key is new, or an earlier attempt is known to have had no effect; the route accepts requests, and the "
         "caller does not wait",
         "202 once the request is stored / 503 with `Retry-After` where too many are stored, or it is not known "
         "whether this one is", (_V.ACCEPTED, _V.BACKLOG_FULL, _V.IN_DOUBT)),
    Rule(19, "the key is new, or an earlier attempt is known to have had no effect",
         "claimed and forwarded once; the outcome decides",
         (_V.STORED, _V.JOURNALED, _V.RELEASED, _V.IN_DOUBT, _V.IN_FLIGHT, _V.UPSTREAM_UNREACHABLE,
          _V.RESPONSE_NOT_STORED)),
)  # fmt: skip


class Match(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # another recipe, and the raw digests differ too


def compare(recorded: Fingerprint | None, ours: Sequence[Fingerprint]) -> tuple[Match, Fingerprint]:
    """Compare with the recorded fingerprint. `ours` is the request's under the current key, then under retired ones.

    Returns the one of ours that decided, or the current one. A record without a fingerprint equals any request.
    """
    if recorded is None:
        return Match.SAME, ours[0]
    for fingerprint in ours:
        if (is_equal := recorded.equals(fingerprint)) is not None:
            return Match.SAME if is_equal else Match.DIFFERENT, fingerprint
    return Match.UNKNOWN, ours[0]


@immutable
class Refuse:
    """Rules 9, 11 and 12: reply with a problem of this verdict; nothing is executed."""

    verdict: Verdict
    record: Record


@immutable
class Replay:
    """Rule 10: replay the recorded response."""

    record: Record


@immutable
class Fetch:
    """Rule 10: reply with what the service says now of the resource that the record names; nothing is executed."""

    record: Record
    resource: str


@immutable
class Undelivered:
    """Rules 13 and 14: the request is kept, and nobody knows a result. `is_same`: it is surely the same request."""

    record: Record
    is_same: bool


@immutable
class Wait:
    """Rule 15: the first request is still running; wait for its outcome."""

    record: Record


@immutable
class Doubt:
    """Rule 16: the outcome is not known. `is_same`: it is surely the same request, so that recovery may send it."""

    record: Record
    is_same: bool


@immutable
class Claimable:
    """Rules 17 to 19: claim or accept it, on the released record that was read (None: on absent)."""

    fingerprint: Fingerprint
    read_token: int | None


Judgement = Refuse | Replay | Fetch | Undelivered | Wait | Doubt | Claimable


def judge(
    snapshot: Snapshot,
    ours: Sequence[Fingerprint],
    *,
    accept_recipe_change: bool,
    version: bytes | None = None,
    is_fetched: bool = False,
) -> Judgement:
    """Rules 9 to 19 on a settled record.

    With `accept_recipe_change`, a request that cannot be compared gets the recorded response; it never executes.
    `version` is the only one in which that is replayed, None for any; one that is not known is another one.
    `is_fetched`: responses are fetched from the service, and none is replayed.
    """
    record = snapshot.record
    if record is None:
        return Claimable(ours[0], None)
    match, fingerprint = compare(record.fingerprint, ours)
    if match is Match.DIFFERENT or (match is Match.UNKNOWN and not accept_recipe_change):
        return Refuse(Verdict.KEY_REUSED, record)
    if record.delivery is not None:
        return Undelivered(record, match is Match.SAME)
    match record.state:
        case State.COMPLETED:
            return _completed(record, version, is_fetched=is_fetched)
        case State.TOMBSTONE:
            return Refuse(Verdict.KEY_EXPIRED, record)
        case State.CLAIMED:
            return Wait(record)
        case State.IN_DOUBT:
            return Doubt(record, match is Match.SAME)
        case State.RELEASED:
            if match is Match.UNKNOWN:
                return Refuse(Verdict.KEY_REUSED, record)
            return Claimable(fingerprint, record.token)
        case State.ABSENT | State.ACCEPTED | State.DEAD_LETTER as state:
            raise AssertionError(f"no record without a kept request is {state}")
        case _:
            assert_never(record.state)


def _completed(record: Record, version: bytes | None, *, is_fetched: bool) -> Replay | Fetch | Refuse:
    """Rules 10 to 12 on a completed record."""
    response, resource = record.response, record.resource
    if is_fetched and resource is not None:
        return Fetch(record, resource)
    if is_fetched or response is None or response.body is None:
        return Refuse(Verdict.RESPONSE_NOT_STORED, record)
    if version is not None and response.version != version:
        return Refuse(Verdict.KEY_EXPIRED, record)
    return Replay(record)
