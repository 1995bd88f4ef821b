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
from pathlib import Path
from time import time_ns
from typing import Any, Final
from uuid import UUID

import apsw

from gateway.core.confidential import NO_SEALING, Sealing, sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import Abandon, Complete, OutcomeCommand
from gateway.core.resealing import Resealing
from gateway.core.sealing import Unopenable
from gateway.store.base import NotApplied, StoreError, wall_clock_us
from gateway.store.journal import OF_ONE_MAX, EntryId, JournalView, KeptEntry, KeptOutcome
from gateway.store.journal.file import (
    BUSY_MS,
    DAMAGED,
    SUFFIX,
    check_ours,
    decode_outcomes,
    decode_row,
    fetch,
    statements,
)
from gateway.store.relational.rows import encode_resource

# A file system may give two writes within this time the same time.
_SAME_TIME_NS: Final = 100_000_000

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
    found: list[KeptEntry] = []
    strangers: list[tuple[str, str]] = []
    faults: list[str] = []
    for path in _files(directory, faults):
        try:
            owner, entries = _kept_in(path, operation_id, is_refused, limit + 1)
        except StoreError as error:
            # No fault if it is gone: an owner removes its empty file.
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
        """See `HostJournals`."""
        return [self._opened(each) for each in self.stored_outcomes(operation_id)]

    def stored_outcomes(self, operation_id: UUID, leave_out: Collection[str] = ()) -> list[KeptOutcome]:
        """As `outcomes`; whatever is encrypted stays so. Files of these names are left out."""
        faults: list[str] = []
        found: list[KeptOutcome] = []
        paths = _files(self.directory, faults)
        self._idle = {path: version for path in paths if (version := self._idle.get(path))}
        for path in paths:
            try:
                found += [] if path.name in leave_out else self._outcomes_in(path, operation_id)
            except StoreError:
                if path.exists():
                    raise
        if faults:
            raise NotApplied(faults[0])
        return sorted(found, key=lambda each: each.entry.journaled_us)

    def _outcomes_in(self, path: Path, operation_id: UUID) -> Iterator[KeptOutcome]:
        version = _version_of(path)
        if version is not None and self._idle.get(path) == version:
            return
        with opened(path) as query:
            ((owner,),) = query("select_owner")
            is_idle = owner != self._belongs_to or not any(query("count")[0][:2])
            rows = [] if is_idle else query("select_whole_of", operation_id.bytes, OF_ONE_MAX)
        if is_idle and version is not None:
            self._idle[path] = version
        else:
            self._idle.pop(path, None)
        yield from decode_outcomes(path, operation_id, rows)

    def _opened(self, outcome: KeptOutcome) -> KeptOutcome:
        command: OutcomeCommand | None = None
        with suppress(Unopenable):
            command = None if outcome.command is None else self._sealing.whole_outcome(outcome.command)
        return replace(outcome, command=command)

    def reseal(self) -> tuple[int, int]:
        """See `HostJournals`."""
        changed = left = 0

        def reseal(query: Query, row: Row) -> None:
            nonlocal changed, left
            number = self._reseal(query, row)
            changed, left = changed + (number or 0), left + (number is None)

        self._visit_all(reseal, changes=True)
        return changed, left

    def sealed(self) -> Counter[str]:
        """See `HostJournals`."""
        found: Counter[str] = Counter()

        def count(_query: Query, row: Row) -> None:
            with suppress(NotApplied):
                command = decode_row(row)[1]
                response = command.response if isinstance(command, Complete) else None
                resource = command.resource if isinstance(command, Complete | Abandon) else None
                found.update((sealed_by(response=response, resource=resource) or "").split())

        self._visit_all(count)
        return found

    def _visit_all(self, visit: Callable[[Query, Row], None], *, changes: bool = False) -> None:
        """Read every outcome of this service and store that has anything confidential. Raises `StoreError`."""
        faults: list[str] = []
        for path in _files(self.directory, faults):
            try:
                with opened(path, changes=changes) as query:
                    after = 0
                    ((owner,),) = query("select_owner")
                    while owner == self._belongs_to and (rows := query("select_responses", after)):
                        after = rows[-1][0]
                        for row in rows:
                            visit(query, row)
            except StoreError:
                # An owner removes its empty file.
                if path.exists():
                    raise
        if faults:
            raise NotApplied(faults[0])

    def _reseal(self, query: Query, row: Row) -> int | None:
        """How many rows were changed: 0 where nothing is to be done, None where it cannot be."""
        try:
            _, command = decode_row(row)
        except NotApplied:
            return None
        resealing = Resealing(self._sealing)
        again = resealing.resealed_outcome(command)
        if resealing.reasons:
            return None
        if again is command:
            return 0
        old, new = _confidential(command), _confidential(again)
        # The flush may have taken it meanwhile: then nothing is left.
        return len(query("update_response", *new, row[0], old[1], old[3]))

    def drop(self, entry_id: EntryId) -> bool:
        """See `HostJournals`."""
        with opened(self.directory / entry_id.file, changes=True) as query:
            return bool(query("delete_refused", entry_id.row))


def _confidential(command: OutcomeCommand) -> tuple[bytes | None, bytes | None, bytes | None, bytes | None]:
    """The columns that are encrypted."""
    resource = command.resource if isinstance(command, Complete | Abandon) else None
    if not isinstance(command, Complete):
        return None, None, None, encode_resource(resource)
    response = command.response
    return response.reason, pack_headers(response.headers), response.body, encode_resource(resource)


def _kept_in(path: Path, operation_id: UUID | None, is_refused: bool | None, limit: int) -> tuple[str, list[KeptEntry]]:
    """The owner of a file, and the requested outcomes in it, oldest first. Raises `StoreError`."""
    with opened(path) as query:
        ((belongs_to,),) = query("select_owner")
        if operation_id is None:
            rows = query("select_kept", is_refused, limit)
        else:
            rows = query("select_kept_of", operation_id.bytes, is_refused, limit)
        return str(belongs_to), [KeptEntry(UUID(bytes=each), *rest) for each, *rest in rows]


def _files(directory: Path, faults: list[str]) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.append(f"{directory} cannot be read: {error.strerror}; run this as the user of the gateway")
        return []


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
            yield lambda name, *bindings: fetch(handle, statements()[name], bindings)
        finally:
            handle.close(True)
    except (*DAMAGED, ValueError, TypeError) as error:
        raise NotApplied(f"{path} is damaged: {error}") from error
    except apsw.Error as error:
        raise NotApplied(
            f"{path} cannot be {'changed' if changes else 'read'}: {error}; run this as the user of the gateway"
        ) from error
