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

*Faults.* What fails before COMMIT is rolled back. When COMMIT itself fails the handle is not used again, because after
a failed `fsync` the kernel may take pages for written that are not. What the file holds can still be read and given to
the durable store; but it takes nothing more until its whole log was copied into the database and both were synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import apsw

from gateway.core.operation import Complete
from gateway.store import journal_rows, sqlite_files
from gateway.store.base import Indefinite, NotApplied, Rejected, StartRefused
from gateway.store.journal_base import LastWord
from gateway.store.journal_place import SUFFIX, lock, remove, sync_directory, unlock
from gateway.store.journal_schema import BUSY_MS, DAMAGED, check_ours, fetch, fill, pragma, statements

T = TypeVar("T")

_DATA_ERRORS: Final = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    OverflowError,
    ValueError,
)
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


class JournalFile:
    """A file that is locked by us, from `make` or `adopt` until `close`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.counts = Counts()
        self._lock = descriptor
        self._file_id: sqlite_files.FileId | None = None
        self._handle: apsw.Connection | None = None
        # What a killed process has committed may be known to its kernel and not yet to the disk.
        self._is_distrusted = True

    @classmethod
    def make(cls, directory: Path, name: str, belongs_to: str) -> JournalFile:
        """A new file (0600), empty and durable. Raises `NotApplied`, `StartRefused`."""
        path = directory / f"{name}{SUFFIX}"
        with _named_errors(path):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
                    journal._drop()
                    raise
            except BaseException:
                unlock(path, descriptor)
                raise
        return journal

    def append(self, outcomes: Sequence[tuple[str, LastWord]], now_us: int) -> list[int | Exception]:
        """Write outcomes durably, all at once; where each is, or why it was not written.

        Raises `NotApplied` when none was written, and `Indefinite` when that cannot be known.
        """

        def write(handle: apsw.Connection) -> list[int | Exception]:
            return [_insert(handle, route, command, now_us) for route, command in outcomes]

        with self._errors_told():
            self._regain_trust()
        return self._transact(write)

    def waiting(self, after: int, limit: int, bytes_max: int) -> list[Waiting]:
        """Outcomes behind row `after`, as many as the limits allow but one at least. Raises `NotApplied`."""

        def look(handle: apsw.Connection) -> list[Waiting]:
            found: list[Waiting] = []
            bytes_ = 0
            with closing(handle.cursor()) as cursor:
                for columns in cursor.execute(statements()["select_waiting"], (after, -1)):
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

        def look(handle: apsw.Connection) -> LastWord | None:
            found = fetch(handle, statements()["select_entry"], (row,))
            return journal_rows.decode(found[0])[1] if found else None

        return self._look(look)

    def forget(self, rows: Sequence[int]) -> None:
        """The durable store has these. Raises `NotApplied`, `Indefinite`."""

        def write(handle: apsw.Connection) -> None:
            for row in rows:
                handle.execute(statements()["delete_entry"], (row,))

        self._transact(write)

    def refuse(self, rows: Sequence[tuple[int, str]], now_us: int) -> None:
        """The durable store refused these, and why. Raises `NotApplied`, `Indefinite`."""

        def write(handle: apsw.Connection) -> None:
            for row, why in rows:
                handle.execute(statements()["update_refused"], (row, now_us, why))

        self._transact(write)

    def recount(self) -> None:
        """Count again what it holds, for a visitor may have taken something out. Raises `NotApplied`."""
        self.counts = self._look(_counted)

    def close(self) -> None:
        """Give the file back, and remove it when it is empty. What it holds is adopted by whoever comes."""
        is_empty = self._drop() and self.counts.rows == 0
        try:
            if is_empty:
                remove(self.path)
                sync_directory(self.path.parent)
        finally:
            unlock(self.path, self._lock)

    # -- the handle ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._file_id = sqlite_files.file_id(self.path)
        self._open()
        self._regain_trust()

    def _open(self) -> apsw.Connection:
        handle = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            handle.set_busy_timeout(BUSY_MS)
            check_ours(handle, self.path)
            journal_mode = fetch(handle, "PRAGMA journal_mode = WAL")
            handle.execute("PRAGMA synchronous = FULL")
            synchronous = fetch(handle, "PRAGMA synchronous")
            if (journal_mode, synchronous) != ([("wal",)], [(2,)]):
                raise StartRefused(f"{self.path} is on a file system where SQLite cannot keep a write-ahead log safely")
            self.counts = _counted(handle)
        except BaseException:
            handle.close(True)
            raise
        self._handle = handle
        return handle

    def _regain_trust(self) -> None:
        if not self._is_distrusted:
            return
        ((is_busy, _, _),) = fetch(self._checked(), "PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise NotApplied(f"{self.path} failed to commit and is being looked at: its log cannot be copied yet")
        self._is_distrusted = False

    def _examine(self, belongs_to: str) -> None:
        handle = self._checked()
        if (found := fetch(handle, "PRAGMA quick_check(1)")) != [("ok",)]:
            raise apsw.CorruptError(str(found))
        owner = fetch(handle, statements()["select_owner"])
        if owner != [(belongs_to,)]:
            raise StartRefused(f"{self.path} holds outcomes of {owner}, not of {belongs_to}; move it away")

    def _checked(self) -> apsw.Connection:
        """A handle on the file that was there at the start."""
        if sqlite_files.file_id(self.path) != self._file_id:
            self._drop()
            raise NotApplied(f"{self.path} was removed or replaced while in use")
        return self._handle or self._open()

    @property
    def is_gone(self) -> bool:
        """Whether somebody took the file away."""
        return sqlite_files.file_id(self.path) != self._file_id

    def _drop(self) -> bool:
        """Close the handle whatever state it is in; whether all of its log is in the file."""
        handle, self._handle = self._handle, None
        if handle is None:
            return False
        try:
            handle.close(True)
        except apsw.Error:
            return False
        return True

    def _look(self, work: Callable[[apsw.Connection], T]) -> T:
        with self._errors_told():
            return work(self._checked())

    def _transact(self, work: Callable[[apsw.Connection], T]) -> T:
        with self._errors_told():
            handle = self._checked()
            try:
                handle.execute("BEGIN IMMEDIATE")
                # Counted before COMMIT, after which nothing may fail any more.
                result, counts = work(handle), _counted(handle)
            except BaseException as error:
                self._roll_back(handle, error)
                raise
        try:
            handle.execute("COMMIT")
        except apsw.BusyError as error:
            self._roll_back(handle, error)
            raise NotApplied(f"{self.path} is locked by another program") from error
        except apsw.Error as error:
            self._is_distrusted = True
            self._drop()
            raise Indefinite(f"{self.path}: the commit failed: {error}") from error
        self.counts = counts
        return result

    def _roll_back(self, handle: apsw.Connection, error: BaseException) -> None:
        is_harmless = not isinstance(error, apsw.Error) or isinstance(error, apsw.BusyError | apsw.FullError)
        try:
            if handle.in_transaction:
                handle.execute("ROLLBACK")
        except apsw.Error:
            is_harmless = False
        if not is_harmless:
            self._drop()

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except StartRefused as error:
            raise NotApplied(*error.args) from error
        except apsw.FullError as error:
            raise NotApplied(f"no space is left for {self.path}") from error
        except (apsw.Error, OSError) as error:
            self._drop()
            raise NotApplied(f"{self.path} cannot be used: {error}") from error


def _counted(handle: apsw.Connection) -> Counts:
    ((waiting, refused, oldest_us),) = fetch(handle, statements()["count"])
    used_pages = pragma(handle, "page_count") - pragma(handle, "freelist_count")
    used_bytes = used_pages * pragma(handle, "page_size") if waiting + refused else 0
    return Counts(waiting, refused, used_bytes, oldest_us)


def _insert(handle: apsw.Connection, route: str, command: LastWord, now_us: int) -> int | Exception:
    try:
        columns = journal_rows.encode(route, command, now_us)
        ((row,),) = fetch(handle, statements()["insert_entry"], columns)
    except _DATA_ERRORS as error:
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
