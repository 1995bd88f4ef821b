"""What of a response is kept, and what of it is given again: the tables of header fields.

Kept are the end-to-end fields, in order, with their repeats and their bytes. What belongs to one moment or one
connection is not, nor what could hand one caller's session to whoever holds the key, unless the route says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.core.message import HOP_BY_HOP, Headers, ResponseHead, StoredResponse, connection_options, header_values

# Said by the gateway alone, or said to it alone: an upstream's spelling of them never reaches a client.
GATEWAY_HEADERS: Final = frozenset(
    (
        b"idempotency-status",
        b"idempotency-expires",
        b"idempotent-replayed",
        b"idempotency-outcome",
        b"idempotency-retention",
    )
)

# True of one moment only. `RateLimit` is draft-ietf-httpapi-ratelimit-headers, the others its older spellings.
MOMENTARY: Final = frozenset((b"date", b"age", b"ratelimit", b"ratelimit-policy"))
MOMENTARY_PREFIXES: Final = (b"ratelimit-", b"x-ratelimit-", b"x-rate-limit-")

# Tells SDKs whether to try again. The answer to any further try is the stored one, so that only a no is true of it.
_RETRY_ADVICE: Final = frozenset((b"x-should-retry", b"stripe-should-retry"))

# Given again only where a route keeps them.
PERSONAL: Final = frozenset((b"set-cookie", b"www-authenticate"))

_ZERO_WEIGHT: Final = re.compile(rb"0(\.0{0,3})?")
# How many codings a request may name, and parameters of one. There are a dozen codings, and one parameter: more make
# every replay take long.
_MEMBERS_MAX: Final = 64
_PARAMETERS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a route says of storing: the largest body (0: none at all), fields to leave out, personal ones to keep.

    Names of fields are in lower case.
    """

    body_bytes_max: int = 1024 * 1024
    strip: frozenset[bytes] = frozenset()
    keep: frozenset[bytes] = frozenset()
    dropped: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """All names that are not kept, whatever the response, but for `Content-Length`."""

    def __post_init__(self) -> None:
        dropped = HOP_BY_HOP | GATEWAY_HEADERS | MOMENTARY | self.strip | (PERSONAL - self.keep)
        object.__setattr__(self, "dropped", dropped)

    def keeps_body(self, headers: Headers, body_bytes: int) -> bool:
        """Whether a body of this length, with these fields, is stored; never that of an event stream."""
        return 0 < self.body_bytes_max >= body_bytes and not is_event_stream(headers)


def has_no_body(method: bytes, status: int) -> bool:
    """Whether the response has no body by RFC 9112 section 6.3, whatever its fields say of one."""
    return method == b"HEAD" or status in (204, 304) or 100 <= status < 200


def kept_headers(method: bytes, head: ResponseHead, policy: KeepPolicy) -> Headers:
    """The fields to store. `Content-Length` stays only where it speaks of a body that is not sent (HEAD, 304)."""
    dropped = policy.dropped
    if options := connection_options(head.headers):
        dropped |= options
    keeps_length = method == b"HEAD" or head.status == 304
    return tuple(
        [
            field
            for field in head.headers
            if (name := field[0].lower()) not in dropped
            and not name.startswith(MOMENTARY_PREFIXES)
            and (name != b"content-length" or keeps_length)
        ]
    )


def stored_response(method: bytes, head: ResponseHead, body: bytes | None, policy: KeepPolicy) -> StoredResponse:
    """The response as it is kept; `body` is None when it is remembered without it."""
    fields = tuple([field for field in kept_headers(method, head, policy) if not _asks_for_a_retry(*field)])
    return StoredResponse(head.status, head.reason, fields, body)


def _asks_for_a_retry(name: bytes, value: bytes) -> bool:
    return name.lower() in _RETRY_ADVICE and value.strip(b" \t").lower() != b"false"


def is_event_stream(headers: Headers) -> bool:
    """Whether the response is one that need not end (text/event-stream)."""
    values = header_values(headers, b"content-type")
    return any(value.split(b";", 1)[0].strip(b" \t").lower() == b"text/event-stream" for value in values)


def accepted_codings(accept_encoding: Iterable[bytes]) -> dict[bytes, bool] | None:
    """What `Accept-Encoding` allows and refuses, by lower-case coding; None when the field is absent: anything goes.

    Codings after the first `_MEMBERS_MAX` are taken for not named.
    """
    values = list(accept_encoding)
    if not values:
        return None
    allowed: dict[bytes, bool] = {}
    for member in b",".join(values).split(b",", _MEMBERS_MAX)[:_MEMBERS_MAX]:
        coding, _, parameters = member.partition(b";")
        name = coding.strip(b" \t").lower()
        if name:
            allowed[name] = not _is_zero_weight(parameters)
    return allowed


def _is_zero_weight(parameters: bytes) -> bool:
    for parameter in parameters.split(b";", _PARAMETERS_MAX)[:_PARAMETERS_MAX]:
        name, _, value = parameter.partition(b"=")
        if name.strip(b" \t").lower() == b"q":
            return _ZERO_WEIGHT.fullmatch(value.strip(b" \t")) is not None
    return False


def accepts(coding: bytes, allowed: dict[bytes, bool] | None) -> bool:
    """Whether a stored coding may be sent as it is (RFC 9110 section 12.5.3)."""
    if allowed is None:
        return True
    if coding == b"x-gzip":
        coding = b"gzip"
    return allowed.get(coding, allowed.get(b"*", False))
