"""What one gateway does for all of a store, while it is its turn: sweeping, recovery and the tally."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final, NoReturn
from uuid import UUID, uuid4

from gateway.core.identity.key import is_of
from gateway.core.operation import Record, Snapshot, State, microseconds
from gateway.core.recovery import Probe, Resend
from gateway.observe.facts import BacklogTaken, Events, EventsCounted, SweepDone, TallyTaken
from gateway.protect.probing import Prober
from gateway.protect.route import Route
from gateway.store.base import StoreError, boot_seconds
from gateway.store.operations import Backlog, Cold, Query, Recoveries, Swept, Upkeep

# -- the timer ---------------------------------------------------------------------------------------------------------
#
# The timer of background work: a pass, a pause, again.
#
# It decides when, never what. A pass that fails is logged and followed by a longer pause; it never ends the timer,
# because nobody would notice that upkeep has stopped.

_LOG = logging.getLogger("gateway")

_FAILURES_DOUBLED_MAX: Final = 5
# Gateways that were started together must not stay in step.
_JITTER: Final = 0.2

Sleep = Callable[[float], Awaitable[object]]


async def repeat(
    run_pass: Callable[[], Awaitable[float]],
    *,
    pause_seconds: float,
    pause_seconds_max: float | None = None,
    at_once: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> NoReturn:
    """Run a pass for ever, until cancelled. A pass returns the pause to make after it, in seconds. The pause before the
    first pass is at most `pause_seconds`; with `at_once` there is none. After failures it doubles, up to
    `pause_seconds_max`; twice the usual one if that is None, so that an outage of hours delays the first pass after it
    no more than a short one."""
    longest = 2 * pause_seconds if pause_seconds_max is None else max(pause_seconds_max, pause_seconds)
    failures = 0
    if not at_once:
        await sleep(pause_seconds * random.random())  # noqa: S311 -- spreads load, keeps no secret
    while True:
        pause: float | None = None
        try:
            pause = await run_pass()
        except StoreError as error:
            _LOG.debug("upkeep will be tried again: %s", error)
        except Exception:  # noqa: BLE001 -- logged here; if the timer ended, upkeep would stop unnoticed
            _LOG.exception("upkeep failed because of a bug, and will be tried again")
        failures = 0 if pause is not None else min(failures + 1, _FAILURES_DOUBLED_MAX)
        if pause is None:
            pause = min(pause_seconds * 2**failures, longest)
        await sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311


# -- turns -------------------------------------------------------------------------------------------------------------
# Which work of upkeep this process does for all gateways of a store.
#
# The store leases each turn, by its own clock, to whoever asks first. Whoever has all asks again early enough to try
# once more before they end; whoever lacks one asks more often. A process believes its turn for the length of a lease
# from the moment before it asked, so that a slow answer makes no turn longer. One that was frozen finds its turn over
# when it goes on; what it had begun may end beside the next holder's work, which is safe (`store.operations`).

LEASE_SECONDS: Final = 15.0
_ASK_SECONDS: Final = LEASE_SECONDS / 3
_KEEP_SECONDS: Final = LEASE_SECONDS / 2
# After a failure, doubled up to the above.
_AGAIN_SECONDS: Final = 1.0
# A stop waits no longer for a store that is slow or down.
_LEAVE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 1.0
"""How often a worker without a turn looks for one, at no cost."""


Duty = StrEnum("Duty", "SWEEP RECOVERY TALLY")
"""Work that one gateway does for all."""


@dataclass(eq=False, slots=True)
class Turns:
    """The turns of one process. `names` are those of the turns in the store, of the duties that it has work for."""

    store: Upkeep
    names: Mapping[Duty, str]
    _: KW_ONLY
    clock: Callable[[], float] = boot_seconds
    sleep: Sleep = asyncio.sleep
    _holder: UUID = field(default_factory=uuid4, init=False)
    _until: dict[str, float] = field(default_factory=dict, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Have no turn any more. `leave` tells the store."""
        self._is_stopped = True

    def has(self, duty: Duty) -> bool:
        name = self.names.get(duty)
        return name is not None and not self._is_stopped and self.clock() < self._until.get(name, 0.0)

    async def run_once(self) -> None:
        """Ask for all turns. Raises `StoreError`; what was leased before goes on."""
        if self._is_stopped:
            return
        asked, names = self.clock(), frozenset(self.names.values())
        taken = await self.store.take_turns(self._holder, names, microseconds(LEASE_SECONDS))
        self._until = dict.fromkeys(taken, asked + LEASE_SECONDS)

    async def run(self) -> NoReturn:
        await repeat(
            self._pass, pause_seconds=_AGAIN_SECONDS, pause_seconds_max=_ASK_SECONDS, at_once=True, sleep=self.sleep
        )

    async def _pass(self) -> float:
        await self.run_once()
        has_all = all(self.has(duty) for duty in self.names)
        return _KEEP_SECONDS if has_all else _ASK_SECONDS

    async def leave(self) -> None:
        """Leave all turns to others. If the store cannot be told, they end with their leases."""
        self.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.store.leave_turns(self._holder)


# -- sweeping ----------------------------------------------------------------------------------------------------------
# Writes what became due: leases that lapsed, responses and deliveries that expired, keys no longer remembered.
#
# The store knows what is due. Since every read is settled, a late or missing sweep makes nothing wrong. So the sweep
# yields to requests: it works in bounded batches, pauses after each for as long as the batch took, and stops once the
# gateway drains.
#
# A store's clock that was set back is corrected by a sweep alone (`lifecycle.written_down`), and callers wait for that.
# So each gateway sweeps at its start, before which nobody may have seen the clock, and whenever it has seen a step.

_BATCH_RECORDS_MAX: Final = 500
_BATCHES_MAX: Final = 20
_SWEEP_SECONDS: Final = 30.0
# After a pass that left work. Short: each batch was followed by a pause already, and one gateway has to keep up with
# the keys of all.
_BRISK_PAUSE_SECONDS: Final = 0.1
# Bounds of the pause after a batch.
_GIVE_WAY_SECONDS_MIN: Final = 0.01
_GIVE_WAY_SECONDS_MAX: Final = 5.0


@dataclass(eq=False, slots=True)
class Sweeper:
    """Sweeps one store while it `has_turn`. `clock_steps` counts the steps of the store's clock."""

    store: Upkeep
    events: Events
    _: KW_ONLY
    has_turn: Callable[[], bool] = lambda: True
    clock_steps: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = boot_seconds
    sleep: Sleep = asyncio.sleep
    _is_stopped: bool = field(default=False, init=False)
    # The steps of the store's clock before the last sweep, and when the next one is due.
    _steps_before: int | None = field(default=None, init=False)
    _next_seconds: float = field(default=0.0, init=False)

    def stop(self) -> None:
        """Sweep no more. The current batch finishes; no other follows."""
        self._is_stopped = True

    async def run_once(self, *, is_urgent: bool = False) -> Swept:
        """Sweep what is due, up to a bound, and return the sum; `more` when something is left. `is_urgent`: whoever has
        the turn. Raises `StoreError`, after publishing what the batches before it wrote. If cancelled, only the count
        of the current batch is lost."""
        started = self.clock()
        total, batches = Swept(), 0
        try:
            while not self._is_stopped and (is_urgent or self.has_turn()):
                batch_started = self.clock()
                total += await self.store.sweep(_BATCH_RECORDS_MAX)
                batches += 1
                if not total.more or batches == _BATCHES_MAX:
                    break
                spent_seconds = self.clock() - batch_started
                await self.sleep(min(max(spent_seconds, _GIVE_WAY_SECONDS_MIN), _GIVE_WAY_SECONDS_MAX))
        finally:
            if batches:
                duration_seconds = self.clock() - started
                counts = (total.lapsed, total.retired, total.collected)
                self.events.publish(SweepDone(*counts, duration_seconds, total.named, total.expired))
        return total

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=LOOK_SECONDS, at_once=True, sleep=self.sleep)

    async def _pass(self) -> float:
        steps = self.clock_steps()
        is_urgent = steps != self._steps_before
        if is_urgent or (self.has_turn() and self.clock() >= self._next_seconds):
            swept = await self.run_once(is_urgent=is_urgent)
            if swept.more:
                return _BRISK_PAUSE_SECONDS
            self._steps_before = steps
            self._next_seconds = self.clock() + _SWEEP_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
        return LOOK_SECONDS


# -- recovery ----------------------------------------------------------------------------------------------------------
# Recovers operations in doubt without waiting for a client's retry: the background half of recovery.
#
# On routes with a probe it probes; `protect.probing` owns the probes and their findings. An operation whose probes find
# nothing is probed less and less often, and stays on the operator's list. On routes that send again it does so with
# accepted requests: their callers may never come back. `core.delivery` decides when; after the last attempt they stay
# in doubt, on the operator's list.

_RECOVERY_SECONDS: Final = 5.0
_PAGE: Final = 50
# Operations in one pass; the next pass begins after them.
_PASS_MAX: Final = 500
_AT_ONCE: Final = 8


@dataclass(eq=False, slots=True)
class RecoveryWorker:
    """Recovers operations in doubt on these routes (`recovered_by_name`) while it `has_turn`. `resend` begins another
    attempt to deliver a kept request whose pause is over by the store's clock; None where this process delivers
    nothing. `may_recover` says whether an operation in doubt may be taken over now."""

    store: Recoveries
    prober: Prober
    routes: Mapping[str, Route]
    _: KW_ONLY
    service: str
    may_recover: Callable[[Snapshot], bool] = lambda _: True
    resend: Callable[[Route, Record, int], None] | None = None
    has_turn: Callable[[], bool] = lambda: True
    # Where a pass reached its bound: many operations that cannot be resolved must not starve those after them.
    _after: UUID | None = field(default=None, init=False)

    async def run_once(self) -> int:
        """Recover what is due, up to a bound; returns how many were resolved. Raises `StoreError`."""
        if not self.routes:
            return 0
        resolved, seen = 0, 0
        after, self._after = self._after, None
        while seen < _PASS_MAX and self.has_turn():
            page = await self.store.find(
                Query(frozenset((State.IN_DOUBT,)), frozenset(self.routes), recoverable=True, after=after, limit=_PAGE)
            )
            resolved += await self._recover_all(page)
            seen += len(page)
            if len(page) < _PAGE or page[-1].record is None:
                return resolved
            after = page[-1].record.identity.operation_id
        self._after = after
        return resolved

    async def _recover_all(self, page: list[Snapshot]) -> int:
        places = asyncio.Semaphore(_AT_ONCE)

        async def recover(snapshot: Snapshot) -> bool:
            async with places:
                if snapshot.record is None or not self.has_turn():
                    return False
                route = self.routes.get(snapshot.record.identity.route)
                if route is None:
                    return False
                if isinstance(route.recovery, Resend):
                    # Services that share a store may have routes of one name, and keep requests under the same key.
                    is_own = is_of(snapshot.record.identity, self.service, route.operation)
                    if self.resend is not None and is_own and self.may_recover(snapshot):
                        self.resend(route, snapshot.record, snapshot.now_us)
                    return False
                try:
                    return await self.prober.probe_once(route, snapshot, is_urgent=False) is not None
                except StoreError:
                    return False

        return sum(await asyncio.gather(*[recover(snapshot) for snapshot in page]))

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=_RECOVERY_SECONDS)

    async def _pass(self) -> float:
        if not self.has_turn():
            return LOOK_SECONDS
        await self.run_once()
        return _RECOVERY_SECONDS


def recovered_by_name(routes: Mapping[str, Route], *, resends: bool) -> dict[str, Route]:
    """The routes whose operations are recovered here, by the route names in their records. A renamed route keeps its
    old name as its operation, and its old records have that as their route. If several routes share an operation, such
    records cannot be assigned."""
    recovered = {
        name: route
        for name, route in routes.items()
        if isinstance(route.recovery, Probe)
        or (resends and route.accept is not None and isinstance(route.recovery, Resend))
    }
    sharing = Counter(route.operation for route in routes.values())
    renamed = {
        route.operation: route
        for route in recovered.values()
        if route.operation not in routes and sharing[route.operation] == 1
    }
    return recovered | renamed


# -- tally -------------------------------------------------------------------------------------------------------------
# Counts what waits for somebody, for alerts: operations in doubt, accepted operations, dead letters, and events.
#
# Of the gateways with the same routes and sinks, the one whose turn it is counts; what the others report is 0.
# Operations in doubt are counted in the whole store, those of other services included, since route names do not
# identify a service; what is not delivered, of its own service. The same one warns about requests that none of these
# gateways delivers.

_TALLY_SECONDS: Final = 15.0


@dataclass(eq=False, slots=True)
class TallyTaker:
    """Takes the tally of one store while it `has_turn`, and publishes it; the backlog too, where a route accepts.
    `accepting` are the operation names of the routes that accept requests, by route name; `sinks` the configured
    ones."""

    store: Cold
    events: Events
    _: KW_ONLY
    service: str
    accepting: Mapping[str, str]
    sinks: Collection[str] = ()
    has_turn: Callable[[], bool] = lambda: True
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
        await repeat(self._pass, pause_seconds=_TALLY_SECONDS, sleep=self.sleep)

    async def _pass(self) -> float:
        if not self.has_turn():
            self._take_back()
            return LOOK_SECONDS
        await self.run_once()
        return _TALLY_SECONDS

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
