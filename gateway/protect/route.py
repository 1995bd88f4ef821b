"""A route as requests need it: its settings, and what is made of them once, when the configuration is loaded.

Owns what is in no section of the file alone: what a route gets from its upstream, from the secrets and from the global
sections. Durations are seconds unless the name says microseconds; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.config import Config
from gateway.config.delivery import Accept, Order, written_headers
from gateway.config.delivery import Upstream as UpstreamConfig
from gateway.config.leaf import lowered
from gateway.config.route import ComposedKey, ForwardAuth, InFlight, Retention, key_header_names
from gateway.config.route import Route as RouteConfig
from gateway.core.delivery import DeliveryPolicy
from gateway.core.identity.body import digest
from gateway.core.identity.fingerprint import DEFINING, Fingerprinter, FingerprintKey, RepeatPolicy
from gateway.core.identity.key import Key, KeySpec, ScopeSpec, single_headers
from gateway.core.message import Headers, IndexedHeaders
from gateway.core.operation import microseconds
from gateway.core.outcome import KeepPolicy, StatusPolicy
from gateway.core.recovery import Hold, Recovery, Resend
from gateway.core.webhook import Inbox
from gateway.protect.forwarding import ForwardingPolicy, UpstreamKey
from gateway.protect.reply import TYPE_PREFIX, Shape
from gateway.upstream import Upstream

ClientFor = Callable[[UpstreamConfig], Upstream]
"""Gives the client of an upstream."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and how: the client of one upstream, and its forwarding settings."""

    upstream: Upstream
    forwarding: ForwardingPolicy
    answer_within_seconds: float


@dataclass(frozen=True, slots=True)
class AcceptPolicy:
    """Which requests of a route are accepted, to be delivered later, and how many may wait.

    `is_always`: all that have a key, and not only those whose caller prefers it. `requeue_after_us`: a repeat of a dead
    letter delivers it again, at most once in this time; None where it does not. `headers` replace the caller's when the
    request is delivered. Where there is an `order`, the route executes nothing but what was accepted. `status_prefix`
    and the operation id make the URL of the operation's status.
    """

    settings: Accept
    delivery: DeliveryPolicy
    is_always: bool
    request_bytes_max: int
    pending_per_scope_max: int
    headers: Headers = ()
    order: Order | None = None
    requeue_after_us: int | None = None
    status_prefix: bytes = b"/_operations/"


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One protected route. `once` are the headers (lower case) that a request may carry at most once; `compared` those
    that the route's fingerprint covers beside what every fingerprint does. `authorize` is asked about every request.

    `is_observed`: its requests are forwarded as if no route matched, but for those of the `enforced` share of keys.
    """

    settings: RouteConfig
    name: str
    operation: str
    key: KeySpec
    is_key_required: bool
    scope: ScopeSpec
    once: frozenset[bytes]
    compared: frozenset[bytes]
    fingerprinter: Fingerprinter
    accepts_recipe_change: bool
    in_flight: InFlight
    policy: StatusPolicy
    keep: KeepPolicy
    retention: Retention
    spool_over_bytes: int
    shape: Shape
    forwards_unprotected: bool
    target: Target
    authorize: ForwardAuth | None = None
    accept: AcceptPolicy | None = None
    inbox: Inbox | None = None
    repeats: RepeatPolicy | None = None
    recovery: Recovery = Hold()  # noqa: RUF009  a value without state
    is_observed: bool = False
    enforced: EnforcedShare | None = None

    def for_key(self, headers: IndexedHeaders) -> Route:
        """The route that a request with these headers meets: this one, or the one that enforces for its key."""
        share = self.enforced
        if share is None:
            return self
        key = self.key.find_key(headers.by_name, None)
        return share.route if isinstance(key, Key) and share.covers(self.operation, key) else self


@dataclass(frozen=True, slots=True)
class EnforcedShare:
    """The route that enforces for a share of the keys of an observed one, from 0 to 1.

    Which keys those are follows from operation name and key alone: all repeats of a key, at every gateway, are on one
    side, and so are those of a larger share that were in a smaller one.
    """

    route: Route
    share: float

    def covers(self, operation: str, key: Key) -> bool:
        drawn = int.from_bytes(digest(b"share", operation.encode(), key.digest)[:8], "big")
        return drawn < self.share * 2**64


# -- from the configuration --------------------------------------------------------------------------------------------


def route_of(config: Config, route: RouteConfig, client: Upstream) -> Route:
    inbox = None if route.inbox is None else route.inbox.compiled
    authorize = None if route.authorize is None else route.authorize.forward_auth
    once = single_headers(route.scope_spec, route.key_spec)
    if authorize is not None:
        once |= lowered(authorize.headers)
    if inbox is not None:
        once |= inbox.headers
    if route.order is not None:
        once |= route.order.value.headers
    spec = route.fingerprint.compiled(() if route.inbox is None else route.inbox.known.ignored)
    keys = [FingerprintKey(key.id, key.key.get_secret_value()) for key in config.secrets.fingerprint_keys]
    upstream = config.upstream_for(route)
    return Route(
        settings=route,
        name=route.name,
        operation=route.operation,
        key=route.key_spec,
        is_key_required=route.key is None or route.key.required,
        scope=route.scope_spec,
        once=once,
        compared=DEFINING.union(spec.headers),
        fingerprinter=Fingerprinter(spec, keys[0] if keys else None, keys[1:]),
        accepts_recipe_change=route.fingerprint.on_recipe_change == "accept",
        in_flight=route.in_flight,
        policy=route.status_policy,
        keep=route.keep_policy,
        retention=route.retention,
        spool_over_bytes=route.body.spool_over,
        shape=shape_of(config, route),
        forwards_unprotected=route.store_unavailable == "forward",
        target=target_of(config, upstream, client, route),
        authorize=authorize,
        accept=accept_policy(config, route),
        inbox=inbox,
        repeats=None if route.repeats is None else route.repeats.compiled,
        recovery=config.recovery_for(route),
    )


def edge_route(config: Config, enforcing: Route, client_for: ClientFor) -> Route:
    """What the edge looks for: the route, or one that observes its requests, and may enforce a share of them.

    An observed request is forwarded to the route's upstream as what matches no route is. Nobody is asked to authorise
    it, and no body of it is written to a file.
    """
    route = enforcing.settings
    if config.mode_of(route) == "enforce":
        return enforcing
    share = config.share_of(route)
    # Nothing of it is probed, so that no `settle` bounds how long its response may take.
    upstream = route.upstream.over(config.upstream)
    return replace(
        enforcing,
        is_observed=True,
        enforced=EnforcedShare(enforcing, share) if share else None,
        target=target_of(config, upstream, client_for(upstream)),
        authorize=None,
        repeats=None,
        recovery=enforcing.recovery if isinstance(enforcing.recovery, Resend) else Hold(),
        spool_over_bytes=route.body.max_bytes,
    )


def accept_policy(config: Config, route: RouteConfig) -> AcceptPolicy | None:
    """Which requests of a route are accepted, and how they are delivered."""
    if not route.is_accepting:
        return None
    accept, is_inbox, dead_letter = route.accept or Accept(), route.inbox is not None, route.dead_letter
    # All events of an inbox have one sender.
    is_of_one = is_inbox and "max_pending_per_scope" not in accept.model_fields_set
    return AcceptPolicy(
        accept,
        config.delivery_for(route).compiled,
        is_always=accept.mode == "always" or is_inbox,
        request_bytes_max=min(accept.max_bytes, route.body.max_bytes),
        pending_per_scope_max=accept.max_pending if is_of_one else accept.max_pending_per_scope,
        headers=written_headers(accept.headers),
        order=route.order,
        requeue_after_us=microseconds(dead_letter.requeue_after) if dead_letter.on_repeat == "requeue" else None,
        status_prefix=config.status_prefix,
    )


def target_of(config: Config, upstream: UpstreamConfig, client: Upstream, route: RouteConfig | None = None) -> Target:
    """Where requests of a route go; without a route, those that match none."""
    key = None if route is None else route.key
    names = () if isinstance(key, ComposedKey) else key_header_names(key)
    return Target(
        upstream=client,
        forwarding=ForwardingPolicy(
            authority=upstream.url.authority.encode(),
            host=upstream.own_host,
            trusted_proxies=config.trusted_proxies,
            heeds_async=route is not None and route.is_accepting,
            key=_upstream_key(config, upstream, route),
            key_headers=tuple(name.encode() for name in names),
        ),
        answer_within_seconds=upstream.answer_within,
    )


def _upstream_key(config: Config, upstream: UpstreamConfig, route: RouteConfig | None) -> UpstreamKey:
    """Which key the upstream gets: where it deduplicates and nothing else is configured, the operation id."""
    if route is not None and route.recovery == "resend":
        written = route.upstream.model_fields_set | config.upstream.model_fields_set
        if "key" not in written:
            return "operation_id"
    return upstream.key


def shape_of(config: Config, route: RouteConfig | None = None) -> Shape:
    """The form of the gateway's own problems, on this route or on none."""
    return Shape("problem" if route is None else route.errors, config.errors.type_base or TYPE_PREFIX)
