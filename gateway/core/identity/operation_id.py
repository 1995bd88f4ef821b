"""The identity of an operation: which requests are about the same intended effect.

It is made of service, operation name, scope and key, each digested in a frame of its own. The derivations must never
change: records are found by them, operators search for them, and upstreams may deduplicate on them. Any change makes
every remembered key unknown.

With a secret, the digests of scope and key are keyed (HMAC), and the operation id through them: with the table
alone nobody can compute or test one. Outside this module a digest of a scope or a key is always `stored_digest`'s.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from uuid import UUID, SafeUUID

from gateway.core.framing import digest, framed
from gateway.core.identity.key import Key, KeySpec
from gateway.core.identity.scope import Scope, ScopeSpec
from gateway.core.operation import SHORT_SCOPE_BYTES, Identity


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
