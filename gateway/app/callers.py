"""Who verifies callers: a verifier for each verified part of the routes' scopes, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.app.life import StartError
from gateway.app.tls_files import stamp_of
from gateway.callers.client_certificate import ClientCertificates
from gateway.callers.forward_auth import CONNECTIONS_MAX, ForwardAuth
from gateway.callers.key_set import (
    KeySet,
    KeySetInvalid,
    Source,
    discovered_source,
    fetch_file,
    read_key_file,
    secret_key,
    url_source,
)
from gateway.callers.tokens import TokenVerifier
from gateway.config import Config
from gateway.config.scope import ClientCertificateScope, ForwardAuthScope, JwtScope, TokenIssuer, TokenSecret, parts_of
from gateway.config.scope import ForwardAuth as Service
from gateway.core.identity.scope import ForwardAuthScope as ForwardAuthSpec
from gateway.core.identity.scope import VerifiedSpec
from gateway.http.handler import ReservedHeaders
from gateway.observe.facts import Events
from gateway.protect.identification import Callers, Closable, Verifier
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
    """The callers of all routes, and who signs in to the console; or the callers of those that are observed. `clock`
    counts seconds, `wall_seconds` is Unix time.

    Key sets begin with what those of `before` know, the same ones from unchanged files. Raises `StartError` where a
    file of theirs cannot be used. Nothing is asked of an issuer yet.
    """
    made: dict[Hashable, Any] = {}
    proxies, waiting_max = tuple(config.trusted_proxies), config.limits.max_in_flight

    def shared(key: Hashable, make: Callable[[], T]) -> T:
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found

    def keys_of(issuer: TokenIssuer) -> KeySet:
        name, keys = issuer.issuer, issuer.keys
        if isinstance(keys, TokenSecret):
            secret = secret_key(keys.secret.get_secret_value().encode(), frozenset(issuer.algorithms))
            key: Hashable = (name, keys, issuer.algorithms)
            return shared(key, lambda: KeySet(name, (secret,), clock=clock))
        file = issuer.ca if issuer.is_fetched else Path(keys)
        key = (name, keys, issuer.ca, issuer.stale_for, stamp_of(file))
        known = None if before is None else before.made.get(key)
        return shared(key, lambda: _fetched(issuer, keys, clock, events, known))

    def tokens(part: JwtScope) -> TokenVerifier:
        sets = {each.issuer: keys_of(each) for each in part.issuers}
        return shared(part, lambda: TokenVerifier(part, sets, wall_seconds, waiting_max=waiting_max))

    def forward_auth(service: Service, scope: ForwardAuthSpec | None = None) -> ForwardAuth:
        return shared(
            (service, scope),
            lambda: ForwardAuth(
                service,
                scope,
                _auth_client(service),
                events,
                trusted_proxies=proxies,
                asked_max=waiting_max,
                clock=clock,
            ),
        )

    routes = [route for route in config.routes if not is_observed or config.mode_of(route) == "observe"]
    # Of what is only observed, nobody is asked for a permission.
    asked = [route.authorize.forward_auth for route in routes if route.authorize is not None and not is_observed]
    sign_in = None if config.admin.sign_in is None or is_observed else config.admin.sign_in.jwt
    sign_in_part = () if sign_in is None else (sign_in.scope,)
    verifiers: dict[VerifiedSpec | Service, Verifier] = {service: forward_auth(service) for service in asked}
    for part in (*(part for route in routes for part in parts_of(route.scope)), *sign_in_part):
        match part:
            case JwtScope():
                verifiers[part.compiled] = tokens(part)
            case ForwardAuthScope():
                verifiers[part.compiled] = forward_auth(part.forward_auth, part.compiled)
            case ClientCertificateScope():
                verifiers[part.compiled] = ClientCertificates(part.compiled, proxies, wall_seconds)
    return Callers(verifiers, made)


def _fetched(
    issuer: TokenIssuer, place: str, clock: Callable[[], float], events: Events, before: Closable | None
) -> KeySet:
    """A key set that is fetched from its place, and knows what the one before knows."""
    source = _source(issuer.issuer, place, issuer.ca)
    found = KeySet(issuer.issuer, (), source, stale_seconds=issuer.stale_for, clock=clock, publish=events.publish)
    if isinstance(before, KeySet):
        found.follow(before)
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


def _auth_client(service: Service) -> Upstream:
    url = service.url.service
    try:
        tls = tls_context(service.ca) if url.scheme == "https" else None
    except OSError as error:
        raise StartError(f"the TLS files for {service.url} cannot be used: {error}") from error
    return Upstream(
        UpstreamSettings(
            host=url.host,
            port=url.port,
            tls=tls,
            connect_timeout_seconds=service.timeout,
            response_timeout_seconds=service.timeout,
            connections_max=0,
            connections_reserved=CONNECTIONS_MAX,
        )
    )


def _source(issuer: str, place: str, ca: Path | None) -> Source:
    """Where the keys of an issuer come from, by its setting `keys`."""
    try:
        if place == "discover":
            return discovered_source(issuer, client_context(ca))
        if not place.startswith("/"):
            return url_source(place, client_context(ca))
        read_key_file(Path(place))
        return partial(fetch_file, Path(place))
    except KeySetInvalid as error:
        raise StartError(f"the keys in {place} cannot be used: {error}") from error
    except OSError as error:
        # A `PemError` names its file.
        reason = str(error) if isinstance(error, PemError) else f"{error.filename}: {error.strerror}"
        raise StartError(f"the files for the issuer {issuer} cannot be used: {reason}") from error
