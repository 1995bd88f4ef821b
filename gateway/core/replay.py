"""What of a response is stored and replayed: the tables of headers.

End-to-end headers are stored byte for byte, in order, with their repeats. Headers of one moment or one connection are
not; nor, unless the route says so, are those that could give one caller's session to another holder of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.core.message import (
    HOP_BY_HOP,
    Headers,
    NameTable,
    ResponseHead,
    StoredResponse,
    Values,
    connection_options,
)
from gateway.core.reading import BODY_BYTES_MAX, Reference, VersionHeader
from gateway.core.redaction import Redaction

# Sent by the gateway, or meant for it: from an upstream they never reach a client.
GATEWAY_HEADERS: Final = frozenset(
    (
        b"idempotency-status",
        b"idempotency-expires",
        b"idempotent-replayed",
        b"idempotency-outcome",
        b"idempotency-retention",
        b"idempotency-redacted",
    )
)

# True of one moment only. `RateLimit` is draft-ietf-httpapi-ratelimit-headers, the others its older spellings.
MOMENTARY: Final = frozenset((b"date", b"age", b"ratelimit", b"ratelimit-policy"))
MOMENTARY_PREFIXES: Final = (b"ratelimit-", b"x-ratelimit-", b"x-rate-limit-")

# By which SDKs decide whether to retry. A retry gets the stored response, so only "false" stays true.
_RETRY_ADVICE: Final = frozenset((b"x-should-retry", b"stripe-should-retry"))

# Final statuses without a body (RFC 9112 section 6.3).
BODILESS: Final = frozenset((204, 304))

# Replayed only where a route keeps them.
PERSONAL: Final = frozenset((b"set-cookie", b"www-authenticate"))

_Kind = Literal["kept", "dropped", "connection", "length", "advice"]
"""What happens to a header of a response; `Content-Length` depends on the response, and advice on its value."""

_ZERO_WEIGHT: Final = re.compile(rb"0(\.0{0,3})?")
# Codings of a request that are read, and parameters of each. A dozen codings exist, with one parameter; more would only
# slow down every replay.
_MEMBERS_MAX: Final = 64
_PARAMETERS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a route stores of responses: the largest body (0: none), headers to strip, personal headers to keep, values
    to replace.

    Header names are in lower case. `reference` is where a response names what it made, None where that is not kept;
    `version` is which version of the API it is in, and with `is_version_strict` no response is replayed to a request
    that expects another one. `reads_bodies`: bodies are read for what they say, stored or not. `is_fetched`: repeats
    are fetched from the service, at `fetch_path` if there is one (`reading.fetch_target`), and of a response nothing is
    stored but its status and what it made.
    """

    body_bytes_max: int = 1024 * 1024
    strip: frozenset[bytes] = frozenset()
    keep: frozenset[bytes] = frozenset()
    redaction: Redaction | None = None
    reference: Reference | None = "location"
    version: bytes | VersionHeader | None = None
    is_version_strict: bool = False
    reads_bodies: bool = False
    is_fetched: bool = False
    fetch_path: str | None = None
    taken_bytes_max: int = field(init=False, repr=False, compare=False)
    """The longest body that is received whole before its response is recorded."""
    _kinds: NameTable[_Kind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        taken_bytes_max = max(self.body_bytes_max, BODY_BYTES_MAX) if self.reads_bodies else self.body_bytes_max
        object.__setattr__(self, "taken_bytes_max", taken_bytes_max)
        dropped = HOP_BY_HOP | GATEWAY_HEADERS | MOMENTARY | self.strip | (PERSONAL - self.keep)

        def kind(spelling: bytes) -> _Kind:
            name = spelling.lower()
            if name == b"connection":
                return "connection"
            if name in dropped or name.startswith(MOMENTARY_PREFIXES):
                return "dropped"
            return "length" if name == b"content-length" else "advice" if name in _RETRY_ADVICE else "kept"

        object.__setattr__(self, "_kinds", NameTable(kind))

    def keeps_body(self, by_name: Values, body_bytes: int) -> bool:
        """Whether a body of this length is stored; never that of an event stream."""
        return 0 < self.body_bytes_max >= body_bytes and not is_event_stream(by_name)

    def kept_headers(self, method: bytes, head: ResponseHead, *, is_recorded: bool = False) -> Headers:
        """The headers that a repeat gets. `Content-Length` stays only where it is about a body that is not sent (HEAD,
        304); `is_recorded`: for a later repeat, so advice to repeat is left out."""
        keeps_length = method == b"HEAD" or head.status == 304
        kinds, kept, options = self._kinds, [], False
        for header in head.headers:
            kind = kinds[header[0]]
            if kind == "kept" or (kind == "length" and keeps_length):
                kept.append(header)
            elif kind == "advice":
                if not is_recorded or header[1].strip(b" \t").lower() == b"false":
                    kept.append(header)
            elif kind == "connection":
                options = True
        if options:
            named = connection_options(head.headers)
            return tuple([header for header in kept if header[0].lower() not in named])
        return tuple(kept)


def has_no_body(method: bytes, status: int) -> bool:
    """Whether the response has no body (RFC 9112 section 6.3), whatever its headers say."""
    return method == b"HEAD" or status in BODILESS or 100 <= status < 200


def stored_response(
    method: bytes, head: ResponseHead, body: bytes | None, policy: KeepPolicy, version: bytes = b""
) -> StoredResponse:
    """The response as it is stored; `body` is None when it is stored without it. `version`: as in `StoredResponse`.

    Where values are replaced, that takes up to some 20 ms for a body of 1 MiB. A body in which that cannot be done is
    not stored.
    """
    if policy.is_fetched:
        return StoredResponse(head.status, b"", (), None, version)
    headers = policy.kept_headers(method, head, is_recorded=True)
    if policy.redaction is not None:
        headers, body = policy.redaction.redacted(headers, body)
    return StoredResponse(head.status, head.reason, headers, body, version)


def is_event_stream(by_name: Values) -> bool:
    """Whether the response is an event stream (text/event-stream), which need not end."""
    for value in by_name.get(b"content-type", ()):
        if value.partition(b";")[0].strip(b" \t").lower() == b"text/event-stream":
            return True
    return False


def accepted_codings(accept_encoding: Iterable[bytes]) -> dict[bytes, bool] | None:
    """What `Accept-Encoding` allows and refuses, by lower-case coding; None without the header: all are allowed.

    Codings after the first `_MEMBERS_MAX` are ignored.
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
