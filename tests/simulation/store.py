"""The durable store of a run: the model as its truth, behind a network that loses, delays and refuses."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

from gateway.core.confidential import KEY_BYTES, EncryptionKey, KeyRing, Sealing
from gateway.core.lifecycle import settle
from gateway.core.operation import (
    EVENT_OF,
    Accept,
    Applied,
    Claim,
    Command,
    Record,
    Result,
    Snapshot,
    operation_id_of,
)
from gateway.core.outbox import EventType, Outbox, Subscription
from gateway.store.base import WORK, EpochChanged, Indefinite, LocalWatch, NotApplied, Watch
from gateway.store.operations import Swept
from gateway.store.sealed import passing
from tests.simulation.faults import StoreFate, Weather
from tests.simulation.history import Change, EventRow, History, Jump, StoreCall, View, digest_of
from tests.simulation.loop import Process, SimulatedLoop, fail
from tests.support.memory_store import ManualClock, Memory, MemoryStore

ENCRYPTION_KEY = EncryptionKey("e1", bytes(KEY_BYTES))
"""What gateways encrypt with, and the auditor reads by."""
SINKS = {"ledger": False, "feed": True}
"""Who receives events of completions, and whether in order. Nobody publishes them: what is written is judged."""
_OUTBOX = Outbox(
    "simulation",
    "urn:simulation",
    tuple(Subscription(sink, frozenset((EventType.COMPLETED,)), is_ordered=each) for sink, each in SINKS.items()),
)
_SEALING = Sealing(KeyRing((ENCRYPTION_KEY,), os.urandom))
P = ParamSpec("P")
T = TypeVar("T")
Execute = Callable[[StoreCall], T]


class _Clock(ManualClock):
    """The store's own clock: the run's time, from another beginning, and as far off as it was set last."""

    def __init__(self, loop: SimulatedLoop, history: History) -> None:
        super().__init__()
        self._loop, self._history = loop, history

    def __call__(self) -> int:
        return self._history.store_us(self._loop.time())


# What a standby has of a memory.
_COPIED = ("records", "requests", "contents", "events", "token", "memo", "generation")


def _copy_of(memory: Memory) -> dict[str, Any]:
    copy: dict[str, Any] = {name: getattr(memory, name) for name in _COPIED}
    copy = {name: dict(value) if isinstance(value, dict) else value for name, value in copy.items()}
    return copy | {"contents": {digest: dict(held) for digest, held in memory.contents.items()}}


class Database:
    """The truth. Reached through `Durable` only, but for the honest operator, who looks as he likes."""

    def __init__(self, weather: Weather, *, region: str = "", first_token: int = 0) -> None:
        """`first_token`: far from that of another store, so that a token says in which of them it was granted."""
        self.region = region
        self._loop, self._history, self.weather = weather.loop, weather.history, weather
        self.memory = Memory(clock=_Clock(weather.loop, weather.history), token=first_token)
        self.store = MemoryStore(self.memory, outbox=_OUTBOX)
        _at_once(self.store.start())
        self.down_until = 0.0
        self.outages = 0
        self._standbys: list[tuple[float, dict[str, Any]]] = []
        self._listeners: dict[UUID, dict[int, tuple[Process, LocalWatch]]] = {}
        self._numbers = itertools.count()

    @property
    def is_down(self) -> bool:
        return self._loop.time() < self.down_until

    def break_down(self, seconds: float) -> None:
        """What is under way is lost, before its effect or after; what comes is refused."""
        self.outages += 1
        self.down_until = self._loop.time() + seconds

    def set_clock(self, offset_seconds: float) -> None:
        """From the next moment on the store's clock is so far ahead of the time of the run."""
        self._history.jumps.append(Jump(self._loop.time(), round(offset_seconds * 1_000_000)))

    def copy_to_standby(self) -> None:
        """What a standby that follows at a distance has by now."""
        self._standbys.append((self._loop.time(), _copy_of(self.memory)))

    def fail_over(self, lag_seconds: float) -> None:
        """A standby that lagged so much is promoted: another identity, and the last changes are gone."""
        now = self._loop.time()
        known = [standby for at, standby in self._standbys if at <= now - lag_seconds]
        if not known:
            return
        standby, memory = known[-1], self.memory
        records: dict[UUID, Record] = standby["records"]
        # An operation whose whole life was since then, erasure included, may have left events.
        events = [
            UUID(event.published.operation_id) for key, event in memory.events.items() if key not in standby["events"]
        ]
        for operation_id in dict.fromkeys((*memory.records, *(records.keys() - memory.records.keys()), *events)):
            now_gone, before = memory.records.get(operation_id), records.get(operation_id)
            if _differ(before, now_gone) or operation_id in events:
                self._note(operation_id, "lost", now_gone, before, "standby")
        for name, value in standby.items():
            setattr(memory, name, value)
        memory.recovery_leases.clear()
        memory.identity = uuid4().hex
        self._standbys.clear()
        self.break_down(0.0)

    def apply(self, command: Command, gateway: str) -> tuple[Result, int | None]:
        """Execute, and write the change down; its number, if there was one."""
        operation_id = operation_id_of(command)
        before = self.memory.records.get(operation_id)
        result = self.store.apply_now(command)
        after = self.memory.records.get(operation_id)
        if after is before:
            return result, None
        # A statement that is refused, or was said before, may find that time has done something.
        is_time = before is not None and settle(before, self.memory.clock()) == after
        event = EVENT_OF[type(command)].value if isinstance(result, Applied) and not is_time else "settle"
        attempt = getattr(command, "attempt_id", getattr(command, "resolution_id", None))
        said = {
            "token": getattr(command, "token", None),
            "attempt": None if attempt is None else attempt.hex,
            "read_token": getattr(command, "read_token", None),
            "fingerprint": command.fingerprint.digest if isinstance(command, Claim | Accept) else None,
        }
        change = self._note(operation_id, event, before, after, gateway, **said)
        self.announce(operation_id)
        return result, change

    def sweep(self, limit: int, gateway: str) -> Swept:
        before = dict(self.memory.records)
        swept = _at_once(self.store.sweep(limit))
        for operation_id, record in before.items():
            after = self.memory.records.get(operation_id)
            if _differ(after, record):
                self._note(operation_id, "sweep", record, after, gateway)
                self.announce(operation_id)
        return swept

    def settled(self) -> dict[UUID, Snapshot]:
        """Every record as it is now."""
        return {operation_id: self.store.read_now(operation_id) for operation_id in self.memory.records}

    def events(self) -> list[EventRow]:
        """What is to be published, in the order of writing."""
        return [
            EventRow(
                event.row.sink,
                event.published.operation_id,
                int(event.published.attributes()["sequence"].partition(".")[0]),
                None if event.row.line is None else event.row.line.hex(),
            )
            for event in sorted(self.memory.events.values(), key=lambda event: event.place)
        ]

    def listen(self, operation_id: UUID, process: Process, watch: LocalWatch) -> Callable[[], object]:
        listeners = self._listeners.setdefault(operation_id, {})
        number = next(self._numbers)
        listeners[number] = (process, watch)
        return lambda: listeners.pop(number, None)

    def announce(self, operation_id: UUID) -> None:
        for process, watch in list(self._listeners.get(operation_id, {}).values()):
            if not self.weather.happens("news_lost", process.name):
                process.deliver(self.weather.hop_seconds(), watch.wake)

    def _note(
        self, operation_id: UUID, event: str, before: Record | None, after: Record | None, gateway: str, **said: Any
    ) -> int:
        number, now = len(self._history.changes), self._loop.time()
        at_us = self._history.store_us(now)
        views = view(before), view(after)
        change = Change(number, str(operation_id), event, now, at_us, *views, gateway, region=self.region, **said)
        self._history.changes.append(change)
        return number


def _at_once(work: Awaitable[T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.__await__().send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("the model waits")


def view(record: Record | None) -> View | None:
    """A record as the auditor sees it."""
    if record is None:
        return None
    record = _SEALING.opened(record)
    named = ("token", "holder", "carries_doubt", "lease_until_us", "replay_until_us", "remember_until_us")
    fields = {name: getattr(record, name) for name in named}
    if (response := record.response) is not None:
        nonces = (value.decode() for name, value in response.headers if name.lower() == b"x-nonce")
        digest = digest_of(response.status, response.body or b"")
        fields |= {"nonce": next(nonces, None), "response_digest": digest, "has_body": response.body is not None}
    if (delivery := record.delivery) is not None:
        named = ("next_attempt_us", "deliver_until_us", "stops_lane")
        fields |= {name: getattr(delivery, name) for name in named} | {"is_kept": True}
        fields["waits_since_us"] = max(delivery.since_us, record.claimed_us)
        fields["lane"] = None if delivery.lane is None else delivery.lane.hex()
    return View(
        state=record.state.value,
        attempt=record.attempt_id.hex,
        last_event=record.last_event.value,
        fingerprint=None if record.fingerprint is None else record.fingerprint.digest,
        **fields,
    )


def _differ(one: Record | None, other: Record | None) -> bool:
    """Whether more than the turn in a lane is different: what moves one operation gives the turn to others."""
    return one is not other and view(one) != view(other)


class Durable:
    """The driver of one gateway process. Satisfies `Store`."""

    def __init__(self, database: Database, process: Process) -> None:
        self._database, self._process, self._weather = database, process, database.weather
        self._loop, self._history, self._gateway = database.weather.loop, database.weather.history, process.name
        self.cold = passing(database.store.cold, self._forward, sweep=self._sweep, announce_work=self._announce_work)
        self._identity = ""

    async def start(self) -> None:
        self._identity = await self._ask("start", None, lambda entry: self._database.memory.identity)

    async def close(self) -> None:
        """Nothing is held."""

    async def apply(self, command: Command) -> Result:
        def execute(entry: StoreCall) -> Result:
            result, entry.change = self._database.apply(command, self._gateway)
            entry.result = type(result).__name__
            return result

        return await self._ask(EVENT_OF[type(command)].value, operation_id_of(command), execute)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._ask("read", operation_id, lambda entry: self._database.store.read_now(operation_id))

    async def _sweep(self, limit: int) -> Swept:
        return await self._ask("sweep", None, lambda entry: self._database.sweep(limit, self._gateway))

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[Watch]:
        watch = LocalWatch()
        forget = self._database.listen(operation_id, self._process, watch)
        try:
            yield watch
        finally:
            forget()

    def _announce_work(self) -> None:
        self._loop.world.deliver(self._weather.hop_seconds(), self._database.announce, WORK)

    async def _forward(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(verb.__name__, None, lambda entry: _at_once(verb(*args, **kwargs)))

    async def _ask(self, verb: str, operation_id: UUID | None, execute: Execute[T]) -> T:
        terms, asked = self._history.terms, None if operation_id is None else str(operation_id)
        entry = StoreCall(self._gateway, verb, asked, self._loop.time())
        self._history.store_calls.append(entry)
        fate = self._weather.store_fate(self._gateway, terms.store_timeout_seconds, terms.lease_seconds)
        answer: asyncio.Future[T] = self._loop.create_future()
        if fate.loss == "refused" or self._database.is_down:
            self._process.deliver(fate.back_seconds, fail, answer, NotApplied("connection refused"))
        else:
            # What travels on a connection ends with it: it never reaches another memory than it was meant for.
            identity = self._database.memory.identity if verb == "start" else self._identity
            self._loop.world.deliver(fate.there_seconds, self._serve, entry, fate, answer, execute, identity)
        patience = self._loop.call_later(terms.store_timeout_seconds, fail, answer, Indefinite("no answer in time"))
        try:
            return await answer
        except BaseException as error:
            entry.failure = type(error).__name__
            raise
        finally:
            patience.cancel()

    def _serve(
        self, entry: StoreCall, fate: StoreFate, answer: asyncio.Future[T], execute: Execute[T], identity: str
    ) -> None:
        """At the database: execute, and send the answer back, unless it is lost on either side of that."""
        database, value = self._database, None
        is_lost = fate.loss == "lost_before" or database.is_down
        if not is_lost:
            if identity != database.memory.identity:
                self._process.deliver(fate.back_seconds, fail, answer, EpochChanged("another memory"))
                return
            entry.executed = self._loop.time()
            value = execute(entry)
        if not is_lost and fate.loss != "lost_after":
            self._process.deliver(fate.back_seconds, self._arrive, entry, answer, value, database.outages)
        elif self._weather.dice.random() < 0.7:
            # Some losses are noticed at once, others only when patience ends.
            self._process.deliver(fate.back_seconds, fail, answer, Indefinite("connection reset"))

    def _arrive(self, entry: StoreCall, answer: asyncio.Future[T], value: T, outages: int) -> None:
        if answer.done():
            return
        if self._database.outages != outages:
            answer.set_exception(Indefinite("connection reset"))
            return
        entry.acknowledged = self._loop.time()
        answer.set_result(value)
