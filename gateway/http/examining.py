"""What is asked of a request before anybody works on it: where it ends, which route protects it, how else it reads.

Pure. Owns the order of these questions, and what a request that fails one is refused with. The readings themselves are
those of `strictness`, the routes are given from outside. A request that meets a route only if its path is read in
another way, or without regard to case, or with the method or the target that a field of it names, is refused: whether
the service reads it so is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from gateway.core.immutable import immutable
from gateway.core.message import RequestHead
from gateway.core.routing import RouteTable
from gateway.http.request_parser import PATH_BYTES_MAX
from gateway.protect.ambiguity import ambiguity, host_fault, other_methods, other_readings, other_targets, overrides


class Protecting(Protocol):
    """What is asked of a route here. `once`: fields, in lower case, that may be said once only. `compared`: those that
    its fingerprint takes in."""

    @property
    def once(self) -> frozenset[bytes]: ...
    @property
    def compared(self) -> frozenset[bytes]: ...


P = TypeVar("P", bound=Protecting)


@immutable
class Fault:
    """Why a request is refused before its route says anything of it.

    `is_verdict`: on a route it is rule 2. Otherwise it belongs to no verdict, and only takes the route's shape.
    """

    status: int
    detail: str
    is_verdict: bool = True


def examine(
    routes: RouteTable[P], head: RequestHead, host: bytes | None, framing_fault: str | None
) -> tuple[P | None, Fault | None]:
    """The route that protects the request, and why it is refused all the same.

    `framing_fault` says why its end is not certain.
    """
    route = routes.match(head.method, head.target, host)
    if framing_fault is not None:
        return route, Fault(400, framing_fault)
    if route is not None:
        ambiguous = ambiguity(head, route.once, route.compared)
        return route, Fault(400, ambiguous) if ambiguous is not None else None
    if head.method == b"CONNECT":
        return None, Fault(501, "This is not a forward proxy.")
    if host is not None and (fault := host_fault(host)) is not None:
        return None, Fault(400, fault)
    methods, targets = [head.method], [head.target]
    overriding = overrides(head.headers)
    if overriding:
        methods += other_methods(overriding)
        targets += other_targets(overriding)
        # To look at them takes time, and fields may be much longer than what the parser takes for a path.
        if sum(map(len, targets[1:])) > PATH_BYTES_MAX:
            return None, Fault(400, "A field that names another target is too long.")
    for target, hosts in _readings(targets, host):
        route = routes.match_in_any_case(methods, target, hosts)
        if route is not None:
            return route, Fault(400, _other_reading(routes.path_in_other_case(head.method, head.target, host)))
    return None, None


def _other_reading(path: str | None) -> str:
    """`path` is that of a route which differs in upper and lower case alone."""
    if path is None:
        return "The request can be read as one for another operation."
    return f"Upper and lower case differ in paths. The protected path is written {path}; nothing was sent."


def _readings(targets: Sequence[bytes], host: bytes | None) -> Iterator[tuple[bytes, tuple[bytes | None, ...]]]:
    """Targets and hosts as which a service may read the request; first of all those that were sent."""
    for target in targets:
        yield target, (host,)
        for other, other_host in other_readings(target, host):
            # Many take the path from such a target, and the host from its field all the same.
            yield other, (other_host, host)
