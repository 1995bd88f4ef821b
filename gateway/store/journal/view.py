"""What operators see of the journals of a host, and take out: while gateways write them, and after those have died.

It owns no file and no lock, and waits for nobody: a visit is a handle for some statements, whoever owns the file and
whether that one lives. How much of the log is on the disk for certain is known to the owner alone (`file`). What it
sees may be over a moment later: an outcome is gone from the journal as soon as the durable store has it. All it changes
is to delete what was refused, which nobody tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import apsw

from gateway.core.operation import OutcomeCommand
from gateway.store.base import NotApplied, StoreError, wall_clock_us
from gateway.store.journal import OF_ONE_MAX, EntryId, JournalView, KeptEntry, KeptOutcome
from gateway.store.journal.file import BUSY_MS, DAMAGED, SUFFIX, check_ours, decode_row, fetch, statements

# As many as `decode_row` takes.
_ENTRY_COLUMNS: Final = 14

Ask = Callable[..., list[Any]]
"""Runs one statement, by its name, with what is given; returns its rows."""


def look(
    directory: Path,
    belongs_to: str,
    *,
    operation_id: UUID | None = None,
    is_refused: bool | None = None,
    limit: int,
) -> JournalView:
    """At most `limit` outcomes: those that wait, those that were refused, or both; of one operation, or of all.

    `belongs_to` is whose outcomes are no strangers'. Blocks, and raises nothing: what could not be read is a fault.
    """
    found: list[KeptEntry] = []
    strangers: list[tuple[str, str]] = []
    faults: list[str] = []
    for path in _files(directory, faults):
        try:
            owner, entries = _kept_in(path, operation_id, is_refused, limit + 1)
        except StoreError as error:
            # Its owner removes a file that is empty.
            if path.exists():
                faults.append(str(error))
            continue
        found += entries
        if entries and owner != belongs_to:
            strangers.append((path.name, owner))
    found.sort(key=lambda entry: entry.journaled_us)
    return JournalView(
        wall_clock_us(), tuple(found[:limit]), tuple(strangers), tuple(faults), has_more=len(found) > limit
    )


class Desk:
    """Satisfies `JournalDesk`."""

    def __init__(self, directory: Path, belongs_to: str) -> None:
        self.directory = directory
        self._belongs_to = belongs_to

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """See `JournalDesk`."""
        faults: list[str] = []
        found: list[KeptOutcome] = []
        for path in _files(self.directory, faults):
            try:
                found += self._outcomes_in(path, operation_id)
            except StoreError:
                if path.exists():
                    raise
        if faults:
            raise NotApplied(faults[0])
        return sorted(found, key=lambda each: each.entry.journaled_us)

    def _outcomes_in(self, path: Path, operation_id: UUID) -> Iterator[KeptOutcome]:
        with visited(path) as ask:
            ((owner,),) = ask("select_owner")
            if owner != self._belongs_to:
                return
            rows = ask("select_whole_of", operation_id.bytes, OF_ONE_MAX)
        for row in rows:
            columns, kept = row[:_ENTRY_COLUMNS], row[_ENTRY_COLUMNS:]
            command: OutcomeCommand | None = None
            with suppress(NotApplied):
                _, command = decode_row(columns)
            yield KeptOutcome(EntryId(path.name, row[0]), KeptEntry(operation_id, *kept), command)

    def drop(self, entry_id: EntryId) -> bool:
        """See `JournalDesk`."""
        with visited(self.directory / entry_id.file, changes=True) as ask:
            return bool(ask("delete_refused", entry_id.row))


def _kept_in(path: Path, operation_id: UUID | None, is_refused: bool | None, limit: int) -> tuple[str, list[KeptEntry]]:
    """Whose outcomes a file holds, and those that were asked for, oldest first. Raises `StoreError`."""
    with visited(path) as ask:
        ((belongs_to,),) = ask("select_owner")
        if operation_id is None:
            rows = ask("select_kept", is_refused, limit)
        else:
            rows = ask("select_kept_of", operation_id.bytes, is_refused, limit)
        return str(belongs_to), [KeptEntry(UUID(bytes=each), *rest) for each, *rest in rows]


def _files(directory: Path, faults: list[str]) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.append(f"{directory} cannot be read: {error.strerror}; look as the user of the gateway")
        return []


@contextmanager
def visited(path: Path, *, changes: bool = False) -> Iterator[Ask]:
    """A file whoever owns it, for single statements by the name and what is given to them; each is its own transaction.

    No lock is taken but SQLite's for one statement, and the log is not copied while the owner lives, who knows what of
    it is on the disk. Raises `NotApplied`, `StartRefused`, also for the statements.
    """
    flags = apsw.SQLITE_OPEN_READWRITE if changes else apsw.SQLITE_OPEN_READONLY
    try:
        handle = apsw.Connection(str(path), flags=flags)
        try:
            handle.set_busy_timeout(BUSY_MS)
            handle.wal_autocheckpoint(0)
            check_ours(handle, path)
            yield lambda name, *bindings: fetch(handle, statements()[name], bindings)
        finally:
            handle.close(True)
    except (*DAMAGED, ValueError, TypeError) as error:
        raise NotApplied(f"{path} is damaged: {error}") from error
    except apsw.Error as error:
        raise NotApplied(
            f"{path} cannot be {'changed' if changes else 'read'}: {error}; do it as the user of the gateway"
        ) from error
