"""The local disk of a host: what outlives the processes that wrote it, journals and what was seen of the store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from uuid import UUID

from gateway.core.operation import EVENT_OF, Complete, OutcomeCommand
from gateway.store.base import Indefinite, NotApplied, wall_clock_us
from gateway.store.files import MarkedAttempt
from gateway.store.journal import EntryId, JournalEntry, JournalTally, KeptEntry, KeptOutcome
from gateway.store.memory.epoch import Seen
from tests.simulation.faults import Weather
from tests.simulation.loop import Process


class Disk:
    """What a host keeps: entries by file and row, which process has which file open, and what was last seen of the
    durable store; for that it stands where `SeenFile` does."""

    def __init__(self) -> None:
        self.files: dict[str, dict[int, JournalEntry]] = {}
        self.owners: dict[str, Process] = {}
        self.refused: list[tuple[str, JournalEntry, str]] = []
        self.memories: dict[EntryId, str] = {}
        self.rows = count(1)
        self.seen: Seen | None = None
        self.attempts: list[AttemptNotes] = []

    def read(self) -> Seen | None:
        return self.seen

    def write(self, seen: Seen) -> None:
        self.seen = seen


class AttemptNotes:
    """What the attempts of one process have sent. Stands where `AttemptFiles` does."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk, self._process = disk, process
        self._places = count(1)
        self._unsent: dict[int, MarkedAttempt] = {}
        self._sent: dict[int, MarkedAttempt] = {}
        disk.attempts.append(self)

    @property
    def attempts(self) -> tuple[MarkedAttempt, ...]:
        return tuple(self._unsent.values())

    @property
    def sent(self) -> tuple[MarkedAttempt, ...]:
        return tuple(self._sent.values())

    def mark_unsent(self, operation_id: UUID, attempt_id: UUID) -> int:
        place = next(self._places)
        self._unsent[place] = MarkedAttempt(operation_id, attempt_id)
        return place

    def mark_sent(self, place: int) -> None:
        if place in self._unsent:
            self._sent[place] = self._unsent.pop(place)

    def unmark(self, place: int) -> None:
        self._unsent.pop(place, None)
        self._sent.pop(place, None)

    def take_ended(self) -> list[AttemptNotes]:
        ended = [notes for notes in self._disk.attempts if not notes._process.is_alive]
        self._disk.attempts = [notes for notes in self._disk.attempts if notes._process.is_alive]
        return ended

    def leave(self) -> None:
        self._disk.attempts.append(self)

    def remove(self) -> None:
        pass


class DiskJournal:
    """The journal of one process. Satisfies `Journal`."""

    def __init__(self, disk: Disk, name: str, process: Process, weather: Weather) -> None:
        self._disk, self._own = disk, name
        self._process, self._weather = process, weather
        self._open: list[str] = [name]
        disk.files[name] = {}
        disk.owners[name] = process
        self._adopt()

    @property
    def tally(self) -> JournalTally:
        waiting = sum(len(self._disk.files[name]) for name in self._open)
        return JournalTally(waiting, sum(name in self._open for name, _, _ in self._disk.refused))

    def holds(self, operation_id: UUID) -> bool:
        waiting = (entry for name in self._open for entry in self._disk.files[name].values())
        return any(entry.command.operation_id == operation_id for entry in waiting)

    async def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        await self._write()
        self._adopt()
        waiting = [entry for file in self._disk.files.values() for entry in file.values()]
        refused = [entry for _, entry, _ in self._disk.refused]
        return [
            _kept(entry, self._disk.memories.get(entry.entry_id, ""), is_refused=entry in refused)
            for entry in (*waiting, *refused)
            if entry.command.operation_id == operation_id
        ]

    async def append(self, route: str, command: OutcomeCommand, memory: str = "") -> EntryId:
        await self._write()
        if self._weather.happens("disk_full", self._process.name):
            raise NotApplied("no space left")
        entry_id = EntryId(self._own, next(self._disk.rows))
        self._disk.files[self._own][entry_id.row] = JournalEntry(entry_id, route, command)
        self._disk.memories[entry_id] = memory
        if self._weather.happens("disk_failed", self._process.name):
            raise Indefinite("input/output error")
        await self._write()
        return entry_id

    async def waiting(self, after: EntryId | None, *, limit: int, bytes_max: int) -> list[JournalEntry]:
        await self._write()
        found = sorted((name, row) for name in self._open for row in self._disk.files[name])
        place = ("", 0) if after is None else (after.file, after.row)
        behind = [each for each in found if each > place][:limit]
        return [self._disk.files[name][row] for name, row in behind if name == behind[0][0]]

    async def forget(self, entry_ids: Sequence[EntryId]) -> None:
        await self._write()
        if self._weather.happens("disk_failed", self._process.name):
            raise Indefinite("input/output error")
        for entry_id in entry_ids:
            self._disk.files[entry_id.file].pop(entry_id.row, None)

    async def refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        await self._write()
        for entry_id, why in refusals:
            entry = self._disk.files[entry_id.file].pop(entry_id.row, None)
            if entry is not None:
                self._disk.refused.append((entry_id.file, entry, why))

    async def adopt(self) -> int:
        await self._write()
        return self._adopt()

    def close(self) -> None:
        """Let the files go: whoever comes next may take them."""
        for name in self._open:
            self._disk.owners.pop(name, None)

    def _adopt(self) -> int:
        """Take over what nobody alive has open."""
        adopted = 0
        for name in self._disk.files:
            owner = self._disk.owners.get(name)
            if name not in self._open and (owner is None or not owner.is_alive):
                self._disk.owners[name] = self._process
                self._open.append(name)
                adopted += 1
        return adopted

    async def _write(self) -> None:
        """A turn at the disk."""
        await self._process.take_turn(self._weather.hop_seconds() / 2)


def _kept(entry: JournalEntry, memory: str, *, is_refused: bool) -> KeptOutcome:
    command, refused_us = entry.command, 0 if is_refused else None
    said = command.operation_id, command.token, EVENT_OF[type(command)].value, entry.route
    # Never over: the clocks of a run are its own.
    about = KeptEntry(*said, wall_clock_us(), status=None, body_bytes=None, refused_us=refused_us, refused_why=None)
    claim = command.granted if isinstance(command, Complete) else None
    return KeptOutcome(entry.entry_id, about, command, claim, memory)
