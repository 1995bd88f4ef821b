"""What requests meet on their way: who verifies callers, the clients of the upstreams, and traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway import __version__
from gateway.app.host import stamp_of
from gateway.app.life import StartError
from gateway.callers.forward_auth import CONNECTIONS_MAX, ForwardAuth
from gateway.callers.tokens import (
    ClientCertificates,
    Key,
    KeySet,
    KeySetInvalid,
    Source,
    TokenVerifier,
    discovered_source,
    fetch_file,
    read_key_file,
    url_source,
)
from gateway.config import Config
from gateway.config.delivery import TCP_USER_TIMEOUT_SECONDS, UpstreamTls
from gateway.config.delivery import Upstream as UpstreamConfig
from gateway.config.leaf import PostgresUrl, RedisUrl, SqliteUrl
from gateway.config.route import ClientCertificateScope, ForwardAuthScope, JwtScope, TokenIssuer, TokenSecret, parts_of
from gateway.config.route import ForwardAuth as Service
from gateway.core.identity.key import ForwardAuthScope as ForwardAuthSpec
from gateway.core.identity.key import VerifiedSpec
from gateway.http.handler import ReservedHeaders
from gateway.observe.facts import Events, UpstreamChanged
from gateway.observe.tracing import Tracing
from gateway.protect.identification import Callers, Closable, Verifier
from gateway.protect.probing import PROBES_MAX
from gateway.upstream import NotSent, Upstream, UpstreamSettings, UpstreamStats, tls_context
from gateway.upstream.connect import PemError, client_context

# -- callers -----------------------------------------------------------------------------------------------------------

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
    counts seconds, `wall_seconds` is Unix time. Key sets begin with what those of `before` know, the same ones from
    unchanged files. Raises `StartError` where a file of theirs cannot be used. Nothing is asked of an issuer yet."""
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
            secret = Key(None, frozenset(issuer.algorithms), keys.secret.get_secret_value().encode())
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


# -- tracing -----------------------------------------------------------------------------------------------------------
# As the semantic conventions for databases name them.
_SYSTEMS: Final = {SqliteUrl: "sqlite", PostgresUrl: "postgresql", RedisUrl: "redis"}


# For a configuration without a secret. A reload keeps it, for what began before is followed afterwards.
_OWN_SECRET: Final = os.urandom(32)


def tracing_of(config: Config) -> Tracing | None:
    """None where `traces` is left out. Raises `StartError` without the packages for it."""
    traces = config.traces
    if traces is None:
        return None
    upstreams = {route.name: config.upstream_for(route).url for route in config.routes}
    try:
        return Tracing(
            traces.sample,
            f"{traces.endpoint.service}{traces.endpoint.target}",
            {name: value.get_secret_value() for name, value in traces.headers.items()},
            trusted=config.trusted_proxies if traces.accept == "trusted" else (),
            accepts_all=traces.accept == "all",
            service=config.service,
            version=__version__,
            templates={route.name: route.match.path.text for route in config.routes},
            upstreams={name: (url.host, url.port) for name, url in upstreams.items()},
            store_system=_SYSTEMS[type(config.store.durable)] if traces.detail == "store" else None,
            secret=_secret(config),
        )
    except ModuleNotFoundError as error:
        raise StartError(str(error)) from error


def _secret(config: Config) -> bytes:
    """The same at each gateway where there is a secret; where requests are kept to be delivered, there is one."""
    secrets = config.secrets
    keys = [each.key for each in secrets.encryption] or [each.key for each in secrets.fingerprint_keys]
    return keys[0].get_secret_value() if keys else _OWN_SECRET


# -- upstreams ---------------------------------------------------------------------------------------------------------
# The upstream clients. Routes with the same upstream settings share one.


def upstream_settings(config: Config, upstream: UpstreamConfig) -> UpstreamSettings:
    """The settings of an upstream's client. Raises `OSError` when one of its TLS files cannot be used."""
    tls = upstream.tls or UpstreamTls()
    # Whichever upstream they go to.
    deliveries_max = sum(config.delivery_for(route).max_in_flight for route in config.routes if route.is_accepting)
    return UpstreamSettings(
        host=upstream.url.host,
        port=upstream.url.port,
        tls=None if upstream.url.scheme == "http" else tls_context(tls.ca, tls.cert, tls.key),
        server_name=tls.server_name,
        connect_timeout_seconds=upstream.connect_timeout,
        response_timeout_seconds=upstream.response_timeout,
        keepalive_seconds=upstream.keepalive,
        tcp_user_timeout_seconds=TCP_USER_TIMEOUT_SECONDS,
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=upstream.max_connections,
        connections_reserved=config.limits.max_in_flight + PROBES_MAX + deliveries_max,
    )


class Upstreams:
    """The clients of one configuration, until `close`. Publishes when no connection to an upstream can be made."""

    def __init__(self, config: Config, events: Events) -> None:
        self._config = config
        self._events = events
        self._clients: dict[UpstreamConfig, tuple[str, Upstream]] = {}

    def client_for(self, upstream: UpstreamConfig) -> Upstream:
        """The client of this upstream. Raises `StartError` when its TLS files cannot be used."""
        # The settings that concern the client; the others are each route's own.
        shared = upstream.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        if shared not in self._clients:
            url = str(upstream.url)
            try:
                settings = upstream_settings(self._config, upstream)
            except OSError as error:
                raise StartError(f"the TLS files for {upstream.url} cannot be used: {error}") from error
            self._clients[shared] = url, Upstream(settings, partial(self._publish, url))
        return self._clients[shared][1]

    @property
    def stats(self) -> dict[str, UpstreamStats]:
        """The counts of each upstream, by its URL. An upstream may have several clients."""
        found: dict[str, UpstreamStats] = {}
        for url, client in self._clients.values():
            total = found.setdefault(url, UpstreamStats())
            for each in fields(UpstreamStats):
                setattr(total, each.name, getattr(total, each.name) + getattr(client.stats, each.name))
        return found

    async def close(self) -> None:
        """Close every client, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for _, client in self._clients.values():
                stack.push_async_callback(client.close)

    def _publish(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))
