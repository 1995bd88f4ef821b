"""What becomes of an attempt: what is read of its response, what of that is kept and replayed, and which event it is.

Pure: values in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, assert_never

from gateway.core import immutable
from gateway.core.identity.body import CANONICAL_BYTES_MAX, MISSING, Pointer, digest, number_lexeme, parse_json, resolve
from gateway.core.message import (
    HOP_BY_HOP,
    Headers,
    NameTable,
    ResponseHead,
    StoredResponse,
    Values,
    connection_options,
    header_values,
)
from gateway.core.operation import Abandon, Event, Postpone, Record, Release, microseconds
from gateway.core.verdict import Verdict

# -- reading -----------------------------------------------------------------------------------------------------------
#
# What is read of a response: rules by its JSON body, the resource that it names, and the version that it is in.
#
# A resource is short printable text, whatever a service sends, and a target made of one stays within its path segment
# and on its host. A response that cannot be read says nothing.

BODY_BYTES_MAX: Final = CANONICAL_BYTES_MAX
"""The longest body that is read. Of a longer one, nothing is known but its head."""
RESOURCE_BYTES_MAX: Final = 1024
"""The longest resource, in UTF-8. A longer one is not kept, because a part of it would name something else."""
TARGET_BYTES_MAX: Final = 8 * 1024
REFERENCE: Final = "{reference}"
"""The placeholder of a fetched path."""

_VERSION_BYTES: Final = 16
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# RFC 3986 section 2.1: every octet escaped unless it is unreserved.
_ESCAPED: Final = [bytes((octet,)) if octet in _UNRESERVED else b"%%%02X" % octet for octet in range(256)]
_FORBIDDEN: Final = re.compile(rb"[\x00-\x20\x7f#]")
_ESCAPED_DOT: Final = re.compile(rb"%2[eE]")
# What a service may take for the end of a segment, and of its name: as in rule 2 for targets of clients.
_SLASH: Final = re.compile(rb"[/\\]|%2[fF]|%5[cC]")
_PARAMETERS: Final = re.compile(rb"(?:;|%3[bB]).*", re.DOTALL)
# What may be sent as a `Location`: a path, or a URL with an authority. RFC 3986 leaves these characters out.
_ADDRESS: Final = re.compile(r"(?:https?://(?=[^/?#])|/)[!#-;=?-\[\]_a-z~]*\Z", re.IGNORECASE)
_URL: Final = re.compile(r"(?:(https?):)?//([^/?#]*)([^#]*)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """Matches responses by status and by values in the JSON body, as they are written there."""

    statuses: frozenset[int]
    where: tuple[tuple[Pointer, frozenset[str]], ...] = ()

    def fits(self, status: int, document: Any) -> bool:
        """Whether the response matches. `document` is its body by `parse_json`, `MISSING` where that cannot be read."""
        if status not in self.statuses:
            return False
        return all(_text(resolve(document, at)) in wanted for at, wanted in self.where)

    def covers(self, other: ResponseRule) -> bool:
        """Whether every response that matches `other` matches this rule."""
        wanted = dict(other.where)
        return self.statuses >= other.statuses and all(
            at in wanted and values >= wanted[at] for at, values in self.where
        )


Reference = Literal["location"] | Pointer
"""Where a response names what it made: in its `Location`, or in its JSON body."""


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """The header of a request that says in which version of the API its response is to be. `name` is in lower case."""

    name: bytes


def resource_in(reference: Reference | None, by_name: Values, document: Any = MISSING) -> str | None:
    """The resource that a response names; None where it names none, several, or one that cannot be kept."""
    if reference is None:
        return None
    if reference == "location":
        values = by_name.get(b"location", ())
        if len(values) != 1:
            return None
        try:
            found: object = values[0].decode("utf-8")
        except UnicodeDecodeError:
            return None
    else:
        found = resolve(document, reference)
    if not isinstance(found, str):
        return None
    text = number_lexeme(found) or found
    if not text or not text.isprintable() or len(text) > RESOURCE_BYTES_MAX:
        return None
    return text if len(text.encode()) <= RESOURCE_BYTES_MAX else None


def is_address(resource: str) -> bool:
    """Whether a resource is a URL or a path, which can be sent as a `Location`."""
    return _ADDRESS.match(resource) is not None


def fetch_target(template: str | None, resource: str, hosts: tuple[bytes, ...]) -> bytes | None:
    """The target of a request for the resource, at the service; None where it is elsewhere or cannot be written.

    `template` is a path with `{reference}`; None where the resource is its own address. `hosts` are the authorities by
    which callers and the gateway know the service: a URL of another one is foreign.
    """
    if template is not None:
        target = template.encode().replace(REFERENCE.encode(), escaped(resource.encode()))
    elif (address := _at(resource, hosts)) is not None:
        target = address
    else:
        return None
    return target if is_target(target) else None


def _at(resource: str, hosts: tuple[bytes, ...]) -> bytes | None:
    """Path and query of an address at one of these hosts, without the fragment."""
    if not is_address(resource):
        return None
    url = _URL.match(resource)
    if url is None:
        return resource.partition("#")[0].encode()
    scheme, authority, target = url[1], url[2], url[3]
    known = {_normal(host.decode("latin-1"), scheme) for host in hosts}
    if not authority or _normal(authority, scheme) not in known:
        return None
    return (target if target.startswith("/") else f"/{target}").encode()


def _normal(authority: str, scheme: str | None) -> str:
    """An authority in lower case, without the default port of the scheme."""
    port = _DEFAULT_PORTS.get((scheme or "").lower(), "")
    return authority.lower().removesuffix(port) if port else authority.lower()


def escaped(value: bytes) -> bytes:
    """The value as it stands within a path segment or a query value: it cannot end either."""
    return b"".join([_ESCAPED[octet] for octet in value])


def is_target(target: bytes) -> bool:
    """Whether it can be sent as the target of a request, and read in one way: a path on the host that is asked.

    A service that decodes a path before it resolves it, or decodes it twice, gets to no other path either.
    """
    if not target.startswith(b"/") or target.startswith(b"//") or len(target) > TARGET_BYTES_MAX:
        return False
    path = _ESCAPED_DOT.sub(b".", target.split(b"?", 1)[0].replace(b"%25", b"%"))
    has_dots = any(_PARAMETERS.sub(b"", segment) in (b".", b"..") for segment in _SLASH.split(path))
    return not (has_dots or _FORBIDDEN.search(target))


def version_of(version: bytes | VersionHeader | None, headers: Headers) -> bytes:
    """A digest of the version in which a request has its response; empty where none is known.

    `version` is the route's: the version itself, or the header of the request that names it.
    """
    if version is None:
        return b""
    values = header_values(headers, version.name) if isinstance(version, VersionHeader) else [version]
    return digest(b"version", *values)[:_VERSION_BYTES] if values else b""


def _text(value: object) -> str | None:
    """A scalar as it is written in JSON, strings without their quotes."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            lexeme = number_lexeme(value)
            return value if lexeme is None else lexeme
        case _:
            return None


# -- redaction ---------------------------------------------------------------------------------------------------------
#
# Replaces values of a response before it is kept: what was named is nowhere but in the response to the first request.
#
# A body is redacted as text: each value is cut out and `REDACTED` put in, so that it stays valid JSON, and equal to
# what was received byte for byte elsewhere. It is parsed strictly first. A body that parsers could read in two ways may
# have a value where this one does not look, so that it is not redacted at all, and not kept.

REDACTED: Final = "[redacted]"
"""What stands in the place of a value: in a body as a JSON string."""
REDACTED_HEADER: Final = (b"Idempotency-Redacted", b"true")
"""Kept with a response of which a value was replaced, and replayed with it."""

# Digests of the body: they would show whether a guess of a value is right (RFC 9530; RFC 9110 section 8.8.3).
_OF_BODY: Final = frozenset((b"content-digest", b"repr-digest", b"digest", b"content-md5", b"etag"))
_REPLACEMENT: Final = json.dumps(REDACTED)

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers are passed over and never converted: an int of a million digits would take minutes.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str)


class _Wanted(dict[str, "_Wanted"]):
    """The values to replace below a value, by the next token of their pointers. `is_whole`: this value itself."""

    is_whole = False


@dataclass(frozen=True, slots=True)
class Redaction:
    """What is replaced in the responses of a route: values of JSON bodies, and headers by their name in lower case."""

    pointers: tuple[Pointer, ...] = ()
    headers: frozenset[bytes] = frozenset()
    _wanted: _Wanted = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted = _Wanted()
        for pointer in self.pointers:
            place = wanted
            for token in pointer:
                place = place.setdefault(token, _Wanted())
            place.is_whole = True
        object.__setattr__(self, "_wanted", wanted)

    @classmethod
    def of_all(cls, several: Iterable[Redaction | None]) -> Redaction | None:
        """What any of them replaces; None where none replaces anything."""
        found = [each for each in several if each is not None]
        pointers = {pointer: None for each in found for pointer in each.pointers}
        return cls(tuple(pointers), frozenset().union(*(each.headers for each in found))) if found else None

    def redacted(self, headers: Headers, body: bytes | None) -> tuple[Headers, bytes | None]:
        """Headers and body as they may be kept; the body is None where it may not be kept, or is not to be."""
        kept = tuple(
            [(name, REDACTED.encode()) if name.lower() in self.headers else (name, value) for name, value in headers]
        )
        is_replaced = kept != headers
        if self.pointers and body != b"":
            found = None if body is None else self._redacted_body(headers, body)
            is_replaced |= found != body and found is not None
            if found is None or found != body:
                kept = tuple([header for header in kept if header[0].lower() not in _OF_BODY])
            body = found
        return ((*kept, REDACTED_HEADER) if is_replaced else kept), body

    def _redacted_body(self, headers: Headers, body: bytes) -> bytes | None:
        if any(coding.strip(b" \t").lower() != b"identity" for coding in header_values(headers, b"content-encoding")):
            return None
        if parse_json(body) is MISSING:
            return None
        text = body.decode("utf-8")
        spans: list[tuple[int, int]] = []
        _find(text, _skip(text, 0), self._wanted, spans)
        return "".join(_replaced(text, spans)).encode("utf-8")


def _replaced(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[str]:
    done = 0
    for start, end in spans:
        yield text[done:start]
        yield _REPLACEMENT
        done = end
    yield text[done:]


def _find(text: str, start: int, wanted: _Wanted, spans: list[tuple[int, int]]) -> int:
    """Add the spans of what is wanted of the valid JSON value that begins at `start`; returns where the value ends.

    Tokens as in `pointer`. Recurses as deep as the deepest pointer, within the depth of a document that was parsed.
    """
    opening = text[start]
    if wanted.is_whole or not wanted or opening not in "{[":
        _, end = _DECODER.raw_decode(text, start)
        if wanted.is_whole:
            spans.append((start, end))
        return end
    closing = "}" if opening == "{" else "]"
    place, index = _skip(text, start + 1), 0
    while text[place] != closing:
        if opening == "{":
            name, place = _DECODER.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        else:
            name = str(index)
            index += 1
        place = _skip(text, _find(text, place, wanted.get(name, _NOTHING), spans))
        if text[place] == ",":
            place = _skip(text, place + 1)
    return place + 1


_NOTHING: Final = _Wanted()


def _skip(text: str, place: int) -> int:
    """Where the white space from `place` on ends."""
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


# -- replay ------------------------------------------------------------------------------------------------------------
#
# What of a response is stored and replayed: the tables of headers.
#
# End-to-end headers are stored byte for byte, in order, with their repeats. Headers of one moment or one connection are
# not; nor, unless the route says so, are those that could give one caller's session to another holder of the key.

# Sent by the gateway, or meant for it: from an upstream they never reach a client.
GATEWAY_HEADERS: Final = frozenset((
    b"idempotency-status", b"idempotency-expires", b"idempotent-replayed", b"idempotency-outcome",
    b"idempotency-retention", b"idempotency-redacted",
))  # fmt: skip

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
    are fetched from the service, at `fetch_path` if there is one (`fetch_target`), and of a response nothing is
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
    """Whether it is a text/event-stream, which need not end."""
    return any(map(IS_EVENT_STREAM, by_name.get(b"content-type", ())))


IS_EVENT_STREAM: Final = NameTable(
    lambda value: value.partition(b";")[0].strip(b" \t").lower() == b"text/event-stream"
).__getitem__
"""Whether a `Content-Type` is that of an event stream."""


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


# -- outcomes ----------------------------------------------------------------------------------------------------------
#
# What is known of an attempt, and which event that is. The most dangerous decision of the program: pure and total.
#
# An attempt ends in one of three ways. *Answered*: a complete response came, and the route's policy defines what it
# means. *Not sent*: no byte of the request left, so nothing can have happened. *Unknown*: a byte may have left and
# no complete response came. Each has a `conclude_…`, which returns the event to apply and the verdict for the client.
# It takes into account the doubt that the claim carries and whether this was the first attempt.


class Meaning(StrEnum):
    FINAL = "final"  # whether it had an effect or not, this is the response
    RETRYABLE = "retryable"  # it had no effect
    IN_DOUBT = "in_doubt"  # it may have had its effect


class Preset(StrEnum):
    """What statuses mean unless the route says otherwise: see `_preset`, and docs/configure/outcomes.md."""

    STANDARD = "standard"
    PAYMENTS = "payments"
    SUCCESS_ONLY = "success_only"


# 408, 425: the request was not processed. 421: it was for another server. 423, 429: it must wait.
RETRYABLE_4XX: Final = frozenset((408, 421, 423, 425, 429))
# A request refused by authentication had no effect, and must not settle the key for its owner.
REFUSED_AT_THE_DOOR: Final = frozenset((401, 403))
CONFLICT: Final = 409
# A deduplicating upstream sends these while it still runs an earlier attempt of ours.
RESEND_IN_PROGRESS: Final = frozenset((409, 425))
_V = Verdict
_NOTHING_SENT: Final = (
    _V.REQUEST_INVALID, _V.OVERLOADED, _V.KEY_MISSING, _V.SCOPE_MISSING, _V.SCOPE_UNSUITABLE, _V.IDENTITY_UNAVAILABLE,
    _V.BODY_TOO_LARGE, _V.SIGNATURE_MISSING, _V.SIGNATURE_INVALID, _V.SIGNATURE_STALE, _V.EVENT_UNSUPPORTED,
    _V.KEY_INVALID, _V.ORDER_MISSING, _V.STORE_UNAVAILABLE, _V.STORE_AMNESIA, _V.BACKLOG_FULL,
    _V.UPSTREAM_UNREACHABLE, _V.WITHDRAWN,
    # Executed later, if the caller says that it means it.
    _V.LIKELY_DUPLICATE,
    # An earlier request has the key; that it is another one may be a mistake of the comparison, so it ends no doubt.
    _V.KEY_REUSED, _V.RELEASED,
)  # fmt: skip
_COMPLETED: Final = (
    _V.STORED, _V.JOURNALED, _V.REPLAYED, _V.RECOVERED, _V.RESPONSE_NOT_STORED, _V.KEY_EXPIRED,
    # And this is the response to another request: where that failed, a repeat may get more.
    _V.FETCHED,
)  # fmt: skip
SAID: Final[Mapping[Verdict, Meaning | None]] = {
    # Nothing was sent for this request. What became of earlier ones is not said: only the doubt about them counts.
    **dict.fromkeys(_NOTHING_SENT, Meaning.RETRYABLE),
    # It runs, it may have run, or it may run yet.
    **dict.fromkeys((_V.IN_FLIGHT, _V.IN_DOUBT, _V.DEAD_LETTER), Meaning.IN_DOUBT),
    # No repeat gets more.
    **dict.fromkeys(_COMPLETED, Meaning.FINAL),
    # Not executed under a key, or acknowledged like anything else: the status counts.
    **dict.fromkeys((_V.UNKEYED, _V.UNPROTECTED, _V.ACCEPTED, _V.EVENT_DUPLICATE)),
}
"""What a reply of a gateway says of the effect of its request, by its verdict: told to whoever sent it, and read where
the service behind this gateway is a gateway, too."""


def outcome_header(meaning: Meaning) -> tuple[bytes, bytes]:
    """The header by which a response declares what it means."""
    return b"Idempotency-Outcome", meaning.replace("_", "-").encode()


OUTCOME_HEADERS: Final[Mapping[Verdict, tuple[bytes, bytes]]] = {
    verdict: outcome_header(meaning) for verdict, meaning in SAID.items() if meaning is not None
}
"""How the gateway's own problems say it; a response of the service goes out with the verdict alone."""
# Headers by which a response says more than its status does.
_OUTCOME: Final = b"idempotency-outcome"
_STATUS: Final = b"idempotency-status"
_RETRY_AFTER: Final = b"retry-after"
RETENTION: Final = b"idempotency-retention"
_TELLING: Final = frozenset((_OUTCOME, _STATUS, _RETRY_AFTER))
_BY_WORD: Final = {verdict.encode(): meaning for verdict, meaning in SAID.items() if meaning is not None}
_DECLARED: Final = {meaning.replace("_", "-").encode(): meaning for meaning in Meaning}

# How services call it that another request with this key runs, in a code of its own or in a sentence about the key.
# Stripe's are `idempotency_key_in_use` and `lock_timeout`, PayPal's `previous_request_in_progress`.
_OUTSTANDING_CODES: Final = frozenset((
    "duplicate_request_in_progress", "idempotency_key_in_use", "lock_timeout", "previous_request_in_progress",
    "request_in_progress",
))  # fmt: skip
_RUNS: Final = re.compile(
    r"outstanding|in[ _-]?progress|in[ _-]?flight|concurrent|locked|being (?:process|execut|handl)ed|"
    r"(?:is|still|currently) (?:processing|running|executing|pending)"
)
_STRINGS_MAX: Final = 1000
_STRING_CHARACTERS_MAX: Final = 2000

# A year: more than any sensible retention, and far below any overflow.
RETENTION_SECONDS_MAX: Final = 366 * 24 * 3600


@immutable
class StatusPolicy:
    """What responses mean on a route: `when` by their JSON body, in order; single codes, classes (the first digit), and
    a preset for the rest.

    `resends` is true where recovery sends again: the upstream may then respond for an attempt that it still runs.
    """

    preset: Preset
    codes: Mapping[int, Meaning] = field(default_factory=dict)
    classes: Mapping[int, Meaning] = field(default_factory=dict)
    resends: bool = False
    when: tuple[tuple[ResponseRule, Meaning], ...] = ()
    by_status: Mapping[int, Meaning] = field(init=False, repr=False, compare=False)
    """What a status means by itself, where nothing but a header could change that."""

    def __post_init__(self) -> None:
        by_body = {CONFLICT, *[status for rule, _ in self.when for status in rule.statuses]}
        plain = {status: meaning_of(status, {}, self, carries_doubt=False) for status in range(200, 600)}
        object.__setattr__(self, "by_status", {status: plain[status] for status in plain.keys() - by_body})


@immutable
class Outcome:
    """The event to apply, and the client's verdict once it is applied."""

    event: Event
    verdict: Verdict


def meaning_of(
    status: int, by_name: Values, policy: StatusPolicy, *, carries_doubt: bool, document: Any = MISSING
) -> Meaning:
    """What a complete response means; the first rule that applies decides.

    First comes what the gateway knows of its own attempts, and no service does; then what another gateway says of
    them; then what the service says of this response, by header or by body; then what the route says of the status.
    `document` is the JSON body, or the text, `MISSING` where it could not be read.
    """
    if carries_doubt and status in REFUSED_AT_THE_DOOR:
        return Meaning.IN_DOUBT
    declared = _declared(by_name.get(_OUTCOME, ()))
    said = _said(status, by_name.get(_STATUS, ()))
    if said is not None:
        return said if declared in (None, said) else Meaning.IN_DOUBT
    if policy.resends and status in RESEND_IN_PROGRESS:
        return Meaning.IN_DOUBT
    if declared is not None:
        return declared
    for rule, meaning in policy.when:
        if rule.fits(status, document):
            return meaning
    if status in policy.codes:
        return policy.codes[status]
    if status in REFUSED_AT_THE_DOOR:
        return Meaning.RETRYABLE
    if status // 100 in policy.classes:
        return policy.classes[status // 100]
    if status == CONFLICT and policy.preset is not Preset.SUCCESS_ONLY and is_outstanding(document):
        return Meaning.IN_DOUBT
    return _preset(policy.preset, status, has_retry_after=_RETRY_AFTER in by_name)


def _declared(declared: Sequence[bytes]) -> Meaning | None:
    if not declared:
        return None
    values = {value.strip(b" \t").lower() for value in declared}
    return _DECLARED.get(values.pop(), Meaning.IN_DOUBT) if len(values) == 1 else Meaning.IN_DOUBT


def _said(status: int, values: Sequence[bytes]) -> Meaning | None:
    """What a gateway says in its `Idempotency-Status`; None where there is none that is known."""
    words = {value.strip(b" \t") for value in values}
    said = {meaning for word in words if (meaning := _BY_WORD.get(word)) is not None}
    if not said:
        return None
    if len(said) > 1:
        return Meaning.IN_DOUBT
    is_failed_fetch = Verdict.FETCHED.encode() in words and status // 100 != 2
    return Meaning.RETRYABLE if is_failed_fetch else said.pop()


def is_outstanding(document: Any) -> bool:
    """Whether a conflict is about the key, which another request has that still runs.

    The draft's problem says "A request is outstanding for this Idempotency-Key". A service's own conflicts (a name that
    is taken, a version that is old) do not speak of idempotency.
    """
    pending, strings = [document], 0
    while pending and strings < _STRINGS_MAX:
        match pending.pop():
            case dict() as members:
                pending += members.values()
            case list() as elements:
                pending += elements
            case str() as text:
                strings += 1
                if len(text) <= _STRING_CHARACTERS_MAX and _names_outstanding(text.lower()):
                    return True
    return False


def _names_outstanding(text: str) -> bool:
    return text.replace("-", "_") in _OUTSTANDING_CODES or ("idempot" in text and _RUNS.search(text) is not None)


def _preset(preset: Preset, status: int, *, has_retry_after: bool) -> Meaning:
    category = status // 100
    if category == 2:
        return Meaning.FINAL
    if category in (3, 4):
        if preset is Preset.SUCCESS_ONLY:
            return Meaning.RETRYABLE
        is_retryable = status in RETRYABLE_4XX or (category == 4 and has_retry_after)
        return Meaning.RETRYABLE if is_retryable else Meaning.FINAL
    if status in (500, 503) and preset is not Preset.PAYMENTS:
        return Meaning.RETRYABLE
    return Meaning.IN_DOUBT


def conclude_answered(
    status: int,
    by_name: Values,
    policy: StatusPolicy,
    *,
    carries_doubt: bool,
    is_first_attempt: bool,
    is_stored: bool,
    document: Any = MISSING,
) -> Outcome:
    """The outcome of a response whose status counts: a complete one, or a head whose body will not be stored.

    `is_first_attempt`: no other request with this key is known, because the claim was on absent or on a record whose
    fingerprint was forgotten. `is_stored`: the body is stored with the record. `document`: as in `meaning_of`.
    """
    meaning = None
    if not carries_doubt and _TELLING.isdisjoint(by_name):
        # Mostly.
        meaning = policy.by_status.get(status)
    match meaning or meaning_of(status, by_name, policy, carries_doubt=carries_doubt, document=document):
        case Meaning.FINAL:
            return Outcome(Event.COMPLETE, Verdict.STORED if is_stored else Verdict.RESPONSE_NOT_STORED)
        case Meaning.RETRYABLE:
            if carries_doubt:
                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
            if status in REFUSED_AT_THE_DOOR and is_first_attempt:
                return Outcome(Event.FORGET, Verdict.RELEASED)
            return Outcome(Event.RELEASE, Verdict.RELEASED)
        case Meaning.IN_DOUBT:
            return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
        case other:
            assert_never(other)


def conclude_not_sent(*, carries_doubt: bool) -> Outcome:
    """The outcome when surely no byte of the request left. Earlier attempts may still have had an effect."""
    if carries_doubt:
        return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
    return Outcome(Event.RELEASE, Verdict.UPSTREAM_UNREACHABLE)


def conclude_unknown() -> Outcome:
    """The outcome when a byte may have left and no complete response came."""
    return Outcome(Event.ABANDON, Verdict.IN_DOUBT)


def end_unused(record: Record, remember_us: int, why: str) -> Release | Postpone | Abandon:
    """How a claim ends under which nothing was sent, for a reason on this side. `record` is as the claim left it."""
    ids = (record.identity.operation_id, record.token, record.attempt_id)
    if record.carries_doubt:
        return Abandon(*ids, why)
    if record.delivery is not None:
        return Postpone(*ids, pause_us=0, failure=why, is_answered=False)
    return Release(*ids, remember_us, why)


def windows_us(by_name: Values, replay_us: int, remember_us: int) -> tuple[int, int]:
    """How long this response is replayed and its key remembered.

    The upstream's `Idempotency-Retention`, in seconds, overrides the route, unless it is malformed.
    """
    values = by_name.get(RETENTION, ())
    if len(values) == 1 and (text := values[0].strip(b" \t")).isdigit() and len(text) <= 9:
        replay_us = microseconds(min(int(text), RETENTION_SECONDS_MAX))
    return replay_us, max(replay_us, remember_us)
