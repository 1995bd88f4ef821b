"""Translates the configured routes into the values that requests need.

A translation and nothing more: each setting becomes a value of the core in exactly one place here.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, assert_never
from uuid import uuid4

from gateway import config as settings
from gateway.config.leaf import redacted_header
from gateway.core.breaker import BreakerPolicy
from gateway.core.delivery import Delivering, DeliveryPolicy, delivering_of
from gateway.core.framing import digest, framed
from gateway.core.identity.fingerprint import (
    DEFINING,
    BodyForm,
    Fingerprinter,
    FingerprintKey,
    FingerprintSpec,
    RepeatPolicy,
)
from gateway.core.identity.key import BodyPart, ComposedKey, HeaderKey, HeaderPart, KeyFormat, KeySpec
from gateway.core.identity.operation_id import identity_recipe, single_headers
from gateway.core.identity.pointer import parse_pointer
from gateway.core.identity.scope import (
    ApiKeyScope,
    AuthService,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    HeaderScope,
    JwtScope,
    ScopePart,
    ScopeSpec,
    SharedScope,
)
from gateway.core.identity.token import (
    KeysAt,
    KeysDiscovered,
    KeysInFile,
    KeySource,
    SharedSecret,
    TokenIssuer,
)
from gateway.core.operation import microseconds
from gateway.core.outcome import Meaning, Preset, StatusPolicy
from gateway.core.reading import Reference, VersionHeader
from gateway.core.recovery import Hold, Probe, Recovery, Resend
from gateway.core.redaction import Redaction
from gateway.core.replay import KeepPolicy
from gateway.core.routing import Rule
from gateway.core.succession import ServedRoute
from gateway.core.webhook.examination import Inbox, SignAgain
from gateway.observe.facts import Events
from gateway.protect.cors import CorsPolicy
from gateway.protect.forwarding import ForwardingPolicy, UpstreamKey
from gateway.protect.probing import PROBES_MAX
from gateway.protect.problem import TYPE_PREFIX, Shape
from gateway.protect.regions import Region, Regions
from gateway.protect.route import AcceptPolicy, EnforcedShare, InFlightPolicy, Order, Retention, Route, Target
from gateway.store.operations import Serving
from gateway.upstream import Upstream, UpstreamSettings, tls_context

# Enough to tell two secrets apart, and of no use to who guesses one.
_CHECK_BYTES: Final = 4


def route_of(config: settings.Config, route: settings.Route, upstream: Upstream) -> Route:
    """A configured route with the client of its upstream."""
    inbox = inbox_of(route)
    key, scope = key_spec(route), scope_spec(route.scope)
    authorize = authorize_of(route)
    asked = frozenset() if authorize is None else frozenset(name.lower() for name in authorize.headers)
    fingerprinter, order = _fingerprinter(config.secrets, route), order_of(route)
    return Route(
        name=route.name,
        operation=route.operation,
        key=key,
        is_key_required=route.key is None or route.key.required,
        scope=scope,
        once=single_headers(scope, key)
        | asked
        | (frozenset() if inbox is None else inbox.headers)
        | (frozenset() if order is None else order.by.headers),
        compared=DEFINING.union(fingerprinter.spec.headers),
        fingerprinter=fingerprinter,
        accepts_recipe_change=route.fingerprint.on_recipe_change == "accept",
        in_flight=InFlightPolicy(
            wait_seconds=route.in_flight.wait,
            wait_seconds_max=route.in_flight.max_wait,
            status=route.in_flight.status,
            waiters_max=route.in_flight.max_waiters,
        ),
        policy=status_policy(route),
        keep=keep_policy(route),
        retention=Retention(
            replay_us=microseconds(route.retention.replay),
            remember_us=microseconds(route.retention.remember),
            expired_status=route.retention.expired_status,
        ),
        body_bytes_max=route.body.max_bytes,
        spool_over_bytes=route.body.spool_over,
        shape=problem_shape(config, route),
        mismatch_status=route.mismatch_status,
        shows_status=route.status_header,
        forwards_unprotected=route.store_unavailable == "forward",
        target=target_of(config, config.upstream_for(route), upstream, route),
        path=route.match.path,
        authorize=authorize,
        accept=accept_policy(config, route),
        inbox=inbox,
        repeats=repeat_policy(route),
        recovery=recovery_policy(config, route),
    )


def edge_route(
    config: settings.Config,
    route: settings.Route,
    compiled: Route,
    client_for: Callable[[settings.Upstream], Upstream],
) -> Route:
    """What the edge looks for: the compiled route, or one that observes its requests, and may enforce a share of them.

    An observed request is forwarded to the route's upstream as what matches no route is. Nobody is asked to authorise
    it, and no body of it is written to a file.
    """
    if config.mode_of(route) == "enforce":
        return compiled
    share = config.share_of(route)
    # Nothing of it is probed, so that no `settle` bounds how long its response may take.
    upstream = route.upstream.over(config.upstream)
    return replace(
        compiled,
        is_observed=True,
        enforced=EnforcedShare(compiled, share) if share else None,
        target=target_of(config, upstream, client_for(upstream)),
        authorize=None,
        repeats=None,
        recovery=compiled.recovery if isinstance(compiled.recovery, Resend) else Hold(),
        spool_over_bytes=compiled.body_bytes_max,
    )


def rules_with(config: settings.Config, compiled: Sequence[Route]) -> list[tuple[Rule, Route]]:
    """The rules of all routes in order, each with its route, for `routing.RouteTable`."""
    both = zip(config.routes, compiled, strict=True)
    return [(rule, each) for route, each in both for rule in route.rules]


def accept_policy(config: settings.Config, route: settings.Route) -> AcceptPolicy | None:
    """Which requests of a route are accepted, and how they are delivered."""
    accept, delivery = route.accept, config.delivery_for(route)
    if accept is None and route.inbox is not None:
        accept = settings.Accept()
    if accept is None:
        return None
    # All events of an inbox have one sender.
    is_of_one = route.inbox is not None and "max_pending_per_scope" not in accept.model_fields_set
    return AcceptPolicy(
        delivery=DeliveryPolicy(
            schedule_us=tuple(microseconds(pause) for pause in delivery.schedule),
            deliver_within_us=microseconds(delivery.deliver_within),
            answers_max=delivery.max_answers,
            in_flight_max=delivery.max_in_flight,
            buries_unauthorized=delivery.unauthorized == "bury",
        ),
        is_always=accept.mode == "always" or route.inbox is not None,
        request_bytes_max=min(accept.max_bytes, route.body.max_bytes),
        pending_max=accept.max_pending,
        pending_bytes_max=accept.max_pending_bytes,
        pending_per_scope_max=accept.max_pending if is_of_one else accept.max_pending_per_scope,
        may_withdraw=accept.withdraw == "allow",
        headers=tuple((name.encode(), value.get_secret_value().encode()) for name, value in accept.headers.items()),
        order=order_of(route),
        requeues_on_repeat=route.dead_letter.on_repeat == "requeue",
        requeue_after_us=microseconds(route.dead_letter.requeue_after),
        status_prefix=status_prefix(config),
    )


def order_of(route: settings.Route) -> Order | None:
    """What a route's requests are delivered in order by."""
    order = route.order
    if order is None:
        return None
    part = (
        HeaderPart(order.by.header.encode())
        if isinstance(order.by, settings.OrderHeader)
        else BodyPart(parse_pointer(order.by))
    )
    return Order(ComposedKey((part,)), stops=order.on_stop == "stop", is_required=order.missing == "refuse")


def repeat_policy(route: settings.Route) -> RepeatPolicy | None:
    """What becomes of a request that a caller sent before under another key."""
    repeats = route.repeats
    if repeats is None:
        return None
    by = None if repeats.by == "fingerprint" else tuple(parse_pointer(pointer) for pointer in repeats.by)
    return RepeatPolicy(microseconds(repeats.within), repeats.action == "refuse", by)


def inbox_of(route: settings.Route) -> Inbox | None:
    """Whose webhooks a route takes."""
    inbox = route.inbox
    if inbox is None:
        return None
    origins = inbox.cloudevents.origins
    return Inbox(
        schemes=inbox.schemes,
        secrets=tuple(inbox.compiled_secrets()),
        tolerance_seconds=inbox.tolerance,
        acknowledgement=inbox.known.acknowledgement,
        guards_content=inbox.guards_content,
        sign_again=SignAgain(inbox.sign_again),
        refuses_changed=inbox.on_change == "refuse",
        answers_challenge=inbox.known.has_challenge,
        own_secrets=tuple(secret.compiled for secret in inbox.signing_secrets),
        origins=(b"*",) if origins == "any" else tuple(origin.lower().encode() for origin in origins),
    )


def status_prefix(config: settings.Config) -> bytes:
    """What stands before the id of an operation in the URL of its status."""
    return f"{config.public_url or ''}{config.operations.path}/".encode()


def problem_shape(config: settings.Config, route: settings.Route | None = None) -> Shape:
    """The form of the gateway's own problems, on this route or on none."""
    type_base = config.errors.type_base
    return Shape("problem" if route is None else route.errors, TYPE_PREFIX if type_base is None else type_base)


def cors_policy(config: settings.Config) -> CorsPolicy:
    """Which origins may read what the gateway itself says."""
    cors = config.cors
    origins = None if cors.origins == "any" else frozenset(origin.encode() for origin in cors.origins)
    return CorsPolicy(origins, cors.credentials)


def identity_secret(config: settings.Config) -> bytes | None:
    """The secret that keys the digests of scopes and keys; None where they are not keyed."""
    key = config.secrets.identity_key
    return None if key is None else key.key.get_secret_value()


def status_policy(route: settings.Route) -> StatusPolicy:
    """What the statuses of a route's upstream mean."""
    return StatusPolicy(
        Preset(route.outcome.preset),
        {status: Meaning(meaning) for status, meaning in route.outcome.codes.items()},
        {status: Meaning(meaning) for status, meaning in route.outcome.classes.items()},
        resends=route.recovery == "resend",
        when=tuple((rule.compiled, Meaning(rule.is_)) for rule in route.outcome.when),
    )


def keep_policy(route: settings.Route) -> KeepPolicy:
    """Which parts of a route's responses are stored."""
    response = route.response
    is_fetched = response.replay == "fetch"
    return KeepPolicy(
        body_bytes_max=0 if is_fetched else response.max_stored_bytes,
        strip=frozenset(name.lower().encode() for name in response.strip),
        keep=frozenset(name.lower().encode() for name in response.keep),
        redaction=_redaction(response.redact),
        reference=_reference(response.reference) if response.keeps_reference else None,
        version=_version(response.version),
        is_version_strict=response.on_version_change == "gone",
        reads_bodies=response.reference != "location" or bool(route.outcome.when),
        is_fetched=is_fetched,
        fetch_path=None if response.fetch == "location" else response.fetch,
    )


def _version(version: str | settings.VersionHeader | None) -> bytes | VersionHeader | None:
    if isinstance(version, settings.VersionHeader):
        return VersionHeader(version.header.lower().encode())
    return None if version is None else version.encode()


def _redaction(redact: Sequence[str]) -> Redaction | None:
    pointers = tuple(parse_pointer(each) for each in redact if each.startswith("/"))
    headers = frozenset(redacted_header(each).lower().encode() for each in redact if not each.startswith("/"))
    return Redaction(pointers, headers) if redact else None


def target_of(
    config: settings.Config, upstream_config: settings.Upstream, upstream: Upstream, route: settings.Route | None = None
) -> Target:
    """Where requests of a route go; without a route, those that match none."""
    key = None if route is None else route.key
    names = () if key is None or isinstance(key, settings.ComposedKey) else key.header_names
    return Target(
        upstream=upstream,
        forwarding=ForwardingPolicy(
            authority=upstream_config.url.authority.encode(),
            host=target_host(upstream_config),
            trusted_proxies=config.trusted_proxies,
            heeds_async=route is not None and route.is_accepting,
        ),
        key=UpstreamKey(_upstream_key(config, upstream_config, route)),
        key_headers=tuple(name.encode() for name in names),
        answer_within_seconds=upstream_config.answer_within,
    )


def target_host(upstream: settings.Upstream) -> bytes | None:
    """What replaces the caller's `Host`; None preserves it."""
    if upstream.host == "preserve":
        return None
    return (upstream.url.authority if upstream.host == "upstream" else upstream.host).encode()


def _upstream_key(config: settings.Config, upstream: settings.Upstream, route: settings.Route | None) -> str:
    """Which key the upstream gets: where it deduplicates and nothing else is configured, the operation id."""
    if route is not None and route.recovery == "resend":
        written = route.upstream.model_fields_set | config.upstream.model_fields_set
        if "key" not in written:
            return "operation_id"
    return upstream.key


def settle_seconds(config: settings.Config, route: settings.Route) -> float:
    """How long after the end of a lease a request of its attempt may still arrive upstream."""
    if isinstance(route.recovery, settings.ProbeRecovery) and route.recovery.probe.settle is not None:
        return route.recovery.probe.settle
    return config.upstream_for(route).response_timeout + settings.TCP_USER_TIMEOUT_SECONDS


def recovery_policy(config: settings.Config, route: settings.Route) -> Recovery:
    """How an operation in doubt is resolved."""
    match route.recovery:
        case "hold":
            return Hold()
        case "resend":
            return Resend()
        case settings.ProbeRecovery(probe=probe):
            return Probe(
                path=probe.path,
                method=probe.method,
                headers=tuple(
                    (name.encode(), value.get_secret_value().encode()) for name, value in probe.headers.items()
                ),
                done=tuple(rule.compiled for rule in probe.done),
                never_happened=tuple(rule.compiled for rule in probe.never_happened),
                settle_us=microseconds(settle_seconds(config, route)),
                follow=None if probe.follow is None else _reference(probe.follow),
                patterns=route.match.paths,
                host=target_host(config.upstream_for(route)),
            )
        case _:
            assert_never(route.recovery)


def _reference(place: str) -> Reference:
    return "location" if place == "location" else parse_pointer(place)


def upstream_settings(config: settings.Config, upstream: settings.Upstream) -> UpstreamSettings:
    """The settings of an upstream's client. Raises `OSError` when one of its TLS files cannot be used."""
    tls = upstream.tls or settings.UpstreamTls()
    return UpstreamSettings(
        host=upstream.url.host,
        port=upstream.url.port,
        tls=None if upstream.url.scheme == "http" else tls_context(tls.ca, tls.cert, tls.key),
        server_name=tls.server_name,
        connect_timeout_seconds=upstream.connect_timeout,
        response_timeout_seconds=upstream.response_timeout,
        keepalive_seconds=upstream.keepalive,
        tcp_user_timeout_seconds=settings.TCP_USER_TIMEOUT_SECONDS,
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=upstream.max_connections,
        connections_reserved=config.limits.max_in_flight + PROBES_MAX + _deliveries_max(config),
    )


def _deliveries_max(config: settings.Config) -> int:
    """How many deliveries may run at once, whichever upstream they go to."""
    return sum(config.delivery_for(route).max_in_flight for route in config.routes if route.is_accepting)


def breaker_policy(config: settings.Config) -> BreakerPolicy:
    """When deliveries to an upstream pause."""
    breaker = config.delivery.breaker
    return BreakerPolicy(breaker.failures, breaker.open, breaker.max_open)


def serving_of(config: settings.Config) -> Serving:
    """What a gateway with this configuration serves, to compare with what its store has recorded."""
    return Serving(
        gateway_id=uuid4(),
        service=config.service,
        recipes=_recipes(config),
        routes=tuple(
            ServedRoute(config.service, route.operation, rule, config.share_of(route))
            for route in config.routes
            for rule in route.rules
        ),
        accepted=frozenset(route.operation for route in config.routes if route.identity_change == "accept"),
        key_ids=_key_ids(config.secrets),
        mode_accepted=frozenset(route.operation for route in config.routes if route.mode_change == "accept"),
        replay_us=max(microseconds(route.retention.replay) for route in config.routes),
        delivering=delivered_by(config),
        fingerprint_keys={
            key.id: hmac.digest(key.key.get_secret_value(), b"fingerprint key", "sha256")[:_CHECK_BYTES].hex()
            for key in config.secrets.fingerprint_keys
        },
        compare_accepted=frozenset(route.operation for route in config.routes)
        - frozenset(route.operation for route in config.routes if route.fingerprint.on_recipe_change != "accept"),
    )


def delivered_by(config: settings.Config) -> Delivering:
    """Which kept requests the routes deliver."""
    operations = {route.name: route.operation for route in config.routes}
    return delivering_of(operations, [route.name for route in config.routes if route.is_accepting])


def _key_ids(secrets: settings.Secrets) -> frozenset[str] | None:
    return None if secrets.unreadable == "accept" else frozenset(key.id for key in secrets.encryption)


def _recipes(config: settings.Config) -> dict[str, bytes]:
    """The digest of the identity recipes of each operation name, over all routes that share it."""
    found: dict[str, set[bytes]] = {}
    for route in config.routes:
        scope, key = scope_spec(route.scope), key_spec(route)
        recipe = identity_recipe(config.service, route.operation, scope, key, identity_secret(config))
        found.setdefault(route.operation, set()).add(recipe)
    # Where operations are at home is a part of what finds them.
    homes = [] if config.regions is None else [home.name.encode() for home in config.regions.homes]
    where = [framed(b"regions", *homes)] if homes else []
    return {operation: digest(b"recipes", *sorted(each), *where) for operation, each in found.items()}


def regions_of(
    config: settings.Config,
    client_for: Callable[[settings.Upstream], Upstream],
    events: Events,
    wall_seconds: Callable[[], float],
) -> Regions | None:
    """The regions; None where all gateways share one store. `client_for` gives the client of an upstream."""
    regions = config.regions
    if regions is None:
        return None
    homes = [
        Region(home.name, client_for(config.upstream.model_copy(update={"url": home.url, "tls": home.tls})))
        for home in regions.homes
    ]
    return Regions(regions.here, homes, regions.key.get_secret_value(), events, wall_seconds=wall_seconds)


def key_spec(route: settings.Route) -> KeySpec:
    """Where the key is, for the core."""
    if (inbox := inbox_of(route)) is not None:
        return inbox.key
    match key := route.key:
        case None:
            raise AssertionError("a route has a key or an inbox")
        case settings.HeaderKey() | settings.HeadersKey():
            return HeaderKey(tuple(name.encode() for name in key.header_names), KeyFormat(key.format))
        case settings.BodyKey():
            return ComposedKey((BodyPart(parse_pointer(key.body)),))
        case settings.ComposedKey():
            return ComposedKey(
                tuple(
                    HeaderPart(part.header.encode())
                    if isinstance(part, settings.HeaderPart)
                    else BodyPart(parse_pointer(part.body))
                    for part in key.compose
                )
            )
        case _:
            assert_never(key)


def scope_spec(scope: settings.Scope) -> ScopeSpec:
    """Whose key it is, for the core."""
    match scope:
        case "shared":
            return SharedScope()
        case settings.ComposedScope():
            return ComposedScope(tuple(_scope_part(part) for part in scope.compose))
        case _:
            return _scope_part(scope)


def _scope_part(part: settings.ScopePart) -> ScopePart:
    match part:
        case settings.ApiKeyScope():
            return ApiKeyScope(part.api_key.encode())
        case settings.HeaderScope():
            return HeaderScope(part.header.encode(), None if part.from_ == "any" else part.from_)
        case settings.JwtScope():
            return JwtScope(tuple(_token_issuer(each) for each in part.issuers))
        case settings.ForwardAuthScope(forward_auth=service):
            return ForwardAuthScope(_auth_service(service), service.principal.encode())
        case settings.ClientCertificateScope():
            return ClientCertificateScope(part.client_certificate)
        case _:
            assert_never(part)


def authorize_of(route: settings.Route) -> AuthService | None:
    """Who is asked about every request of a route."""
    return None if route.authorize is None else _auth_service(route.authorize.forward_auth)


def _auth_service(service: settings.ForwardAuth) -> AuthService:
    url = service.url.service
    return AuthService(
        url=str(service.url),
        host=url.host,
        port=url.port,
        has_tls=url.scheme == "https",
        authority=url.authority.encode(),
        target=service.url.target.encode(),
        headers=tuple(name.encode() for name in service.headers),
        copy=tuple(name.encode() for name in service.copy_),
        ca=None if service.ca is None else str(service.ca),
        timeout_seconds=service.timeout,
        cache_seconds=service.cache,
    )


def _token_issuer(issuer: settings.TokenIssuer) -> TokenIssuer:
    return TokenIssuer(
        issuer=issuer.issuer,
        audience=issuer.audience,
        claims=issuer.claims,
        keys=_key_source(issuer),
        algorithms=frozenset(issuer.algorithms),
        leeway_seconds=issuer.leeway,
        stale_seconds=issuer.stale_for,
    )


def _key_source(issuer: settings.TokenIssuer) -> KeySource:
    ca = None if issuer.ca is None else str(issuer.ca)
    match issuer.keys:
        case settings.TokenSecret(secret=secret):
            return SharedSecret(secret.get_secret_value().encode())
        case "discover":
            return KeysDiscovered(ca)
        case place if place.startswith("/"):
            return KeysInFile(place)
        case url:
            return KeysAt(url, ca)


def _fingerprinter(secrets: settings.Secrets, route: settings.Route) -> Fingerprinter:
    fingerprint = route.fingerprint
    ignore = tuple(parse_pointer(pointer) for pointer in fingerprint.ignore)
    if route.inbox is not None and fingerprint.body in (None, "json") and not fingerprint.only:
        ignore += route.inbox.known.ignored
    keys = [FingerprintKey(key.id, key.key.get_secret_value()) for key in secrets.fingerprint_keys]
    spec = FingerprintSpec(
        body=BodyForm.AUTO if fingerprint.body is None else BodyForm(fingerprint.body),
        ignore=ignore,
        only=tuple(parse_pointer(pointer) for pointer in fingerprint.only),
        headers=tuple(name.encode() for name in fingerprint.headers),
        explains=fingerprint.explain,
        defaults=tuple((parse_pointer(pointer), value) for pointer, value in fingerprint.defaults.items()),
    )
    return Fingerprinter(spec, keys[0] if keys else None, keys[1:])
