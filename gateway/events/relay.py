"""Publishes the events that wait in the store until their sinks have acknowledged them.

The relay leases the rows of events, publishes as many at a time as their sink takes, and reports the results. Leases of
a relay that dies lapse, and another one publishes those events again: duplicates under the same ids, never a loss. Any
number of processes relay for one service, through the store alone.

Each sink has places of its own and a breaker. A publication takes a place before it is leased, and ends within its
lease, so a slow sink delays neither the others nor any caller. While a breaker is open, nothing of its sink is leased,
and its events lose no tries.

One search serves all sinks. While a sink takes all that it gets and more waits for it, the next search follows as soon
as half of its places are free, after a short pause that leaves time to callers. Otherwise it follows a moment after a
publication ended or this process made a change that may have events, and without either a little later each time. After
a poll that failed neither counts: a store that fails would get a search for each change.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, NoReturn

from gateway.core import immutable
from gateway.core.delivery import Breaker, BreakerPolicy
from gateway.core.operation import MICROSECONDS, microseconds
from gateway.core.outbox import BROKER_SCHEDULE_US, PublishedEvent, pause_us
from gateway.observe.facts import (
    Events,
    EventsPublished,
    Fact,
    OperationAccepted,
    OperationSettled,
    SinkChanged,
    SweepDone,
)
from gateway.observe.facts import PublicationResult as Result
from gateway.store.base import StoreError, end_tasks
from gateway.store.operations import EVENT_LEASE_US_MAX, EventFate, EventReport, LeasedEvent, Publications
from gateway.upkeep.duty import repeat

_LOG = logging.getLogger("gateway")

# -- sinks -------------------------------------------------------------------------------------------------------------
# The contract of a sink: it publishes events and returns the result of each.
#
# A publication whose acknowledgement is missing may have arrived. So every sink may get an event several times, always
# under the same id and with the same bytes, and consumers recognise it by the id.

REASON_CHARACTERS_MAX: Final = 300


@immutable
class Publication:
    """What became of publishing an event. `why` is for operators; it may hold a part of a response, and then `cause` is
    for the log, without that. `retry_after_us` is what a consumer asked for where it failed; `secret_ids` signed what
    was delivered."""

    result: Result
    why: str = ""
    cause: str = ""
    retry_after_us: int | None = None
    secret_ids: tuple[str, ...] = ()

    @property
    def is_failed(self) -> bool:
        """Whether it is to be published again, and nothing else is known."""
        return self.result in (Result.FAILED, Result.UNKNOWN)


Outgoing = tuple[PublishedEvent, int]
"""An event, and how many times an operator had it delivered again although it had been given up.

A broker that recognises ids it has seen must then not swallow the event.
"""


class SinkUnusable(Exception):
    """A sink cannot be opened on this machine: its library is missing. The text says what to do."""


class Sink:
    """A place that events are published to. Lives on one event loop."""

    batch_max = 1
    """How many events it takes at a time. They end together, so each of them waits for the slowest."""
    places = 100
    """How many publications there may be at a time, each of a batch."""
    schedule_us = BROKER_SCHEDULE_US
    """The pauses before an event that failed is published again."""

    async def open(self) -> None:
        """Prepare, without waiting for the sink's server. Raises `SinkUnusable`."""

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        """Publish each event once, within the sink's own deadline. Returns the results in their order. Raises only what
        is a bug."""
        return [await self.publish_one(*each) for each in batch]

    async def publish_one(self, event: PublishedEvent, redeliveries: int) -> Publication:
        """As `publish`, of a sink that takes one at a time: none then waits for another one's acknowledgement."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what `open` prepared."""


class StdoutSink(Sink):
    """Writes each event as one line of JSON on standard output, for trying. At most once: nobody acknowledges a
    line."""

    batch_max = 100

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        sys.stdout.buffer.write(b"".join([event.cloudevent() + b"\n" for event, _ in batch]))
        sys.stdout.buffer.flush()
        return [Publication(Result.DELIVERED)] * len(batch)


def reason(text: str) -> str:
    """A text from outside as a reason: in printable ASCII, and not long."""
    printable = "".join(each if " " <= each <= "~" else "?" for each in text[:REASON_CHARACTERS_MAX])
    return printable.strip() or "no reason given"


# -- relay -------------------------------------------------------------------------------------------------------------

LEASE_SECONDS: Final = EVENT_LEASE_US_MAX / 2 / MICROSECONDS
# A publication that takes longer is given up, so that it ends within its lease.
_PUBLISH_SECONDS: Final = 25.0
_BATCH_MAX: Final = 100
_POLL_SECONDS: Final = 1.0
_IDLE_SECONDS_MAX: Final = 5.0
_FAILING_SECONDS_MAX: Final = 30.0
# Between polls that keep up: each finds what many changes wrote and many publications made room for.
BUSY_SECONDS: Final = 0.05
# Between polls of a backlog, for each event that was leased: the time that callers get.
_EVENT_SECONDS: Final = 0.0001
# How long a stop waits for publications that have begun.
_CLOSE_SECONDS: Final = 5.0
# Of a breaker that opened while events were leased.
_NO_GENERATION: Final = -1


@dataclass(eq=False, slots=True)
class Relay:
    """The publications of one process to its sinks, by their names. Lives on one event loop. An event older than
    `keep_us` that fails again is dead. `clock` counts seconds and never goes back; `draw` is uniform in [0, 1).
    `busy_seconds` is the pause between polls while every sink keeps up."""

    store: Publications
    sinks: InitVar[Mapping[str, Sink]]
    events: Events
    _: KW_ONLY
    service: str
    keep_us: int
    breaker: BreakerPolicy
    clock: Callable[[], float]
    draw: Callable[[], float] = random.random
    busy_seconds: float = BUSY_SECONDS
    _places: list[_Places] = field(init=False)
    _leased: int = field(default=0, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _reports: deque[EventReport] = field(default_factory=deque, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _idle_seconds: float = field(default=_POLL_SECONDS, init=False)
    _has_failed: bool = field(default=False, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self, sinks: Mapping[str, Sink]) -> None:
        self._places = [_Places(name, sink, self.breaker, self.events, self.clock) for name, sink in sinks.items()]

    @property
    def running(self) -> int:
        """How many publications run, each of a batch."""
        return len(self._tasks)

    async def open(self) -> None:
        """Open the sinks. One that cannot be used here is reported, and its events wait."""
        for places in self._places:
            await places.open()

    async def run(self) -> NoReturn:
        await self.open()
        await repeat(
            self.run_once, pause_seconds=_POLL_SECONDS, pause_seconds_max=_FAILING_SECONDS_MAX, sleep=self._sleep
        )

    def wake(self) -> None:
        """Poll soon: a change was just made that may have events."""
        self._wake.set()

    def wants(self, kind: type[Fact]) -> bool:
        return kind in (OperationSettled, OperationAccepted, SweepDone)

    def __call__(self, _fact: Fact) -> None:
        """This process made such a change."""
        self.wake()

    def stop(self) -> None:
        """Lease nothing any more."""
        self._is_stopped = True

    async def close(self) -> None:
        """Let publications that have begun end for a while, report them, and close the sinks."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
        await end_tasks(self._tasks)
        try:
            await self.report()
        except StoreError as error:
            _LOG.debug("some events will be published again, because their end was not written: %s", error)
        for places in self._places:
            await places.close()

    async def run_once(self) -> float:
        """One poll: report what ended, and publish what is due. Returns the pause before the next. Raises
        `StoreError`."""
        self._has_failed = True
        pause_seconds = await self._poll()
        self._has_failed = False
        return pause_seconds

    async def _poll(self) -> float:
        self._wake.clear()
        self._has_room.clear()
        await self.report()
        wanted = {each.name: min(free, _BATCH_MAX) for each in self._places if (free := each.free) > 0}
        if self._is_stopped or not wanted:
            return _POLL_SECONDS
        leased = await self.store.lease_events(self.service, wanted, microseconds(LEASE_SECONDS))
        self._leased = len(leased)
        for places in self._places:
            if (number := wanted.get(places.name)) is not None:
                of_sink = [each for each in leased if each.sink == places.name]
                # Others may wait behind the first one of a line.
                places.has_more = len(of_sink) == number or any(each.line is not None for each in of_sink)
                self._begin(places, of_sink)
        self._idle_seconds = _POLL_SECONDS if leased else min(self._idle_seconds * 2, _IDLE_SECONDS_MAX)
        return self._idle_seconds

    def _begin(self, places: _Places, leased: Sequence[LeasedEvent]) -> None:
        for first in range(0, len(leased), places.sink.batch_max):
            batch = leased[first : first + places.sink.batch_max]
            task = asyncio.get_running_loop().create_task(self._publish(places, places.begin(len(batch)), batch))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _publish(self, places: _Places, generation: int, batch: Sequence[LeasedEvent]) -> None:
        publications: Sequence[Publication] = [Publication(Result.UNKNOWN, "given up")] * len(batch)
        try:
            async with asyncio.timeout(_PUBLISH_SECONDS):
                publications = await places.sink.publish([(each.event, each.redeliveries) for each in batch])
        except TimeoutError:
            why = f"no acknowledgement within {_PUBLISH_SECONDS:g} s"
            publications = [Publication(Result.UNKNOWN, why)] * len(batch)
        except Exception as error:
            publications = [Publication(Result.UNKNOWN, f"a bug: {type(error).__name__}")] * len(batch)
            raise
        finally:
            self._end(places, generation, batch, publications)
        closed = next((each for each in publications if each.result is Result.SUSPENDED), None)
        if closed is not None and await self.store.suspend_sink(self.service, places.name, closed.why):
            self.events.publish(SinkChanged(places.name, is_suspended=True, cause=closed.cause or closed.why))

    def _end(
        self, places: _Places, generation: int, batch: Sequence[LeasedEvent], publications: Sequence[Publication]
    ) -> None:
        places.end()
        for publication, ended in groupby(zip(publications, batch, strict=True), itemgetter(0)):
            alike = [leased for _, leased in ended]
            places.judge(generation, publication, len(alike))
            self._reports.extend([self._report_of(places.sink, leased, publication) for leased in alike])
            events = tuple([(leased.event.id, leased.event.type) for leased in alike])
            of_all = publication.result, publication.why, publication.secret_ids
            self.events.publish(EventsPublished(places.name, events, *of_all))
        self._wake.set()
        if places.is_behind:
            self._has_room.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, StoreError):
                _LOG.debug("a sink could not be suspended: %s", error)
            else:
                _LOG.error("publishing an event failed because of a bug; it is tried again", exc_info=error)

    def _report_of(self, sink: Sink, leased: LeasedEvent, publication: Publication) -> EventReport:
        ids = leased.sink, leased.event.id, leased.tries, leased.redeliveries
        is_refused = publication.result is Result.REFUSED
        if publication.result is Result.DELIVERED:
            return EventReport(*ids, EventFate.PUBLISHED, line=leased.line)
        if is_refused or (publication.is_failed and leased.age_us >= self.keep_us):
            return EventReport(*ids, EventFate.DEAD, publication.why, line=leased.line)
        pause = pause_us(sink.schedule_us, leased.tries, self.draw(), publication.retry_after_us)
        return EventReport(*ids, EventFate.PUT_OFF, publication.why, pause, leased.line)

    async def report(self) -> None:
        """Write what ended. What could not be written stays for the next time. Raises `StoreError`."""
        reports = list(self._reports)
        if not reports:
            return
        # Taken out, because a stop reports beside a poll.
        self._reports.clear()
        try:
            await self.store.report_events(self.service, reports)
        except BaseException:
            # They may have been written all the same. Reporting them again changes nothing.
            self._reports.extendleft(reversed(reports))
            raise

    async def _sleep(self, seconds: float) -> None:
        if self._has_failed:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                async with asyncio.timeout(self.busy_seconds):
                    await self._has_room.wait()
                await asyncio.sleep(self._leased * _EVENT_SECONDS)
        except TimeoutError:
            pass


class _Places:
    """One sink: how many events may be published. `has_more`: the last lease may have left some of them."""

    def __init__(
        self, name: str, sink: Sink, breaker: BreakerPolicy, events: Events, clock: Callable[[], float]
    ) -> None:
        self.name, self.sink, self._events, self._clock = name, sink, events, clock
        self._taken = 0
        self._breaker = Breaker(breaker)
        self._is_open = False
        self.has_more = False

    @property
    def free(self) -> int:
        """For how many events publications may begin now."""
        if not self._is_open:
            return 0
        free = (self.sink.places - self._taken) * self.sink.batch_max
        of_breaker = self._breaker.free(self._clock())
        return free if of_breaker is None else min(free, of_breaker)

    @property
    def is_behind(self) -> bool:
        """Whether more events wait, and enough places are free to lease some."""
        return self.has_more and 2 * self._taken <= self.sink.places

    async def open(self) -> None:
        try:
            await self.sink.open()
        except SinkUnusable as error:
            _LOG.error("events for sink %s wait: %s", self.name, error)
        else:
            self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self.sink.close()

    def begin(self, events: int) -> int:
        """Take a place for so many events; returns what `judge` needs."""
        self._taken += 1
        breaker = self._breaker.begin(self._clock(), events)
        if breaker is None:
            return _NO_GENERATION
        self._breaker = breaker
        return breaker.generation

    def end(self) -> None:
        self._taken -= 1

    def judge(self, generation: int, publication: Publication, events: int) -> None:
        """Let the breaker see what became of so many events. A sink that did not take them is given time."""
        self.has_more = self.has_more and publication.result is Result.DELIVERED
        was_open = self._breaker.is_open
        self._breaker = self._breaker.end(self._clock(), generation, events, is_sent=not publication.is_failed)
        if self._breaker.is_open != was_open:
            cause = (publication.cause or publication.why) if publication.is_failed else ""
            self._events.publish(SinkChanged(self.name, is_failing=self._breaker.is_open, cause=cause))
