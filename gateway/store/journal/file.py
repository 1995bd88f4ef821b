"""One file of a journal: a small SQLite database that belongs to one process at a time.

It owns the file, its lock and what may be believed after a fault; whose outcomes they are and where they go is decided
elsewhere. Everything here blocks, and belongs to one thread.

Theory of operation
-------------------
*Ownership.* Whoever has the file's lock (`journal_place`) may open it; others may visit it at most (`journal_visit`),
whether its owner lives or not: to look, and to take out what was refused and is not tried again. The owner hears of
that by counting again.

*Birth.* A file is made under another name, filled with its schema, closed, synced and only then given its name. So a
file with a name of ours is whole, or it is damaged; an empty one is damaged.

*Faults.* What is known when something fails is said by `sqlite_connection`. But a file that is not trusted can still be
read, and what it holds given to the durable store; it only takes nothing more until its whole log was copied into the
database and both were synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import apsw

from gateway.core.operation import Complete, LastWord
from gateway.store.base import NotApplied, Rejected, StartRefused
from gateway.store.directories import make_directory, sync_directory
from gateway.store.journal import rows as journal_rows
from gateway.store.journal.place import SUFFIX, lock, remove, unlock
from gateway.store.journal.schema import BUSY_MS, DAMAGED, check_ours, fetch, fill, pragma, statements
from gateway.store.sqlite import files as sqlite_files
from gateway.store.sqlite.connection import DATA_ERRORS, Committer

T = TypeVar("T")

# Columns and the file's own bookkeeping, beside what an answer brings.
_ROW_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a file holds. `oldest_us` is when the oldest outcome that waits was written, None without one."""

    waiting: int = 0
    refused: int = 0
    bytes: int = 0
    oldest_us: int | None = None

    @property
    def rows(self) -> int:
        return self.waiting + self.refused


@dataclass(frozen=True, slots=True)
class Waiting:
    """An outcome that waits, and where it is in its file."""

    row: int
    route: str
    command: LastWord


def cost_bytes(command: LastWord) -> int:
    """About how much room an outcome takes."""
    if not isinstance(command, Complete):
        return _ROW_BYTES
    response = command.response
    fields = sum(len(name) + len(value) + 8 for name, value in response.headers)
    return _ROW_BYTES + fields + len(response.body or b"")


class JournalFile(Committer):
    """A file that is locked by us, from `make` or `adopt` until `close`."""

    # What a killed process has committed may be known to its kernel and not yet to the disk.
    _is_distrusted = True

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, BUSY_MS / 1_000)
        self.counts = Counts()
        self._lock = descriptor

    @classmethod
    def make(cls, directory: Path, name: str, belongs_to: str) -> JournalFile:
        """A new file (0600), empty and durable. Raises `NotApplied`, `StartRefused`."""
        path = directory / f"{name}{SUFFIX}"
        with _named_errors(path):
            make_directory(directory)
            descriptor = lock(path)
            if descriptor is None:
                raise NotApplied(f"{path} is in use")
            unborn = path.with_suffix(".new")
            try:
                sqlite_files.prepare(unborn)
                fill(unborn, belongs_to)
                unborn.rename(path)
                sync_directory(directory)
                journal = cls(path, descriptor)
                journal._begin()
            except BaseException:
                remove(unborn)
                remove(path)
                unlock(path, descriptor)
                raise
        return journal

    @classmethod
    def adopt(cls, path: Path, belongs_to: str) -> JournalFile | None:
        """The file that somebody left, or None when it is owned or gone.

        Raises `NotApplied`, and `StartRefused` for one that is damaged, too new or not ours; it stays as it is.
        """
        with _named_errors(path):
            descriptor = lock(path)
            if descriptor is None:
                return None
            try:
                if not path.exists():
                    unlock(path, descriptor)
                    return None
                sqlite_files.prepare(path)
                journal = cls(path, descriptor)
                journal._begin()
                try:
                    journal._examine(belongs_to)
                except BaseException:
                    journal.drop()
                    raise
            except BaseException:
                unlock(path, descriptor)
                raise
        return journal

    def append(self, outcomes: Sequence[tuple[str, LastWord]], now_us: int) -> list[int | Exception]:
        """Write outcomes durably, all at once; where each is, or why it was not written.

        Raises `NotApplied` when none was written, and `Indefinite` when that cannot be known.
        """

        def write(cursor: apsw.Cursor) -> list[int | Exception]:
            return [_insert(cursor, route, command, now_us) for route, command in outcomes]

        if self._is_distrusted:
            self._look(self._regain_trust)
        return self._transact(write)

    def waiting(self, after: int, limit: int, bytes_max: int) -> list[Waiting]:
        """Outcomes behind row `after`, as many as the limits allow but one at least. Raises `NotApplied`."""

        def look(cursor: apsw.Cursor) -> list[Waiting]:
            found: list[Waiting] = []
            bytes_ = 0
            # It may end before the last row, and must not go on holding the log then.
            with closing(cursor.connection.cursor()) as rows:
                for columns in rows.execute(statements()["select_waiting"], (after, -1)):
                    try:
                        entry = Waiting(columns[0], *journal_rows.decode(columns))
                    except NotApplied:
                        # Only another version can read it: it must not hold up those behind it.
                        continue
                    found.append(entry)
                    bytes_ += cost_bytes(entry.command)
                    if len(found) >= limit or bytes_ >= bytes_max:
                        break
            return found

        return self._look(look)

    def read(self, row: int) -> LastWord | None:
        """The outcome in a row, None when it does not wait any more. Raises `NotApplied`."""

        def look(cursor: apsw.Cursor) -> LastWord | None:
            found = fetch(cursor, statements()["select_entry"], (row,))
            return journal_rows.decode(found[0])[1] if found else None

        return self._look(look)

    def forget(self, rows: Sequence[int]) -> None:
        """The durable store has these. Raises `NotApplied`, `Indefinite`."""

        def write(cursor: apsw.Cursor) -> None:
            for row in rows:
                cursor.execute(statements()["delete_entry"], (row,))

        self._transact(write)

    def refuse(self, rows: Sequence[tuple[int, str]], now_us: int) -> None:
        """The durable store refused these, and why. Raises `NotApplied`, `Indefinite`."""

        def write(cursor: apsw.Cursor) -> None:
            for row, why in rows:
                cursor.execute(statements()["update_refused"], (row, now_us, why))

        self._transact(write)

    def recount(self) -> None:
        """Count again what it holds, for a visitor may have taken something out. Raises `NotApplied`."""
        self.counts = self._look(_counted)

    def close(self) -> None:
        """Give the file back, and remove it when it is empty. What it holds is adopted by whoever comes."""
        # Of a connection that was dropped, the last count may be wrong.
        is_empty = self._handle is not None and self.counts.rows == 0
        self.drop()
        try:
            if is_empty:
                remove(self.path)
                sync_directory(self.path.parent)
        finally:
            unlock(self.path, self._lock)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Open the file for the first time. Raises what the driver raises."""
        self._file_id = sqlite_files.file_id(self.path)
        self._regain_trust(self._open())

    def prepare(self, cursor: apsw.Cursor) -> None:
        check_ours(cursor, self.path)
        self._keep_log(cursor)
        # A commit that failed may have changed the file all the same.
        self.counts = _counted(cursor)

    def _examine(self, belongs_to: str) -> None:
        cursor = self.cursor()
        if (found := fetch(cursor, "PRAGMA quick_check(1)")) != [("ok",)]:
            raise apsw.CorruptError(str(found))
        owner = fetch(cursor, statements()["select_owner"])
        if owner != [(belongs_to,)]:
            raise StartRefused(f"{self.path} holds outcomes of {owner}, not of {belongs_to}; move it away")

    def _look(self, work: Callable[[apsw.Cursor], T]) -> T:
        cursor = self.cursor()
        try:
            return work(cursor)
        except apsw.Error as error:
            self._roll_back(error)
            raise self.not_applied(error) from error

    def _transact(self, work: Callable[[apsw.Cursor], T]) -> T:
        # Counted before COMMIT, after which nothing may fail any more.
        result, self.counts = self.transact(lambda cursor: (work(cursor), _counted(cursor)))
        return result


def _counted(cursor: apsw.Cursor) -> Counts:
    ((waiting, refused, oldest_us),) = fetch(cursor, statements()["count"])
    used_pages = pragma(cursor, "page_count") - pragma(cursor, "freelist_count")
    used_bytes = used_pages * pragma(cursor, "page_size") if waiting + refused else 0
    return Counts(waiting, refused, used_bytes, oldest_us)


def _insert(cursor: apsw.Cursor, route: str, command: LastWord, now_us: int) -> int | Exception:
    try:
        columns = journal_rows.encode(route, command, now_us)
        ((row,),) = fetch(cursor, statements()["insert_entry"], columns)
    except (*DATA_ERRORS, ValueError) as error:
        # One statement is undone by itself; the neighbours go on.
        return Rejected(f"a journal cannot keep this outcome: {type(error).__name__}")
    return int(row)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Errors of opening: what passes by itself, and what somebody has to look at."""
    try:
        yield
    except DAMAGED as error:
        raise StartRefused(
            f"{path} is damaged ({error}). Move it away; outcomes that may be in it are then in doubt until somebody "
            "resolves them."
        ) from error
    except (apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError, PermissionError) as error:
        raise StartRefused(f"{path} cannot be written: {error}") from error
    except (apsw.Error, OSError) as error:
        raise NotApplied(f"{path} cannot be used: {error}") from error
