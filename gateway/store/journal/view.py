"""What is in the journals of a host, while gateways write them and after those have ended: for gateways that ask about
one operation, and for operators, who also delete.

It owns no file and no lock, and waits for no gateway: each call opens the file for some statements, whether its owner
runs or not. Only the owner knows how much of the log is on the disk (`file`). A view may be outdated at once: an
outcome leaves the journal as soon as the durable store has applied it. The only change made here is to delete refused
outcomes, which no gateway retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any, Final, TypeVar
from uuid import UUID

import apsw

from gateway.core.confidential import NO_SEALING, Resealing, Sealing, sealed_by
from gateway.core.operation import Abandon, Complete, OutcomeCommand
from gateway.core.sealing import Unopenable
from gateway.store.base import NotApplied, StoreError, wall_clock_us
from gateway.store.journal import OF_ONE_MAX, EntryId, JournalView, KeptEntry, KeptOutcome
from gateway.store.journal.file import (
    BUSY_MS,
    DAMAGED,
    STATEMENTS,
    SUFFIX,
    check_ours,
    decoded,
    fetch,
    kept_entry,
    kept_outcome,
    packed,
)

# A file system may give two writes within this time the same time.
_SAME_TIME_NS: Final = 100_000_000

T = TypeVar("T")
Row = tuple[Any, ...]
Query = Callable[..., list[Any]]
"""Runs one statement, by its name, with these bindings; returns its rows."""


def view_journals(
    directory: Path,
    belongs_to: str,
    *,
    operation_id: UUID | None = None,
    is_refused: bool | None = None,
    limit: int,
) -> JournalView:
    """At most `limit` outcomes: waiting, refused, or both; of one operation, or of all.

    Outcomes of another owner than `belongs_to` are strangers. Blocks. Never raises: what cannot be read is a fault.
    """
    found, faults = _each(directory, partial(_kept_in, operation_id, is_refused, limit + 1))
    entries = sorted((entry for _, kept in found for entry in kept), key=lambda entry: entry.journaled_us)
    owners = {path.name: owner for (path, owner), kept in found if kept and owner != belongs_to}
    has_more = len(entries) > limit
    return JournalView(
        wall_clock_us(), tuple(entries[:limit]), tuple(owners.items()), tuple(map(str, faults)), has_more=has_more
    )


class HostJournalFiles:
    """Satisfies `HostJournals`."""

    def __init__(self, directory: Path, belongs_to: str, sealing: Sealing = NO_SEALING) -> None:
        self.directory = directory
        self._sealing = sealing
        self._belongs_to = belongs_to
        # Files that are not to be read again until they are changed: those of others, and the empty ones, which every
        # idle gateway has.
        self._idle: dict[Path, tuple[int, ...]] = {}

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        return [self._opened(each) for each in self.stored_outcomes(operation_id)]

    def stored_outcomes(self, operation_id: UUID, leave_out: Collection[str] = ()) -> list[KeptOutcome]:
        """As `outcomes`; whatever is encrypted stays so. Files of these names are left out."""
        found, faults = _each(self.directory, partial(self._outcomes_in, operation_id, leave_out))
        self._idle = {path: version for path, version in self._idle.items() if path.exists()}
        if faults:
            raise faults[0]
        return sorted((each for kept in found for each in kept), key=lambda each: each.entry.journaled_us)

    def _outcomes_in(self, operation_id: UUID, leave_out: Collection[str], path: Path) -> list[KeptOutcome]:
        version = None if path.name in leave_out else _version_of(path)
        if path.name in leave_out or (version is not None and self._idle.get(path) == version):
            return []
        with opened(path) as query:
            is_idle = not self._owns(query) or not any(query("count")[0][:2])
            rows = [] if is_idle else query("select_of", operation_id.bytes, OF_ONE_MAX)
        self._idle.pop(path, None)
        if is_idle and version is not None:
            self._idle[path] = version
        return [kept_outcome(path, row) for row in rows]

    def _opened(self, outcome: KeptOutcome) -> KeptOutcome:
        command: OutcomeCommand | None = None
        with suppress(Unopenable):
            command = None if outcome.command is None else self._sealing.whole_outcome(outcome.command)
        return replace(outcome, command=command)

    def reseal(self) -> tuple[int, int]:
        done = [(number or 0, number is None) for number in self._visit_all(self._reseal, changes=True)]
        return sum(changed for changed, _ in done), sum(is_left for _, is_left in done)

    def sealed(self) -> Counter[str]:
        return sum(self._visit_all(_keys_of), Counter())

    def _visit_all(self, visit: Callable[[Query, Row], T], *, changes: bool = False) -> list[T]:
        """Read every outcome of this service and store that has anything confidential. Raises `StoreError`."""

        def visit_file(path: Path) -> list[T]:
            found, after = [], 0
            with opened(path, changes=changes) as query:
                while self._owns(query) and (rows := query("select_sealed", after)):
                    after = rows[-1][0]
                    found += [visit(query, row) for row in rows]
            return found

        visited, faults = _each(self.directory, visit_file)
        if faults:
            raise faults[0]
        return [each for found in visited for each in found]

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

    def drop(self, entry_id: EntryId) -> bool:
        with opened(self.directory / entry_id.file, changes=True) as query:
            return bool(query("delete_refused", entry_id.row))


def _keys_of(_query: Query, row: Row) -> Counter[str]:
    """The keys that an outcome is encrypted with."""
    command = decoded(row)
    response = command.response if isinstance(command, Complete) else None
    resource = command.resource if isinstance(command, Complete | Abandon) else None
    return Counter((sealed_by(response=response, resource=resource) or "").split())


def _kept_in(
    operation_id: UUID | None, is_refused: bool | None, limit: int, path: Path
) -> tuple[tuple[Path, str], list[KeptEntry]]:
    """A file and its owner, and the requested outcomes in it, oldest first. Raises `StoreError`."""
    with opened(path) as query:
        ((belongs_to,),) = query("select_owner")
        if operation_id is None:
            rows = query("select_kept", is_refused, limit)
        else:
            rows = query("select_of", operation_id.bytes, limit)
        kept = [kept_entry(row) for row in rows]
    return (path, str(belongs_to)), [each for each in kept if is_refused in (None, each.refused_us is not None)]


def _each(directory: Path, read: Callable[[Path], T]) -> tuple[list[T], list[StoreError]]:
    """What `read` finds in each file, and what could not be read. No fault if it is gone: an owner removes its empty
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
            found.append(read(path))
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


@contextmanager
def opened(path: Path, *, changes: bool = False) -> Iterator[Query]:
    """Open a file, whether it has an owner or not, for single statements; each is its own transaction.

    Takes no lock except SQLite's during a statement, and does not checkpoint the log: only the owner knows how much of
    it is on the disk. Raises `NotApplied`, `StartRefused`, also from the statements.
    """
    flags = apsw.SQLITE_OPEN_READWRITE if changes else apsw.SQLITE_OPEN_READONLY
    try:
        handle = apsw.Connection(str(path), flags=flags)
        try:
            handle.set_busy_timeout(BUSY_MS)
            handle.wal_autocheckpoint(0)
            check_ours(handle, path)
            yield lambda name, *bindings: fetch(handle, STATEMENTS[name], bindings)
        finally:
            handle.close(True)
    except (*DAMAGED, ValueError, TypeError) as error:
        raise NotApplied(f"{path} is damaged: {error}") from error
    except apsw.Error as error:
        raise NotApplied(
            f"{path} cannot be {'changed' if changes else 'read'}: {error}; run this as the user of the gateway"
        ) from error
