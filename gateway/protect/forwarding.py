"""Which headers cross the gateway, in either direction.

Pure. Owns the headers that only the gateway may send, the forwarding headers, what is heeded of `Prefer`, and what the
upstream learns of the operation; not framing: the upstream client and the edge write their own.

Invariant: a header that is not named here or by `Connection` keeps its bytes, its place and its repeats.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Final, Literal

from gateway.config.models import Cors
from gateway.core import immutable
from gateway.core.identity.caller import Hop
from gateway.core.identity.fingerprint import CONDITIONS, DEFINING
from gateway.core.identity.key import SINGLE_USE_SCHEMES, Network, is_within
from gateway.core.message import (
    HOP_BY_HOP,
    Headers,
    IndexedHeaders,
    NameTable,
    RequestHead,
    connection_options,
    folded_name,
    header_values,
    is_forwarding_header,
    list_members,
)
from gateway.core.operation import Record
from gateway.core.outcome import GATEWAY_HEADERS
from gateway.protect.reply import Reply, Source, reason_phrase

# -- forwarding --------------------------------------------------------------------------------------------------------

# Headers that only the gateway sends, to upstream or client. They are dropped in every spelling (`folded_name`).
SPOKEN_BY_GATEWAY: Final = frozenset((
    b"idempotency-status", b"idempotency-outcome", b"idempotency-retention", b"idempotent-replayed",
    b"idempotency-operation", b"idempotency-fencing-token", b"idempotency-attempt", b"idempotency-region",
))  # fmt: skip
REGION_HEADER: Final = b"idempotency-region"
"""By which one region's gateway names its client to another's."""
_NOT_FOR_CLIENTS: Final = HOP_BY_HOP | GATEWAY_HEADERS
# Envoy obeys retry instructions in these from clients it trusts.
_ENVOY_PREFIX: Final = b"x-envoy-"

# What a trusted proxy says of the caller, as far as an authorising service gets to know it.
_OF_THE_CALLER: Final = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"))
# What a fetch does not take over from the caller's request, beside `content-*` and `if-*` (RFC 9110 section 13.1).
_NOT_FETCHED: Final = frozenset((*DEFINING, b"digest", b"idempotency-key", b"prefer", b"repr-digest"))

# The kinds of headers to forwarding, by name.
_PLAIN, _DROPPED, _HOST, _FORWARDING, _ENVOY, _PREFER, _CONNECTION = range(7)

_DEFAULT_KEY_HEADER: Final = b"Idempotency-Key"

# RFC 9110 section 7.6.3: a gateway adds itself to requests. To responses it may, and does not: a replay equals the
# recorded response, and neither shows its path.
_VIA: Final = (b"Via", b"1.1 idempotency-gateway")


UpstreamKey = Literal["original", "operation_id", "none"]


@immutable
class ForwardingPolicy:
    """The forwarding settings of an upstream.

    `host` replaces the caller's `Host`; None preserves it. `authority` is the upstream URL's, for a request without a
    `Host`. `heeds_async`: the gateway itself heeds `Prefer: respond-async`, and does not forward it. `key` is what the
    upstream gets as the key. `key_headers` are the route's headers that carry the key and nothing else, in order; none
    for a key that is composed or comes from the body, which stays where it is.
    """

    authority: bytes
    host: bytes | None = None
    trusted_proxies: tuple[Network, ...] = ()
    heeds_async: bool = False
    key: UpstreamKey = "original"
    key_headers: tuple[bytes, ...] = ()


def unprotected_request(request: RequestHead, hop: Hop, policy: ForwardingPolicy, *, upgrades: bool) -> RequestHead:
    """The request as it goes to the upstream unprotected, with its upgrade if it asks for one."""
    sent = _common(request.headers, hop, policy, is_protected=False)
    if upgrades:
        sent += [header for header in request.headers if header[0].lower() == b"upgrade"]
        sent.append((b"Connection", b"Upgrade"))
    return RequestHead(request.method, request.target, IndexedHeaders(sent))


def protected_request(
    request: RequestHead,
    hop: Hop,
    policy: ForwardingPolicy,
    record: Record,
    canonical_key: bytes | None = None,
    replaced: Headers = (),
) -> RequestHead:
    """The request as one attempt sends it under the claim that made `record`.

    `canonical_key` is the spelling in which the first of the policy's `key_headers` carries the original key, because
    an upstream that deduplicates must see one spelling. None sends what the caller sent. `replaced` are sent in place
    of the caller's headers of these names.
    """
    sent = _common(request.headers, hop, policy, is_protected=True)
    if replaced:
        sent = _replaced(sent, replaced)
    operation, key, key_headers = str(record.identity.operation_id).encode(), policy.key, policy.key_headers
    # What replaces the headers of the key; empty where they are removed.
    if key == "original":
        value = canonical_key if key_headers else None
    else:
        value = operation if key == "operation_id" else b""
    if value is not None:
        own = [_FOLDED[name] for name in key_headers]
        sent = [header for header in sent if _FOLDED[header[0]] not in own]
    if value:
        sent.append((key_headers[0] if key_headers else _DEFAULT_KEY_HEADER, value))
    sent.append((b"Idempotency-Operation", operation))
    sent.append((b"Idempotency-Fencing-Token", b"%d" % record.token))
    sent.append((b"Idempotency-Attempt", b"%d" % record.attempts))
    return RequestHead(request.method, request.target, IndexedHeaders(sent))


def with_headers(request: RequestHead, headers: Headers) -> RequestHead:
    """The request with these headers in place of the client's of the same names."""
    return RequestHead(request.method, request.target, IndexedHeaders(_replaced(request.headers, headers)))


def _replaced(headers: Iterable[tuple[bytes, bytes]], by: Headers) -> list[tuple[bytes, bytes]]:
    ours = {_FOLDED[name] for name, _ in by}
    return [*(header for header in headers if _FOLDED[header[0]] not in ours), *by]


def authorization_request(
    request: RequestHead,
    hop: Hop,
    trusted_proxies: Collection[Network],
    *,
    authority: bytes,
    target: bytes,
    names: Collection[bytes],
) -> RequestHead:
    """The question to an authorising service about a request, without its body.

    `names` (lower case) are the headers of the request that the service gets to see.
    """
    sent = [(b"Host", authority)]
    sent += [header for header in request.headers if header[0].lower() in names]
    sent.append((b"X-Forwarded-Method", request.method))
    sent.append((b"X-Forwarded-Uri", request.target))
    trusted = is_within(hop.peer, trusted_proxies)
    if trusted:
        sent += [header for header in request.headers if header[0].lower() in _OF_THE_CALLER]
    hosts = header_values(request.headers, b"host")
    _append_forwarded(sent, hop, hosts[0] if hosts else None, trusted=trusted)
    return RequestHead(b"GET", target, IndexedHeaders(sent))


def fetched_request(request: RequestHead, hop: Hop, policy: ForwardingPolicy, target: bytes) -> RequestHead:
    """A GET of what an operation made, for the caller of a repeat: with all of its headers that are about itself.

    Those about the body, the key and its preferences were for another request. The caller knows no representation that
    conditions or ranges could refer to. A header that overrides method or target could execute something.
    """
    keys = {_FOLDED[name] for name in policy.key_headers}
    sent = [
        header
        for header in _common(request.headers, hop, policy, is_protected=True)
        if not ((name := _FOLDED[header[0]]) in _NOT_FETCHED or name in keys or name.startswith((b"content-", b"if-")))
    ]
    return RequestHead(b"GET", target, IndexedHeaders(sent))


def region_request(request: RequestHead, signed: bytes) -> RequestHead:
    """The request as it came, for a gateway of another region. `signed` is the value of `REGION_HEADER`."""
    options = connection_options(request.headers)
    sent = [
        header
        for header in request.headers
        if _FOLDED[header[0]] not in SPOKEN_BY_GATEWAY and header[0].lower() not in options
    ]
    return RequestHead(request.method, request.target, IndexedHeaders((*sent, (b"Idempotency-Region", signed))))


def region_response_headers(headers: Headers) -> Headers:
    """The headers of another region's gateway, for the client. The edge writes the verdict itself."""
    dropped = HOP_BY_HOP | connection_options(headers) | {b"idempotency-status"}
    return tuple([header for header in headers if header[0].lower() not in dropped])


def response_headers(headers: Headers, *, upgraded: bool = False) -> Headers:
    """The upstream's headers for the client. With `upgraded` they are those of a 101, which keeps its `Upgrade`."""
    kinds = set(map(_FOR_CLIENTS.__getitem__, map(_name_of, headers)))
    if upgraded or _CONNECTION in kinds:
        dropped = _NOT_FOR_CLIENTS | connection_options(headers)
        if upgraded:
            dropped -= {b"upgrade"}
        headers = tuple([header for header in headers if header[0].lower() not in dropped])
        return (*headers, (b"Connection", b"Upgrade")) if upgraded else headers
    if _DROPPED in kinds:
        return tuple([header for header in headers if _FOR_CLIENTS[header[0]] == _PLAIN])
    return tuple(headers)


def _kind_for_clients(name: bytes) -> int:
    lower = name.lower()
    if lower == b"connection":
        return _CONNECTION
    return _DROPPED if lower in _NOT_FOR_CLIENTS else _PLAIN


def _kind_of(header_name: bytes) -> int:
    folded = folded_name(header_name)
    if folded == b"host":
        kind = _HOST
    elif folded in HOP_BY_HOP or folded == b"expect" or folded in SPOKEN_BY_GATEWAY:
        kind = _DROPPED
    elif header_name.lower() == b"content-length":
        # The upstream client writes its own.
        kind = _DROPPED
    elif is_forwarding_header(header_name):
        kind = _FORWARDING
    elif folded.startswith(_ENVOY_PREFIX):
        kind = _ENVOY
    else:
        kind = _PREFER if folded == b"prefer" else _PLAIN
    return kind


_KINDS: Final = NameTable(_kind_of)
_FOLDED: Final = NameTable(folded_name)
_FOR_CLIENTS: Final = NameTable(_kind_for_clients)
_name_of: Final = itemgetter(0)


def _common(
    headers: IndexedHeaders, hop: Hop, policy: ForwardingPolicy, *, is_protected: bool
) -> list[tuple[bytes, bytes]]:
    """The headers of every request: without hop-by-hop headers and those of the gateway, and with this hop added.

    `Connection` cannot remove `Host`, without which the upstream would not know the addressed host. A protected request
    also loses Envoy's instructions and the preferences that the gateway heeds.
    """
    by_name = headers.by_name
    # Mostly none is there: it usually names `keep-alive`.
    options = connection_options(headers).intersection(by_name) if b"connection" in by_name else ()
    trusted = bool(policy.trusted_proxies) and is_within(hop.peer, policy.trusted_proxies)
    sent: list[tuple[bytes, bytes]] = []
    caller_host: bytes | None = None
    for header in headers:
        kind = _KINDS[header[0]]
        if kind == _PLAIN and not options:
            sent.append(header)
            continue
        name, value = header
        if kind == _HOST:
            caller_host = value
            sent.append(header if policy.host is None else (name, policy.host))
        elif kind == _DROPPED or (kind == _ENVOY and is_protected) or (options and name.lower() in options):
            continue
        elif kind == _PREFER and is_protected:
            if kept := without_heeded(value, heeds_async=policy.heeds_async):
                sent.append((name, kept))
        elif trusted or kind != _FORWARDING:
            sent.append(header)
    if caller_host is None:
        sent.append((b"Host", policy.host or policy.authority))
    _append_forwarded(sent, hop, caller_host, trusted=trusted)
    return sent


def _append_forwarded(sent: list[tuple[bytes, bytes]], hop: Hop, caller_host: bytes | None, *, trusted: bool) -> None:
    """Adds this hop. Forwarding headers that are there already come from a trusted proxy."""
    present = {name.lower(): index for index, (name, _) in enumerate(sent)} if trusted else {}
    address = hop.address
    if address is not None:
        last = present.get(b"x-forwarded-for")
        if last is None:
            sent.append((b"X-Forwarded-For", address))
        else:
            name, value = sent[last]
            sent[last] = (name, b"%b, %b" % (value, address) if value else address)
    if b"x-forwarded-proto" not in present:
        sent.append((b"X-Forwarded-Proto", hop.scheme))
    if b"x-forwarded-host" not in present and caller_host is not None:
        sent.append((b"X-Forwarded-Host", caller_host))
    # A line of its own, after those of earlier hops, so that nothing that was signed changes.
    sent.append(_VIA)


# -- cors --------------------------------------------------------------------------------------------------------------
#
# What a browser lets pages of other origins read (CORS: the Fetch standard, section 3.3).
#
# Of a response that the service made for this very request, the service decides, and what it says of origins stays as
# it is. A response that it made for an earlier request is about the origin of that one: here it says nothing of
# another, unless the configuration does. Of the gateway's own responses the configuration decides alone. The headers of
# the gateway are readable wherever the response is. Preflights for routes reach the service; those for the gateway's
# own resource get theirs here.

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ALLOWING: Final = frozenset((_ALLOW_ORIGIN, b"access-control-allow-credentials"))
_ANY: Final = b"*"
_OWN: Final = frozenset((b"idempotent-replayed", b"idempotency-expires"))
# Of the gateway's own responses, in addition. A browser shows neither by itself.
_OWN_ADVICE: Final = frozenset((b"etag", b"link", b"location", b"preference-applied", b"retry-after"))
_PREFLIGHT_SECONDS: Final = b"600"


NO_ORIGINS: Final = Cors()


def preflight_reply(policy: Cors, request_headers: Headers, methods: bytes) -> Reply | None:
    """The reply to a preflight for a resource of the gateway; None if it is none, or its origin is not allowed."""
    origins = header_values(request_headers, b"origin")
    is_preflight = len(origins) == 1 and header_values(request_headers, b"access-control-request-method")
    if not is_preflight or not _allow(policy, origins[0]):
        return None
    asked = header_values(request_headers, b"access-control-request-headers")
    headers = [
        (b"Access-Control-Allow-Methods", methods),
        (b"Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        (b"Vary", b"Access-Control-Request-Headers"),
        # A scope may be in any header. A wildcard would not cover `Authorization`.
        *((b"Access-Control-Allow-Headers", names) for names in asked),
    ]
    return Reply(204, reason_phrase(204), tuple(headers), b"")


def for_origin(reply: Reply, request_headers: Headers, policy: Cors, *, shows_status: bool) -> Reply:
    """The reply as pages of the request's origin may read it. `shows_status`: it will have `Idempotency-Status`."""
    origins = header_values(request_headers, b"origin")
    if reply.source is Source.SERVICE and not origins:
        return reply
    headers = reply.headers
    if reply.source is not Source.SERVICE:
        # Also where no origin is named: a cache must not give that response to another one.
        if policy.origins not in ((), "any") and b"origin" not in list_members(header_values(headers, b"vary")):
            headers = (*headers, (b"Vary", b"Origin"))
        if origins:
            headers = _allowed(headers, origins, policy)
    if origins and header_values(headers, _ALLOW_ORIGIN):
        shown = _OWN if reply.source is not Source.GATEWAY else _OWN | _OWN_ADVICE
        names = [name for name, _ in headers if name.lower() in shown]
        if shows_status and reply.verdict is not None:
            names.append(b"Idempotency-Status")
        if names:
            headers = (*headers, (b"Access-Control-Expose-Headers", b", ".join(names)))
    return reply if headers is reply.headers else replace(reply, headers=headers)


def _allow(policy: Cors, origin: bytes) -> Headers:
    """The headers that allow this origin to read a response; none if it may not."""
    if policy.origins == "any":
        return ((b"Access-Control-Allow-Origin", _ANY),)
    if origin.decode("latin-1") not in policy.origins:
        return ()
    allowed = (b"Access-Control-Allow-Origin", origin)
    return (allowed, (b"Access-Control-Allow-Credentials", b"true")) if policy.credentials else (allowed,)


def _allowed(headers: Headers, origins: list[bytes], policy: Cors) -> Headers:
    """The headers with what allows the one origin of this request, and nothing that allowed another."""
    recorded = header_values(headers, _ALLOW_ORIGIN)
    if recorded in ([_ANY], origins):
        return headers
    kept = tuple(header for header in headers if header[0].lower() not in _ALLOWING) if recorded else headers
    return (*kept, *_allow(policy, origins[0])) if len(origins) == 1 else kept


# -- preferences -------------------------------------------------------------------------------------------------------
#
# What callers prefer (RFC 7240): `wait=N`, how long they wait, and `respond-async`, not to wait at all.
#
# The only module that reads `Prefer`: the gateway heeds both, and removes from a protected request what it heeds. The
# header is a list whose members may hold quoted strings (RFC 9110 sections 5.6.1 and 5.6.4), in which commas separate
# nothing.

# An unclosed quote takes the rest, so that many of them do not each search to the end.
_MEMBER: Final = re.compile(rb'(?:[^,"]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))++')
_WAIT: Final = re.compile(
    rb"""wait[ \t]*+                              # the name; upper and lower case are equal
    (?:=[ \t]*+ (?: (?P<bare>[^";\t ]++) | "(?P<quoted>(?:[^"\\]++|\\.)*+)" )?+ [ \t]*+)?+
    (?P<rest>;.*)?+\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_WAIT: Final = re.compile(rb"wait[ \t]*(?:[=;]|\Z)", re.IGNORECASE)
# It has no value, and an empty value is none (RFC 7240 section 2).
_IS_ASYNC: Final = re.compile(rb'respond-async[ \t]*(?:=[ \t]*(?:"")?[ \t]*)?(?:;|\Z)', re.IGNORECASE)
_DIGITS: Final = re.compile(rb"0*([0-9]+)\Z")
_SECONDS_MAX: Final = 10**9

RESPOND_ASYNC: Final = b"respond-async"

# Later, a precondition would be about another state (RFC 9110 section 13.1), and a proof or a signature would be too
# old or used up (RFC 9449, RFC 9421).
_ONLY_NOW: Final = frozenset(
    (*[name for name in CONDITIONS if b"if" in name.split(b"-")], b"dpop", b"signature", b"signature-input")
)
_PRESIGNED: Final = re.compile(rb"[?&]X-Amz-Signature=", re.IGNORECASE)


def wait_preference(headers: Headers) -> int | None:
    """The seconds that the caller prefers to wait, or None. The first of several `wait` counts (section 2)."""
    for value in header_values(headers, b"prefer"):
        for member in _members(value):
            if _IS_WAIT.match(member):
                return _seconds(member)
    return None


def prefers_async(headers: Headers) -> bool:
    """Whether the caller prefers not to wait for the outcome (section 4.1)."""
    return any(_IS_ASYNC.match(member) for value in header_values(headers, b"prefer") for member in _members(value))


def responds_async(head: RequestHead, *, is_always: bool) -> bool:
    """Whether a route that accepts requests accepts this one, `is_always` or where the caller prefers it.

    It does not where the request has a meaning only now: what it asks for would be refused later, or be something else.
    """
    if not is_always and not prefers_async(head.headers):
        return False
    by_name = head.headers.by_name
    if not _ONLY_NOW.isdisjoint(by_name) or _PRESIGNED.search(head.target):
        return False
    schemes = [value.strip(b" \t").partition(b" ")[0].lower() for value in by_name.get(b"authorization", [])]
    return not any(each in SINGLE_USE_SCHEMES or each == b"dpop" or each.startswith(b"aws4-") for each in schemes)


def without_heeded(value: bytes, *, heeds_async: bool) -> bytes:
    """The preferences of one header line without `wait` and, where the gateway heeds it, `respond-async`.

    Unchanged bytes if neither is there.
    """
    members = _members(value)
    kept = [member for member in members if not _IS_WAIT.match(member)]
    if heeds_async:
        kept = [member for member in kept if not _IS_ASYNC.match(member)]
    return value if len(kept) == len(members) else b", ".join(member for member in kept if member)


def preference_applied(applied: bytes | int) -> tuple[bytes, bytes]:
    """The header that names the preference that decided (section 3); a number is that of `wait`."""
    return b"Preference-Applied", b"wait=%d" % applied if isinstance(applied, int) else applied


def _members(value: bytes) -> list[bytes]:
    return [member.strip(b" \t") for member in _MEMBER.findall(value)]


def _seconds(member: bytes) -> int | None:
    """The number in a `wait`, quoted or not, capped. None if there is no number, or anything else."""
    found = _WAIT.match(member)
    if found is None:
        return None
    quoted = found["quoted"]
    text = found["bare"] if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted)
    digits = None if text is None else _DIGITS.match(text)
    if digits is None:
        return None
    return _SECONDS_MAX if len(digits[1]) > 9 else int(digits[1])
