"""The fast tier of a run: a server with the rules of Redis's scripts, which may lose anything, and what asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from gateway.core.operation import Record, Snapshot, State, microseconds
from gateway.store.base import NotApplied, Watch, Watchers
from gateway.store.memory.epoch import Seen
from tests.simulation import loop
from tests.simulation.faults import Weather
from tests.simulation.history import NoteRead
from tests.simulation.loop import Process

T = TypeVar("T")

GET_SECONDS = 0.25
PUT_SECONDS = 2.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record until a moment of the run."""

    record: Record
    expires: float
    era: int


@dataclass(frozen=True, slots=True)
class _Note:
    """What gateways saw of the durable store, and when it was first noted of that memory."""

    seen: Seen
    since: float


class FastServer:
    """What the gateways share."""

    def __init__(self, weather: Weather) -> None:
        self.weather, self.loop = weather, weather.loop
        self.drivers: list[FastDriver] = []
        self.era = 1
        self.generation: str | None = None
        self.down_until = self.slow_until = 0.0
        self.entries: dict[UUID, _Entry] = {}
        self.note: _Note | None = None
        self.save()

    @property
    def is_down(self) -> bool:
        return self.loop.time() < self.down_until

    def save(self) -> None:
        self.saved, self.saved_note = dict(self.entries), self.note

    def flush(self) -> None:
        self._begin_with({}, None)

    def restore(self) -> None:
        """Come back with what there was at the last save: what was purged since then is back."""
        self._begin_with(dict(self.saved), self.saved_note)

    def _begin_with(self, entries: dict[UUID, _Entry], note: _Note | None) -> None:
        self.entries, self.note = entries, note
        self.era += 1
        self.generation = None

    def look(self, generation: str, is_due: bool) -> int:
        """The era, which is another one where it was of another generation and that `is_due`."""
        if self.generation is None:
            self.generation = generation
        elif is_due and self.generation != generation:
            self.generation = generation
            self.era += 1
        return self.era

    def get(self, operation_id: UUID, era: int) -> Snapshot | None:
        entry, now = self.entries.get(operation_id), self.loop.time()
        if entry is None or entry.expires <= now or not entry.era == self.era == era:
            return None
        return Snapshot(entry.record, entry.record.replay_until_us - microseconds(entry.expires - now))

    def put(self, record: Record, expires: float, era: int) -> None:
        operation_id = record.identity.operation_id
        if era == self.era and self.loop.time() < expires:
            self.entries[operation_id] = _Entry(record, expires, era)
        self.announce(operation_id)

    def tell_purge(self, operation_id: UUID) -> None:
        for driver in self.drivers:
            driver.hear_purge(operation_id)

    def announce(self, operation_id: UUID) -> None:
        for driver in self.drivers:
            driver.hear_news(operation_id)

    def keep_note(self, seen: Seen, compared: str) -> bool:
        """Whether it is kept: not where the note is about a third memory."""
        held = self.note
        if held is None or held.seen.identity != seen.identity:
            if held is not None and held.seen.identity != compared:
                return False
            self.note = _Note(seen, self.loop.time())
            return True
        # Nothing of a run notes what was acknowledged over which link.
        former = seen.former if held.seen.identity == compared else held.seen.former
        kept = replace(held.seen, token=max(held.seen.token, seen.token), former=former)
        self.note = _Note(kept, held.since)
        return True


class FastDriver:
    """The fast tier as one gateway process has it. Satisfies `FastTier`."""

    def __init__(self, server: FastServer, process: Process, clock: Callable[[], float]) -> None:
        """`clock` is the gateway's own, on which callers say when something began."""
        self._server, self._clock, self._process = server, clock, process
        self._weather, self._loop = server.weather, server.loop
        self._line = _Line(server, process)
        self.up, self._why_down = False, ""
        self._era, self._era_known = 0, 0.0
        self._watchers = Watchers()
        self._change_listeners: list[Callable[[bool, str], None]] = []
        self._purge_listeners: list[Callable[[UUID], None]] = []
        # Of the durable store, as it was last told; and what the server has to be told. Nothing yet is no generation.
        self._bound: str | None = None
        self._generation = ""
        self._forgotten = 0
        self._keeper: asyncio.Task[None] | None = None
        self._gets: set[asyncio.Task[Any]] = set()

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        self._change_listeners.append(listener)

    @property
    def has_forgotten(self) -> bool:
        return self._era != 0

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        self._purge_listeners.append(listener)

    def bind(self, identity: str, generation: str | None = None) -> None:
        """A server has one durable store behind it."""
        if generation not in (None, self._bound):
            self._bound = generation
            self._expect(generation or "")

    def _expect(self, generation: str) -> None:
        self._generation, self._era = generation, 0

    async def start(self) -> None:
        if self._keeper is None:
            if self not in self._server.drivers:
                self._server.drivers.append(self)
            await self._look()
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        # Nobody may wait for a lookup any more, and it goes on.
        ending = [*self._gets, *([] if keeper is None else [keeper])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self in self._server.drivers:
            self._server.drivers.remove(self)
        self.up = False

    async def get(self, operation_id: UUID) -> Snapshot | None:
        task = asyncio.current_task()
        self._gets.add(task)
        try:
            server, era = self._server, await self._known_era()
            held_era, snapshot = await self._ask(GET_SECONDS, lambda: (server.era, server.get(operation_id, era)))
            if era != self._era:
                return None
            if held_era != era:
                await self._look()
            return snapshot
        finally:
            self._gets.discard(task)

    async def put(self, snapshot: Snapshot, started_seconds: float) -> None:
        record = snapshot.record
        if record is None or snapshot.state is not State.COMPLETED:
            raise ValueError("only completed records may be put")
        server, era = self._server, await self._known_era()
        started = self._loop.time() - (self._clock() - started_seconds)
        if started < self._era_known:
            return
        expires = started + (record.replay_until_us - snapshot.now_us) / 1e6
        await self._ask(PUT_SECONDS, lambda: server.put(record, expires, era))

    async def first_of(self, _content: bytes, _operation_id: UUID, _within_ms: int) -> UUID | None:
        """No route of a run counts repeats."""
        return None

    async def forget(self, operation_id: UUID, generation: str | None = None) -> None:
        self._forgotten += 1
        if generation is not None:
            self._bound = generation
        self._expect(generation or f"{self._process.name} {id(self)} {self._forgotten}")
        await self._known_era()
        await self._ask(PUT_SECONDS, lambda: self._server.tell_purge(operation_id))

    async def _known_era(self) -> int:
        if self.up and not self._era:
            await self._look()
        if not self.up or not self._era:
            raise NotApplied("the fast tier is down")
        return self._era

    async def announce(self, operation_id: UUID) -> None:
        await self._ask(PUT_SECONDS, lambda: self._server.announce(operation_id))

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def hear_purge(self, operation_id: UUID) -> None:
        self._hear(self._tell_purge, operation_id)

    def hear_news(self, operation_id: UUID) -> None:
        self._hear(self._watchers.announce, operation_id)

    def _hear(self, listener: Callable[[UUID], None], operation_id: UUID) -> None:
        if self.up and not self._weather.happens("news_lost", self._process.name):
            self._process.deliver(self._weather.hop_seconds(), listener, operation_id)

    def _tell_purge(self, operation_id: UUID) -> None:
        for listener in self._purge_listeners:
            listener(operation_id)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        """Learn the server's era, and whether it is there; tell it of the generation where that is due."""
        server, generation, is_due = self._server, self._generation, self._era == 0 and self._generation != ""
        try:
            era = await self._exchange(PUT_SECONDS, lambda: server.look(generation, is_due))
        except NotApplied:
            return
        if era != self._era and generation == self._generation:
            self._era, self._era_known = era, self._loop.time()
        self._set_up(True, "")

    async def _ask(self, seconds: float, execute: Callable[[], T]) -> T:
        if not self.up:
            raise NotApplied("the fast tier is down")
        return await self._exchange(seconds, execute)

    async def _exchange(self, seconds: float, execute: Callable[[], T]) -> T:
        try:
            return await self._line.exchange(seconds, execute)
        except NotApplied as error:
            self._set_up(False, str(error))
            raise

    def _set_up(self, up: bool, why: str) -> None:
        if (up, why) == (self.up, self._why_down):
            return
        self.up, self._why_down = up, why
        for listener in self._change_listeners:
            listener(up, why)


class FastNote:
    """What gateways share of what they saw of the durable store, as one process has it. Satisfies `SharedNote`."""

    def __init__(self, server: FastServer, process: Process) -> None:
        self._server, self._gateway = server, process.name
        self._line = _Line(server, process)

    async def read(self) -> Seen | None:
        note: _Note | None = None
        try:
            note = await self._line.exchange(GET_SECONDS, lambda: self._server.note)
        finally:
            since = None if note is None else note.since
            self._server.weather.history.note_reads.append(NoteRead(self._gateway, self._server.loop.time(), since))
        return None if note is None else replace(note.seen, is_compared=True)

    async def write(self, seen: Seen, compared: str) -> None:
        if not await self._line.exchange(PUT_SECONDS, lambda: self._server.keep_note(seen, compared)):
            raise NotApplied("the note is about another store, which has to be compared first")

    async def close(self) -> None:
        """There is no connection to keep."""


class _Line:
    """The way from a process to the server and back, which may be slow or break off."""

    def __init__(self, server: FastServer, process: Process) -> None:
        self._server, self._process = server, process
        self._weather, self._loop = server.weather, server.loop

    async def exchange(self, seconds: float, execute: Callable[[], T]) -> T:
        """The server's answer. Raises NotApplied, also for what was executed."""
        answer: asyncio.Future[T] = self._loop.create_future()
        delay = self._weather.hop_seconds()
        if self._weather.happens("fast_slow", self._process.name):
            delay += self._weather.dice.uniform(0.0, 2 * seconds)
        if self._loop.time() < self._server.slow_until:
            delay += self._server.slow_until - self._loop.time()
        is_lost_after = self._weather.happens("fast_failed", self._process.name)
        self._loop.world.deliver(delay, self._serve, answer, execute, is_lost_after)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise NotApplied("the fast tier did not answer") from None

    def _serve(self, waiting: asyncio.Future[T], execute: Callable[[], T], is_lost_after: bool) -> None:
        back, is_broken = self._weather.hop_seconds(), self._server.is_down
        value = None if is_broken else execute()
        broken = NotApplied("the fast tier broke off") if is_broken or is_lost_after else None
        ended = (loop.answer, waiting, value) if broken is None else (loop.fail, waiting, broken)
        self._process.deliver(back, *ended)
