"""Which operations lose requests to which others when routes change.

An operation is remembered under a name; a repeat of an old request is recognised only while its route still leads to
that name. This module compares the route tables of before and after, both as requests are routed: the first matching
route decides. The question is whether a request exists that led to one operation before and leads to another one now.
That covers a renamed route, an exchange of two names, a new route that takes some of an older one's requests, and a
changed order.

The requests of a removed route that match no other route are lost to no operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.routing import Rule


@dataclass(frozen=True, slots=True)
class ServedRoute:
    """A route of a service: which requests lead to which of its operations, and the share of their keys for which it is
    enforced."""

    service: str
    operation: str
    rule: Rule
    enforced: float = 1.0

    def is_of(self, other: ServedRoute) -> bool:
        """Whether both lead to the same operation."""
        return (self.service, self.operation) == (other.service, other.operation)


def handed_over(before: Sequence[ServedRoute], after: Sequence[ServedRoute]) -> list[tuple[ServedRoute, ServedRoute]]:
    """The pairs of routes, of two operations, where the second now gets requests that led to the first before.

    Both tables are in routing order. Requests that several earlier routes cover only together count as not covered, so
    the result may have a pair too many, never one too few.
    """
    found = []
    before_places, after_places = _places(before), _places(after)
    # A route takes all of its requests before any later one. So if both routes of a pair are in both tables, only a
    # changed order matters.
    bounds = [before_places.get(_key(latter), len(before)) for latter in after]
    for former_place, former in enumerate(before):
        for latter_place in range(after_places.get(_key(former), len(after))):
            latter = after[latter_place]
            if former_place >= bounds[latter_place] or latter.is_of(former):
                continue
            shared = former.rule.common(latter.rule)
            if shared is not None and any(
                not _is_taken(before[:former_place], shared, method)
                and not _is_taken(after[:latter_place], shared, method)
                for method in shared.methods
            ):
                found.append((former, latter))
    return found


def _key(route: ServedRoute) -> tuple[str, str, Rule]:
    return route.service, route.operation, route.rule


def _places(table: Sequence[ServedRoute]) -> dict[tuple[str, str, Rule], int]:
    """The first position of each route."""
    return {_key(route): place for place, route in reversed(list(enumerate(table)))}


def _is_taken(earlier: Sequence[ServedRoute], shared: Rule, method: bytes) -> bool:
    """Whether one of the earlier routes takes all of these requests."""
    return any(route.rule.covers(shared, method) for route in earlier)
