"""What a gateway serves by its configuration, to be compared with what its store has recorded."""

from __future__ import annotations

import hmac
from typing import Final
from uuid import uuid4

from gateway.config import Config
from gateway.config.address import RedisUrl
from gateway.core.delivery import Delivering, delivering_of
from gateway.core.framing import digest, framed
from gateway.core.identity.operation_id import identity_recipe
from gateway.core.routing import ServedRoute
from gateway.store.operations import Serving

# Enough to tell two secrets apart, and of no use to who guesses one.
_CHECK_BYTES: Final = 4


def serving_of(config: Config) -> Serving:
    """What a gateway with this configuration serves, to compare with what its store has recorded."""
    secrets = config.secrets
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
        key_ids=None if secrets.unreadable == "accept" else frozenset(key.id for key in secrets.encryption),
        mode_accepted=frozenset(route.operation for route in config.routes if route.mode_change == "accept"),
        replay_us=max(route.retention.replay_us for route in config.routes),
        # Redis alone keeps no requests, and refuses to look for them.
        delivering=None if isinstance(config.store.durable, RedisUrl) else delivered_by(config),
        fingerprint_keys={
            key.id: hmac.digest(key.key.get_secret_value(), b"fingerprint key", "sha256")[:_CHECK_BYTES].hex()
            for key in secrets.fingerprint_keys
        },
        compare_accepted=frozenset(route.operation for route in config.routes)
        - frozenset(route.operation for route in config.routes if route.fingerprint.on_recipe_change != "accept"),
    )


def is_same(one: Serving, other: Serving) -> bool:
    """Whether both find the same keys, and keep responses for as long."""
    return (one.recipes, one.routes, one.replay_us, one.fingerprint_keys) == (
        other.recipes,
        other.routes,
        other.replay_us,
        other.fingerprint_keys,
    )


def delivered_by(config: Config) -> Delivering:
    """Which kept requests the routes deliver."""
    operations = {route.name: route.operation for route in config.routes}
    return delivering_of(operations, [route.name for route in config.routes if route.is_accepting])


def _recipes(config: Config) -> dict[str, bytes]:
    """The digest of the identity recipes of each operation name, over all routes that share it."""
    found: dict[str, set[bytes]] = {}
    secret = config.secrets.identity_secret
    for route in config.routes:
        recipe = identity_recipe(config.service, route.operation, route.scope_spec, route.key_spec, secret)
        found.setdefault(route.operation, set()).add(recipe)
    # Where operations are at home is a part of what finds them.
    homes = [] if config.regions is None else [home.name.encode() for home in config.regions.homes]
    where = [framed(b"regions", *homes)] if homes else []
    return {operation: digest(b"recipes", *sorted(each), *where) for operation, each in found.items()}
