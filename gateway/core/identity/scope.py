"""The scope of a request: the key space of its caller, as the route defines it.

A scope is a digest; neither a credential nor a header value leaves this module in any other form. There is no default
and no fallback: a caller that cannot be identified with certainty has no scope. This is not authorization.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, assert_never

from gateway.core.framing import digest, framed
from gateway.core.immutable import immutable
from gateway.core.message import Headers, header_values

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SCOPE_PARTS_MAX: Final = 8
_REMEMBERED_BYTES_MAX: Final = 256
# Scheme names are shorter.
_BARE_KEY_BYTES_MIN: Final = 20

# Schemes whose credentials are made for one request or one connection: a retry would never find its own record.
SINGLE_USE_SCHEMES = frozenset(
    (b"aws4-hmac-sha256", b"digest", b"gnap", b"hawk", b"mutual", b"negotiate", b"ntlm", b"oauth", b"signature")
)


@dataclass(frozen=True, slots=True)
class HeaderScope:
    """A header that a trusted hop sets. `trusted` are the networks of such hops; None trusts every peer."""

    name: bytes
    trusted: tuple[Network, ...] | None

    def __post_init__(self) -> None:
        if self.name.lower() == b"authorization":
            raise ValueError("Authorization is not a name that a hop gives the caller; use api_key")


@immutable
class ApiKeyScope:
    """A credential that stays the same for as long as its keys are remembered."""

    name: bytes = b"Authorization"


@immutable
class SharedScope:
    """All callers share one key space: any caller that knows a key can get its response."""


@dataclass(frozen=True, slots=True)
class ComposedScope:
    """Callers are the same if all parts are equal."""

    parts: tuple[HeaderScope | ApiKeyScope, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= SCOPE_PARTS_MAX:
            raise ValueError(f"a scope is composed of 1 to {SCOPE_PARTS_MAX} parts")


ScopeSpec = HeaderScope | ApiKeyScope | SharedScope | ComposedScope


@immutable
class Scope:
    """The key space of one caller."""

    digest: bytes


@immutable
class ScopeMissing:
    """The caller cannot be identified. `is_credential`: a credential is missing, so the reply is 401."""

    detail: str
    is_credential: bool


@immutable
class ScopeUnsuitable:
    """The caller identifies itself, but by something that is ambiguous or will differ on a retry."""

    detail: str


def scope_of(spec: ScopeSpec, headers: Headers, peer: Address | None) -> Scope | ScopeMissing | ScopeUnsuitable:
    """The caller's scope. `peer` is the remote address of this connection, never an address from a header.

    It is None on a Unix socket; an IPv4-mapped IPv6 address is given as the IPv4 address.
    """
    match spec:
        case HeaderScope():
            found = _header(spec, headers, peer)
        case ApiKeyScope():
            found = _credential(spec, headers)
        case SharedScope():
            found = framed(b"shared")
        case ComposedScope(parts):
            found = _composed(parts, headers, peer)
        case _:
            assert_never(spec)
    if not isinstance(found, bytes):
        return found
    # Unlike a credential, a name set by a hop is no secret: it may stay in memory after its request.
    is_name = isinstance(spec, HeaderScope) and len(found) <= _REMEMBERED_BYTES_MAX
    return _remembered(found) if is_name else Scope(digest(b"scope", found))


@lru_cache(1024)
def _remembered(found: bytes) -> Scope:
    return Scope(digest(b"scope", found))


def scope_headers(spec: ScopeSpec) -> frozenset[bytes]:
    """The names, in lower case, of the headers that the scope is taken from."""
    match spec:
        case HeaderScope(name) | ApiKeyScope(name):
            return frozenset((name.lower(),))
        case SharedScope():
            return frozenset()
        case ComposedScope(parts):
            return frozenset(part.name.lower() for part in parts)
        case _:
            assert_never(spec)


def scope_recipe(spec: ScopeSpec) -> bytes:
    """The settings that decide which scope a caller has. Trusted networks do not: they only refuse."""
    match spec:
        case HeaderScope(name):
            return framed(b"header", name.lower())
        case ApiKeyScope(name):
            return framed(b"api_key", name.lower())
        case SharedScope():
            return framed(b"shared")
        case ComposedScope(parts):
            return framed(b"composed", *[scope_recipe(part) for part in parts])
        case _:
            assert_never(spec)


def _composed(
    parts: tuple[HeaderScope | ApiKeyScope, ...], headers: Headers, peer: Address | None
) -> bytes | ScopeMissing | ScopeUnsuitable:
    found = [b"composed"]
    for part in parts:
        match part:
            case HeaderScope():
                value = _header(part, headers, peer)
            case ApiKeyScope():
                value = _credential(part, headers)
            case _:
                assert_never(part)
        if not isinstance(value, bytes):
            return value
        found.append(value)
    return framed(*found)


def _header(spec: HeaderScope, headers: Headers, peer: Address | None) -> bytes | ScopeMissing | ScopeUnsuitable:
    if spec.trusted is not None and not _is_within(peer, spec.trusted):
        return ScopeMissing(f"{_text(spec.name)} is not accepted from this address.", is_credential=False)
    value = _only_value(spec.name, headers)
    if not isinstance(value, bytes):
        return value
    if not value:
        return ScopeMissing(f"{_text(spec.name)} is missing.", is_credential=False)
    return framed(b"header", spec.name.lower(), value)


def _credential(spec: ApiKeyScope, headers: Headers) -> bytes | ScopeMissing | ScopeUnsuitable:
    name = spec.name.lower()
    value = _only_value(spec.name, headers)
    if not isinstance(value, bytes):
        return value
    scheme = b""
    if name == b"authorization":
        scheme, value = _scheme_and_credential(value)
    if not value:
        fault = "has no credential" if scheme else "is missing"
        return ScopeMissing(f"{_text(spec.name)} {fault}.", is_credential=True)
    if scheme in SINGLE_USE_SCHEMES:
        return ScopeUnsuitable(f"{_text(spec.name)} uses a scheme whose credentials differ from request to request.")
    if _is_json_web_token(value):
        return ScopeUnsuitable(
            f"{_text(spec.name)} carries a token that expires: a retry with a new one would count as another caller."
        )
    return framed(b"api_key", name, scheme, value)


def _scheme_and_credential(value: bytes) -> tuple[bytes, bytes]:
    """RFC 9110 section 11.4: the scheme is case-insensitive, what follows is not.

    Some services take a key without a scheme. A short word alone is a scheme without its credential: taken for a key,
    it would give all callers with this mistake one scope.
    """
    scheme, _, credential = value.partition(b" ")
    if not credential and len(scheme) >= _BARE_KEY_BYTES_MIN:
        return b"", scheme
    return scheme.lower(), credential.lstrip(b" ")


def _only_value(name: bytes, headers: Headers) -> bytes | ScopeUnsuitable:
    values = header_values(headers, name.lower())
    if len(values) > 1:
        return ScopeUnsuitable(f"{_text(name)} is given more than once.")
    return values[0].strip(b" \t") if values else b""


def _is_within(peer: Address | None, networks: tuple[Network, ...]) -> bool:
    return peer is not None and any(peer in network for network in networks)


def _is_json_web_token(credential: bytes) -> bool:
    """Whether this is the compact form of RFC 7515 (three parts) or RFC 7516 (five); the first is a JSON object."""
    if credential.count(b".") not in (2, 4):
        return False
    head = credential[: credential.index(b".")]
    try:
        return isinstance(json.loads(urlsafe_b64decode(head + b"=" * (-len(head) % 4))), dict)
    except (ValueError, RecursionError):
        return False


def _text(name: bytes) -> str:
    return name.decode("latin-1")
