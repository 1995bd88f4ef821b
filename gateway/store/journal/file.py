"""One file of a journal: a small SQLite database that belongs to one process at a time.

It owns the file, its name and its lock, its schema, how an outcome is written as a row, and what may be believed after
a fault; whose outcomes they are and where they go is decided elsewhere. Everything here blocks, and belongs to one
thread.

Theory of operation
-------------------
*Ownership.* Whoever has the file's lock may open it; others may visit it at most (`view`), whether its owner lives or
not: to look, and to take out what was refused and is not tried again. The owner hears of that by counting again. The
lock is an advisory one on a file beside the database, held by an open descriptor: it ends with the process, whatever
ended that. It is a file of its own because closing any descriptor of the database would drop SQLite's own locks.

*Birth.* A file is made under another name, filled with its schema, closed, synced and only then given its name. So a
file with a name of ours is whole, or it is damaged; an empty one is damaged.

*Faults.* What is known when something fails is said by `sqlite.connection`. But a file that is not trusted can still be
read, and what it holds given to the durable store; it only takes nothing more until its whole log was copied into the
database and both were synced.

*Rows.* What a row says that this program cannot read it does not guess: such a row stays as it is, for the program that
wrote it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar, assert_never
from uuid import UUID

import apsw

from gateway.core.message import StoredResponse
from gateway.core.operation import EVENT_OF, Abandon, Complete, Event, Forget, OutcomeCommand, Release
from gateway.store.base import NotApplied, StartRefused, Unstorable
from gateway.store.directories import make_directory, sync_directory
from gateway.store.sqlite.connection import DATA_ERRORS, Committer, file_id, prepare_file
from gateway.store.sqlite.rows import decode_headers, encode_headers

T = TypeVar("T")
Row = tuple[Any, ...]
Handle = apsw.Connection | apsw.Cursor

SUFFIX: Final = ".db"
ROW_VERSION: Final = 1
SCHEMA_VERSION: Final = 1
# "igjl": says that a file is a journal of ours, as `PRAGMA application_id`.
APPLICATION_ID: Final = 0x69676A6C

# What an operator who looks in may keep us waiting.
BUSY_MS: Final = 1_000
# What SQLite raises for a file that was a journal once, or never.
DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)

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
    command: OutcomeCommand


def cost_bytes(command: OutcomeCommand) -> int:
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
                prepare_file(unborn)
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
                prepare_file(path)
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

    def append(self, outcomes: Sequence[tuple[str, OutcomeCommand]], now_us: int) -> list[int | Exception]:
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
                        entry = Waiting(columns[0], *decode_row(columns))
                    except NotApplied:
                        # Only another version can read it: it must not hold up those behind it.
                        continue
                    found.append(entry)
                    bytes_ += cost_bytes(entry.command)
                    if len(found) >= limit or bytes_ >= bytes_max:
                        break
            return found

        return self._look(look)

    def read(self, row: int) -> OutcomeCommand | None:
        """The outcome in a row, None when it does not wait any more. Raises `NotApplied`."""

        def look(cursor: apsw.Cursor) -> OutcomeCommand | None:
            found = fetch(cursor, statements()["select_entry"], (row,))
            return decode_row(found[0])[1] if found else None

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
        self._file_id = file_id(self.path)
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


def _insert(cursor: apsw.Cursor, route: str, command: OutcomeCommand, now_us: int) -> int | Exception:
    try:
        columns = encode_row(route, command, now_us)
        ((row,),) = fetch(cursor, statements()["insert_entry"], columns)
    except (*DATA_ERRORS, ValueError) as error:
        # One statement is undone by itself; the neighbours go on.
        return Unstorable(f"a journal cannot keep this outcome: {type(error).__name__}")
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


# -- its name and lock -------------------------------------------------------------------------------------------------


def lock(path: Path) -> int | None:
    """Own the journal file at `path` until the returned descriptor is closed; None when somebody else does."""
    beside = path.with_suffix(".lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The owner before may have removed what we opened: then it locks nothing any more.
        status = os.fstat(descriptor)
        if file_id(beside) == (status.st_dev, status.st_ino):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock(path: Path, descriptor: int) -> None:
    """Give the ownership back, and the lock's file with it when there is nothing to own any more."""
    if not path.exists():
        path.with_suffix(".lock").unlink(missing_ok=True)
    os.close(descriptor)


def named(directory: Path, prefix: str = "") -> list[Path]:
    """The journal files in a directory whose names begin so."""
    return sorted(directory.glob(f"{prefix}*{SUFFIX}"))


def remove(path: Path) -> None:
    """Remove a database that nobody has open, and what SQLite keeps beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


def remove_unborn(directory: Path) -> None:
    """Clear away files whose making was cut off: nothing was ever in them."""
    for unborn in directory.glob("*.new"):
        path = unborn.with_suffix(SUFFIX)
        descriptor = lock(path)
        if descriptor is not None:
            remove(unborn)
            unlock(path, descriptor)


# -- its schema --------------------------------------------------------------------------------------------------------


@cache
def statements() -> dict[str, str]:
    """The text of each `.sql` file by its name."""
    folder = files("gateway.store.journal").joinpath("sql")
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in folder.iterdir()}


def fetch(handle: Handle, statement: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
    """Run a statement and take all of its rows."""
    return handle.execute(statement, bindings).fetchall()


def pragma(handle: Handle, name: str) -> int:
    """What SQLite says of the file under this name, where that is a number."""
    return int(fetch(handle, f"PRAGMA {name}")[0][0])


def fill(path: Path, belongs_to: str) -> None:
    """Write the schema, and leave one synced file."""
    handle = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # The room of what was flushed goes back to the disk.
        handle.execute("PRAGMA auto_vacuum = FULL")
        handle.execute("PRAGMA synchronous = FULL")
        handle.execute("BEGIN IMMEDIATE")
        handle.execute(statements()["schema_0001"])
        handle.execute(statements()["insert_owner"], (belongs_to,))
        handle.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        handle.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        handle.execute("COMMIT")
    finally:
        handle.close(True)


def check_ours(handle: Handle, path: Path) -> None:
    """Raises `StartRefused` for a file that is no journal, or is one of a newer program."""
    if pragma(handle, "application_id") != APPLICATION_ID:
        raise StartRefused(
            f"{path} is not a journal of this program, or it is damaged. Move it away; outcomes that may be in it are "
            "then in doubt until somebody resolves them."
        )
    if pragma(handle, "user_version") > SCHEMA_VERSION:
        raise StartRefused(
            f"{path} was written by a newer version of this program; run that one until the journal is empty"
        )


# -- its rows ----------------------------------------------------------------------------------------------------------


def encode_row(route: str, command: OutcomeCommand, journaled_us: int) -> Row:
    """An outcome as the columns, in the order of `insert_entry.sql`."""
    replay_us: int | None = None
    remember_us: int | None = None
    doubt: str | None = None
    answer: Row = (None, None, None, None)
    match command:
        case Complete():
            response, replay_us, remember_us = command.response, command.replay_us, command.remember_us
            answer = (response.status, response.reason, encode_headers(response.headers), response.body)
        case Release():
            remember_us = command.remember_us
        case Forget():
            pass
        case Abandon():
            doubt = command.doubt
        case _:
            assert_never(command)
    ids = (command.operation_id.bytes, command.token, command.attempt_id.bytes)
    return (
        *(ROW_VERSION, *ids, EVENT_OF[type(command)].value, route, journaled_us),
        *(replay_us, remember_us, doubt, *answer),
    )


def decode_row(columns: Row) -> tuple[str, OutcomeCommand]:
    """Route name and command, of a row as `select_entry.sql` gives it. Raises `NotApplied` when it cannot be read."""
    try:
        return _decoded(columns)
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise NotApplied(f"an outcome in the journal is damaged: {type(error).__name__}") from error


def _decoded(columns: Row) -> tuple[str, OutcomeCommand]:
    (
        _, version, operation_id, token, attempt_id, event, route,
        replay_us, remember_us, doubt, status, reason, headers, body,
    ) = columns  # fmt: skip
    ids = (UUID(bytes=operation_id), token, UUID(bytes=attempt_id))
    if version == ROW_VERSION:
        match event:
            case Event.COMPLETE:
                response = StoredResponse(status, reason, decode_headers(headers), body)
                return route, Complete(*ids, response, replay_us, remember_us)
            case Event.RELEASE:
                return route, Release(*ids, remember_us)
            case Event.FORGET:
                return route, Forget(*ids)
            case Event.ABANDON:
                return route, Abandon(*ids, doubt)
    raise NotApplied(
        f"the outcome of operation {ids[0]} was journaled by another version of this program "
        f"(version {version}, event {event!r}); this one leaves it alone"
    )
