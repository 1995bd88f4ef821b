"""Delivers accepted requests until their outcome is known.

A delivery is an operation in flight like a request's: claimed, sent once, recorded. This module decides which one is
next, and when. It takes a place, then opens the kept request, then has the operation claimed and sent: nothing is
claimed in advance, because a claim that lapses puts its operation in doubt.

The store alone says what is due, and the claim decides who delivers it. So any number of processes may deliver for one
service, and one that dies, or cannot reach the store, loses nothing. A request that was just accepted here is delivered
at once; where that is not possible, a poll finds it.

A poll is at most one search, which also says what is paused. After one that found something the next follows in a
second, otherwise a little later each time; whatever makes room or work brings it nearer. Of what is due on routes with
free places, the oldest are found; among those, scopes take turns. Every second search leaves out the routes that had
more due than places or filled the search before, so that they hide no other route. What could not be claimed or read is
left alone for a while, longer each time, for the same reason. Orphans, which no route here delivers, are not searched
for.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.confidential import KeyRing, Unopenable
from gateway.core.delivery import Breaker, BreakerPolicy, delivering_of, resend_due, resend_us
from gateway.core.identity.caller import hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.operation import MICROSECONDS, Record, SealedRequest, Snapshot, State
from gateway.core.outcome import version_of
from gateway.core.recovery import Resend
from gateway.observe.facts import BreakerChanged, Events
from gateway.observe.logs import Tasks
from gateway.protect.accepting import KeptRequest, open_sealed
from gateway.protect.compose import Conclusion
from gateway.protect.operation import DeliveryAttempt, Operation, Operations
from gateway.protect.request import Request, TakenBody
from gateway.protect.route import Route
from gateway.store.base import Store, StoreError, end_tasks
from gateway.upkeep.duty import repeat
from gateway.upstream import Upstream

_LOG = logging.getLogger("gateway")

_POLL_SECONDS: Final = 1.0
_IDLE_SECONDS_MAX: Final = 5.0
# While the store fails.
_FAILING_SECONDS_MAX: Final = 30.0
# Between polls that are brought nearer: under load, each finds what many ends made room for.
_BUSY_SECONDS: Final = 0.05
# Within so many seconds after news of work, each gateway polls.
_NEWS_SECONDS: Final = 0.2
# So much longer than by the store's clock may a pause last by this process's.
_DRIFT: Final = 1.001
# Of so many postponed deliveries, and of those within so many seconds, it is known here when they are due.
_DUE_MAX: Final = 10_000
_DUE_SECONDS_MAX: Final = 60.0
# A search returns so many more than there are places, for the scopes to take turns, and at most so many.
_SPARE: Final = 8
_BATCH_MAX: Final = 200
# For how long what could not be claimed or read is left alone, doubled each time; of how many operations that is known.
_PUT_OFF_SECONDS_MIN: Final = 0.5
_PUT_OFF_SECONDS_MAX: Final = 30.0
_PUT_OFF_MAX: Final = 1000
# A longer request is decrypted in a thread.
_INLINE_BYTES_MAX: Final = 64 * 1024
# Operations that this process reports because their requests cannot be opened.
_WARNED_MAX: Final = 1000
# Stands for a request that cannot be opened, and is never sent.
_NO_REQUEST: Final = KeptRequest(RequestHead(b"", b"", IndexedHeaders()), hop_from(None, is_secure=False), b"", None)


class DeliveryWorker:
    """The deliveries of one process, for the routes of its configuration that accept requests."""

    def __init__(
        self,
        store: Store,
        operations: Operations,
        places: Places,
        routes: Sequence[Route],
        ring: KeyRing | None,
        *,
        service: str,
        is_stalled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """Needs a running event loop. `is_stalled` says whether nothing should be claimed now; `clock` counts seconds
        and never goes back. Without a `ring` nothing is delivered."""
        self._store, self._operations, self._places, self._ring = store, operations, places, ring
        self._service, self._is_stalled, self._clock = service, is_stalled, clock
        # Operation names that were paused at the last search; None while that is unknown: before the first one, and
        # while nothing was searched for lack of places.
        self._paused: frozenset[str] | None = None
        self._announced_seconds: float | None = None
        # Names of routes of which the last search for them found more than there were places; whether more may be due.
        self._behind: frozenset[str] = frozenset()
        # Names of routes that filled the last search for them.
        self._crowded: frozenset[str] = frozenset()
        self._routes = [route for route in routes if route.accept is not None and ring is not None]
        names = {route.name for route in self._routes}
        self._delivering = delivering_of({route.name: route.operation for route in routes}, names)
        self._by_name = {route.name: route for route in self._routes}
        self._is_turn_of_others = False
        self._has_more = False
        self._idle_seconds = _POLL_SECONDS
        # The deliveries that run, and the integers of their operation ids.
        self._tasks = Tasks("a delivery failed because of a bug; it is tried again")
        self._running: set[int] = set()
        # Until when an operation is left alone, and for how long that is.
        self._put_off: dict[int, tuple[float, float]] = {}
        self._unopenable: set[int] = set()
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        # When deliveries that were postponed here are due, by the loop's clock: a heap.
        self._due: list[float] = []
        # What is sent again once its pause is over, by the integer of its operation id.
        self._resends: dict[int, asyncio.TimerHandle] = {}

    @property
    def running(self) -> int:
        """How many deliveries run, those included whose request is being read."""
        return len(self._tasks)

    def deliver_accepted(self, request: Request, snapshot: Snapshot) -> None:
        """Deliver a request that was just accepted here, at once if it may be. Takes the ownership of its body.
        Otherwise a poll finds it later, here or in another gateway."""
        request.owner = self
        record, operation = snapshot.record, request.route.operation
        if record is not None and record.delivery is not None and record.delivery.is_behind:
            # The end of the one before it in its lane brings the next poll nearer.
            request.taken.close()
            return
        if (
            record is None
            or record.state is not State.ACCEPTED
            or request.route.name in self._behind
            or self._may_be_paused(operation)
            or not self._begin(request.route, record, request)
        ):
            request.taken.close()
            if not self._is_stopped:
                self._has_more = True
                self._wake_in(_BUSY_SECONDS if self._paused is None else _POLL_SECONDS)
                if self._paused is None or operation not in self._paused:
                    self._announce()

    def resend(self, route: Route, record: Record, now_us: int) -> None:
        """Send a kept request that is in doubt again, if its pause is over and there is a place. The route must be one
        that does so; `now_us` is the store's clock."""
        if route.accept is None or record.delivery is None or self._may_be_paused(route.operation):
            return
        if resend_due(record, route.accept.delivery, now_us):
            self._begin(route, record)

    def wake(self) -> None:
        """Poll soon: somebody announced work, a pause or the end of one."""
        self._wake_in(_NEWS_SECONDS * random.random())  # noqa: S311  so that not all gateways poll at once

    def stop(self) -> None:
        """Claim nothing any more. What runs is ended by `Operations.drain`."""
        self._is_stopped = True

    async def close(self) -> None:
        """End what is left. To be called after `Operations.drain`."""
        self.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        for timer in self._resends.values():
            timer.cancel()
        await end_tasks(self._tasks)

    async def run(self) -> NoReturn:
        # At once: until the first poll it is unknown what is paused, and nothing is delivered.
        await repeat(
            self.run_once,
            pause_seconds=_POLL_SECONDS,
            pause_seconds_max=_FAILING_SECONDS_MAX,
            at_once=True,
            sleep=self._sleep,
        )

    async def run_once(self) -> float:
        """One poll: begin what is due and has a place. Returns the pause before the next. Raises `StoreError`."""
        if self._is_stopped or self._is_stalled() or not self._routes:
            return _POLL_SECONDS
        # What is paused, the search itself leaves out.
        routes = self._routes
        self._wake_for_breakers(routes)
        free = {route.name: self._places.free(route) for route in routes}
        names = {name for name, places in free.items() if places}
        self._has_more = len(names) < len(routes)
        others = names - self._behind - self._crowded
        self._is_turn_of_others = bool(others) and others != names and not self._is_turn_of_others
        if self._is_turn_of_others:
            names = others
        if not names:
            self._paused = None
            return _IDLE_SECONDS_MAX
        left_alone = self._left_alone()
        limit = min(sum(free[name] for name in names) + _SPARE, _BATCH_MAX) + len(left_alone)
        searched = await self._store.cold.find_due(self._service, self._delivering.only(names), limit)
        self._paused = searched.paused
        # The routes may be others by now.
        records = taking_turns(searched.found)
        found = ((self._delivering.route_of(record.identity), record) for record in records)
        due = [(self._by_name[name], record) for name, record in found if name is not None]
        behind, begun = set[str](), 0
        for route, record in due:
            if self._is_running(record) or record.identity.operation_id.int in left_alone:
                continue
            if self._begin(route, record):
                begun += 1
            else:
                behind.add(route.name)
        is_full = len(searched.found) == limit
        self._behind = self._behind - names | behind
        self._crowded = self._crowded - names | {route.name for route, _ in due if is_full}
        self._has_more |= is_full or bool(self._behind)
        # What was left out has free places, too.
        if self._is_turn_of_others or (is_full and begun):
            self._wake_in(_BUSY_SECONDS)
        self._idle_seconds = _POLL_SECONDS if searched.found else min(self._idle_seconds * 2, _IDLE_SECONDS_MAX)
        return self._idle_seconds

    # -- one delivery -------------------------------------------------------------------------------------------------

    def _begin(self, route: Route, record: Record, request: Request | None = None) -> bool:
        """Start the task of a delivery; False where it must not begin now, or has no place. `request` is the kept one,
        where it is at hand. It is the task's from now on."""
        if self._is_stopped or self._is_stalled() or route not in self._routes or self._is_running(record):
            return False
        generation = self._places.take(route)
        if generation is None:
            return False
        self._running.add(record.identity.operation_id.int)
        self._tasks.spawn(self._deliver(route, generation, record, request))
        return True

    def _may_be_paused(self, operation: str) -> bool:
        return self._paused is None or operation in self._paused

    def _is_running(self, record: Record) -> bool:
        operation_id = record.identity.operation_id
        return operation_id.int in self._running or self._operations.get(operation_id) is not None

    async def _deliver(self, route: Route, generation: int, record: Record, request: Request | None) -> None:
        """Open the request unless it is at hand, claim the operation, send it, and wait for the end of it."""
        operation_id = record.identity.operation_id
        operation: Operation | None = None
        is_recorded = False
        is_sent: bool | None = None
        why = ""
        try:
            delivery = DeliveryAttempt(record, on_send=partial(self._sent, route, generation))
            if request is None:
                opened = await self._open(route, record)
                if opened is None:
                    return
                request, unopenable = opened
                delivery = replace(delivery, unopenable=unopenable)
            if self._is_stopped or self._operations.get(operation_id) is not None:
                return
            operation = self._operations.begin(request, delivery)
            ended = await operation.wait_ended()
            if isinstance(ended, Conclusion):
                is_sent, is_recorded = ended.is_sent, isinstance(ended.others, Snapshot)
                why = self._read_ended(route, ended)
        except StoreError as error:
            _LOG.debug("the request of operation %s cannot be read, and is tried again: %s", operation_id, error)
        finally:
            if request is not None and (operation is None or request.owner is not operation):
                request.taken.close()
            if not is_recorded:
                self._leave_alone(record)
            self._running.discard(operation_id.int)
            self._places.give_back(route, generation, is_sent=is_sent, why=why)
            if self._has_more or (record.delivery is not None and record.delivery.lane is not None):
                self._wake_in(_BUSY_SECONDS)

    def _sent(self, route: Route, generation: int) -> None:
        """The breaker has more places in a second, however long this delivery takes."""
        if self._places.sent(route, generation):
            self._wake_for_breakers((route,))

    def _leave_alone(self, record: Record) -> None:
        number = record.identity.operation_id.int
        known = self._put_off.get(number)
        if known is not None or len(self._put_off) < _PUT_OFF_MAX:
            seconds = _PUT_OFF_SECONDS_MIN if known is None else min(2 * known[1], _PUT_OFF_SECONDS_MAX)
            self._put_off[number] = (self._clock() + seconds, seconds)

    def _left_alone(self) -> set[int]:
        """What is left alone now. Whatever has gone well for as long after that is forgotten."""
        now = self._clock()
        self._put_off = {number: each for number, each in self._put_off.items() if sum(each) + _POLL_SECONDS > now}
        return {number for number, (until, _) in self._put_off.items() if until > now}

    def _read_ended(self, route: Route, ended: Conclusion) -> str:
        """See to the next attempt, once it is due. Returns why this one failed."""
        if ended.pause_us is not None:
            self._wake_when_due(ended.pause_us / MICROSECONDS)
        record = ended.others.record if isinstance(ended.others, Snapshot) else None
        if record is not None and isinstance(ended.others, Snapshot) and record.state is State.IN_DOUBT:
            self._resend_when_due(route, record, ended.others.now_us)
        return "" if record is None or record.delivery is None else record.delivery.failure or ""

    async def _open(self, route: Route, record: Record) -> tuple[Request, str | None] | None:
        """The kept request, and why it cannot be opened; None where the record has changed, or where it is in doubt and
        cannot be opened."""
        operation_id = record.identity.operation_id
        sealed = await self._store.cold.read_kept(operation_id)
        if sealed is None:
            latest = (await self._store.read(operation_id)).record
            if latest is None or (latest.state, latest.token) != (record.state, record.token):
                return None
            why = "its request is missing in the store"
        else:
            try:
                return await self._opened(route, record, sealed), None
            except Unopenable as error:
                why = str(error)
        number = operation_id.int
        if number not in self._unopenable and len(self._unopenable) < _WARNED_MAX:
            self._unopenable.add(number)
            _LOG.error(
                "the request of operation %s on route %s cannot be delivered: %s. Once secrets.encryption has the key "
                "that it was encrypted with, requeue the operation",
                operation_id,
                route.name,
                why,
            )
        if record.state is not State.ACCEPTED:
            return None
        return _request_of(route, record, _NO_REQUEST), why

    async def _opened(self, route: Route, record: Record, sealed: SealedRequest) -> Request:
        """Raises `Unopenable`."""
        ring, operation_id = self._ring, record.identity.operation_id
        if ring is None:
            raise Unopenable("no encryption key is configured")
        if len(sealed.sealed) <= _INLINE_BYTES_MAX:
            kept = open_sealed(sealed, ring, operation_id)
        else:
            kept = await asyncio.to_thread(open_sealed, sealed, ring, operation_id)
        return _request_of(route, record, kept)

    # -- when to poll -------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Wake other gateways for what was accepted here and waits, at most once in a while."""
        now = self._clock()
        if self._announced_seconds is None or now - self._announced_seconds >= _POLL_SECONDS:
            self._announced_seconds = now
            self._store.cold.announce_work()

    def _wake_for_breakers(self, routes: Iterable[Route]) -> None:
        for route in routes:
            seconds = self._places.wake_seconds(route)
            if seconds is not None:
                self._wake_in(seconds)

    def _wake_in(self, seconds: float) -> None:
        """Poll again after so many seconds, if nothing else makes it earlier."""
        at = self._loop.time() + max(seconds, _BUSY_SECONDS)
        alarm = self._alarm
        if alarm is not None and not alarm.cancelled() and self._loop.time() < alarm.when() <= at:
            return
        if alarm is not None:
            alarm.cancel()
        self._alarm = self._loop.call_at(at, self._wake.set)

    def _resend_when_due(self, route: Route, record: Record, now_us: int) -> None:
        """Send again what this attempt left in doubt, where the route does so. Recovery finds what is missed here."""
        if not isinstance(route.recovery, Resend) or route.accept is None:
            return
        from_us = resend_us(record, route.accept.delivery)
        if from_us is None or from_us - now_us > _DUE_SECONDS_MAX * MICROSECONDS or len(self._resends) >= _DUE_MAX:
            return
        operation_id = record.identity.operation_id

        def look() -> None:
            del self._resends[operation_id.int]
            if not self._is_stopped:
                self._tasks.spawn(self._resend_if_due(route, operation_id))

        seconds = max(from_us - now_us, 0) / MICROSECONDS * _DRIFT
        if (earlier := self._resends.get(operation_id.int)) is not None:
            earlier.cancel()
        self._resends[operation_id.int] = self._loop.call_later(seconds, look)

    async def _resend_if_due(self, route: Route, operation_id: UUID) -> None:
        """Send it again if it is still in doubt, and its pause is over by the store's clock."""
        try:
            snapshot = await self._store.read(operation_id)
        except StoreError as error:
            _LOG.debug("operation %s cannot be read, and is sent again later: %s", operation_id, error)
            return
        if snapshot.record is not None and snapshot.record.state is State.IN_DOUBT:
            self.resend(route, snapshot.record, snapshot.now_us)

    def _wake_when_due(self, seconds: float) -> None:
        """Poll when a pause of so many seconds, which the store has begun, is over by its clock. Counted from now,
        because the store began it before. Also if something else makes another poll before that."""
        seconds *= _DRIFT
        self._wake_in(seconds)
        if seconds <= _DUE_SECONDS_MAX and len(self._due) < _DUE_MAX:
            heapq.heappush(self._due, self._loop.time() + seconds)

    async def _sleep(self, seconds: float) -> None:
        if self._due:
            seconds = min(seconds, max(self._due[0] - self._loop.time(), _BUSY_SECONDS))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
        now = self._loop.time()
        # The poll that follows finds these.
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)


def taking_turns(due: Iterable[Snapshot]) -> list[Record]:
    """The records in their order, except that scopes take turns."""
    by_scope: dict[bytes, list[Record]] = {}
    for snapshot in due:
        if (record := snapshot.record) is not None:
            by_scope.setdefault(record.identity.scope_digest, []).append(record)
    return [record for turn in zip_longest(*by_scope.values()) for record in turn if record is not None]


def _request_of(route: Route, record: Record, kept: KeptRequest) -> Request:
    """The kept request as one that came in. It is the one that was recorded, so it needs no identification."""
    taken = TakenBody(kept.body, len(kept.body))
    request = Request(kept.head, taken, kept.hop)
    request.route, request.taken, request.identity = route, taken, record.identity
    request.fingerprints = () if record.fingerprint is None else (record.fingerprint,)
    request.probe, request.canonical_key = record.probe, kept.canonical_key
    request.version = version_of(route.keep.version, kept.head.headers)
    return request


# -- how many at once --------------------------------------------------------------------------------------------------


class Places:
    """How many deliveries may run at once in this process: for each route, and for each upstream by a breaker. A place
    is taken before the operation is claimed, so that a claimed request is sent at once. One without a place stays
    accepted, and nothing about it changes. `clock` counts seconds and never goes back."""

    def __init__(self, policy: BreakerPolicy, events: Events, clock: Callable[[], float]) -> None:
        self._policy, self._events, self._clock = policy, events, clock
        self._taken: Counter[str] = Counter()
        # Routes with the same upstream settings share a client, and so a breaker.
        self._breakers: dict[Upstream, Breaker] = {}

    def free(self, route: Route) -> int:
        free = _in_flight_max(route) - self._taken[route.name]
        of_upstream = self._breaker(route).free(self._clock())
        return max(0, free if of_upstream is None else min(free, of_upstream))

    def take(self, route: Route) -> int | None:
        """Take a place, to be given back once; returns the breaker's generation, None where all places are taken or the
        breaker is open."""
        if self._taken[route.name] >= _in_flight_max(route):
            return None
        breaker = self._breaker(route).begin(self._clock())
        if breaker is None:
            return None
        self._put(route, breaker)
        self._taken[route.name] += 1
        return breaker.generation

    def sent(self, route: Route, generation: int) -> bool:
        """The first byte of the delivery goes out: its upstream can be reached. Returns whether the breaker changes its
        phase by that."""
        before = self._breaker(route)
        after = before.sent(self._clock(), generation)
        self._put(route, after)
        return after.phase is not before.phase

    def give_back(self, route: Route, generation: int, *, is_sent: bool | None, why: str = "") -> None:
        """The delivery ended. `is_sent` as in `Breaker.end`; `why` is what a breaker that opens is reported with."""
        self._taken[route.name] -= 1
        breaker = self._breaker(route).end(self._clock(), generation, is_sent=is_sent)
        self._put(route, breaker, why)

    def wake_seconds(self, route: Route) -> float | None:
        """How long until the breaker has more places by the passing of time alone; None where it never will."""
        return self._breaker(route).wake_seconds(self._clock())

    def _breaker(self, route: Route) -> Breaker:
        return self._breakers.get(route.target.upstream) or Breaker(self._policy)

    def _put(self, route: Route, breaker: Breaker, why: str = "") -> None:
        was_open = self._breaker(route).is_open
        self._breakers[route.target.upstream] = breaker
        if was_open != breaker.is_open:
            self._events.publish(BreakerChanged(_url(route), breaker.is_open, why if breaker.is_open else ""))


def _in_flight_max(route: Route) -> int:
    return 0 if route.accept is None else route.accept.delivery.in_flight_max


def _url(route: Route) -> str:
    """The upstream as `observe.facts.UpstreamChanged` names it."""
    scheme = "http" if route.target.upstream.settings.tls is None else "https"
    return f"{scheme}://{route.target.forwarding.authority.decode()}"
