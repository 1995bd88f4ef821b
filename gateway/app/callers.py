"""Who verifies callers: a verifier for each verified part of the routes' scopes, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import assert_never

from gateway.app.life import StartError
from gateway.app.routes import authorize_of, scope_spec
from gateway.app.tls_files import stamp_of
from gateway.config import Config, token_issuers
from gateway.core.identity.scope import (
    AuthService,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    JwtScope,
    ScopeSpec,
    VerifiedSpec,
)
from gateway.core.identity.token import KeysAt, KeysDiscovered, KeysInFile, KeySource, SharedSecret, TokenIssuer
from gateway.http.request import ReservedHeaders
from gateway.observe.facts import Events
from gateway.protect.callers import Callers, Verifier
from gateway.protect.client_certificate import ClientCertificates
from gateway.protect.forward_auth import CONNECTIONS_MAX, ForwardAuth
from gateway.protect.key_set import KeySet, KeySetInvalid, Source, secret_key
from gateway.protect.key_source import DiscoveredSource, FileSource, UrlSource, read_key_file
from gateway.protect.tokens import TokenVerifier
from gateway.upstream import Upstream, UpstreamSettings, tls_context
from gateway.upstream.certificates import PemError, client_context


def callers_of(
    config: Config,
    events: Events,
    clock: Callable[[], float],
    wall_seconds: Callable[[], float],
    *,
    is_observed: bool = False,
) -> Callers:
    """The callers of one process; see `verifiers_of`."""
    return Callers(verifiers_of(config, events, clock, wall_seconds, is_observed=is_observed))


def verifiers_of(
    config: Config,
    events: Events,
    clock: Callable[[], float],
    wall_seconds: Callable[[], float],
    *,
    is_observed: bool = False,
) -> dict[VerifiedSpec | AuthService, Verifier]:
    """Who verifies each part of the scopes of all routes, or of those that are observed.

    `clock` counts seconds, `wall_seconds` is Unix time. Raises `StartError` where a file of theirs cannot be used.
    Nothing is asked of an issuer yet.
    """
    key_sets: dict[tuple[str, KeySource, float], KeySet] = {}

    def key_set(issuer: TokenIssuer) -> KeySet:
        key = (issuer.issuer, issuer.keys, issuer.stale_seconds)
        if isinstance(issuer.keys, SharedSecret):
            keys = (secret_key(issuer.keys.secret, issuer.algorithms),)
            return KeySet(issuer.issuer, keys, clock=clock)
        if key not in key_sets:
            source = _source(issuer.issuer, issuer.keys)
            key_sets[key] = KeySet(
                issuer.issuer, source=source, stale_seconds=issuer.stale_seconds, clock=clock, publish=events.publish
            )
        return key_sets[key]

    def forward_auth(asked: ForwardAuthScope | AuthService) -> ForwardAuth:
        service = asked.service if isinstance(asked, ForwardAuthScope) else asked
        return ForwardAuth(
            asked,
            _auth_client(service),
            events,
            trusted_proxies=config.trusted_proxies,
            asked_max=config.limits.max_in_flight,
            clock=clock,
        )

    routes = [route for route in config.routes if (config.mode_of(route) == "observe") or not is_observed]
    verifiers: dict[VerifiedSpec | AuthService, Verifier] = {
        service: forward_auth(service)
        for route in routes
        if not is_observed and (service := authorize_of(route)) is not None
    }
    for part in verified_parts(scope_spec(route.scope) for route in routes):
        match part:
            case JwtScope(issuers):
                keys: Mapping[str, KeySet] = {each.issuer: key_set(each) for each in issuers}
                verifiers[part] = TokenVerifier(part, keys, wall_seconds, waiting_max=config.limits.max_in_flight)
            case ForwardAuthScope():
                verifiers[part] = forward_auth(part)
            case ClientCertificateScope():
                verifiers[part] = ClientCertificates(part, config.trusted_proxies, wall_seconds)
            case _:
                assert_never(part)
    return verifiers


def callers_key(config: Config) -> object:
    """What the callers of a configuration are made of, their files as they are now included."""
    parts = frozenset(verified_parts(scope_spec(route.scope) for route in config.routes))
    services = frozenset(service for route in config.routes if (service := authorize_of(route)) is not None)
    files = [Path(ca) for ca in _authorities(config)]
    return parts, services, config.trusted_proxies, config.limits.max_in_flight, [*map(stamp_of, files)]


def _authorities(config: Config) -> list[str]:
    found = {str(service.ca) for route in config.routes for service in route.authorities if service.ca is not None}
    found |= {str(each.ca) for route in config.routes for each in token_issuers(route.scope) if each.ca is not None}
    return sorted(found)


def verified_parts(scopes: Iterable[ScopeSpec]) -> dict[VerifiedSpec, None]:
    """The parts of scopes that are verified, each once."""
    found: dict[VerifiedSpec, None] = {}
    for scope in scopes:
        parts = scope.parts if isinstance(scope, ComposedScope) else (scope,)
        found |= {part: None for part in parts if isinstance(part, VerifiedSpec)}
    return found


def reserved_headers(config: Config) -> ReservedHeaders | None:
    """The headers that authorising services alone may set; None where there are none."""
    reserved = [
        (route.match.path, frozenset(name.encode() for name in service.names))
        for route in config.routes
        if config.share_of(route) > 0
        for service in route.authorities
        if service.names
    ]
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
