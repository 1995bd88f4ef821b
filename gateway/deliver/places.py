"""How many deliveries may run at once in this process: for each route, and for each upstream.

A place is taken before the operation is claimed, so that a claimed request is sent at once. One without a place stays
accepted, and nothing about it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.delivery import Breaker, BreakerPolicy, Phase
from gateway.observe.facts import BreakerChanged, Events
from gateway.protect.route import Route
from gateway.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Place:
    """A place for one delivery on this route. Give it back once."""

    route: Route
    generation: int


class Places:
    """The places of one process. `clock` counts seconds and never goes back."""

    def __init__(self, policy: BreakerPolicy, events: Events, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._events = events
        self._clock = clock
        self._taken: Counter[str] = Counter()
        # Routes with the same upstream settings share a client, and so a breaker.
        self._breakers: dict[Upstream, Breaker] = {}

    @property
    def taken(self) -> int:
        """How many deliveries have a place."""
        return self._taken.total()

    def free(self, route: Route) -> int:
        """How many deliveries of this route could begin now."""
        free = _in_flight_max(route) - self._taken[route.name]
        of_upstream = self._breaker(route).free(self._clock())
        return max(0, free if of_upstream is None else min(free, of_upstream))

    def take(self, route: Route) -> Place | None:
        """A place, None where all are taken or the breaker is open."""
        if self._taken[route.name] >= _in_flight_max(route):
            return None
        breaker = self._breaker(route).begin(self._clock())
        if breaker is None:
            return None
        self._put(route, breaker)
        self._taken[route.name] += 1
        return Place(route, breaker.generation)

    def sent(self, place: Place) -> bool:
        """The first byte of the delivery goes out: its upstream can be reached. Returns whether the breaker changes its
        phase by that."""
        before = self._breaker(place.route)
        after = before.sent(self._clock(), place.generation)
        self._put(place.route, after)
        return after.phase is not before.phase

    def give_back(self, place: Place, *, is_sent: bool | None, why: str = "") -> None:
        """The delivery ended. `is_sent` as in `Breaker.end`; `why` is what a breaker that opens is reported with."""
        self._taken[place.route.name] -= 1
        breaker = self._breaker(place.route).end(self._clock(), place.generation, is_sent=is_sent)
        self._put(place.route, breaker, why)

    def wake_seconds(self, route: Route) -> float | None:
        """How long until the breaker has more places by the passing of time alone; None where it never will."""
        return self._breaker(route).wake_seconds(self._clock())

    def _breaker(self, route: Route) -> Breaker:
        return self._breakers.get(route.target.upstream) or Breaker(self._policy)

    def _put(self, route: Route, breaker: Breaker, why: str = "") -> None:
        was_open, is_open = _is_open(self._breaker(route)), _is_open(breaker)
        self._breakers[route.target.upstream] = breaker
        if was_open != is_open:
            self._events.publish(BreakerChanged(_url(route), is_open, why if is_open else ""))


def _in_flight_max(route: Route) -> int:
    return 0 if route.accept is None else route.accept.delivery.in_flight_max


def _is_open(breaker: Breaker) -> bool:
    """As it is reported. Half open is, too: the upstream is still spared, and a single attempt would look like a
    recovery."""
    return breaker.phase in (Phase.OPEN, Phase.HALF_OPEN)


def _url(route: Route) -> str:
    """The upstream as `observe.facts.UpstreamChanged` names it."""
    scheme = "http" if route.target.upstream.settings.tls is None else "https"
    return f"{scheme}://{route.target.forwarding.authority.decode()}"
