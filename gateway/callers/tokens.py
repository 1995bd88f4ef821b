"""Verifies callers by what their request has: bearer tokens (`JwtScope`), and client certificates.

A token that was verified is remembered by its digest until it expires or the keys of its issuer are others, so that a
repeat costs a digest. Nothing else of a token is kept, and nothing of it gets into a log or a reply.

A certificate was verified by TLS when the connection was made. A proxy in front of the gateway has a certificate of its
own, which says nothing about the caller. A connection may outlast the certificate that it was made with; then its
holder is nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from gateway.callers.key_set import KeySet
from gateway.config.scope import JwtScope
from gateway.core.identity.key import ClientCertificateScope, IdentityUnavailable, Network, ScopeMissing
from gateway.core.identity.peer import certificate_name
from gateway.core.identity.token import TokenFault, bearer_credential, read_token, verify_claims
from gateway.core.immutable import immutable
from gateway.protect.identification import Verification, Verified, Verifier
from gateway.protect.request import Request

_REMEMBERED_MAX: Final = 10_000


@immutable
class _Remembered:
    """A verified token. It counts until this Unix time, and while its issuer's keys have this version."""

    verified: Verified
    until_seconds: float
    keys: KeySet
    version: int


class TokenVerifier(Verifier):
    """Verifies the tokens of one scope. Lives on one event loop. The keys are their owner's to close."""

    def __init__(
        self, scope: JwtScope, keys: Mapping[str, KeySet], wall_seconds: Callable[[], float], *, waiting_max: int = 1000
    ) -> None:
        """`keys` by issuer; they may be shared with other verifiers. `wall_seconds` is Unix time. `waiting_max` bounds
        the requests that wait for keys."""
        self._issuers = {each.issuer: each for each in scope.issuers}
        self._keys, self._wall_seconds, self._waiting_max = keys, wall_seconds, waiting_max
        self._waiting = 0
        self._remembered: dict[bytes, _Remembered] = {}

    def start(self) -> None:
        for keys in self._keys.values():
            keys.start()

    def known(self, request: Request) -> Verification | None:
        credential = bearer_credential(request.head.headers)
        if credential is None:
            return _invalid("A bearer token is missing.")
        digest = sha256(credential).digest()
        known = self._remembered.get(digest)
        if known is not None:
            is_current = known.version == known.keys.version and known.keys.is_known
            if is_current and self._wall_seconds() < known.until_seconds:
                return known.verified
            del self._remembered[digest]
        found = self._verify(credential, digest)
        if not isinstance(found, KeySet):
            return found
        return None if found.may_refresh else _undecided(found)

    async def ask(self, request: Request) -> Verification:
        """Waits for the keys of the token's issuer."""
        return await self.whose(bearer_credential(request.head.headers) or b"")

    async def whose(self, credential: bytes) -> Verification:
        """Whose token this is. Otherwise as `ask`."""
        digest = sha256(credential).digest()
        found = self._verify(credential, digest)
        if isinstance(found, KeySet):
            if self._waiting >= self._waiting_max:
                return IdentityUnavailable("Too many requests wait for the keys of the token's issuer.")
            self._waiting += 1
            try:
                await found.refresh()
            finally:
                self._waiting -= 1
            found = self._verify(credential, digest)
        return _undecided(found) if isinstance(found, KeySet) else found

    def _verify(self, credential: bytes, digest: bytes) -> Verification | KeySet:
        """The token's caller; or the keys among which the one that signed it may be missing."""
        token = read_token(credential)
        if isinstance(token, TokenFault):
            return _invalid(token.detail)
        issuer = self._issuers.get(token.issuer)
        if issuer is None:
            return _invalid("The token is from another issuer.")
        if token.algorithm not in issuer.algorithms:
            return _invalid("The token is signed by an algorithm that is not accepted.")
        # Before the signature, because it is cheaper, and a token that has expired is worth no fetch.
        claims = verify_claims(issuer, token, self._wall_seconds())
        if isinstance(claims, TokenFault):
            return _invalid(claims.detail)
        keys = self._keys[issuer.issuer]
        candidates, is_named = keys.keys_for(token)
        if not keys.is_known:
            return keys
        if any(key.verifies(token) for key in candidates):
            verified = Verified(claims.value)
            self._remember(digest, _Remembered(verified, claims.until_seconds, keys, keys.version))
            return verified
        return _invalid("The signature of the token is not its issuer's.") if is_named else keys

    def _remember(self, digest: bytes, known: _Remembered) -> None:
        if len(self._remembered) >= _REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = known


def _invalid(detail: str) -> ScopeMissing:
    return ScopeMissing(detail, is_credential=True, is_token=True)


def _undecided(keys: KeySet) -> Verification:
    """The reply where these keys did not sign the token, and cannot be fetched now."""
    if keys.is_known:
        return _invalid("The token is not signed by a key of its issuer.")
    return IdentityUnavailable(
        "The keys of the token's issuer are not known.", max(1, math.ceil(keys.retry_after_seconds))
    )


class ClientCertificates(Verifier):
    """Verifies one kind of name. `wall_seconds` is Unix time."""

    def __init__(
        self, scope: ClientCertificateScope, trusted_proxies: Sequence[Network], wall_seconds: Callable[[], float]
    ) -> None:
        self._scope = scope
        self._trusted_proxies = tuple(trusted_proxies)
        self._wall_seconds = wall_seconds

    def known(self, request: Request) -> Verification:
        """The caller, or why the certificate names none. Nothing has to be waited for."""
        peer, certificate = request.hop.peer, request.hop.certificate
        if peer is not None and any(peer in network for network in self._trusted_proxies):
            return _missing("The request came through a proxy, which cannot show the client's certificate.")
        if certificate is None:
            return _missing("A client certificate is missing.")
        if certificate.until <= self._wall_seconds():
            return _missing("The client certificate has expired since the connection was made.")
        name = certificate_name(certificate, self._scope.part)
        return Verified(self._scope.value_of(name)) if isinstance(name, bytes) else name

    async def ask(self, request: Request) -> Verification:
        """As `known`."""
        return self.known(request)


def _missing(detail: str) -> ScopeMissing:
    return ScopeMissing(detail, is_credential=True)
