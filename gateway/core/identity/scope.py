"""The scope of a request, the key space of its caller as the route defines it; and the identity that it makes.

A scope is a digest; neither a credential nor a header value leaves this module in any other form. There is no default
and no fallback: a caller that cannot be identified with certainty has no scope. This is not authorization.

Some scopes are taken from what has to be verified: a token, a principal, a certificate. Verifying takes clocks, keys or
another service, so it is done elsewhere. `find_scope` says what has to be verified, and is asked again with the result.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from types import MappingProxyType
from typing import Final, Literal, Protocol
from uuid import UUID, SafeUUID

from gateway.core.framing import digest, framed
from gateway.core.identity.key import Key, KeySpec
from gateway.core.identity.token import Issuer
from gateway.core.immutable import immutable
from gateway.core.message import NameTable, Values
from gateway.core.operation import SHORT_SCOPE_BYTES, Identity

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Scheme names are shorter.
_BARE_KEY_BYTES_MIN: Final = 20

# Schemes whose credentials are made for one request or one connection: a retry would never find its own record.
SINGLE_USE_SCHEMES = frozenset(
    (b"aws4-hmac-sha256", b"digest", b"gnap", b"hawk", b"mutual", b"negotiate", b"ntlm", b"oauth", b"signature")
)
# What is digested before a scope, and before the value of a header with this name, as `framed` writes it.
_BEFORE: Final = framed(b"scope")
_BEFORE_VALUE: Final = NameTable(lambda name: framed(b"header", name))


@immutable
class Scope:
    digest: bytes


@immutable
class ScopeMissing:
    """The caller cannot be identified. `is_credential`: a credential is missing, so the reply is 401. `is_token`: it is
    a bearer token, which is missing or not accepted (RFC 6750 section 3)."""

    detail: str
    is_credential: bool
    is_token: bool = False


@immutable
class ScopeUnsuitable:
    """The caller identifies itself, but by something that is ambiguous or will differ on a retry."""

    detail: str


@immutable
class IdentityUnavailable:
    """Nobody can say now who the caller is: neither that it is somebody, nor that it is nobody."""

    detail: str
    retry_after_seconds: int = 1


@immutable
class Unverified:
    """This part has to be verified before there is a scope."""

    part: VerifiedSpec


Refusal = ScopeMissing | ScopeUnsuitable
# Keyed by what was verified; the values are framed, so that no two callers have the same.
Verified = Mapping["VerifiedSpec", bytes]
_NOTHING: Final[Verified] = MappingProxyType({})


class _Scope:
    """A scope of a route, or a part of one."""

    __slots__ = ()

    def find_scope(
        self, by_name: Values, peer: Address | None, verified: Verified = _NOTHING
    ) -> Scope | Refusal | Unverified:
        """The caller's scope. `peer` is the remote address of this connection, never an address from a header.

        It is None on a Unix socket; an IPv4-mapped IPv6 address is given as the IPv4 address. Whatever can be refused
        without verifying is refused first.
        """
        found = self.value(by_name, peer, verified)
        if not isinstance(found, bytes):
            return found
        return Scope(sha256(_BEFORE + len(found).to_bytes(8, "big") + found).digest())

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal | Unverified:
        """What stands for the caller in the scope, framed."""
        raise NotImplementedError

    @property
    def headers(self) -> frozenset[bytes]:
        """The names, in lower case, of the headers that it is taken from."""
        return frozenset()

    @property
    def recipe(self) -> bytes:
        """The settings that decide which scope a caller has. Trusted networks, audiences, keys and where a service is
        do not: they only refuse."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class HeaderScope(_Scope):
    """A header that a trusted hop sets. `trusted` are the networks of such hops; None trusts every peer."""

    name: bytes
    trusted: tuple[Network, ...] | None

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal:
        if self.trusted is not None and not _is_within(peer, self.trusted):
            return ScopeMissing(f"{_text(self.name)} is not accepted from this address.", is_credential=False)
        name = self.name.lower()
        values = by_name.get(name, ())
        if len(values) > 1:
            return ScopeUnsuitable(f"{_text(self.name)} is given more than once.")
        value = values[0].strip(b" \t") if values else b""
        if not value:
            return ScopeMissing(f"{_text(self.name)} is missing.", is_credential=False)
        return _BEFORE_VALUE[name] + len(value).to_bytes(8, "big") + value

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((self.name.lower(),))

    @property
    def recipe(self) -> bytes:
        return framed(b"header", self.name.lower())


@immutable
class ApiKeyScope(_Scope):
    """A credential that stays the same for as long as its keys are remembered."""

    name: bytes = b"Authorization"

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal:
        name, scheme = self.name.lower(), b""
        values = by_name.get(name, ())
        if len(values) > 1:
            return ScopeUnsuitable(f"{_text(self.name)} is given more than once.")
        value = values[0].strip(b" \t") if values else b""
        if name == b"authorization":
            scheme, value = _scheme_and_credential(value)
        if not value:
            fault = "has a scheme without a credential, or too short a key" if scheme else "is missing"
            return ScopeMissing(f"{_text(self.name)} {fault}.", is_credential=True)
        if scheme in SINGLE_USE_SCHEMES:
            return ScopeUnsuitable(
                f"{_text(self.name)} uses a scheme whose credentials differ from request to request."
            )
        if _is_json_web_token(value):
            return ScopeUnsuitable(
                f"{_text(self.name)} carries a token that expires: "
                "a retry with a new one would count as another caller."
            )
        return framed(b"api_key", name, scheme, value)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((self.name.lower(),))

    @property
    def recipe(self) -> bytes:
        return framed(b"api_key", self.name.lower())


@immutable
class SharedScope(_Scope):
    """All callers share one key space: any caller that knows a key can get its response."""

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes:
        return framed(b"shared")

    @property
    def recipe(self) -> bytes:
        return framed(b"shared")


@dataclass(frozen=True, slots=True)
class JwtScope(_Scope):
    """Claims of a verified token: the same caller after every refresh of the token. One issuer of these signed it."""

    issuers: tuple[Issuer, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Looked up several times in each request.
        object.__setattr__(self, "_hash", hash(self.issuers))

    def __hash__(self) -> int:
        return self._hash

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((b"authorization",))

    @property
    def recipe(self) -> bytes:
        issuers = (framed(one.issuer.encode(), *[name.encode() for name in sorted(one.claims)]) for one in self.issuers)
        return framed(b"jwt", *sorted(issuers))


class AuthService(Protocol):
    """A service that decides about requests, of which it gets to see `headers`: a setting."""

    @property
    def url(self) -> object: ...
    @property
    def headers(self) -> tuple[str, ...]: ...


@immutable
class ForwardAuthScope(_Scope):
    """The principal that an authorising service names, in this header of its response."""

    service: AuthService
    principal: bytes

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    def value_of(self, principal: bytes) -> bytes:
        """What stands for this principal."""
        return framed(b"forward_auth", self.principal.lower(), principal)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset(name.lower().encode() for name in self.service.headers)

    @property
    def recipe(self) -> bytes:
        return framed(b"forward_auth", self.principal.lower())


@immutable
class ClientCertificateScope(_Scope):
    """A part of the certificate that the client has proved to hold the key of."""

    part: Literal["subject", "san", "sha256"]

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    def value_of(self, part: bytes) -> bytes:
        """What stands for a certificate with this part."""
        return framed(b"client_certificate", self.part.encode(), part)

    @property
    def recipe(self) -> bytes:
        return framed(b"client_certificate", self.part.encode())


VerifiedSpec = JwtScope | ForwardAuthScope | ClientCertificateScope
ScopePart = HeaderScope | ApiKeyScope | VerifiedSpec


@dataclass(frozen=True, slots=True)
class ComposedScope(_Scope):
    parts: tuple[ScopePart, ...]

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal | Unverified:
        found = [b"composed"]
        unverified: Unverified | None = None
        for part in self.parts:
            value = part.value(by_name, peer, verified)
            if isinstance(value, bytes):
                found.append(value)
            elif isinstance(value, Unverified):
                unverified = unverified or value
            else:
                return value
        return unverified or framed(*found)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset().union(*(part.headers for part in self.parts))

    @property
    def recipe(self) -> bytes:
        return framed(b"composed", *[part.recipe for part in self.parts])


ScopeSpec = ScopePart | SharedScope | ComposedScope


def _scheme_and_credential(value: bytes) -> tuple[bytes, bytes]:
    """RFC 9110 section 11.4: the scheme is case-insensitive, what follows is not.

    Some services take a key without a scheme. A short word alone is a scheme without its credential: taken for a key,
    it would give all callers with this mistake one scope.
    """
    scheme, _, credential = value.partition(b" ")
    if not credential and len(scheme) >= _BARE_KEY_BYTES_MIN:
        return b"", scheme
    return scheme.lower(), credential.lstrip(b" ")


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


# -- identity ----------------------------------------------------------------------------------------------------------
#
# The identity of an operation: which requests are about the same intended effect.
#
# It is made of service, operation name, scope and key, each digested in a frame of its own. The derivations must never
# change: records are found by them, operators search for them, and upstreams may deduplicate on them. Any change makes
# every remembered key unknown.
#
# With a secret, the digests of scope and key are keyed (HMAC), and the operation id through them: with the table
# alone nobody can compute or test one. Outside this module a digest of a scope or a key is always `stored_digest`'s.


def derive_operation_id(service: str, operation: str, scope_digest: bytes, key_digest: bytes) -> UUID:
    """A UUID of version 8 (RFC 9562 section 5.8): 122 bits of a SHA-256."""
    length = len(key_digest).to_bytes(8, "big")
    derived = sha256(_before_key(service, operation, scope_digest) + length + key_digest).digest()
    bits = int.from_bytes(derived[:16], "big")
    bits = bits & ~(0xF << 76) | 8 << 76
    bits = bits & ~(0b11 << 62) | 0b10 << 62
    # What the constructor does, in a fourth of its time: it takes other values, too.
    operation_id = object.__new__(UUID)
    object.__setattr__(operation_id, "int", bits)
    object.__setattr__(operation_id, "is_safe", SafeUUID.unknown)
    return operation_id


@lru_cache(1024)
def _before_key(service: str, operation: str, scope_digest: bytes) -> bytes:
    """The frames before that of the key: the same for all operations of a caller."""
    return derivation_of(service, operation) + framed(scope_digest)


def home_of(operation_id: UUID, regions: Sequence[str]) -> str:
    """The region that an operation is at home in. Another order of the regions gives it another home."""
    return regions[operation_id.int % len(regions)]


def derivation_of(service: str, operation: str) -> bytes:
    """The frames of an operation id before those of scope and key."""
    return framed(b"operation", _utf8(service), _utf8(operation))


def stored_digest(of: Scope | Key, secret: bytes | None) -> bytes:
    """The digest of a scope or a key as records have it: keyed if there is a secret."""
    return of.digest if secret is None else hmac.digest(secret, of.digest, "sha256")


def identity_of(
    *,
    service: str,
    route: str,
    operation: str,
    scope: Scope,
    key: Key,
    secret: bytes | None = None,
    keeps_clear_key: bool = False,
) -> Identity:
    """The identity to claim. `route` is stored for people only; it identifies nothing."""
    scope_digest, key_digest = scope.digest, key.digest
    if secret is not None:
        scope_digest, key_digest = stored_digest(scope, secret), stored_digest(key, secret)
    operation_id = derive_operation_id(service, operation, scope_digest, key_digest)
    return Identity(operation_id, route, operation, scope_digest, key_digest, key.text if keeps_clear_key else None)


def is_of(identity: Identity, service: str, operation: str) -> bool:
    """Whether this identity belongs to this operation name of this service.

    Services that share a store may use the same names, and a change of the configuration may reuse one. Only the id
    depends on the service, so it is derived again, where that is possible.
    """
    if identity.service is not None:
        return (identity.service, identity.operation) == (service, operation)
    derived = derive_operation_id(service, operation, identity.scope_digest, identity.key_digest)
    return identity.operation == operation and identity.operation_id == derived


def is_in_scope(identity: Identity, scope_digest: bytes) -> bool:
    """Whether the identity is in the scope with this stored digest. Takes the same time for any other."""
    kept = identity.scope_digest
    is_short = identity.service is not None and len(kept) == SHORT_SCOPE_BYTES
    return hmac.compare_digest(scope_digest[:SHORT_SCOPE_BYTES] if is_short else scope_digest, kept)


def identity_recipe(service: str, operation: str, scope: ScopeSpec, key: KeySpec, secret: bytes | None = None) -> bytes:
    """The settings that make an operation's identities. While this is equal, a request keeps its identity.

    Settings that only refuse requests (trusted networks, the key's format) are not part of it.
    """
    recipe = digest(b"identity", _utf8(service), _utf8(operation), scope.recipe, key.recipe)
    return recipe if secret is None else hmac.digest(secret, recipe, "sha256")


def single_headers(scope: ScopeSpec, key: KeySpec) -> frozenset[bytes]:
    """The headers, in lower case, that a request of this route may carry once at most."""
    return scope.headers | key.headers | {b"authorization"}


def _utf8(name: str) -> bytes:
    return name.encode("utf-8")
