"""What operators' actions need to know of the routes, as values; the composition root makes them of the configuration.

Records outlive names: a route may have been renamed or removed since. Then what is asked of it is answered with care:
the longest waits and the longest memory of the routes that it may have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.identity.key import KeySpec
from gateway.core.identity.operation_id import is_of
from gateway.core.identity.scope import ComposedScope, HeaderScope, ScopeSpec
from gateway.core.operation import Record
from gateway.core.outcome import StatusPolicy
from gateway.core.recovery import Hold, Recovery
from gateway.core.replay import KeepPolicy


@dataclass(frozen=True, slots=True)
class Treatment:
    """How an operation is treated. `settle_us` counts from the end of its last lease: no request arrives later.

    `status` is None where it is not known which route it was; then nothing recovers it but somebody.
    """

    keep: KeepPolicy
    replay_us: int
    remember_us: int
    settle_us: int
    status: StatusPolicy | None
    recovery: Recovery = Hold()  # noqa: RUF009  a value without state


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One protected route."""

    name: str
    operation: str
    key: KeySpec
    scope: ScopeSpec
    treatment: Treatment


class Policies:
    """All routes of a service, of which there is at least one."""

    def __init__(self, service: str, routes: Sequence[RoutePolicy]) -> None:
        self.service = service
        self.routes = tuple(routes)

    def named(self, name: str) -> RoutePolicy | None:
        """The route of that name."""
        return next((route for route in self.routes if route.name == name), None)

    def is_own(self, record: Record) -> bool:
        """Whether it is an operation of this service: those of others may have the same names."""
        return is_of(record.identity, self.service, record.identity.operation)

    def route_of(self, record: Record) -> RoutePolicy | None:
        """Its route, unless that is gone, or its name is another operation's now."""
        route = self.named(record.identity.route)
        return route if route is not None and route.operation == record.identity.operation else None

    def treatment_of(self, record: Record) -> Treatment:
        """Those of its route; of the routes with its operation name when that is gone; else of all of them."""
        route = self.route_of(record)
        if route is not None:
            return route.treatment
        alike = [route.treatment for route in self.routes if route.operation == record.identity.operation]
        return _careful(alike or [route.treatment for route in self.routes])


def without_peer(scope: ScopeSpec) -> ScopeSpec:
    """The same scope for somebody who is trusted to name the caller, wherever the connection comes from."""
    match scope:
        case HeaderScope():
            return replace(scope, trusted=None)
        case ComposedScope(parts):
            return ComposedScope(tuple(replace(p, trusted=None) if isinstance(p, HeaderScope) else p for p in parts))
        case _:
            return scope


def _careful(several: Sequence[Treatment]) -> Treatment:
    if len(several) == 1:
        return several[0]
    return Treatment(
        keep=KeepPolicy(
            body_bytes_max=max(each.keep.body_bytes_max for each in several),
            strip=frozenset().union(*(each.keep.strip for each in several)),
            keep=frozenset.intersection(*(each.keep.keep for each in several)),
        ),
        replay_us=max(each.replay_us for each in several),
        remember_us=max(each.remember_us for each in several),
        settle_us=max(each.settle_us for each in several),
        status=None,
    )
