"""How many workers there are, and what of the configuration is each one's.

Limits in the configuration are those of the whole gateway: whoever sets them need not know how many processes it runs.
"""

from __future__ import annotations

from typing import Final

from gateway.app.cpus import processors
from gateway.config import Admin, Config, RouteUpstream

# The admin port is a worker's, because it needs a store; one is enough, and one has to count wrong tokens.
FIRST: Final = 1


def worker_count(config: Config) -> int:
    """How many processes serve."""
    return processors() if config.workers == "auto" else config.workers


def share_of(config: Config, number: int, count: int) -> Config:
    """The configuration of one worker of so many. What cannot be divided evenly is rounded up."""
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
            }
        )
        for route in config.routes
    )
    admin = config.admin if number == FIRST else Admin()
    return config.model_copy(
        update={"limits": limits, "upstream": upstream, "store": store, "routes": routes, "admin": admin}
    )


def _upstream_part(upstream: RouteUpstream, count: int) -> RouteUpstream:
    if "max_connections" not in upstream.model_fields_set:
        # The route takes what the upstream of all has.
        return upstream
    return upstream.model_copy(update={"max_connections": _part(upstream.max_connections, count)})


def _part(whole: int, count: int) -> int:
    return -(-whole // count)
