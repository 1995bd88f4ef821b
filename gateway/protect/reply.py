"""The values between the edge and the coordinator: the body of a request as it comes, and the reply as it goes out,
also the gateway's own error responses.

Replies are immutable, except for their bodies. The edge makes bodies and writes replies; nothing here knows sockets, or
decides which verdict applies.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from enum import Enum, StrEnum
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol
from uuid import UUID

import brotli  # type: ignore[import-untyped]
import orjson
import zstandard

from gateway.core import immutable
from gateway.core.identity.body import MISSING, parse_json
from gateway.core.message import Headers, header_values, list_members
from gateway.core.operation import Record, moment
from gateway.core.outcome import (
    OUTCOME_HEADERS,
    RETRYABLE_4XX,
    Meaning,
    accepted_codings,
    accepts,
    is_address,
    outcome_header,
)
from gateway.core.recovery import Hold, Probe, Recovery, Resend
from gateway.core.verdict import Verdict

REPLAYED_HEADER: Final = (b"Idempotent-Replayed", b"true")


class Cut(StrEnum):
    GONE = "gone"  # the client left, or the exchange is over
    MALFORMED = "malformed"  # not valid chunked coding
    SLOW = "slow"  # nothing came for too long
    CROWDED_OUT = "crowded-out"  # it came slowly, and another request needed its slot


class RequestCut(Exception):
    """The body of a request did not arrive completely: the request must not have an effect."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"the request body is not whole: {cut}")
        self.cut = cut


class RequestBody(Protocol):
    """The body of a request that is still on the wire."""

    @property
    def length(self) -> int | None:
        """Bytes announced by `Content-Length`; None when it comes in chunks; 0 when there is none."""

    def whole(self) -> bytes | None:
        """All of its bytes, if they are here; then `stream` yields none. None consumes nothing."""

    def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come, not decoded. Call it once. A body that is cut short raises, and never just ends."""

    def crowd_out(self) -> bool:
        """Cut it short if it comes too slowly to keep its slot; returns whether it was cut."""

    def close(self) -> None:
        """Release what holds it, read or not. Safe to repeat."""


class ResponseStream(Protocol):
    """A response body that is passed on as it comes."""

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut` when the body is cut short."""

    def abort(self) -> None:
        """Give up the rest. Harmless after the end."""


class BodyCut(Exception):
    """A response body broke off: the client must not take it for complete."""


@immutable
class ToFetch:
    """What a reply is to be fetched from: the target at the service, and the record that names it."""

    target: bytes
    record: Record


class Source(Enum):
    """Who decided on the headers of a reply."""

    GATEWAY = "gateway"  # the gateway itself
    SERVICE = "service"  # the service, for this very request
    RECORD = "record"  # the service, for an earlier request


@immutable
class Reply:
    """What the client gets.

    `headers` are end-to-end; the edge adds framing, `Date` and `Connection`. `length` is the number of bytes in a
    stream, None if unknown. `verdict` is None where the request was not protected. With `decode_for`, the body has a
    coding that these `Accept-Encoding` values do not accept, and is decoded before it goes out. `why` is for the log
    alone: why nothing could be sent to the upstream, or compared with the record; so are `differs` and
    `first_operation`, which a refusal also has for its caller. With `to_fetch`, the coordinator replaces it by what the
    service says of that. `would` is the verdict that an observed request would have had, where
    clients are shown it.
    """

    status: int
    reason: bytes
    headers: Headers
    body: bytes | ResponseStream
    verdict: Verdict | None = None
    length: int | None = None
    decode_for: tuple[bytes, ...] | None = None
    why: str | None = None
    to_fetch: ToFetch | None = None
    differs: tuple[str, ...] = ()
    first_operation: UUID | None = None
    source: Source = Source.GATEWAY
    would: str | None = None
    lines: tuple[bytes, bool] | None = field(init=False, default=None, compare=False, repr=False)
    """Of a reply that was written: its status line with the headers, and whether `Date` is one of them."""


def reason_phrase(status: int) -> bytes:
    """The registered phrase of a status, empty for an unregistered one."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@lru_cache(1024)
def http_date(unix_seconds: int) -> bytes:
    """An IMF-fixdate (RFC 9110 section 5.6.7)."""
    return formatdate(unix_seconds, usegmt=True).encode()


# -- the gateway's own -------------------------------------------------------------------------------------------------
#
# The error table: one row for each code that makes a problem, be it a verdict or not, and one for each of its cases
# that says something else. The advice on retrying is one column; member and headers follow from it, and so does what is
# added to a response of the service. A detail says what to do next, because the worst reaction to doubt is a new key.
# Bodies are RFC 9457 problem documents, or Stripe's error objects where a route asks for them. The type of a problem is
# a URN, or the URL of its page in the operator's documentation.

PROBLEM_TYPE: Final = b"application/problem+json"
TYPE_PREFIX: Final = "urn:idempotency-gateway:problem:"


@immutable
class Shape:
    """The form of a route's problems. `type_base` and the code make their type."""

    form: Literal["problem", "stripe"] = "problem"
    type_base: str = TYPE_PREFIX


PROBLEM: Final = Shape()


DOCUMENTATION: Final = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07"

_COMMON: Final[Headers] = ((b"Content-Language", b"en"), (b"Cache-Control", b"no-store"))
_DESCRIBED_BY: Final = (b"Link", b'<%b>; rel="describedby"' % DOCUMENTATION.encode())
_SHOULD_RETRY: Final = (b"x-should-retry", b"Stripe-Should-Retry")


Retry = int | Literal["never", "open"]
"""What a repeat of the same request with the same key is good for: after how many seconds it may help, that it never
does, or that this is left to the client.

SDKs repeat every 408, 409, 429 and 5xx unless a header forbids it; others repeat them only if a header asks for it. So
headers say which it is, unless that is left open.
"""


class Trouble(StrEnum):
    """The codes of problems that are no verdicts: they say nothing about a protected request."""

    NO_SUCH_OPERATION = "no-such-operation"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    ALREADY_COMPLETED = "already-completed"
    NO_RESPONSE = "no-response"
    GATEWAY_FAILED = "gateway-failed"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the error table. `detail` may name {time}, {status}, {resource}, {id} and {first}.

    `outcome` is what is known of an effect, None for what the verdict says.
    """

    status: int
    title: str
    detail: str
    retry: Retry
    stripe_type: str
    stripe_status: int | None = None
    stripe_code: str | None = None
    outcome: Meaning | None = None


# A row: the codes, and which of their cases it is; the status; after how many seconds a repeat may help, `never` where
# it does not, and `open` where that is left to the client; the kind of Stripe's error; the title, `=` for that of the
# code; then status and code of Stripe's error, and the outcome, where they are others. Below it, the detail.
_TABLE: Final = """
request-invalid | 400 | never | invalid | The request is invalid
    Nothing was executed. Correct the request.
request-invalid, 408 | 408 | 1 | invalid | =
    Nothing was executed. Repeat with the same key.
request-invalid, unread | 400 | never | invalid | =
request-invalid, slow | 408 | open | invalid | = | outcome=in_doubt
overloaded | 503 | 1 | api | The gateway takes no more requests now
    Nothing was executed. Repeat with the same key.
overloaded, untaken | 503 | 1 | api | = | outcome=retryable
    The gateway is overloaded, or is being stopped; nothing was sent.
key-missing | 400 | never | invalid | Idempotency-Key is missing
    This operation needs an idempotency key. Nothing was executed. Send a key that is new for this intent.
scope-missing | 400 | never | invalid | The caller is not identified
    Nothing was executed. Identify yourself as this API requires.
scope-unsuitable | 400 | never | invalid | The credential does not identify the caller for long enough
    Nothing was executed. Use a credential that stays the same over retries.
identity-unavailable | 503 | 1 | api | The caller cannot be verified now
    Nothing was executed. Repeat with the same key.
body-too-large | 413 | never | invalid | The request body is too large
    Nothing was executed. Send a shorter body.
signature-missing signature-invalid signature-stale | 401 | never | invalid | The message is not signed by its sender
    Nothing was stored. Sign it with the current secret and time.
event-unsupported | 415 | never | invalid | The message holds several events
    Nothing was stored. Send each event in a message of its own.
key-invalid | 400 | never | idempotency | Idempotency-Key is invalid
    Nothing was executed. Send one key of 1 to 255 visible ASCII characters.
order-missing | 400 | never | invalid | The place of this request in the order is not known
    Nothing was executed. Send the value that requests here are delivered in order by.
store-unavailable | 503 | 1 | api | The record of operations cannot be reached
    Nothing was executed. Repeat with the same key.
store-amnesia | 503 | 60 | api | The record of operations was lost in part
    It is not known whether this key was used before. Nothing was executed now. Repeat with the same key later, and not
    under a new one.
key-reused | 422 | never | idempotency | Idempotency-Key is already used | stripe=400
    This key was used at {time} for a different request. Nothing was executed. Use a new key for a new intent.
key-reused, incomparable | 422 | never | idempotency | = | stripe=400
    This key was used at {time}, and the gateway cannot tell whether for this request or a different one. Nothing was
    executed now. Do not send it again under a new key. Ask the operator about operation {id}.
likely-duplicate | 409 | never | idempotency | The same request was sent under another key
    You sent the same request under another key; that one is operation {first}. Nothing was executed now. Repeat with
    the first key. Only if you mean it as well, send `Idempotency-Distinct: true`.
response-not-stored | 409 | never | idempotency | The first response was not kept
    The first request was answered with {status}; its response was not kept. Do not repeat it under a new key. See
    {resource}.
key-expired | 410 | never | idempotency | Idempotency-Key has expired
    This key completed at {time} ({status}); its response is no longer kept. Nothing was executed now. See {resource}.
key-expired, other-version | 410 | never | idempotency | The response is in another version of the API
    This key completed at {time} ({status}), with a response in another version of the API than this request expects.
    Nothing was executed now. See {resource}.
backlog-full | 503 | 5 | api | Too many requests wait to be delivered
    Nothing was stored or executed. Repeat with the same key later.
dead-letter | 409 | never | api | The request was accepted, and could not be delivered
    It had no effect so far, and may be delivered after all. Do not send it again under a new key. Ask the operator
    about operation {id}.
withdrawn | 409 | never | api | The request was called off
    It was called off before it had an effect. Nothing is executed any more, unless it is sent again.
in-flight | 409 | 1 | idempotency | A request is outstanding for this Idempotency-Key | code=idempotency_key_in_use
    The first request is still running. Repeat with the same key.
in-doubt | 409 | never | api | The result of this operation is unknown
    Your request was sent, but its result is unknown. It may have taken effect. Do not send it again under a new key.
    Ask the operator about operation {id}.
in-doubt, resend | 409 | 1 | api | =
    Your request was sent, but its result is unknown. It may have taken effect. Do not send it again under a new key.
    Send it again with the same key: the service knows it by that, and does it once.
in-doubt, probe | 409 | 1 | api | =
    Your request was sent, but its result is unknown. It may have taken effect. Do not send it again under a new key.
    Send it again with the same key: the gateway asks the service what became of it, and tells you.
in-doubt, 503 | 503 | 1 | api | =
    Your request was received, but what became of it could not be recorded yet. It may have taken effect, or may do so
    later. Do not send it again under a new key. Repeat with the same key.
released | 503 | 1 | api | The first request had no effect
    The first request had no effect. Repeat with the same key.
upstream-unreachable | 502 | 1 | api | The service cannot be reached
    The service could not be reached; nothing was sent. Repeat with the same key.
upstream-unreachable, unfetched | 502 | 1 | api | The response cannot be fetched from the service
    The first request completed ({status}), and its response is fetched from the service, which did not answer. Nothing
    was executed now. Repeat with the same key.
upstream-unreachable, unsent | 502 | 1 | api | = | outcome=retryable
    The service could not be reached; nothing was sent.
no-such-operation | 404 | never | invalid | There is no such operation
    There is no such operation for this caller.
method-not-allowed | 405 | never | invalid | The method is not allowed
    The methods of this resource are those in `Allow`.
already-completed | 409 | never | invalid | The operation is completed
    The operation is completed, and cannot be called off.
no-response | 502 | open | api | The service did not respond | outcome=in_doubt
    The service did not respond. Whether the request had an effect is not known.
gateway-failed | 500 | open | api | The gateway failed | outcome=in_doubt
    The gateway failed, and it is not known whether the request had an effect. Do not send it again under a new key.
gateway-failed, before | 500 | 1 | api | = | outcome=retryable
    The gateway failed. Nothing was executed. Repeat with the same key.
"""

_KINDS: Final = {"api": "api_error", "idempotency": "idempotency_error", "invalid": "invalid_request_error"}


def _rows() -> Iterator[tuple[str, Case]]:
    """The cases of the table by their codes, those of one code after its own."""
    usual = ""
    for row in re.split(r"\n(?! )", _TABLE.strip()):
        head, *detail = map(str.strip, row.split("\n"))
        names, status, retry, kind, title, *more = head.split(" | ")
        usual = usual if "," in names else title
        further: dict[str, Any] = dict(each.split("=") for each in more)
        case = Case(
            int(status),
            usual if title == "=" else title,
            " ".join(detail),
            "never" if retry == "never" else "open" if retry == "open" else int(retry),
            _KINDS[kind],
            int(further["stripe"]) if "stripe" in further else None,
            further.get("code"),
            Meaning(further["outcome"]) if "outcome" in further else None,
        )
        for name in [names] if "," in names else names.split():
            yield name, case


ROWS: Final = dict(_rows())
CASES: Final[Mapping[Verdict | Trouble, Case]] = {
    Verdict(name) if name in set(Verdict) else Trouble(name): case for name, case in ROWS.items() if "," not in name
}
DOUBTS: Final[Mapping[type[Recovery], Case]] = {
    Hold: CASES[Verdict.IN_DOUBT],
    Resend: ROWS["in-doubt, resend"],
    Probe: ROWS["in-doubt, probe"],
}
"""`in-doubt` by what the route's recovery does for a repeat."""
BY_STATUS: Final[Mapping[tuple[Verdict | Trouble, int], Case]] = {
    (Verdict.REQUEST_INVALID, 408): ROWS["request-invalid, 408"],
    (Verdict.IN_DOUBT, 503): ROWS["in-doubt, 503"],
}
"""What a code says with another status than its own."""
CaseName = Literal["incomparable", "other-version", "unfetched", "unread", "slow", "unsent", "untaken", "before"]
"""A case of a code that says something else: the gateway lacks the fingerprint key or the settings that the record was
made with; the response is still kept; for a repeat of what completed; for what is no request, or is not protected; a
part of such a one may have been forwarded; it was not sent; it was not taken; nothing could be sent yet."""

# The verdicts that name what was made. The sender of another request under the key does not get it.
_NAMING: Final = frozenset((
    Verdict.RESPONSE_NOT_STORED, Verdict.KEY_EXPIRED, Verdict.IN_FLIGHT, Verdict.IN_DOUBT, Verdict.UPSTREAM_UNREACHABLE,
))  # fmt: skip

# Verdicts that make no problem: they accompany a response of the service, or the status of an accepted operation.
ANSWERED: Final = frozenset((
    Verdict.UNKEYED, Verdict.UNPROTECTED, Verdict.EVENT_DUPLICATE, Verdict.REPLAYED, Verdict.RECOVERED, Verdict.FETCHED,
    Verdict.STORED, Verdict.JOURNALED, Verdict.ACCEPTED,
))  # fmt: skip

# With these, what had no effect may be another thing a moment later.
_PASSING: Final = RETRYABLE_4XX | frozenset(range(500, 600))


def _retry_headers(retry: Retry, after_seconds: int | None = None) -> Headers:
    """As headers of a response; `after_seconds` is what is known better."""
    if isinstance(retry, int):
        after = (b"Retry-After", b"%d" % (after_seconds or retry))
        return (after, *((name, b"true") for name in _SHOULD_RETRY))
    return tuple((name, b"false") for name in _SHOULD_RETRY) if retry == "never" else ()


def advised(reply: Reply, recovery: Recovery) -> Reply:
    """A response of the service to a request that did not complete, with the advice that its verdict has.

    What the service says itself stands. `recovery` is what a repeat does about a doubt. Where it does nothing, that is
    left to the client: a library that repeats the request gets the problem, which says why, and tells its user.
    """
    if reply.verdict is Verdict.IN_DOUBT:
        retry = DOUBTS[type(recovery)].retry
    else:
        retry = CASES[Verdict.RELEASED].retry if reply.status in _PASSING else "never"
    said = {name.lower() for name, _ in reply.headers}
    if retry == "never" or not said.isdisjoint(name.lower() for name in _SHOULD_RETRY):
        return reply
    added = tuple(header for header in _retry_headers(retry) if header[0].lower() not in said)
    return replace(reply, headers=(*reply.headers, *added))


def refuse(
    code: Verdict | Trouble,
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
    case: CaseName | None = None,
    differs: Sequence[str] = (),
    first_operation: UUID | None = None,
    headers: Headers = (),
) -> Reply:
    """The problem of this code; raises ValueError for a verdict that makes none. No other function makes one.

    `status` None takes the table's. `record` gives the detail its time and status, and the reply what was made: its
    member `resource`, and `Location` where that is an address. `detail` (a fault of the request) goes before the
    table's. `authenticate` is a `WWW-Authenticate` value and makes it a 401. `location` is where the caller finds out
    more, in place of the resource. `case` None takes the code's. `differs` is in what the request differs from the
    recorded one, `first_operation` the one that it repeats. `headers` are further ones.

    `in-doubt` with 409 is about the record, with 502 or 504 about this request's own attempt, and with 503 about an
    outcome that could not be recorded. `recovery` is what a repeat does about the doubt, None for nothing.
    `retry_after_seconds` counts only where a repeat may help.
    """
    verdict = code if isinstance(code, Verdict) else None
    row = _case_of(code, status, recovery) if case is None else ROWS[f"{code}, {case}"]
    if status is None:
        status = row.status if authenticate is None else 401
    if shape.form == "stripe" and status == row.status and row.stripe_status is not None:
        status = row.stripe_status
    if operation_id is None and record is not None:
        operation_id = record.identity.operation_id
    resource = record.resource if record is not None and code in _NAMING else None
    text = _detail(row, record, operation_id, resource, first_operation)
    if detail is not None:
        text = f"{detail} {text}".rstrip()
    # The last ones are for a gateway in front of this one.
    outcome = (outcome_header(row.outcome),) if row.outcome else (OUTCOME_HEADERS[verdict],) if verdict else ()
    headers = (*_COMMON, _DESCRIBED_BY, *_retry_headers(row.retry, retry_after_seconds), *headers, *outcome)
    if authenticate is not None:
        headers = (*headers, (b"WWW-Authenticate", authenticate))
    if location is not None:
        headers = (*headers, (b"Location", location))
    elif resource is not None and is_address(resource):
        headers = (*headers, (b"Location", resource.encode()))
    if status == 204:
        return Reply(status, reason_phrase(status), headers, b"", verdict)
    known = {
        "operation_id": operation_id and str(operation_id),
        "resource": resource,
        "differs": list(differs),
        "first_operation": first_operation and str(first_operation),
    }
    about = {name: value for name, value in known.items() if value}
    media_type, body = _body(code, row, shape, status, text, about)
    return Reply(
        status,
        reason_phrase(status),
        ((b"Content-Type", media_type), *headers),
        body,
        verdict,
        differs=tuple(differs),
        first_operation=first_operation,
    )


def _case_of(code: Verdict | Trouble, status: int | None, recovery: Recovery | None) -> Case:
    if status is not None and (case := BY_STATUS.get((code, status))) is not None:
        return case
    if code is Verdict.IN_DOUBT and recovery is not None:
        return DOUBTS[type(recovery)]
    case = CASES.get(code)
    if case is None:
        raise ValueError(f"{code} makes no problem")
    return case


def _body(code: str, case: Case, shape: Shape, status: int, text: str, about: Mapping[str, Any]) -> tuple[bytes, bytes]:
    retryable = isinstance(case.retry, int)
    error = {"type": case.stripe_type, "code": case.stripe_code or code, "message": text}
    if shape.form == "stripe":
        return b"application/json", orjson.dumps({"error": {**error, "retryable": retryable, **about}})
    members = {**about, "error": error}
    return PROBLEM_TYPE, problem_body(shape.type_base, code, case.title, status, text, retryable, members)


def problem_body(
    type_base: str, code: str, title: str, status: int, detail: str, retryable: bool, members: Mapping[str, Any]
) -> bytes:
    """A problem document, of whatever part of the gateway (RFC 9457)."""
    known = {"type": type_base + code, "title": title, "status": status, "detail": detail, "code": code}
    return orjson.dumps({**known, "retryable": retryable, **members})


def _detail(
    case: Case, record: Record | None, operation_id: UUID | None, resource: str | None, first_operation: UUID | None
) -> str:
    """The detail with its values filled in, without the parts whose values are unknown."""
    text, at_us, response = case.detail, None, None
    if record is not None:
        response = record.response
        is_of_end = case in (CASES[Verdict.KEY_EXPIRED], ROWS["key-expired, other-version"])
        at_us = record.completed_us if is_of_end else record.first_claimed_us
    if resource is None:
        text = text.replace(" See {resource}.", "")
    if response is None:
        text = text.replace(" ({status})", "").replace(" was answered with {status};", " was answered;")
    if at_us is None:
        text = text.replace(" at {time}", "")
    if operation_id is None:
        text = text.replace(" about operation {id}", "")
    if first_operation is None:
        text = text.replace("; that one is operation {first}", "")
    return text.format(
        resource=resource,
        status=response.status if response is not None else "",
        time=moment(at_us) if at_us is not None else "",
        id=operation_id,
        first=first_operation,
    )


# -- decoding ----------------------------------------------------------------------------------------------------------
#
# Decodes a body: a stored one for a retry that does not accept its coding, or one that is read for what it says.
#
# A small body can take tens of milliseconds to decode. So `is_unaccepted`, which is cheap, is separate from the
# decoding, which must not run on the event loop.
#
# Owns which codings are known and how far a body may grow. It never fails: a body that cannot be decoded completely and
# within the limit goes out as it is stored, because a client can recognise a wrong coding, but not half a body.
# Invariant: the headers that come out describe the bytes that come out.

# The longest decoded body. By default up to 1 MiB is stored; a decompression bomb grows a thousandfold.
DECODED_BYTES_MAX: Final = 16 * 1024 * 1024
# A document that is parsed faster than a thread starts.
_INLINE_BYTES_MAX: Final = 16 * 1024
# More codings than are ever stacked; each could grow the body to the limit.
_CODINGS_MAX: Final = 4

# Headers that describe the coded bytes (RFC 9530 sections 2 and 3; RFC 3230; RFC 1864).
_OF_CODED_BYTES: Final = frozenset(
    (b"content-encoding", b"content-length", b"content-digest", b"repr-digest", b"digest", b"content-md5")
)
# Each member costs a copy of all that follows it.
_GZIP_MEMBERS_MAX: Final = 64
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
# Window sizes above it need not be supported (RFC 8878 section 3.1.1.1.2).
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
# A zstd block of four bytes can decode to 128 KiB, so one slice exceeds the limit by 8 MiB at most.
_ZSTD_SLICE_BYTES: Final = 256


class _Undecodable(Exception):
    """The body is not whole in this coding, or grows too long."""


def decode_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[Headers, bytes]:
    """The headers and the body, decoded as far as a request with these `Accept-Encoding` values needs.

    Undoes the outermost codings first, until the rest are accepted. Returns both unchanged where nothing needs to or
    can be undone: an unknown coding, a part of a representation, `no-transform`, a request that refuses `identity` too.
    """
    kept, unaccepted = _split_codings(headers, body, accept_encoding)
    if not unaccepted:
        return headers, body
    decoded = _undone(unaccepted, body)
    return (headers, body) if decoded is None else (_describe(headers, kept), decoded)


def document_in(headers: Headers, body: bytes, *, takes_text: bool = False) -> Any:
    """The JSON document in the body of a response; `MISSING` where it cannot be read: it has an unknown coding, or is
    not complete. Takes time like the above.

    With `takes_text`, what is not JSON is one text.
    """
    codings = _codings(headers)
    if len(codings) > _CODINGS_MAX or (codings and header_values(headers, b"content-range")):
        return MISSING
    plain = _undone(codings, body)
    document = MISSING if plain is None else parse_json(plain)
    return plain.decode("latin-1") if takes_text and plain is not None and document is MISSING else document


async def read_document(headers: Headers, body: bytes, *, takes_text: bool = False) -> Any:
    """As `document_in`, without blocking the event loop: of a long or coded body, in a thread."""
    read = partial(document_in, headers, body, takes_text=takes_text)
    if len(body) <= _INLINE_BYTES_MAX and not header_values(headers, b"content-encoding"):
        return read()
    return await asyncio.to_thread(read)


def is_unaccepted(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> bool:
    """Whether `decode_unaccepted` has anything to decode, by the headers alone."""
    return bool(header_values(headers, b"content-encoding")) and bool(_split_codings(headers, body, accept_encoding)[1])


def _codings(headers: Headers) -> list[bytes]:
    """In the order in which they were applied."""
    return [coding for coding in list_members(header_values(headers, b"content-encoding")) if coding != b"identity"]


def _split_codings(headers: Headers, body: bytes, accept_encoding: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The codings that stay and those to be undone, each in the order in which they were applied."""
    codings = _codings(headers)
    if not codings or not body:
        return codings, []
    allowed = accepted_codings(accept_encoding)
    kept = len(codings)
    while not all(accepts(coding, allowed) for coding in codings[:kept]):
        kept -= 1
    # No coding at all is acceptable unless it is refused by name or by `*` (RFC 9110 section 12.5.3).
    is_identity_accepted = allowed is None or allowed.get(b"identity", allowed.get(b"*", True))
    may_undo = len(codings) <= _CODINGS_MAX and _may_transform(headers) and (kept > 0 or is_identity_accepted)
    return (codings[:kept], codings[kept:]) if may_undo else (codings, [])


def _may_transform(headers: Headers) -> bool:
    """RFC 9111 section 5.2.2.6; and a byte range of a coded representation cannot be decoded alone."""
    if header_values(headers, b"content-range"):
        return False
    return b"no-transform" not in list_members(header_values(headers, b"cache-control"))


def _describe(headers: Headers, codings: list[bytes]) -> Headers:
    """The headers of the decoded representation. It differs from the recorded one, so its `ETag` becomes weak."""
    described: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        match name.lower():
            case b"content-encoding":
                if codings:
                    described.append((name, b", ".join(codings)))
                    codings = []
            case lower if lower in _OF_CODED_BYTES:
                continue
            case b"etag":
                described.append((name, value if value.startswith(b"W/") else b"W/" + value))
            case _:
                described.append((name, value))
    return tuple(described)


def _undone(codings: list[bytes], body: bytes) -> bytes | None:
    """The body without these codings; None where one is unknown, or the body is not whole in it or grows too long."""
    try:
        for coding in reversed(codings):
            if (decode := _DECODERS.get(coding)) is None:
                return None
            body = decode(body)
    except _Undecodable:
        return None
    return body


def _gunzip(data: bytes) -> bytes:
    """All members of a gzip file, one after the other (RFC 1952 section 2.2)."""
    decoded = b""
    for _ in range(_GZIP_MEMBERS_MAX):
        member, data = _zlib(data, _GZIP_WINDOW, DECODED_BYTES_MAX - len(decoded))
        decoded += member
        if not data:
            return decoded
    raise _Undecodable


def _inflate(data: bytes) -> bytes:
    """A zlib stream, or the raw deflate data that some servers send under this name (RFC 9110 section 8.4.1.2)."""
    for window in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        try:
            decoded, rest = _zlib(data, window, DECODED_BYTES_MAX)
        except _Undecodable:
            continue
        if not rest:
            return decoded
    raise _Undecodable


def _zlib(data: bytes, window: int, bytes_max: int) -> tuple[bytes, bytes]:
    """One whole stream, and the bytes behind it."""
    decompressor = zlib.decompressobj(window)
    try:
        # One byte more than allowed, since a limit of 0 would be none.
        decoded = decompressor.decompress(data, bytes_max + 1)
    except zlib.error:
        raise _Undecodable from None
    if len(decoded) > bytes_max or not decompressor.eof:
        raise _Undecodable
    return decoded, decompressor.unused_data


def _unbrotli(data: bytes) -> bytes:
    decompressor = brotli.Decompressor()
    parts: list[bytes] = []
    length = 0
    try:
        while not decompressor.is_finished():
            part = decompressor.process(data, output_buffer_limit=DECODED_BYTES_MAX + 1)
            data = b""
            parts.append(part)
            length += len(part)
            if length > DECODED_BYTES_MAX or (not part and not decompressor.is_finished()):
                raise _Undecodable
    except brotli.error:
        raise _Undecodable from None
    return b"".join(parts)


def _unzstd(data: bytes) -> bytes:
    """All frames, one after the other (RFC 8878 section 3)."""
    parts: list[bytes] = []
    length = 0
    frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    decompressor = frames.decompressobj()
    try:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = data[start : start + _ZSTD_SLICE_BYTES]
            while rest:
                if decompressor.eof:
                    decompressor = frames.decompressobj()
                parts.append(decompressor.decompress(rest))
                rest = decompressor.unused_data if decompressor.eof else b""
                length += len(parts[-1])
                if length > DECODED_BYTES_MAX:
                    raise _Undecodable
    except zstandard.ZstdError:
        raise _Undecodable from None
    if not decompressor.eof:
        raise _Undecodable
    return b"".join(parts)


_DECODERS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"gzip": _gunzip, b"x-gzip": _gunzip, b"deflate": _inflate, b"br": _unbrotli, b"zstd": _unzstd,
}  # fmt: skip
