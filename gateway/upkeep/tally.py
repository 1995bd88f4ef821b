"""Counts what waits for somebody, for alerts: operations in doubt, accepted operations, dead letters, and events.

Of the gateways with the same routes and sinks, the one whose turn it is counts; what the others report is 0. Operations
in doubt are counted in the whole store, those of other services included, since route names do not identify a service;
what is not delivered, of its own service. The same one warns about requests that none of these gateways delivers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import NoReturn

from gateway.observe.facts import BacklogTaken, Events, EventsCounted, TallyTaken
from gateway.store.operations import Backlog, Cold
from gateway.upkeep.timer import LOOK_SECONDS, Sleep, repeat

_LOG = logging.getLogger("gateway")


@dataclass(eq=False, slots=True)
class TallyTaker:
    """Takes the tally of one store every `pass_seconds`, while it `has_turn`, and publishes it; the backlog too, where
    a route accepts. `accepting` are the operation names of the routes that accept requests, by route name; `sinks` the
    configured ones."""

    store: Cold
    events: Events
    _: KW_ONLY
    service: str
    accepting: Mapping[str, str]
    sinks: Collection[str] = ()
    has_turn: Callable[[], bool] = lambda: True
    pass_seconds: float = 15.0
    sleep: Sleep = asyncio.sleep
    _has_counted: bool = field(default=False, init=False)
    # The routes of the requests that nobody delivers, as far as they were logged.
    _stranded: frozenset[str] = field(default=frozenset(), init=False)

    async def run_once(self) -> None:
        """Take the tally. Raises `StoreError`; what was published last then stands."""
        self._has_counted = True
        tally = await self.store.tally()
        in_doubt, sealed = tuple(sorted(tally.in_doubt.items())), tuple(sorted(tally.sealed.items()))
        self.events.publish(TallyTaken(in_doubt, tally.oldest_in_doubt_seconds, sealed))
        if self.accepting:
            backlog = await self.store.backlog(self.service)
            self._warn_of_stranded(backlog)
            self.events.publish(_taken(backlog, self.accepting))
        if self.sinks:
            self.events.publish(EventsCounted(await self.store.sinks(self.service)))

    def _warn_of_stranded(self, backlog: Backlog) -> None:
        waiting = _without_route(backlog, self.accepting)
        if waiting.keys() - self._stranded:
            _LOG.error(
                "%d accepted requests are not delivered, because no route of this configuration accepts requests under "
                "their names: %s. Restore these routes, or withdraw the operations",
                sum(waiting.values()),
                ", ".join(sorted(waiting)),
            )
        self._stranded = frozenset(waiting)

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=self.pass_seconds, sleep=self.sleep)

    async def _pass(self) -> float:
        if not self.has_turn():
            self._take_back()
            return min(LOOK_SECONDS, self.pass_seconds)
        await self.run_once()
        return self.pass_seconds

    def _take_back(self) -> None:
        """Report nothing any more of what another gateway counts now."""
        if self._has_counted:
            self._has_counted = False
            for nothing in (TallyTaken((), 0.0), BacklogTaken({}, (), 0), EventsCounted({})):
                self.events.publish(nothing)


def _taken(backlog: Backlog, accepting: Mapping[str, str]) -> BacklogTaken:
    """The backlog as an event. Routes are named as they were when their operations were accepted."""
    # The operation name stands for itself where no route has it: its pause would not be seen otherwise.
    paused = [route for route, operation in accepting.items() if operation in backlog.paused]
    paused += [operation for operation in backlog.paused if operation not in accepting.values()]
    orphans = sum(_without_route(backlog, accepting).values())
    return BacklogTaken(backlog.waiting, tuple(sorted(paused)), orphans)


def _without_route(backlog: Backlog, accepting: Mapping[str, str]) -> dict[str, int]:
    """How many accepted requests wait of each route that none of these is."""
    # A renamed route keeps its old name as its operation.
    known = {*accepting, *accepting.values()}
    return {route: each.accepted for route, each in backlog.waiting.items() if each.accepted and route not in known}
