"""Which header fields cross the gateway, in either direction.

Pure: a request and what is known of its hop in, a list of fields out. Owns the names that mean the gateway itself
(nobody else may say them), the forwarding fields, and what the upstream learns of the operation. Framing is not its
business: the upstream client and the edge write their own.

Invariant: a field that is not named here or by `Connection` keeps its bytes, its place and its repeats.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import Final, assert_never
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.message import (
    HOP_BY_HOP,
    Headers,
    NameTable,
    RequestHead,
    connection_options,
    is_forwarding_header,
    values_by_name,
)
from gateway.core.replay import GATEWAY_HEADERS
from gateway.protect.hop import Hop, Peer
from gateway.protect.preference import without_wait

# What the gateway tells the upstream and the client. CGI-like servers read `_` and `-` alike, so both spellings go.
SPOKEN_BY_GATEWAY: Final = frozenset(
    (b"idempotency-status", b"idempotent-replayed", b"idempotency-operation", b"idempotency-fencing-token")
)
_NOT_FOR_CLIENTS: Final = HOP_BY_HOP | GATEWAY_HEADERS
# Envoy obeys retry instructions in these from clients it trusts.
_ENVOY_PREFIX: Final = b"x-envoy-"

# What a field is to forwarding, by its name.
_PLAIN, _DROPPED, _HOST, _FORWARDING, _ENVOY, _PREFER = range(6)

_DEFAULT_KEY_HEADER: Final = b"Idempotency-Key"

# RFC 9110 section 7.6.3: a gateway adds itself to requests. To responses it may, and does not: a replay is the same as
# the response that was recorded, and neither speaks of the way that one of them took.
_VIA: Final = (b"Via", b"1.1 idempotency-gateway")


class UpstreamKey(StrEnum):
    """What the upstream gets as key."""

    ORIGINAL = "original"
    OPERATION_ID = "operation_id"
    NONE = "none"


@immutable
class ForwardingPolicy:
    """What the configuration says of forwarding.

    `host` replaces the caller's `Host`; None preserves it. `authority` is the upstream URL's, for a request that
    has none.
    """

    authority: bytes
    host: bytes | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()


@immutable
class Execution:
    """What the upstream learns of the operation and the claim.

    `key_headers` are the route's fields that carry the key and nothing else, in order; none for a key that is composed
    or comes from the body, which stays where it is. `canonical_key` is what the original key is sent as, in the first
    of them: an upstream that deduplicates must see one spelling of it. None sends what the caller sent.
    """

    operation_id: UUID
    fencing_token: int
    key: UpstreamKey
    key_headers: tuple[bytes, ...]
    canonical_key: bytes | None = None


def unprotected_request(request: RequestHead, hop: Hop, policy: ForwardingPolicy, *, upgrades: bool) -> RequestHead:
    """The request as it goes to the upstream untouched, an upgrade included where it asks for one."""
    fields = _common(request.headers, hop, policy, is_protected=False)
    if upgrades:
        fields += [field for field in request.headers if field[0].lower() == b"upgrade"]
        fields.append((b"Connection", b"Upgrade"))
    return RequestHead(request.method, request.target, tuple(fields))


def protected_request(request: RequestHead, hop: Hop, policy: ForwardingPolicy, execution: Execution) -> RequestHead:
    """The request as one attempt sends it, with its operation and its fencing token."""
    names = execution.key_headers
    sent = _key_to_send(execution)
    fields = _common(request.headers, hop, policy, is_protected=True)
    if sent is not None:
        replaced = [_FOLDED[name] for name in names]
        fields = [field for field in fields if _FOLDED[field[0]] not in replaced]
    if sent:
        fields.append((names[0] if names else _DEFAULT_KEY_HEADER, sent))
    fields.append((b"Idempotency-Operation", str(execution.operation_id).encode()))
    fields.append((b"Idempotency-Fencing-Token", b"%d" % execution.fencing_token))
    return RequestHead(request.method, request.target, tuple(fields))


def _key_to_send(execution: Execution) -> bytes | None:
    """What replaces the fields of the key: nothing where it is empty. None leaves them as they are."""
    match execution.key:
        case UpstreamKey.OPERATION_ID:
            return str(execution.operation_id).encode()
        case UpstreamKey.NONE:
            return b""
        case UpstreamKey.ORIGINAL:
            return execution.canonical_key if execution.key_headers else None
        case _:
            assert_never(execution.key)


def response_headers(headers: Headers, *, upgraded: bool = False) -> Headers:
    """The upstream's fields that reach the client; with `upgraded` those of a 101, which must say to what."""
    options = _named_headers(headers)
    if not upgraded and not options:
        return tuple([field for field in headers if _FOR_CLIENTS[field[0]]])
    dropped = _NOT_FOR_CLIENTS | options
    if not upgraded:
        return tuple([field for field in headers if field[0].lower() not in dropped])
    kept = tuple(field for field in headers if (name := field[0].lower()) not in dropped or name == b"upgrade")
    return (*kept, (b"Connection", b"Upgrade"))


def _named_headers(headers: Headers) -> frozenset[bytes]:
    """The fields that are there and that `Connection` names: mostly none, for it mostly says `keep-alive`."""
    options = connection_options(headers)
    return options.intersection(values_by_name(headers)) if options else options


def _is_for_clients(name: bytes) -> bool:
    return name.lower() not in _NOT_FOR_CLIENTS


def _folded(name: bytes) -> bytes:
    """The name as a server that cannot tell `_` from `-` reads it."""
    return name.lower().replace(b"_", b"-")


def _kind_of(field: bytes) -> int:
    name, folded = field.lower(), _folded(field)
    if name == b"host":
        kind = _HOST
    elif name in HOP_BY_HOP or name == b"expect" or folded in SPOKEN_BY_GATEWAY:
        kind = _DROPPED
    elif is_forwarding_header(name):
        kind = _FORWARDING
    elif folded.startswith(_ENVOY_PREFIX):
        kind = _ENVOY
    else:
        kind = _PREFER if folded == b"prefer" else _PLAIN
    return kind


_KINDS: Final = NameTable(_kind_of)
_FOLDED: Final = NameTable(_folded)
_FOR_CLIENTS: Final = NameTable(_is_for_clients)


def _common(headers: Headers, hop: Hop, policy: ForwardingPolicy, *, is_protected: bool) -> list[tuple[bytes, bytes]]:
    """What holds for every request: hop-by-hop fields go, nobody speaks as the gateway, the hop is written down.

    `Connection` cannot take `Host` away: without it the upstream would not know whom the request is for. From a
    protected request Envoy's instructions go too, and the wait that it prefers.
    """
    options = _named_headers(headers)
    trusted = bool(policy.trusted_proxies) and _is_trusted(hop.peer, policy.trusted_proxies)
    fields: list[tuple[bytes, bytes]] = []
    caller_host: bytes | None = None
    for field in headers:
        kind = _KINDS[field[0]]
        if kind == _PLAIN and not options:
            fields.append(field)
            continue
        name, value = field
        if kind == _HOST:
            caller_host = value
            fields.append(field if policy.host is None else (name, policy.host))
        elif kind == _DROPPED or (kind == _ENVOY and is_protected) or (options and name.lower() in options):
            continue
        elif kind == _PREFER and is_protected:
            if kept := without_wait(value):
                fields.append((name, kept))
        elif trusted or kind != _FORWARDING:
            fields.append(field)
    if caller_host is None:
        fields.append((b"Host", policy.host or policy.authority))
    _append_forwarded(fields, hop, caller_host, trusted=trusted)
    return fields


def _append_forwarded(fields: list[tuple[bytes, bytes]], hop: Hop, caller_host: bytes | None, *, trusted: bool) -> None:
    """Adds this hop; what is there already was said by a proxy that is trusted."""
    present = {field.lower(): index for index, (field, _) in enumerate(fields)} if trusted else {}
    address = hop.address
    if address is not None:
        last = present.get(b"x-forwarded-for")
        if last is None:
            fields.append((b"X-Forwarded-For", address))
        else:
            field, value = fields[last]
            fields[last] = (field, b"%b, %b" % (value, address) if value else address)
    if b"x-forwarded-proto" not in present:
        fields.append((b"X-Forwarded-Proto", hop.scheme))
    if b"x-forwarded-host" not in present and caller_host is not None:
        fields.append((b"X-Forwarded-Host", caller_host))
    # A line of its own, behind those of earlier hops: nothing that was signed changes.
    fields.append(_VIA)


def _is_trusted(peer: Peer, networks: Collection[IPv4Network | IPv6Network]) -> bool:
    """Whether the peer may speak for others. A peer without an address (a Unix socket) is in no network."""
    return peer is not None and any(peer in network for network in networks)
