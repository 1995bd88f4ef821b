"""Who verifies callers: a verifier for each verified part of the routes' scopes, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar, assert_never

from gateway.app.life import StartError
from gateway.app.tls_files import Stamp, stamp_of
from gateway.callers.client_certificate import ClientCertificates
from gateway.callers.forward_auth import CONNECTIONS_MAX, ForwardAuth
from gateway.callers.key_set import KeySet, KeySetInvalid, Source, read_key_file, secret_key
from gateway.callers.key_source import DiscoveredSource, FileSource, UrlSource
from gateway.callers.tokens import TokenVerifier
from gateway.config import Config
from gateway.core.identity.scope import (
    AuthService,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    JwtScope,
    ScopeSpec,
    VerifiedSpec,
)
from gateway.core.identity.token import KeysAt, KeysDiscovered, KeysInFile, SharedSecret, TokenIssuer
from gateway.http.exchange import ReservedHeaders
from gateway.observe.facts import Events
from gateway.protect.callers import Callers, Verifier
from gateway.upstream import Upstream, UpstreamSettings, tls_context
from gateway.upstream.tls import PemError, client_context

T = TypeVar("T")


def callers_of(
    config: Config,
    events: Events,
    clock: Callable[[], float],
    wall_seconds: Callable[[], float],
    before: Callers | None = None,
    *,
    is_observed: bool = False,
) -> Callers:
    """The callers of all routes, or of those that are observed. `clock` counts seconds, `wall_seconds` is Unix time.

    What is made like something of `before`, its files included, is shared with it: a reload must not throw known keys
    away, whose issuer may be away. Raises `StartError` where a file of theirs cannot be used. Nothing is asked of an
    issuer yet.
    """
    made: dict[Hashable, Any] = {}
    proxies, waiting_max = tuple(config.trusted_proxies), config.limits.max_in_flight

    def shared(key: Hashable, make: Callable[[], T]) -> T:
        if key not in made:
            made[key] = before.made[key] if before is not None and key in before.made else make()
        found: T = made[key]
        return found

    def keys_of(issuer: TokenIssuer) -> tuple[Hashable, KeySet]:
        source, name = issuer.keys, issuer.issuer
        if isinstance(source, SharedSecret):
            secret = secret_key(source.secret, issuer.algorithms)
            key: Hashable = (name, source, issuer.algorithms)
            return key, shared(key, lambda: KeySet(name, (secret,), clock=clock))
        file = source.path if isinstance(source, KeysInFile) else source.ca
        key = (name, source, issuer.stale_seconds, _stamp(file))
        return key, shared(
            key,
            lambda: KeySet(
                name,
                source=_source(name, source),
                stale_seconds=issuer.stale_seconds,
                clock=clock,
                publish=events.publish,
            ),
        )

    def tokens(part: JwtScope) -> TokenVerifier:
        keys = {each.issuer: keys_of(each) for each in part.issuers}
        made_of = (part, waiting_max, tuple(key for key, _ in keys.values()))
        sets = {name: found for name, (_, found) in keys.items()}
        return shared(made_of, lambda: TokenVerifier(part, sets, wall_seconds, waiting_max=waiting_max))

    def forward_auth(asked: ForwardAuthScope | AuthService) -> ForwardAuth:
        service = asked.service if isinstance(asked, ForwardAuthScope) else asked
        return shared(
            (asked, proxies, waiting_max, _stamp(service.ca)),
            lambda: ForwardAuth(
                asked,
                _auth_client(service),
                events,
                trusted_proxies=proxies,
                asked_max=waiting_max,
                clock=clock,
            ),
        )

    routes = [route for route in config.routes if (config.mode_of(route) == "observe") or not is_observed]
    verifiers: dict[VerifiedSpec | AuthService, Verifier] = {
        (service := route.authorize.forward_auth.compiled): forward_auth(service)
        for route in routes
        if not is_observed and route.authorize is not None
    }
    for part in verified_parts(route.scope_spec for route in routes):
        match part:
            case JwtScope():
                verifiers[part] = tokens(part)
            case ForwardAuthScope():
                verifiers[part] = forward_auth(part)
            case ClientCertificateScope():
                verifiers[part] = ClientCertificates(part, proxies, wall_seconds)
            case _:
                assert_never(part)
    return Callers(verifiers, made)


def _stamp(file: str | None) -> Stamp:
    return None if file is None else stamp_of(Path(file))


def verified_parts(scopes: Iterable[ScopeSpec]) -> dict[VerifiedSpec, None]:
    """The parts of scopes that are verified, each once."""
    found: dict[VerifiedSpec, None] = {}
    for scope in scopes:
        parts = scope.parts if isinstance(scope, ComposedScope) else (scope,)
        found |= {part: None for part in parts if isinstance(part, VerifiedSpec)}
    return found


def reserved_headers(config: Config) -> ReservedHeaders | None:
    """The headers that authorising services alone may set; None where there are none."""
    reserved = {
        name.encode()
        for route in config.routes
        if config.share_of(route) > 0
        for service in route.authorities
        for name in service.names
    }
    return ReservedHeaders(reserved) if reserved else None


def _auth_client(service: AuthService) -> Upstream:
    try:
        tls = tls_context(None if service.ca is None else Path(service.ca)) if service.has_tls else None
    except OSError as error:
        raise StartError(f"the TLS files for {service.url} cannot be used: {error}") from error
    return Upstream(
        UpstreamSettings(
            host=service.host,
            port=service.port,
            tls=tls,
            connect_timeout_seconds=service.timeout_seconds,
            response_timeout_seconds=service.timeout_seconds,
            connections_max=0,
            connections_reserved=CONNECTIONS_MAX,
        )
    )


def _source(issuer: str, keys: KeysAt | KeysDiscovered | KeysInFile) -> Source:
    try:
        match keys:
            case KeysAt(url, ca):
                return UrlSource(url, client_context(None if ca is None else Path(ca)))
            case KeysDiscovered(ca):
                return DiscoveredSource(issuer, client_context(None if ca is None else Path(ca)))
            case KeysInFile(path):
                read_key_file(Path(path))
                return FileSource(Path(path))
            case _:
                assert_never(keys)
    except KeySetInvalid as error:
        raise StartError(f"the keys in {path} cannot be used: {error}") from error
    except OSError as error:
        # A `PemError` names its file.
        reason = str(error) if isinstance(error, PemError) else f"{error.filename}: {error.strerror}"
        raise StartError(f"the files for the issuer {issuer} cannot be used: {reason}") from error
