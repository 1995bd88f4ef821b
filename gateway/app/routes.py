"""What the configuration says of routes, as requests need it.

A translation and nothing more: each word of the file has one place here where it becomes a value of the core.
"""

from __future__ import annotations

from typing import Literal, assert_never
from uuid import uuid4

from gateway import config as asked
from gateway.core.framing import digest
from gateway.core.identity.fingerprint import (
    METHOD_OVERRIDES,
    TARGET_OVERRIDES,
    BodyForm,
    Fingerprinter,
    FingerprintKey,
    FingerprintSpec,
)
from gateway.core.identity.key import BodyPart, ComposedKey, HeaderKey, HeaderPart, KeyFormat, KeySpec
from gateway.core.identity.operation_id import identity_recipe, single_headers
from gateway.core.identity.pointer import Pointer, parse_pointer
from gateway.core.identity.scope import ApiKeyScope, ComposedScope, HeaderScope, ScopeSpec, SharedScope
from gateway.core.operation import microseconds
from gateway.core.outcome import Meaning, Preset, StatusPolicy
from gateway.core.recovery import Hold, Probe, ProbeRule, Recovery, Resend
from gateway.core.replay import KeepPolicy
from gateway.core.succession import ServedRoute
from gateway.protect.forwarding import ForwardingPolicy, UpstreamKey
from gateway.protect.probing import PROBES_MAX
from gateway.protect.route import InFlightPolicy, Retention, Route, Target
from gateway.store.operations import Serving
from gateway.upstream import Upstream, UpstreamSettings, tls_context


def route_of(config: asked.Config, route: asked.Route, upstream: Upstream) -> Route:
    """A route of the file, served by the client of its upstream."""
    key, scope = key_spec(route.key), scope_spec(route.scope)
    fingerprinter = _fingerprinter(config.secrets, route.fingerprint)
    return Route(
        name=route.name,
        operation=route.operation,
        key=key,
        is_key_required=route.key.required,
        scope=scope,
        once=single_headers(scope, key),
        compared=frozenset((*METHOD_OVERRIDES, *TARGET_OVERRIDES, *fingerprinter.spec.headers)),
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
        shape=route.errors,
        mismatch_status=route.mismatch_status,
        shows_status=route.status_header,
        forwards_unprotected=route.store_unavailable == "forward",
        target=target_of(config, config.upstream_for(route), upstream, route),
        path=route.match.path,
        recovery=recovery_policy(config, route),
    )


def status_policy(route: asked.Route) -> StatusPolicy:
    """What the statuses of a route's service mean."""
    return StatusPolicy(
        Preset(route.outcome.preset),
        {status: Meaning(meaning) for status, meaning in route.outcome.codes.items()},
        {status: Meaning(meaning) for status, meaning in route.outcome.classes.items()},
        resends=route.recovery == "resend",
    )


def keep_policy(route: asked.Route) -> KeepPolicy:
    """What of a route's answers is kept."""
    return KeepPolicy(
        body_bytes_max=route.response.max_stored_bytes,
        strip=frozenset(name.lower().encode() for name in route.response.strip),
        keep=frozenset(name.lower().encode() for name in route.response.keep),
    )


def target_of(
    config: asked.Config, asked_upstream: asked.Upstream, upstream: Upstream, route: asked.Route | None = None
) -> Target:
    """Where requests of a route go; without one, requests that match none."""
    names = () if route is None or isinstance(route.key, asked.ComposedKey) else route.key.header_names
    return Target(
        upstream=upstream,
        forwarding=ForwardingPolicy(
            authority=asked_upstream.url.authority.encode(),
            host=target_host(asked_upstream),
            trusted_proxies=config.trusted_proxies,
        ),
        key=UpstreamKey(_upstream_key(config, asked_upstream, route)),
        key_headers=tuple(name.encode() for name in names),
        answer_within_seconds=asked_upstream.answer_within,
    )


def target_host(upstream: asked.Upstream) -> bytes | None:
    """What stands in place of the caller's `Host`; None preserves it."""
    if upstream.host == "preserve":
        return None
    return (upstream.url.authority if upstream.host == "upstream" else upstream.host).encode()


def _upstream_key(config: asked.Config, upstream: asked.Upstream, route: asked.Route | None) -> str:
    """What the upstream gets as key; where it deduplicates on it and nobody said otherwise, the operation's id."""
    if route is not None and route.recovery == "resend":
        written = route.upstream.model_fields_set | config.upstream.model_fields_set
        if "key" not in written:
            return "operation_id"
    return upstream.key


def settle_seconds(config: asked.Config, route: asked.Route) -> float:
    """How long after a lease ended a request of its attempt may still arrive upstream."""
    if isinstance(route.recovery, asked.ProbeRecovery) and route.recovery.probe.settle is not None:
        return route.recovery.probe.settle
    return config.upstream_for(route).response_timeout + asked.TCP_USER_TIMEOUT_SECONDS


def recovery_policy(config: asked.Config, route: asked.Route) -> Recovery:
    """How an operation in doubt is resolved."""
    match route.recovery:
        case "hold":
            return Hold()
        case "resend":
            return Resend()
        case asked.ProbeRecovery(probe=probe):
            return Probe(
                path=probe.path,
                method=probe.method,
                headers=tuple(
                    (name.encode(), value.get_secret_value().encode()) for name, value in probe.headers.items()
                ),
                done=tuple(_probe_rule(rule) for rule in probe.done),
                never_happened=tuple(_probe_rule(rule) for rule in probe.never_happened),
                settle_us=microseconds(settle_seconds(config, route)),
                follow=_follow(probe.follow),
                pattern=route.match.path,
                host=target_host(config.upstream_for(route)),
            )
        case _:
            assert_never(route.recovery)


def _probe_rule(rule: asked.ProbeRule) -> ProbeRule:
    where = tuple((parse_pointer(pointer), frozenset(values)) for pointer, values in rule.where.items())
    return ProbeRule(rule.statuses, where)


def _follow(follow: str | None) -> Literal["location"] | Pointer | None:
    if follow is None:
        return None
    return "location" if follow == "location" else parse_pointer(follow)


def upstream_settings(config: asked.Config, upstream: asked.Upstream) -> UpstreamSettings:
    """How to speak to an upstream. Raises OSError when a file of its TLS settings is not usable."""
    tls = upstream.tls or asked.UpstreamTls()
    return UpstreamSettings(
        host=upstream.url.host,
        port=upstream.url.port,
        tls=None if upstream.url.scheme == "http" else tls_context(tls.ca, tls.cert, tls.key),
        server_name=tls.server_name,
        connect_timeout_seconds=upstream.connect_timeout,
        response_timeout_seconds=upstream.response_timeout,
        keepalive_seconds=upstream.keepalive,
        tcp_user_timeout_seconds=asked.TCP_USER_TIMEOUT_SECONDS,
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=upstream.max_connections,
        connections_reserved=config.limits.max_in_flight + PROBES_MAX,
    )


def serving_of(config: asked.Config) -> Serving:
    """What a gateway with this configuration serves, for the agreement with its store."""
    return Serving(
        gateway_id=uuid4(),
        service=config.service,
        recipes=_recipes(config),
        routes=tuple(ServedRoute(config.service, route.operation, route.rule) for route in config.routes),
        accepted=frozenset(route.operation for route in config.routes if route.identity_change == "accept"),
    )


def _recipes(config: asked.Config) -> dict[str, bytes]:
    """How the identities of each operation name are made, over all routes that share it."""
    found: dict[str, set[bytes]] = {}
    for route in config.routes:
        recipe = identity_recipe(config.service, route.operation, scope_spec(route.scope), key_spec(route.key))
        found.setdefault(route.operation, set()).add(recipe)
    return {operation: digest(b"recipes", *sorted(each)) for operation, each in found.items()}


def key_spec(key: asked.Key) -> KeySpec:
    """Where the key is, as the core reads it."""
    match key:
        case asked.HeaderKey() | asked.HeadersKey():
            return HeaderKey(tuple(name.encode() for name in key.header_names), KeyFormat(key.format))
        case asked.BodyKey():
            return ComposedKey((BodyPart(parse_pointer(key.body)),))
        case asked.ComposedKey():
            return ComposedKey(
                tuple(
                    HeaderPart(part.header.encode())
                    if isinstance(part, asked.HeaderPart)
                    else BodyPart(parse_pointer(part.body))
                    for part in key.compose
                )
            )
        case _:
            assert_never(key)


def scope_spec(scope: asked.Scope) -> ScopeSpec:
    """Whose key it is, as the core reads it."""
    match scope:
        case "shared":
            return SharedScope()
        case asked.ComposedScope():
            return ComposedScope(tuple(_scope_part(part) for part in scope.compose))
        case asked.HeaderScope() | asked.ApiKeyScope():
            return _scope_part(scope)
        case _:
            assert_never(scope)


def _scope_part(part: asked.HeaderScope | asked.ApiKeyScope) -> HeaderScope | ApiKeyScope:
    if isinstance(part, asked.ApiKeyScope):
        return ApiKeyScope(part.api_key.encode())
    return HeaderScope(part.header.encode(), None if part.from_ == "any" else part.from_)


def _fingerprinter(secrets: asked.Secrets, fingerprint: asked.Fingerprint) -> Fingerprinter:
    keys = [FingerprintKey(key.id, key.key.get_secret_value()) for key in secrets.fingerprint_keys]
    spec = FingerprintSpec(
        body=BodyForm.AUTO if fingerprint.body is None else BodyForm(fingerprint.body),
        ignore=tuple(parse_pointer(pointer) for pointer in fingerprint.ignore),
        only=tuple(parse_pointer(pointer) for pointer in fingerprint.only),
        headers=tuple(name.encode() for name in fingerprint.headers),
    )
    return Fingerprinter(spec, keys[0] if keys else None, keys[1:])
