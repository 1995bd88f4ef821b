"""How many workers there are, and each one's share of the configuration.

Configured limits are those of the whole gateway, so they do not depend on the number of its processes.
"""

from __future__ import annotations

from typing import Final

from gateway.app.cpus import processors
from gateway.config import Config
from gateway.config.delivery import RouteDelivery
from gateway.config.models import Admin
from gateway.config.upstream import RouteUpstream

# A worker has the admin port, because the port needs a store. Only one has it, because one has to count wrong tokens.
FIRST: Final = 1


def worker_count(config: Config) -> int:
    """How many processes serve."""
    return processors() if config.workers == "auto" else config.workers


def share_of(config: Config, number: int, count: int) -> Config:
    """The configuration of one of `count` workers. Limits that do not divide evenly are rounded up."""
    limits = config.limits.model_copy(update={"max_in_flight": _part(config.limits.max_in_flight, count)})
    upstream = config.upstream.model_copy(update={"max_connections": _part(config.upstream.max_connections, count)})
    store = config.store.model_copy(update={"cache_bytes": _part(config.store.cache_bytes, count)})
    routes = tuple(
        route.model_copy(
            update={
                "in_flight": route.in_flight.model_copy(
                    update={"max_waiters": _part(route.in_flight.max_waiters, count)}
                ),
                "upstream": _upstream_part(route.upstream, count),
                "delivery": _delivery_part(route.delivery, count),
            }
        )
        for route in config.routes
    )
    delivery = config.delivery.model_copy(update={"max_in_flight": _part(config.delivery.max_in_flight, count)})
    admin = config.admin if number == FIRST else Admin()
    return config.model_copy(
        update={
            "limits": limits,
            "upstream": upstream,
            "store": store,
            "delivery": delivery,
            "routes": routes,
            "admin": admin,
        }
    )


def _upstream_part(upstream: RouteUpstream, count: int) -> RouteUpstream:
    if "max_connections" not in upstream.model_fields_set:
        # The route inherits the limit of the default upstream.
        return upstream
    return upstream.model_copy(update={"max_connections": _part(upstream.max_connections, count)})


def _delivery_part(delivery: RouteDelivery, count: int) -> RouteDelivery:
    if "max_in_flight" not in delivery.model_fields_set:
        return delivery
    return delivery.model_copy(update={"max_in_flight": _part(delivery.max_in_flight, count)})


def _part(total: int, count: int) -> int:
    return -(-total // count)
