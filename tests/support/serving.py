"""What a gateway serves, written down in short, for tests of the agreement on identities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from gateway.core.routing import PathPattern, Rule, ServedRoute
from gateway.store.operations import Serving

SERVICE = "shop"
GATEWAY = UUID(int=1)


def served(route: str, operation: str, *, service: str = SERVICE) -> ServedRoute:
    """A route written as `POST,PUT host/path/{id}`, the host left out for any."""
    methods, _, target = route.partition(" ")
    host, slash, path = target.partition("/")
    rule = Rule(frozenset(methods.encode().split(b",")), PathPattern.parse(slash + path), host.encode() or None)
    return ServedRoute(service, operation, rule)


def serving(
    routes: Iterable[tuple[str, str]] = (),
    *,
    service: str = SERVICE,
    recipes: Mapping[str, bytes] | None = None,
    accepted: Collection[str] = (),
    gateway_id: UUID = GATEWAY,
) -> Serving:
    """What a gateway with these routes serves, in order, each with its operation; `recipes` beside the usual one."""
    table = tuple(served(route, operation, service=service) for route, operation in routes)
    usual = {route.operation: b"recipe" for route in table}
    return Serving(gateway_id, service, usual | dict(recipes or {}), table, frozenset(accepted))
