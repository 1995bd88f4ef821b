"""A journal in memory that outlives the gateways that are given it, as a disk does: for runs in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from gateway.core.operation import OutcomeCommand
from gateway.store.base import NotApplied
from gateway.store.journal import EntryId, JournalEntry, JournalTally


class MemoryJournal:
    """Satisfies the `Journal` protocol. While `is_full` it takes nothing."""

    def __init__(self) -> None:
        self.is_full = False
        self.entries: dict[int, JournalEntry] = {}
        self.refusals: list[tuple[JournalEntry, str]] = []
        self._numbers = count(1)

    @property
    def tally(self) -> JournalTally:
        return JournalTally(len(self.entries), len(self.refusals))

    async def append(self, route: str, command: OutcomeCommand) -> EntryId:
        await asyncio.sleep(0)
        if self.is_full:
            raise NotApplied("the journal is full")
        entry_id = EntryId("memory", next(self._numbers))
        self.entries[entry_id.row] = JournalEntry(entry_id, route, command)
        return entry_id

    async def read(self, entry_id: EntryId) -> OutcomeCommand | None:
        entry = self.entries.get(entry_id.row)
        return None if entry is None else entry.command

    async def waiting(self, after: EntryId | None, *, limit: int, bytes_max: int) -> list[JournalEntry]:
        start = 0 if after is None else after.row
        return [entry for row, entry in self.entries.items() if row > start][:limit]

    async def forget(self, entry_ids: Sequence[EntryId]) -> None:
        for entry_id in entry_ids:
            self.entries.pop(entry_id.row, None)

    async def refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        for entry_id, why in refusals:
            entry = self.entries.pop(entry_id.row, None)
            if entry is not None:
                self.refusals.append((entry, why))

    async def adopt(self) -> int:
        return 0
