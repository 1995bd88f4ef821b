"""Brings to the durable store what this host alone knows: outcomes in its journal, and claims of processes that ended.

`Flusher` owns when an outcome of the journal is tried and what follows for each; the durable store decides whether it
still applies. An applied outcome is deleted from the journal, and so is one without a response that was overtaken, by a
later claim or by the end of its doubt. A refused one stays there and is reported: someone else changed the operation
meanwhile. Without a result it stays and is retried. An outcome that was applied but not deleted is applied again, which
the store recognises. Outcomes of one operation are applied in order.

`UnsentWorker` owns when the marks of ended workers are looked at, and which command follows. A claim under which
nothing was sent would lapse into doubt, although this host has it on record that no byte went out. One under which
something was sent would seem to run for the rest of its lease, although nobody holds it: it is in doubt at once, as if
its lease had ended. The command is fenced by the claim's token and attempt. A claim may reach the store after the
process that asked for it has ended, so an attempt that the record does not have is looked up again, until no claim can
arrive any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.lifecycle import LAPSED_DOUBT
from gateway.core.operation import (
    EVENT_OF,
    Abandon,
    Applied,
    Complete,
    Event,
    Identity,
    OutcomeCommand,
    Record,
    Result,
    State,
)
from gateway.core.outcome import end_unused
from gateway.observe.facts import Events, FlushRefused, OperationSettled
from gateway.store.base import Store, StoreError, Unstorable, boot_seconds
from gateway.store.files import AttemptFiles, EndedWorker, MarkedAttempt
from gateway.store.journal import EntryId, JournalEntry, SqliteJournal
from gateway.store.operations import UNEXECUTED
from gateway.upkeep.duty import Sleep, repeat

_LOG = logging.getLogger("gateway")

_BATCH_MAX: Final = 64
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# How often an empty journal is checked, at no cost.
_IDLE_SECONDS: Final = 0.5
# While the store is unreachable. Once it is back, other gateways wait for this one only for `store.journal_grace`.
_PAUSE_SECONDS: Final = 0.15
_PAUSE_SECONDS_MAX: Final = 1.0
_ADOPT_SECONDS: Final = 30.0
# While outcomes are refused: an operator who acknowledged them checks the metric next.
_ADOPT_REFUSED_SECONDS: Final = 3.0


@dataclass(eq=False, slots=True)
class Flusher:
    store: Store
    journal: SqliteJournal
    events: Events
    _: KW_ONLY
    clock: Callable[[], float] = boot_seconds
    sleep: Sleep = asyncio.sleep
    _is_store_silent: bool = field(default=False, init=False)
    # The last entry that was tried on an unreachable store, and the operations with outcomes left by then: no later
    # outcome of theirs may be applied before.
    _silent_at: tuple[EntryId | None, set[UUID]] = field(default=(None, set()), init=False)
    _flushing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _adopted_at_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._adopted_at_seconds = self.clock()

    async def run_once(self) -> None:
        """Flush what waits. Raises `StoreError` when the durable store, or the journal, is unreachable. If cancelled,
        whatever is not surely in the store stays in the journal."""
        async with self._flushing:
            await self._adopt()
            # After a failure, try the next entry: the store may never accept the one that failed.
            after, stuck = self._silent_at if self._is_store_silent else (None, set())
            while self.journal.tally.waiting:
                # One is enough to find out whether the store is reachable.
                limit = 1 if self._is_store_silent else _BATCH_MAX
                found = await self.journal.waiting(after, limit=limit, bytes_max=_BATCH_BYTES_MAX)
                if not found:
                    if not self._is_store_silent or after is None:
                        break
                    # Each was tried once: begin again with the first.
                    after, stuck = None, set()
                    continue
                entries = _before_a_repeat(found)
                after = entries[-1].entry_id
                ready = [each for each in entries if each.command.operation_id not in stuck]
                if not ready:
                    continue
                left = await self._apply(ready)
                stuck.update(entry.command.operation_id for entry, _ in left)
                was_silent, self._is_store_silent = self._is_store_silent, len(left) == len(ready)
                if self._is_store_silent:
                    self._silent_at = after, stuck
                    raise left[0][1]
                if was_silent:
                    # The store is back: begin with the first, for those that failed meanwhile.
                    after, stuck = None, set()

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=_PAUSE_SECONDS, pause_seconds_max=_PAUSE_SECONDS_MAX, sleep=self.sleep)

    async def _pass(self) -> float:
        await self.run_once()
        return _IDLE_SECONDS

    async def _adopt(self) -> None:
        """Check now and then for outcomes that another process left in the directory, or that an operator removed."""
        pause_seconds = _ADOPT_REFUSED_SECONDS if self.journal.tally.refused else _ADOPT_SECONDS
        if self.clock() >= self._adopted_at_seconds + pause_seconds:
            self._adopted_at_seconds = self.clock()
            await self.journal.adopt()

    async def _apply(self, entries: list[JournalEntry]) -> list[tuple[JournalEntry, StoreError]]:
        """Apply these, record the store's results in the journal, then report them; returns those without a result."""
        applied: list[JournalEntry] = []
        overtaken: list[JournalEntry] = []
        refused: list[tuple[JournalEntry, str]] = []
        left: list[tuple[JournalEntry, StoreError]] = []

        async def apply(entry: JournalEntry) -> None:
            try:
                result = await self.store.apply(entry.command)
            except Unstorable as error:
                refused.append((entry, f"rejected: {error}"))
            except StoreError as error:
                left.append((entry, error))
            else:
                if isinstance(result, Applied):
                    applied.append(entry)
                elif _is_overtaken(entry.command, result):
                    overtaken.append(entry)
                else:
                    refused.append((entry, f"the record is {result.snapshot.state} without it"))

        await asyncio.gather(*[apply(entry) for entry in entries])
        if done := [entry.entry_id for entry in (*applied, *overtaken)]:
            await self.journal.forget(done)
        for entry in applied:
            self.events.publish(OperationSettled(*_names_of(entry), "from the journal", None, is_late=True))
        for entry in overtaken:
            _, operation_id, token, event = _names_of(entry)
            _LOG.debug("%s of %s under token %d was overtaken", event, operation_id, token)
        if refused:
            await self.journal.refuse([(entry.entry_id, why) for entry, why in refused])
        for entry, why in refused:
            self.events.publish(FlushRefused(*_names_of(entry), why))
        return left


def _names_of(entry: JournalEntry) -> tuple[str, UUID, int, Event]:
    command = entry.command
    return entry.route, command.operation_id, command.token, EVENT_OF[type(command)]


def _is_overtaken(command: OutcomeCommand, result: Result) -> bool:
    """Whether the record moved on without this outcome, and deleting it loses no response and no knowledge. Either the
    store had applied it and the acknowledgement was lost, or its doubt was ended without it, and an abandon no longer
    matters. "Nothing happened" (release, forget, postpone, bury) matters to an operator until the record says the same
    or a later claim was granted, and for as long as a takeover carries the doubt."""
    record = result.snapshot.record
    if record is None or record.token < command.token or isinstance(command, Complete):
        return False
    # Every end of a doubt clears it from the record.
    if isinstance(command, Abandon) or record.state in UNEXECUTED:
        return True
    return record.token > command.token and not record.carries_doubt


def _before_a_repeat(entries: list[JournalEntry]) -> list[JournalEntry]:
    """The entries before the first repeated operation: concurrently, its outcomes could be applied in any order."""
    seen: set[UUID] = set()
    for index, entry in enumerate(entries):
        operation_id = entry.command.operation_id
        if operation_id in seen:
            return entries[:index]
        seen.add(operation_id)
    return entries


# -- claims ------------------------------------------------------------------------------------------------------------

_PASS_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_WHY: Final = "interrupted"


@dataclass(slots=True, eq=False)
class _Left:
    """An ended worker, what is left to do of its attempts and whether they may have sent something, and since when it
    has been known here."""

    ended: EndedWorker
    attempts: list[tuple[MarkedAttempt, bool]]
    since: float


@dataclass(eq=False, slots=True)
class UnsentWorker:
    """Ends what ended workers of this host left, at the start and every few seconds. `remember_us` returns for how long
    a released key of this identity is remembered; None where no route has it: then its claim lapses. `arrival_seconds`
    is how long a claim may be under way to the store."""

    store: Store
    marks: AttemptFiles
    events: Events
    _: KW_ONLY
    remember_us: Callable[[Identity], int | None]
    arrival_seconds: float
    clock: Callable[[], float] = boot_seconds
    _left: list[_Left] = field(default_factory=list, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        self._is_stopped = True

    async def run_once(self) -> None:
        """End what can be ended; the rest is tried again."""
        now = await self._look()
        for left in self._left.copy():
            if self._is_stopped:
                return
            await self._end_all(left, may_arrive=now - left.since < self.arrival_seconds)
            if not left.attempts:
                self._left.remove(left)
                left.ended.remove()

    async def unsent_of(self, operation_id: UUID) -> frozenset[UUID]:
        """The attempts of the operation under which ended workers had sent nothing, and whose claims may stand yet."""
        await self._look()
        attempts = [attempt for left in self._left for attempt, is_sent in left.attempts if not is_sent]
        return frozenset(attempt.attempt_id for attempt in attempts if attempt.operation_id == operation_id)

    async def _look(self) -> float:
        """Look for workers that have ended since; returns when that was."""
        now = self.clock()
        for ended in await self._take_ended():
            unsent, sent = ((each, False) for each in ended.attempts), ((each, True) for each in ended.sent)
            self._left.append(_Left(ended, [*unsent, *sent], now))
        return now

    async def run(self) -> NoReturn:
        """Do so until cancelled. What is left is for other workers then."""
        try:
            await repeat(self._pass, pause_seconds=_PASS_SECONDS, at_once=True)
        finally:
            for left in self._left:
                left.ended.leave()
            self._left.clear()

    async def _pass(self) -> float:
        await self.run_once()
        return _PASS_SECONDS

    async def _take_ended(self) -> list[EndedWorker]:
        """In a thread, because it waits for the disk. Cancelled, it leaves them to others."""
        taking = asyncio.ensure_future(asyncio.to_thread(self.marks.take_ended))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(Exception):
                for ended in await taking:
                    ended.leave()
            raise

    async def _end_all(self, left: _Left, *, may_arrive: bool) -> None:
        """End what can be ended; what has to be tried again stays."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def end(attempt: MarkedAttempt, is_sent: bool) -> bool:
            async with places:
                try:
                    return await self._end(attempt, is_sent=is_sent, may_arrive=may_arrive)
                except StoreError as error:
                    _LOG.debug("the claim of attempt %s cannot be ended yet: %s", attempt.attempt_id, error)
                    return False

        are_done = await asyncio.gather(*[end(*each) for each in left.attempts])
        left.attempts = [each for each, is_done in zip(left.attempts, are_done, strict=True) if not is_done]

    async def _end(self, attempt: MarkedAttempt, *, is_sent: bool, may_arrive: bool) -> bool:
        """End the attempt's claim, if the record is under it; let it lapse at once if something may have been sent.
        False where the claim may not have arrived yet."""
        record = (await self.store.read(attempt.operation_id)).record
        if record is None or record.attempt_id != attempt.attempt_id:
            # It was granted before anything was sent.
            return is_sent or not may_arrive
        if is_sent:
            if record.state is State.CLAIMED:
                ids = (attempt.operation_id, record.token, record.attempt_id)
                await self._apply(record, Abandon(*ids, LAPSED_DOUBT), "its gateway was killed")
            return True
        remember_us = self.remember_us(record.identity)
        if record.state in (State.CLAIMED, State.IN_DOUBT) and remember_us is not None:
            why = "its gateway was killed before it sent anything"
            await self._apply(record, end_unused(record, remember_us, _WHY), why)
        return True

    async def _apply(self, record: Record, command: OutcomeCommand, why: str) -> None:
        if isinstance(await self.store.apply(command), Applied):
            of = (record.identity.route, record.identity.operation_id, record.token, EVENT_OF[type(command)])
            self.events.publish(OperationSettled(*of, why, None, is_late=not isinstance(command, Abandon)))
