"""The journal: where the outcome of an attempt goes when the durable store has just failed.

`SqliteJournal` owns the files of one process in one directory: its own, to which it appends, and those of processes
that have ended, which it only empties. It knows commands, but no store and no HTTP: `upkeep.leftover` applies the
outcomes to the durable store. What `append` has acknowledged is on the disk, and stays there until `forget`.

Several processes may share the directory. A file is named after the service and store that its outcomes are for, so
that other gateways skip it, and its owner has it locked. What became of one operation is looked up in all of them,
because its repeats come to any process.

`HostJournals` is for whoever asks about the whole host: it owns no file and no lock, and opens the files for some
statements, whether their owners run or not. What it finds may be outdated at once. It only deletes refused outcomes,
which no gateway retries, and encrypts anew.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Final, TypeVar
from uuid import UUID, uuid4

from gateway.core.confidential import NO_SEALING, Resealing, Sealing, Unopenable, sealed_by
from gateway.core.operation import MICROSECONDS, Abandon, Complete, OutcomeCommand
from gateway.store.base import NotApplied, StartRefused, StoreError, wall_clock_us
from gateway.store.batching import Batcher, Worker
from gateway.store.files import make_directory
from gateway.store.journal.file import (
    OF_ONE_MAX,
    SUFFIX,
    EntryId,
    JournalEntry,
    JournalFile,
    JournalTally,
    KeptEntry,
    KeptOutcome,
    Query,
    Row,
    cost_bytes,
    decoded,
    kept_entry,
    kept_outcome,
    lock,
    packed,
    remove_unfinished,
    unlock,
    visited,
)

T = TypeVar("T")

_LOG = logging.getLogger("gateway")

# -- all journals of a host --------------------------------------------------------------------------------------------

# A file system may give two writes within this time the same time.
_SAME_TIME_NS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class JournalView:
    """What the journals of a host hold, oldest first, at `now_us` of its clock. `strangers`: files of another service
    or durable store, each with its owner. `faults`: what could not be read. `has_more`: than the limit."""

    now_us: int
    entries: tuple[KeptEntry, ...] = ()
    strangers: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    has_more: bool = False


class HostJournals:
    """Lets operators read and delete single outcomes in the journals of a host for one service and store, also while
    gateways have these open. Each verb blocks, and may raise `StoreError`. Outcomes for others are strangers."""

    def __init__(self, directory: Path, belongs_to: str, sealing: Sealing = NO_SEALING) -> None:
        self.directory = directory
        self._sealing = sealing
        self._belongs_to = belongs_to
        # Files that are not to be read again until they are changed: those of others, and the empty ones, which every
        # idle gateway has.
        self._idle: dict[Path, tuple[int, ...]] = {}

    def view(self, *, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
        """At most `limit` outcomes: waiting, refused, or both; of one operation, or of all. Never raises."""
        entries: list[KeptEntry] = []
        strangers: list[tuple[str, str]] = []

        def look(path: Path) -> None:
            with visited(path) as query:
                ((owner,),) = query("select_owner")
                if operation_id is None:
                    rows = query("select_kept", is_refused, limit + 1)
                else:
                    rows = query("select_of", operation_id.bytes, limit + 1)
                found = [kept_entry(row) for row in rows]
            kept = [each for each in found if is_refused in (None, each.refused_us is not None)]
            if kept and owner != self._belongs_to:
                strangers.append((path.name, str(owner)))
            entries.extend(kept)

        _, faults = _each(self.directory, look)
        entries.sort(key=lambda entry: entry.journaled_us)
        has_more, said = len(entries) > limit, tuple(map(str, faults))
        return JournalView(wall_clock_us(), tuple(entries[:limit]), tuple(strangers), said, has_more=has_more)

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """The outcomes of one operation, oldest first."""
        return [self._opened(each) for each in self.stored_outcomes(operation_id)]

    def stored_outcomes(self, operation_id: UUID, leave_out: Collection[str] = ()) -> list[KeptOutcome]:
        """As `outcomes`; whatever is encrypted stays so. Files of these names are left out."""

        def look(path: Path) -> list[KeptOutcome]:
            version = None if path.name in leave_out else _version_of(path)
            if path.name in leave_out or (version is not None and self._idle.get(path) == version):
                return []
            with visited(path) as query:
                is_idle = not self._owns(query) or not any(query("count")[0][:2])
                rows = [] if is_idle else query("select_of", operation_id.bytes, OF_ONE_MAX)
            self._idle.pop(path, None)
            if is_idle and version is not None:
                self._idle[path] = version
            return [kept_outcome(path, row) for row in rows]

        found = self._look_into_all(look)
        self._idle = {path: version for path, version in self._idle.items() if path.exists()}
        return sorted(found, key=lambda each: each.entry.journaled_us)

    def _opened(self, outcome: KeptOutcome) -> KeptOutcome:
        command: OutcomeCommand | None = None
        with suppress(Unopenable):
            command = None if outcome.command is None else self._sealing.whole_outcome(outcome.command)
        return replace(outcome, command=command)

    def drop(self, entry_id: EntryId) -> bool:
        """Delete a refused outcome; True if this call did it. A waiting outcome stays. Repeatable."""
        with visited(self.directory / entry_id.file, changes=True) as query:
            return bool(query("delete_refused", entry_id.row))

    def reseal(self) -> tuple[int, int]:
        """Encrypt what all outcomes contain with the current key; returns how many were changed, and how many could not
        be read. Repeatable, and may be interrupted."""
        done = self._visit_sealed(self._reseal, changes=True)
        return sum(filter(None, done)), done.count(None)

    def sealed(self) -> Counter[str]:
        """How many outcomes are encrypted with which keys, by their ids."""
        return sum(self._visit_sealed(_keys_of), Counter())

    def _visit_sealed(self, visit: Callable[[Query, Row], T], *, changes: bool = False) -> list[T]:
        """Read every outcome that has anything confidential."""

        def look(path: Path) -> list[T]:
            found, after = [], 0
            with visited(path, changes=changes) as query:
                while self._owns(query) and (rows := query("select_sealed", after)):
                    after = rows[-1][0]
                    found += [visit(query, row) for row in rows]
            return found

        return self._look_into_all(look)

    def _look_into_all(self, look: Callable[[Path], list[T]]) -> list[T]:
        found, faults = _each(self.directory, look)
        if faults:
            raise faults[0]
        return [each for of_file in found for each in of_file]

    def _owns(self, query: Query) -> bool:
        return bool(query("select_owner") == [(self._belongs_to,)])

    def _reseal(self, query: Query, row: Row) -> int | None:
        """How many rows were changed: 0 where nothing is to be done, None where it cannot be."""
        if (command := decoded(row)) is None:
            return None
        resealing = Resealing(self._sealing)
        again = resealing.resealed(command)
        if resealing.reasons:
            return None
        # The flush may have taken it meanwhile: then nothing is left.
        return 0 if again is command else len(query("update_sealed", *packed(again), row[0], packed(command)[0]))


def _keys_of(_query: Query, row: Row) -> Counter[str]:
    """The keys that an outcome is encrypted with."""
    command = decoded(row)
    response = command.response if isinstance(command, Complete) else None
    resource = command.resource if isinstance(command, Complete | Abandon) else None
    return Counter((sealed_by(response=response, resource=resource) or "").split())


def _each(directory: Path, look: Callable[[Path], T]) -> tuple[list[T], list[StoreError]]:
    """What `look` finds in each file, and what could not be read. No fault if it is gone: an owner removes its empty
    file."""
    found: list[T] = []
    faults: list[StoreError] = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [NotApplied(f"{directory} cannot be read: {error.strerror}; run this as the user of the gateway")]
    for path in paths:
        try:
            found.append(look(path))
        except StoreError as error:
            if path.exists():
                faults.append(error)
    return found, faults


def _version_of(path: Path) -> tuple[int, ...] | None:
    """What every write to the file changes; None where it cannot be known, as right after a write."""
    try:
        found = [each.stat() for each in (path, path.with_name(f"{path.name}-wal"))]
    except OSError:
        return None
    if time_ns() - max(each.st_mtime_ns for each in found) < _SAME_TIME_NS:
        return None
    return tuple(part for each in found for part in (each.st_ino, each.st_size, each.st_mtime_ns))


# -- the journal of a process ------------------------------------------------------------------------------------------

# The name of the operation's route, the outcome, and the memory that granted its claim.
_Outcome = tuple[str, OutcomeCommand, str]

ROWS_MAX: Final = 100_000
# Well below what a small disk, or a pod's share of one, has left beside the spool.
BYTES_MAX: Final = 512 * 1024 * 1024
# Mostly there are none, and each request asks.
_HOLDS_NONE: Final[Callable[[UUID], bool]] = frozenset[UUID]().__contains__


def _is_held(held: Sequence[set[bytes]], operation_id: UUID) -> bool:
    return any(operation_id.bytes in ids for ids in held)


class SqliteJournal:
    """The journal of one process. Each verb may raise `NotApplied`, and what else it documents."""

    def __init__(
        self,
        directory: Path,
        belongs_to: str,
        *,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        """`belongs_to` describes, without secrets, the service and durable store that the outcomes are for. `rows_max`
        and `bytes_max` limit all files together, refused outcomes included. The clock is for people only."""
        self._directory = directory
        self._belongs_to = belongs_to
        self._prefix = hashlib.sha256(belongs_to.encode()).hexdigest()[:16]
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._clock_us = clock_us
        self._own: JournalFile | None = None
        self._files: dict[str, JournalFile] = {}
        self._unfit: set[str] = set()
        self._host = HostJournals(directory, belongs_to)
        self.holds: Callable[[UUID], bool] = _HOLDS_NONE
        """Whether this process's files have an outcome of the operation, be it waiting or refused."""
        self.tally = JournalTally()
        """How much the journal holds, as of its last change."""
        # Between `start` and `close`.
        self._worker: Worker | None = None
        self._appends = Batcher[_Outcome, EntryId]()

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest waiting outcome, by the host's clock; 0 without one."""
        oldest_us = self.tally.oldest_us
        return 0.0 if oldest_us is None else max(0, self._clock_us() - oldest_us) / MICROSECONDS

    async def start(self) -> None:
        """Adopt the files of processes that have ended, and create an own one if there is none. Raises `StartRefused`
        for a directory or file that an operator has to check first; it stays as it is."""
        worker = Worker("journal")
        try:
            await worker.run(self._start)
        except Exception:
            await worker.stop(self._close)
            raise
        except BaseException:
            worker.end(self._close)
            raise
        self._appends.open(worker, self._append_batch)
        self._worker = worker

    async def close(self) -> None:
        """Release every file; empty ones are removed."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await self._appends.close()
            await worker.stop(self._close)

    async def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """The outcomes of the operation in all journals of this host for one service and store, oldest first. Whatever
        is encrypted stays so. The files of processes that have ended are adopted."""
        return await self._started().run(self._outcomes, operation_id)

    async def append(self, route: str, command: OutcomeCommand, memory: str = "") -> EntryId:
        """Keep an outcome; it is on the disk when this returns. `memory`: as in `KeptOutcome`.

        Raises `NotApplied` also when the journal is full, `Indefinite` when the outcome may be on the disk, and
        `Unstorable` when it can never be. If cancelled, the outcome may have been kept.
        """
        self._started()
        return await self._appends.submit((route, command, memory))

    async def waiting(self, after: EntryId | None, *, limit: int, bytes_max: int) -> list[JournalEntry]:
        """Waiting outcomes behind `after`, oldest first, up to both limits; at least one if there is any."""
        return await self._started().run(self._waiting, after, limit, bytes_max)

    async def forget(self, entry_ids: Sequence[EntryId]) -> None:
        """Delete outcomes that the durable store has applied. May raise `Indefinite`: then some may still wait."""
        await self._started().run(self._forget, entry_ids)

    async def refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        """Mark outcomes that the durable store refused, with the reason. They are kept and wait no more. May raise
        `Indefinite`."""
        await self._started().run(self._refuse, refusals)

    async def adopt(self) -> int:
        """Adopt the files of processes that have ended, and recount after deletions by operators; returns the number
        of files adopted."""
        return await self._started().run(self._adopt_orphans)

    def _started(self) -> Worker:
        if self._worker is None:
            raise NotApplied("the journal is not open")
        return self._worker

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            make_directory(self._directory)
            remove_unfinished(self._directory)
            for path in self._named():
                self._adopt(path)
            self._name_strangers()
        except OSError as error:
            raise StartRefused(f"the journal in {self._directory} cannot be used: {error.strerror}") from error
        self._own = next(iter(self._files.values()), None)
        try:
            self._own_file()
        except NotApplied as error:
            # The disk may be full at the start. Each append tries again.
            _LOG.error("there is no journal yet: %s", error)
        self._take_tally()

    def _named(self) -> list[Path]:
        """The files of this service and store."""
        return sorted(self._directory.glob(f"{self._prefix}*{SUFFIX}"))

    def _own_file(self) -> JournalFile:
        """The file for appends; a new one if it was removed or there is none."""
        if self._own is not None and self._own.is_gone:
            _LOG.error("%s was removed or replaced; outcomes that it held are lost to this gateway", self._own.path)
            del self._files[self._own.path.name]
            with suppress(OSError):
                self._own.close()
            self._own = None
        if self._own is None:
            name = f"{self._prefix}-{uuid4().hex}"
            self._own = JournalFile.make(self._directory, name, self._belongs_to)
            self._files[self._own.path.name] = self._own
        return self._own

    def _adopt(self, path: Path) -> bool:
        adopted = JournalFile.adopt(path, self._belongs_to)
        if adopted is None:
            return False
        self._files[path.name] = adopted
        if adopted.counts.rows:
            _LOG.warning(
                "adopted %s: %d outcomes wait for the durable store, %d were refused by it",
                path,
                adopted.counts.waiting,
                adopted.counts.refused,
            )
        return True

    def _adopt_orphans(self) -> int:
        adopted = 0
        for path in self._named():
            try:
                adopted += path.name not in self._files and path.name not in self._unfit and self._adopt(path)
            except StartRefused as error:
                # At the start this ends the program; later it is logged once.
                self._unfit.add(path.name)
                _LOG.error("%s", error)
        self._recount()
        self._take_tally()
        return adopted

    def _recount(self) -> None:
        """Notice which refused outcomes operators have deleted."""
        for file in list(self._files.values()):
            if not (refused := file.counts.refused):
                continue
            try:
                file.recount()
            except NotApplied as error:
                _LOG.warning("refused outcomes cannot be counted again: %s", error)
                continue
            if deleted := refused - file.counts.refused:
                _LOG.warning("%d refused outcomes of %s were acknowledged by an operator", deleted, file.path)
            self._give_up_empty(file)

    def _give_up_empty(self, file: JournalFile) -> None:
        if file is not self._own and file.counts.rows == 0:
            del self._files[file.path.name]
            file.close()

    def _name_strangers(self) -> None:
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if path.name.startswith(self._prefix):
                continue
            descriptor = lock(path)
            if descriptor is not None:
                unlock(path, descriptor)
                _LOG.warning(
                    "%s belongs to another service or durable store than %s, and no gateway has it open; a gateway "
                    "with those settings flushes its outcomes when it starts",
                    path,
                    self._belongs_to,
                )

    def _append_batch(self, outcomes: list[_Outcome]) -> list[EntryId | Exception]:
        own = self._own_file()
        room = self._bytes_max - self.tally.bytes
        rows = self._rows_max - self.tally.rows
        taken: list[_Outcome] = []
        for outcome in outcomes:
            room -= cost_bytes(outcome[1])
            if room < 0 or len(taken) >= rows:
                break
            taken.append(outcome)
        full = NotApplied(f"the journal is full: {self.tally.waiting} outcomes wait, {self.tally.refused} were refused")
        results: list[EntryId | Exception] = [
            row if isinstance(row, Exception) else EntryId(own.path.name, row)
            for row in (own.append(taken, self._clock_us()) if taken else [])
        ]
        self._take_tally()
        return results + [full] * (len(outcomes) - len(taken))

    def _outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        # Its owner knows how much of a file is on the disk: what is told from an ended process's has to be.
        self._adopt_orphans()
        found = self._host.stored_outcomes(operation_id, leave_out=self._files)
        for file in self._files.values():
            found += file.outcomes(operation_id)
        return sorted(found, key=lambda each: each.entry.journaled_us)

    def _waiting(self, after: EntryId | None, limit: int, bytes_max: int) -> list[JournalEntry]:
        """Read from one file at a time."""
        failed: NotApplied | None = None
        for name, file in sorted(self._files.items()):
            if not file.counts.waiting or (after is not None and name < after.file):
                continue
            row = after.row if after is not None and name == after.file else 0
            try:
                if found := file.waiting(row, limit, bytes_max):
                    return found
            except NotApplied as error:
                failed = error
        if failed is not None:
            raise failed
        return []

    def _forget(self, entry_ids: Sequence[EntryId]) -> None:
        for file, rows in self._by_file((each, each.row) for each in entry_ids):
            file.forget(rows)
            self._give_up_empty(file)
        self._take_tally()

    def _refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        now_us = self._clock_us()
        for file, rows in self._by_file((each, (each.row, why)) for each, why in refusals):
            file.refuse(rows, now_us)
        self._take_tally()

    def _by_file(self, found: Iterable[tuple[EntryId, T]]) -> list[tuple[JournalFile, list[T]]]:
        """What is of each file that this process has."""
        by_name: dict[str, list[T]] = {}
        for entry_id, each in found:
            by_name.setdefault(entry_id.file, []).append(each)
        return [(self._files[name], rows) for name, rows in by_name.items() if name in self._files]

    def _take_tally(self) -> None:
        held = [file.held for file in self._files.values() if file.counts.rows]
        self.holds = partial(_is_held, held) if held else _HOLDS_NONE
        counts = [file.counts for file in self._files.values()]
        self.tally = JournalTally(
            sum(each.waiting for each in counts),
            sum(each.refused for each in counts),
            sum(each.bytes for each in counts),
            min((each.oldest_us for each in counts if each.oldest_us is not None), default=None),
        )

    def _close(self) -> None:
        files, self._files, self._own = list(self._files.values()), {}, None
        for file in files:
            try:
                file.close()
            except OSError as error:
                _LOG.error("%s could not be cleaned up: %s", file.path, error)
