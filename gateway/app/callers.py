"""Who verifies callers: a verifier for each verified part of the routes' scopes, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import assert_never

from gateway.app.life import StartError
from gateway.core.identity.scope import (
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    JwtScope,
    ScopeSpec,
    VerifiedSpec,
)
from gateway.core.identity.token import KeysAt, KeysDiscovered, KeysInFile, KeySource, SharedSecret, TokenIssuer
from gateway.protect.callers import Callers, Verifier
from gateway.protect.key_set import KeySet, KeySetInvalid, Source, read_keys, secret_key
from gateway.protect.key_source import DiscoveredSource, FileSource, UrlSource
from gateway.protect.tokens import TokenVerifier
from gateway.upstream.certificates import client_context


def callers_of(scopes: Iterable[ScopeSpec], clock: Callable[[], float], wall_seconds: Callable[[], float]) -> Callers:
    """The callers in these scopes. `clock` counts seconds, `wall_seconds` is Unix time.

    Raises `StartError` where a file of theirs cannot be used. Nothing is asked of an issuer yet.
    """
    key_sets: dict[tuple[str, KeySource, float], KeySet] = {}

    def key_set(issuer: TokenIssuer) -> KeySet:
        key = (issuer.issuer, issuer.keys, issuer.stale_seconds)
        if isinstance(issuer.keys, SharedSecret):
            keys = (secret_key(issuer.keys.secret, issuer.algorithms),)
            return KeySet(issuer.issuer, keys, clock=clock)
        if key not in key_sets:
            source = _source(issuer.issuer, issuer.keys)
            key_sets[key] = KeySet(issuer.issuer, source=source, stale_seconds=issuer.stale_seconds, clock=clock)
        return key_sets[key]

    verifiers: dict[VerifiedSpec, Verifier] = {}
    for part in verified_parts(scopes):
        match part:
            case JwtScope(issuers):
                keys: Mapping[str, KeySet] = {each.issuer: key_set(each) for each in issuers}
                verifiers[part] = TokenVerifier(part, keys, wall_seconds)
            case ForwardAuthScope() | ClientCertificateScope():
                raise NotImplementedError
            case _:
                assert_never(part)
    return Callers(verifiers)


def verified_parts(scopes: Iterable[ScopeSpec]) -> dict[VerifiedSpec, None]:
    """The parts of scopes that are verified, each once."""
    found: dict[VerifiedSpec, None] = {}
    for scope in scopes:
        parts = scope.parts if isinstance(scope, ComposedScope) else (scope,)
        found |= {part: None for part in parts if isinstance(part, VerifiedSpec)}
    return found


def _source(issuer: str, keys: KeysAt | KeysDiscovered | KeysInFile) -> Source:
    try:
        match keys:
            case KeysAt(url, ca):
                return UrlSource(url, client_context(None if ca is None else Path(ca)))
            case KeysDiscovered(ca):
                return DiscoveredSource(issuer, client_context(None if ca is None else Path(ca)))
            case KeysInFile(path):
                read_keys(Path(path).read_bytes())
                return FileSource(Path(path))
            case _:
                assert_never(keys)
    except KeySetInvalid as error:
        raise StartError(f"the keys in {path} cannot be used: {error}") from error
    except OSError as error:
        raise StartError(f"the files for the issuer {issuer} cannot be used: {error}") from error
