"""Delivers to the durable store what the journal has kept for it.

Owns when that is tried and what becomes of each outcome; where they are kept is the journal's, whether one still holds
is the durable store's to say. Applied, it is deleted from the journal; refused, it is kept there and told, for somebody
acted on the operation meanwhile; without an answer it waits. One that holds no response and was overtaken, by a later
claim or by the end of the doubt that it tells of, has nothing left to say, and is deleted too. An outcome that was
applied and could not be deleted is said again, which the store recognises. Outcomes of one operation are said in their
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.operation import EVENT_OF, Abandon, Applied, Forget, LastWord, Release, Result
from gateway.observe.facts import Events, FlushRefused, OperationSettled
from gateway.store.base import Store, StoreError, Unstorable, boot_seconds
from gateway.store.journal import EntryId, Journal, JournalEntry
from gateway.upkeep.timer import Sleep, repeat

_LOG = logging.getLogger("gateway")

_BATCH_MAX: Final = 64
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# How often an empty journal is looked at; that costs nothing.
_IDLE_SECONDS: Final = 0.5
# While the store does not answer. When it is back, others wait for this gateway no longer than `store.journal_grace`.
_PAUSE_SECONDS: Final = 0.15
_PAUSE_SECONDS_MAX: Final = 1.0
_ADOPT_SECONDS: Final = 30.0
# While an operator may be at work on what was refused: who acknowledged it looks at the metric next.
_ADOPT_REFUSED_SECONDS: Final = 3.0


@dataclass(slots=True)
class _Batch:
    """What became of the outcomes of one batch."""

    applied: list[JournalEntry] = field(default_factory=list)
    overtaken: list[JournalEntry] = field(default_factory=list)
    refused: list[tuple[JournalEntry, str]] = field(default_factory=list)
    left: list[tuple[JournalEntry, StoreError]] = field(default_factory=list)


class Flusher:
    """Flushes one journal. `on_flushed` is told operation id and token of each outcome that waits no more."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        events: Events,
        *,
        on_flushed: Callable[[UUID, int], None],
        clock: Callable[[], float] = boot_seconds,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._journal = journal
        self._events = events
        self._on_flushed = on_flushed
        self._clock = clock
        self._sleep = sleep
        self._adopted_at_seconds = clock()
        self._is_store_silent = False
        # The entry that a silent store was asked with last, and the operations of which something was left by then:
        # nothing later of theirs may overtake it.
        self._silent_at: tuple[EntryId | None, set[UUID]] = (None, set())
        self._has_passed = False
        self._flushing = asyncio.Lock()

    @property
    def is_done(self) -> bool:
        """Whether everything was tried since the store last failed: no doubt is there for want of a flush from here."""
        return self._has_passed or self._journal.tally.waiting == 0

    async def run_once(self) -> None:
        """Flush what waits. Raises `StoreError` when the durable store, or the journal, does not answer.

        Cancelled, it leaves in the journal whatever is not surely in the store.
        """
        async with self._flushing:
            await self._adopt()
            # A store that was silent is asked with what comes next, for it may never take what it was asked with.
            after, stuck = self._silent_at if self._is_store_silent else (None, set())
            self._has_passed = False
            while self._journal.tally.waiting:
                # One is enough to find out whether the store is there.
                limit = 1 if self._is_store_silent else _BATCH_MAX
                found = await self._journal.waiting(after, limit=limit, bytes_max=_BATCH_BYTES_MAX)
                if not found:
                    if not self._is_store_silent or after is None:
                        break
                    # It was asked with each of them once: from the first one again.
                    after, stuck = None, set()
                    continue
                entries = _before_a_repeat(found)
                after = entries[-1].entry_id
                said = [each for each in entries if each.command.operation_id not in stuck]
                if not said:
                    continue
                batch = await self._say(said)
                await self._settle(batch)
                stuck.update(entry.command.operation_id for entry, _ in batch.left)
                was_silent = self._is_store_silent
                self._is_store_silent = bool(batch.left) and not (batch.applied or batch.overtaken or batch.refused)
                if self._is_store_silent:
                    self._silent_at = after, stuck
                    raise batch.left[0][1]
                if was_silent:
                    # It is there again: from the first one, for those that it did not take while it was silent.
                    after, stuck = None, set()
            self._has_passed = True

    async def run(self) -> NoReturn:
        """Flush for ever, until cancelled."""
        await repeat(self._pass, pause_seconds=_PAUSE_SECONDS, pause_seconds_max=_PAUSE_SECONDS_MAX, sleep=self._sleep)

    async def _pass(self) -> float:
        await self.run_once()
        return _IDLE_SECONDS

    async def _adopt(self) -> None:
        """Look from time to time whether a process that shares the directory has left something behind, and an operator
        taken something out."""
        pause_seconds = _ADOPT_REFUSED_SECONDS if self._journal.tally.refused else _ADOPT_SECONDS
        if self._clock() >= self._adopted_at_seconds + pause_seconds:
            self._adopted_at_seconds = self._clock()
            await self._journal.adopt()

    async def _say(self, entries: list[JournalEntry]) -> _Batch:
        batch = _Batch()

        async def say(entry: JournalEntry) -> None:
            try:
                result = await self._store.apply(entry.command)
            except Unstorable as error:
                batch.refused.append((entry, f"rejected: {error}"))
            except StoreError as error:
                batch.left.append((entry, error))
            else:
                if isinstance(result, Applied):
                    batch.applied.append(entry)
                elif _is_overtaken(entry.command, result):
                    batch.overtaken.append(entry)
                else:
                    batch.refused.append((entry, f"the record is {result.snapshot.state} without it"))

        await asyncio.gather(*[say(entry) for entry in entries])
        return batch

    async def _settle(self, batch: _Batch) -> None:
        """Write down in the journal what the store said, then tell."""
        if done := [entry.entry_id for entry in (*batch.applied, *batch.overtaken)]:
            await self._journal.forget(done)
        for entry in batch.applied:
            command, event = entry.command, EVENT_OF[type(entry.command)]
            self._events.publish(
                OperationSettled(
                    entry.route, command.operation_id, command.token, event, "from the journal", None, is_late=True
                )
            )
            self._on_flushed(command.operation_id, command.token)
        for entry in batch.overtaken:
            command, event = entry.command, EVENT_OF[type(entry.command)]
            _LOG.debug("%s of %s under token %d was overtaken", event, command.operation_id, command.token)
            self._on_flushed(command.operation_id, command.token)
        if batch.refused:
            await self._journal.refuse([(entry.entry_id, why) for entry, why in batch.refused])
        for entry, why in batch.refused:
            command, event = entry.command, EVENT_OF[type(entry.command)]
            self._events.publish(FlushRefused(entry.route, command.operation_id, command.token, event, why))
            self._on_flushed(command.operation_id, command.token)


def _is_overtaken(command: LastWord, result: Result) -> bool:
    """Whether the record went on without it, and no response is lost with what is known of the attempt.

    The store had taken it, and only its acknowledgement was lost; or the doubt about it was ended without it, and that
    there was one says nothing more. That nothing happened is what an operator wants to know, until a later claim was
    granted, and as long as a takeover carries the doubt.
    """
    record = result.snapshot.record
    if record is None or record.token < command.token or not isinstance(command, Release | Forget | Abandon):
        return False
    # Whatever ends a doubt takes it off the record.
    return isinstance(command, Abandon) or (record.token > command.token and not record.carries_doubt)


def _before_a_repeat(entries: list[JournalEntry]) -> list[JournalEntry]:
    """The entries up to the first whose operation came before: at once, their order would be anybody's."""
    seen: set[UUID] = set()
    for index, entry in enumerate(entries):
        operation_id = entry.command.operation_id
        if operation_id in seen:
            return entries[:index]
        seen.add(operation_id)
    return entries
