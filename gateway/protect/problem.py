"""The gateway's own error responses: the error table.

Owns titles, details, statuses and the advice on retrying, as data: one row for each verdict that makes a problem. It
does not decide which verdict applies. A detail says what to do next, because the worst reaction to doubt is a new key.
Bodies are RFC 9457 problem documents, or Stripe's error objects where a route asks for them. The type of a problem is
a URN, or the URL of its page in the operator's own documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol
from uuid import UUID

import orjson

from gateway.core.immutable import immutable
from gateway.core.message import Headers
from gateway.core.operation import MICROSECONDS, Record
from gateway.core.outcome import OUTCOME_HEADERS, Meaning, outcome_header
from gateway.core.reading import is_address
from gateway.core.recovery import Hold, Probe, Recovery, Resend
from gateway.core.verdict import Verdict
from gateway.protect.reply import Reply, reason_phrase

TYPE_PREFIX: Final = "urn:idempotency-gateway:problem:"


@immutable
class Shape:
    """The form of a route's problems. `type_base` and the verdict make their type."""

    form: Literal["problem", "stripe"] = "problem"
    type_base: str = TYPE_PREFIX


PROBLEM: Final = Shape()


class Shaped(Protocol):
    """What this module needs of a route."""

    @property
    def shape(self) -> Shape: ...


DOCUMENTATION: Final = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07"

_COMMON: Final[Headers] = ((b"Content-Language", b"en"), (b"Cache-Control", b"no-store"))
_DESCRIBED_BY: Final = (b"Link", b'<%b>; rel="describedby"' % DOCUMENTATION.encode())
# SDKs repeat every 409, 429 and 5xx unless a header forbids it; others repeat them only if a header asks for it.
_NO_RETRY: Final[Headers] = ((b"x-should-retry", b"false"), (b"Stripe-Should-Retry", b"false"))
_RETRY: Final[Headers] = ((b"x-should-retry", b"true"), (b"Stripe-Should-Retry", b"true"))

_IDEMPOTENCY: Final = "idempotency_error"
_INVALID: Final = "invalid_request_error"
_API: Final = "api_error"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the error table.

    `detail` may name {time}, {status}, {resource}, {id} and {first}. `retryable`: the same request with the same key
    can get another response. `is_terminal`: repeating it is useless, and headers say so to SDKs. `ends_by_retry`: maybe
    only a repeat ends it, and headers ask SDKs to repeat it. `retry_after_seconds` is the default of `refuse`.
    """

    status: int
    title: str
    detail: str
    retryable: bool
    stripe_type: str
    is_terminal: bool = False
    ends_by_retry: bool = False
    retry_after_seconds: int | None = None
    stripe_status: int | None = None
    stripe_code: str | None = None


_IN_DOUBT: Final = (
    "Your request was sent, but its result is unknown. It may have taken effect. Do not send it again under a new key. "
)
_DOUBT_TITLE: Final = "The result of this operation is unknown"

# `in-doubt` by what the route's recovery does for a repeat.
DOUBTS: Final[Mapping[type[Recovery], Case]] = {
    Hold: Case(
        409, _DOUBT_TITLE, f"{_IN_DOUBT}Ask the operator about operation {{id}}.", False, _API, is_terminal=True
    ),
    Resend: Case(
        409,
        _DOUBT_TITLE,
        f"{_IN_DOUBT}Send it again with the same key: the service knows it by that, and does it once.",
        True,
        _API,
        ends_by_retry=True,
        retry_after_seconds=1,
    ),
    Probe: Case(
        409,
        _DOUBT_TITLE,
        f"{_IN_DOUBT}Send it again with the same key: the gateway asks the service what became of it, and tells you.",
        True,
        _API,
        ends_by_retry=True,
        retry_after_seconds=1,
    ),
}

# The same text for all: it helps nobody who guesses.
_UNSIGNED: Final = Case(
    401,
    "The message is not signed by its sender",
    "Nothing was stored. Sign it with the current secret and time.",
    False,
    _INVALID,
)

CASES: Final[Mapping[Verdict, Case]] = {
    Verdict.REQUEST_INVALID: Case(
        400, "The request is ambiguous", "Nothing was executed. Correct the request.", False, _INVALID
    ),
    Verdict.OVERLOADED: Case(
        503,
        "The gateway takes no more requests now",
        "Nothing was executed. Repeat with the same key.",
        True,
        _API,
        retry_after_seconds=1,
    ),
    Verdict.KEY_MISSING: Case(
        400,
        "Idempotency-Key is missing",
        "This operation needs an idempotency key. Nothing was executed. Send a key that is new for this intent.",
        False,
        _INVALID,
    ),
    Verdict.SCOPE_MISSING: Case(
        400,
        "The caller is not identified",
        "Nothing was executed. Identify yourself as this API requires.",
        False,
        _INVALID,
    ),
    Verdict.SCOPE_UNSUITABLE: Case(
        400,
        "The credential does not identify the caller for long enough",
        "Nothing was executed. Use a credential that stays the same over retries.",
        False,
        _INVALID,
    ),
    Verdict.IDENTITY_UNAVAILABLE: Case(
        503,
        "The caller cannot be verified now",
        "Nothing was executed. Repeat with the same key.",
        True,
        _API,
        retry_after_seconds=1,
    ),
    Verdict.BODY_TOO_LARGE: Case(
        413, "The request body is too large", "Nothing was executed. Send a shorter body.", False, _INVALID
    ),
    Verdict.SIGNATURE_MISSING: _UNSIGNED,
    Verdict.SIGNATURE_INVALID: _UNSIGNED,
    Verdict.SIGNATURE_STALE: _UNSIGNED,
    Verdict.EVENT_UNSUPPORTED: Case(
        415,
        "The message holds several events",
        "Nothing was stored. Send each event in a message of its own.",
        False,
        _INVALID,
    ),
    Verdict.KEY_INVALID: Case(
        400,
        "Idempotency-Key is invalid",
        "Nothing was executed. Send one key of 1 to 255 visible ASCII characters.",
        False,
        _IDEMPOTENCY,
    ),
    Verdict.ORDER_MISSING: Case(
        400,
        "The place of this request in the order is not known",
        "Nothing was executed. Send the value that requests here are delivered in order by.",
        False,
        _INVALID,
    ),
    Verdict.STORE_UNAVAILABLE: Case(
        503,
        "The record of operations cannot be reached",
        "Nothing was executed. Repeat with the same key.",
        True,
        _API,
        retry_after_seconds=1,
    ),
    Verdict.STORE_AMNESIA: Case(
        503,
        "The record of operations was lost in part",
        "It is not known whether this key was used before. Nothing was executed now. Repeat with the same key later, "
        "and not under a new one.",
        True,
        _API,
        retry_after_seconds=60,
    ),
    Verdict.KEY_REUSED: Case(
        422,
        "Idempotency-Key is already used",
        "This key was used at {time} for a different request. Nothing was executed. Use a new key for a new intent.",
        False,
        _IDEMPOTENCY,
        is_terminal=True,
        # The only client error that Stripe's libraries raise as their IdempotencyError.
        stripe_status=400,
    ),
    Verdict.LIKELY_DUPLICATE: Case(
        409,
        "The same request was sent under another key",
        "You sent the same request under another key; that one is operation {first}. Nothing was executed now. Repeat "
        "with the first key. Only if you mean it as well, send `Idempotency-Distinct: true`.",
        False,
        _IDEMPOTENCY,
        is_terminal=True,
    ),
    Verdict.RESPONSE_NOT_STORED: Case(
        409,
        "The first response was not kept",
        "The first request was answered with {status}; its response was not kept. Do not repeat it under a new key. "
        "See {resource}.",
        False,
        _IDEMPOTENCY,
        is_terminal=True,
    ),
    Verdict.KEY_EXPIRED: Case(
        410,
        "Idempotency-Key has expired",
        "This key completed at {time} ({status}); its response is no longer kept. Nothing was executed now. See "
        "{resource}.",
        False,
        _IDEMPOTENCY,
        is_terminal=True,
    ),
    Verdict.BACKLOG_FULL: Case(
        503,
        "Too many requests wait to be delivered",
        "Nothing was stored or executed. Repeat with the same key later.",
        True,
        _API,
        retry_after_seconds=5,
    ),
    Verdict.DEAD_LETTER: Case(
        409,
        "The request was accepted, and could not be delivered",
        "It had no effect so far, and may be delivered after all. Do not send it again under a new key. Ask the "
        "operator about operation {id}.",
        False,
        _API,
        is_terminal=True,
    ),
    Verdict.WITHDRAWN: Case(
        409,
        "The request was called off",
        "It was called off before it had an effect. Nothing is executed any more, unless it is sent again.",
        False,
        _API,
        is_terminal=True,
    ),
    Verdict.IN_FLIGHT: Case(
        409,
        "A request is outstanding for this Idempotency-Key",
        "The first request is still running. Repeat with the same key.",
        True,
        _IDEMPOTENCY,
        retry_after_seconds=1,
        stripe_code="idempotency_key_in_use",
    ),
    Verdict.IN_DOUBT: DOUBTS[Hold],
    Verdict.RELEASED: Case(
        503,
        "The first request had no effect",
        "The first request had no effect. Repeat with the same key.",
        True,
        _API,
        retry_after_seconds=1,
    ),
    Verdict.UPSTREAM_UNREACHABLE: Case(
        502,
        "The service cannot be reached",
        "The service could not be reached; nothing was sent. Repeat with the same key.",
        True,
        _API,
        retry_after_seconds=1,
    ),
}

INCOMPARABLE: Final = Case(
    422,
    CASES[Verdict.KEY_REUSED].title,
    "This key was used at {time}, and the gateway cannot tell whether for this request or a different one. Nothing was "
    "executed now. Do not send it again under a new key. Ask the operator about operation {id}.",
    False,
    _IDEMPOTENCY,
    is_terminal=True,
    stripe_status=400,
)
"""`key-reused` where the gateway lacks the fingerprint key or the settings that the record was made with."""

OTHER_VERSION: Final = Case(
    410,
    "The response is in another version of the API",
    "This key completed at {time} ({status}), with a response in another version of the API than this request expects. "
    "Nothing was executed now. See {resource}.",
    False,
    _IDEMPOTENCY,
    is_terminal=True,
)
"""`key-expired` while the response is still kept."""

UNFETCHED: Final = Case(
    502,
    "The response cannot be fetched from the service",
    "The first request completed ({status}), and its response is fetched from the service, which did not answer. "
    "Nothing was executed now. Repeat with the same key.",
    True,
    _API,
    retry_after_seconds=1,
)
"""`upstream-unreachable` for a repeat of what completed."""

# The verdicts that name what was made. The sender of another request under the key does not get it.
_NAMING: Final = frozenset(
    (
        Verdict.RESPONSE_NOT_STORED,
        Verdict.KEY_EXPIRED,
        Verdict.IN_FLIGHT,
        Verdict.IN_DOUBT,
        Verdict.UPSTREAM_UNREACHABLE,
    )
)

# Verdicts that make no problem: they accompany a response of the service, or the status of an accepted operation.
ANSWERED: Final = frozenset(
    (
        Verdict.UNKEYED,
        Verdict.UNPROTECTED,
        Verdict.EVENT_DUPLICATE,
        Verdict.REPLAYED,
        Verdict.RECOVERED,
        Verdict.FETCHED,
        Verdict.STORED,
        Verdict.JOURNALED,
        Verdict.ACCEPTED,
    )
)

_NOT_YET_KEPT: Final = (
    "Your request was received, but what became of it could not be recorded yet. It may have taken effect, or may do "
    "so later. Do not send it again under a new key. Repeat with the same key."
)


def refuse(
    verdict: Verdict,
    *,
    shape: Shape = PROBLEM,
    status: int | None = None,
    operation_id: UUID | None = None,
    record: Record | None = None,
    detail: str | None = None,
    retry_after_seconds: int | None = None,
    authenticate: bytes | None = None,
    recovery: Recovery | None = None,
    location: bytes | None = None,
    case: Case | None = None,
    differs: Sequence[str] = (),
    first_operation: UUID | None = None,
) -> Reply:
    """The reply for a verdict that makes a problem; raises ValueError for one that does not.

    `status` None takes the table's. `record` gives the detail its time and status, and the reply what was made: its
    member `resource`, and `Location` where that is an address. `detail` (a fault of the request) goes before the
    table's. `authenticate` is a `WWW-Authenticate` value and makes it a 401. `location` is where the caller finds out
    more, in place of the resource. `case` None takes the verdict's. `differs` is in what the request differs from the
    recorded one, `first_operation` the one that it repeats.

    `in-doubt` with 409 is about the record, with 502 or 504 about this request's own attempt, and with 503 about an
    outcome that could not be recorded. `recovery` is what a repeat does about the doubt, None for nothing.
    """
    if case is None:
        case = _case_of(verdict, recovery)
    if status is None:
        status = case.status if authenticate is None else 401
    if shape.form == "stripe" and status == case.status and case.stripe_status is not None:
        status = case.stripe_status
    if operation_id is None and record is not None:
        operation_id = record.identity.operation_id
    retryable, is_terminal = case.retryable, case.is_terminal
    resource = record.resource if record is not None and verdict in _NAMING else None
    text = _detail(case, record, operation_id, resource, first_operation)
    if verdict is Verdict.IN_DOUBT and status != 409:
        # About this request's own attempt: SDKs may repeat it, and get the terminal response if the doubt remains.
        is_terminal = False
        if status == 503:
            retryable, text = True, _NOT_YET_KEPT
            retry_after_seconds = retry_after_seconds or 1
    if detail is not None:
        text = f"{detail} {text}"
    if retry_after_seconds is None and retryable:
        retry_after_seconds = case.retry_after_seconds
    advice = _RETRY if case.ends_by_retry else _NO_RETRY if is_terminal else ()
    headers = _headers(retry_after_seconds=retry_after_seconds, advice=advice, authenticate=authenticate)
    # For a gateway in front of this one.
    headers = (*headers, OUTCOME_HEADERS[verdict])
    if location is not None:
        headers = (*headers, (b"Location", location))
    elif resource is not None and is_address(resource):
        headers = (*headers, (b"Location", resource.encode()))
    if status == 204:
        return Reply(status, reason_phrase(status), headers, b"", verdict)
    members = _members(operation_id, resource, differs, first_operation)
    reply = _reply(verdict, case, shape, status, headers, text, retryable, members)
    is_about_more = bool(differs) or first_operation is not None
    return replace(reply, differs=tuple(differs), first_operation=first_operation) if is_about_more else reply


def _case_of(verdict: Verdict, recovery: Recovery | None) -> Case:
    if verdict is Verdict.IN_DOUBT and recovery is not None:
        return DOUBTS[type(recovery)]
    case = CASES.get(verdict)
    if case is None:
        raise ValueError(f"{verdict} makes no problem")
    return case


def _members(
    operation_id: UUID | None, resource: str | None, differs: Sequence[str], first_operation: UUID | None
) -> dict[str, Any]:
    """What a problem says besides, where it is known."""
    known = {
        "operation_id": operation_id and str(operation_id),
        "resource": resource,
        "differs": list(differs),
        "first_operation": first_operation and str(first_operation),
    }
    return {name: value for name, value in known.items() if value}


def plain(status: int, detail: str, route: Shaped | None = None, outcome: Meaning | None = None) -> Reply:
    """A problem without a verdict: of an unprotected request, or a failure of the gateway.

    It has the shape of its route, if there is one. `outcome` is what is known of an effect, where the status does not
    say it.
    """
    error = {"type": _API if status >= 500 else _INVALID, "message": detail}
    document: dict[str, Any]
    if route is not None and route.shape.form == "stripe":
        media_type = b"application/json"
        document = {"error": error}
    else:
        media_type = b"application/problem+json"
        document = {"title": reason_phrase(status).decode(), "status": status, "detail": detail, "error": error}
    said = () if outcome is None else (outcome_header(outcome),)
    return Reply(status, reason_phrase(status), ((b"Content-Type", media_type), *_COMMON, *said), _json(document))


def _reply(
    verdict: Verdict,
    case: Case,
    shape: Shape,
    status: int,
    headers: Headers,
    text: str,
    retryable: bool,
    about: Mapping[str, Any],
) -> Reply:
    error = {"type": case.stripe_type, "code": case.stripe_code or verdict.value, "message": text}
    if shape.form == "stripe":
        media_type = b"application/json"
        document: dict[str, Any] = {"error": {**error, "retryable": retryable, **about}}
    else:
        media_type = b"application/problem+json"
        document = {
            "type": shape.type_base + verdict.value,
            "title": case.title,
            "status": status,
            "detail": text,
            "code": verdict.value,
            "retryable": retryable,
            **about,
            "error": error,
        }
    return Reply(status, reason_phrase(status), ((b"Content-Type", media_type), *headers), _json(document), verdict)


def _headers(*, retry_after_seconds: int | None, advice: Headers, authenticate: bytes | None) -> Headers:
    headers = [*_COMMON, _DESCRIBED_BY]
    if retry_after_seconds is not None:
        headers.append((b"Retry-After", b"%d" % retry_after_seconds))
    headers.extend(advice)
    if authenticate is not None:
        headers.append((b"WWW-Authenticate", authenticate))
    return tuple(headers)


def _detail(
    case: Case,
    record: Record | None,
    operation_id: UUID | None,
    resource: str | None,
    first_operation: UUID | None,
) -> str:
    """The detail with its values filled in, without the parts whose values are unknown."""
    text = case.detail
    moment = None
    response = None
    if record is not None:
        response = record.response
        is_of_end = case in (CASES[Verdict.KEY_EXPIRED], OTHER_VERSION)
        moment = record.completed_us if is_of_end else record.first_claimed_us
    if resource is None:
        text = text.replace(" See {resource}.", "")
    if response is None:
        text = text.replace(" ({status})", "").replace(" was answered with {status};", " was answered;")
    if moment is None:
        text = text.replace(" at {time}", "")
    if operation_id is None:
        text = text.replace(" about operation {id}", "")
    if first_operation is None:
        text = text.replace("; that one is operation {first}", "")
    return text.format(
        resource=resource,
        status=response.status if response is not None else "",
        time=rfc3339(moment) if moment is not None else "",
        id=operation_id,
        first=first_operation,
    )


def rfc3339(moment_us: int) -> str:
    """A store's time in RFC 3339, to the second and in UTC."""
    return datetime.fromtimestamp(moment_us // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _json(document: Mapping[str, Any]) -> bytes:
    return orjson.dumps(document)
