"""One file of a journal: a small SQLite database that belongs to one process at a time.

It owns the file, its name and its lock, its schema, the row format of an outcome, and what can be trusted after a
fault. Callers decide whose outcomes they are and where they go. Everything here blocks, and belongs to one thread.

Theory of operation
-------------------
*Ownership.* Only the holder of the file's lock has it open for long. Operators may visit it (`visited`), whether its
owner runs or not: to read, and to delete refused outcomes. The owner learns of that by counting again. The lock is an
advisory one, held by an open descriptor, so it ends with the process in every case. It is on a file beside the
database, because closing any descriptor of the database would drop SQLite's locks.

*Creation.* A file is created under another name, gets its schema, is closed and synced, and only then gets its final
name. So a file under such a name is complete, or it is damaged; an empty one is damaged.

*Faults.* `sqlite.connection` defines what is known when something fails. In addition, a distrusted file can still be
read and flushed to the durable store. It only takes no new outcomes until its whole log was copied into the database
and both were synced.

*Rows.* A row that this program cannot read stays as it is, for the program that wrote it; nothing is guessed.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_args
from uuid import UUID

import apsw

from gateway.core.message import StoredResponse, pack_headers, unpack_headers
from gateway.core.operation import EVENT_OF, Complete, OutcomeCommand, Record
from gateway.store.agreement import JOURNAL_VERSION, JOURNAL_VERSIONS
from gateway.store.base import NotApplied, StartRefused, Unreadable, Unstorable
from gateway.store.files import make_directory, sync_directory
from gateway.store.relational.rows import decode_whole, encode_whole, pack, unpack
from gateway.store.sqlite.connection import DATA_ERRORS, Committer, file_id, prepare_file

T = TypeVar("T")
Row = tuple[Any, ...]
Handle = apsw.Connection | apsw.Cursor
Query = Callable[..., list[Any]]
"""Runs one statement, by its name, with these bindings; returns its rows."""

# The most outcomes shown of one operation: it has one per attempt that ended while the store was down.
OF_ONE_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class EntryId:
    """The place of an outcome in a journal; valid in that journal only."""

    file: str
    row: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An outcome that waits for the durable store. `route` is the name of the operation's route, for messages."""

    entry_id: EntryId
    route: str
    command: OutcomeCommand


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """An outcome as operators see it, without its response body. Times are microseconds of the host's clock. A refused
    one is kept and not retried."""

    operation_id: UUID
    token: int
    event: str
    route: str
    journaled_us: int
    status: int | None
    body_bytes: int | None
    refused_us: int | None
    refused_why: str | None


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """A complete outcome. `command` is None if only another version of the program can read it, or its response cannot
    be decrypted. `claim` is the record of the claim that a response ends, without what is confidential in it. `memory`
    is the lineage of the durable store that granted the claim (`store.memory.epoch`), empty where it is not known."""

    entry_id: EntryId
    entry: KeptEntry
    command: OutcomeCommand | None
    claim: Record | None = None
    memory: str = ""


@dataclass(frozen=True, slots=True)
class JournalTally:
    """How much a journal, or one of its files, holds. `oldest_us`: when the oldest waiting outcome was written, by the
    host's clock; None without one."""

    waiting: int = 0
    refused: int = 0
    bytes: int = 0
    oldest_us: int | None = None

    @property
    def rows(self) -> int:
        return self.waiting + self.refused


# -- its schema --------------------------------------------------------------------------------------------------------

SUFFIX: Final = ".db"
SCHEMA_VERSION: Final = 1
# "igjl": marks a file as a journal of ours, as `PRAGMA application_id`.
APPLICATION_ID: Final = 0x69676A6C

# How long to wait for the lock of a visiting operator.
BUSY_MS: Final = 1_000
# What SQLite raises for a damaged journal, or for a file that never was one.
DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)

# What `decoded` takes, and behind it the body. Claim and memory may follow.
_SELECT: Final = (
    "SELECT id, operation_id, token, event, route, journaled_us, length(body), refused_us, refused_why, version, "
    "attempt_id, command, "
)
SCHEMA: Final = """
    CREATE TABLE entry (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        version INTEGER NOT NULL,
        operation_id BLOB NOT NULL,
        token INTEGER NOT NULL,
        attempt_id BLOB NOT NULL,
        event TEXT NOT NULL,
        route TEXT NOT NULL,
        -- By the host's clock, for people. One that the durable store refused is kept for an operator and not retried.
        journaled_us INTEGER NOT NULL,
        refused_us INTEGER,
        refused_why TEXT,
        -- What the command has beside its ids, packed in the order of its fields; of a response, all but the body.
        command BLOB NOT NULL,
        body BLOB,
        -- Of a response: the record of the claim that it ends, packed, for repeats while the durable store is away.
        claim BLOB,
        -- The lineage of the memory that granted the claim; empty where that is not known.
        memory TEXT NOT NULL,
        -- An attempt has one outcome; a repeated one replaces the first.
        UNIQUE (operation_id, token, attempt_id)
    );
    -- What the flush reads, in the order of writing, and what an operator has to resolve.
    CREATE INDEX entry_waiting ON entry (id) WHERE refused_us IS NULL;
    CREATE INDEX entry_refused ON entry (id) WHERE refused_us IS NOT NULL;
    -- A description of the service and its durable store.
    CREATE TABLE owner (one INTEGER PRIMARY KEY CHECK (one = 1), belongs_to TEXT NOT NULL);
"""
STATEMENTS: Final = {
    # claimed | in_doubt --complete | release | forget | abandon | postpone | bury-->: kept here until the durable store
    # applies it
    "insert_entry": "INSERT OR REPLACE INTO entry (version, operation_id, token, attempt_id, event, route, "
    "journaled_us, command, body, claim, memory) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
    "insert_owner": "INSERT INTO owner (one, belongs_to) VALUES (1, ?)",
    "select_owner": "SELECT belongs_to FROM owner WHERE one = 1",
    "count": "SELECT (SELECT count(*) FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL), "
    "(SELECT count(*) FROM entry INDEXED BY entry_refused WHERE refused_us IS NOT NULL), "
    "(SELECT journaled_us FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL ORDER BY id LIMIT 1)",
    "select_waiting": _SELECT + "body FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL AND id > ? "
    "ORDER BY id",
    "select_of": _SELECT + "body, claim, memory FROM entry WHERE operation_id = ? ORDER BY id LIMIT ?",
    "select_operations": "SELECT DISTINCT operation_id FROM entry",
    "has_any": "SELECT 1 FROM entry WHERE operation_id = ? LIMIT 1",
    "delete_entry": "DELETE FROM entry WHERE id = ? RETURNING operation_id",
    "update_refused": "UPDATE entry SET refused_us = ?2, refused_why = ?3 WHERE id = ?1",
    # An operator acknowledged it. Never one that waits.
    "delete_refused": "DELETE FROM entry WHERE id = ? AND refused_us IS NOT NULL RETURNING id",
    # ?1: whether refused; NULL for both.
    "select_kept": _SELECT + "NULL FROM entry WHERE ?1 IS NULL OR (refused_us IS NOT NULL) = ?1 ORDER BY id LIMIT ?2",
    # What may have something confidential.
    "select_sealed": _SELECT + "body FROM entry WHERE id > ? AND event IN ('complete', 'abandon') ORDER BY id LIMIT 20",
    # If it is the one that was read.
    "update_sealed": "UPDATE entry SET command = ?, body = ? WHERE id = ? AND command = ? RETURNING id",
}


def fetch(handle: Handle, statement: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
    """Run a statement and return all of its rows."""
    return handle.execute(statement, bindings).fetchall()


def _pragma(handle: Handle, name: str) -> int:
    return int(fetch(handle, f"PRAGMA {name}")[0][0])


def _fill(path: Path, belongs_to: str) -> None:
    """Write the schema, and leave one synced file without a log."""
    handle = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # Return the space of flushed outcomes to the file system.
        handle.execute("PRAGMA auto_vacuum = FULL")
        handle.execute("PRAGMA synchronous = FULL")
        handle.execute("BEGIN IMMEDIATE")
        handle.execute(SCHEMA)
        handle.execute(STATEMENTS["insert_owner"], (belongs_to,))
        handle.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        handle.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        handle.execute("COMMIT")
    finally:
        handle.close(True)


def _check_ours(handle: Handle, path: Path) -> None:
    """Raise `StartRefused` for a file that is no journal, or one of a newer program."""
    if _pragma(handle, "application_id") != APPLICATION_ID:
        raise StartRefused(
            f"{path} is not a journal of this program, or it is damaged. Move it away; the operations of outcomes in "
            "it are then in doubt until an operator resolves them."
        )
    if _pragma(handle, "user_version") > SCHEMA_VERSION:
        raise StartRefused(
            f"{path} was written by a newer version of this program; run that one until the journal is empty"
        )


@contextmanager
def visited(path: Path, *, changes: bool = False) -> Iterator[Query]:
    """Open a file, whether it has an owner or not, for single statements; each is its own transaction. The log is not
    checkpointed: only the owner knows how much of it is on the disk. Raises `NotApplied`, `StartRefused`, also from the
    statements."""
    flags = apsw.SQLITE_OPEN_READWRITE if changes else apsw.SQLITE_OPEN_READONLY
    try:
        handle = apsw.Connection(str(path), flags=flags)
        try:
            handle.set_busy_timeout(BUSY_MS)
            handle.wal_autocheckpoint(0)
            _check_ours(handle, path)
            yield lambda name, *bindings: fetch(handle, STATEMENTS[name], bindings)
        finally:
            handle.close(True)
    except (*DAMAGED, ValueError, TypeError) as error:
        raise NotApplied(f"{path} is damaged: {error}") from error
    except apsw.Error as error:
        raise NotApplied(
            f"{path} cannot be {'changed' if changes else 'read'}: {error}; run this as the user of the gateway"
        ) from error


# -- its rows ----------------------------------------------------------------------------------------------------------

_COMMANDS: Final[dict[str, Callable[..., OutcomeCommand]]] = {
    EVENT_OF[each].value: each for each in get_args(OutcomeCommand)
}
# The fields that every outcome begins with: operation id, token and attempt id.
_IDS: Final = 3
# Columns and the file's own overhead, without the response.
_ROW_BYTES: Final = 1_024


def cost_bytes(command: OutcomeCommand) -> int:
    """An estimate of an outcome's size."""
    if not isinstance(command, Complete):
        return _ROW_BYTES
    response = command.response
    headers = sum(len(name) + len(value) + 8 for name, value in response.headers)
    return _ROW_BYTES + headers + len(command.resource or "") + len(response.body or b"")


def _encoded(route: str, command: OutcomeCommand, memory: str, journaled_us: int) -> Row:
    """An outcome as columns, in the order of `insert_entry`."""
    claim: bytes | None = None
    if isinstance(command, Complete) and command.granted is not None:
        # What repeats are compared and told by. Nothing in it is confidential: it would outlive a change of the keys.
        identity = replace(command.granted.identity, key=None)
        granted = replace(command.granted, identity=identity, probe=None, request=None, resource=None)
        claim = pack(encode_whole(granted))
    ids = (command.operation_id.bytes, command.token, command.attempt_id.bytes)
    return (
        *(JOURNAL_VERSION, *ids, EVENT_OF[type(command)].value, route, journaled_us),
        *(*packed(command), claim, memory),
    )


def packed(command: OutcomeCommand) -> tuple[bytes, bytes | None]:
    """What a command has beside its ids, and the body of its response."""
    parts = [getattr(command, each.name) for each in fields(command)[_IDS:]]
    if not isinstance(command, Complete):
        return pack(tuple(parts)), None
    response, *rest, _ = parts
    head = (response.status, response.reason, pack_headers(response.headers), response.version)
    return pack((*head, *rest)), response.body


def decoded(row: Row) -> OutcomeCommand | None:
    """The command of a row; None if this program cannot read it."""
    _, operation_id, token, event, _, _, _, _, _, version, attempt_id, parts, body, *_ = row
    if version not in JOURNAL_VERSIONS or event not in _COMMANDS:
        return None
    try:
        ids, values = (UUID(bytes=operation_id), token, UUID(bytes=attempt_id)), unpack(parts)
        if _COMMANDS[event] is not Complete:
            return _COMMANDS[event](*ids, *values)
        status, reason, headers, api_version, *rest = values
        return Complete(*ids, StoredResponse(status, reason, unpack_headers(headers), body, api_version), *rest)
    except (Unreadable, struct.error, ValueError, TypeError, AttributeError):
        return None


def kept_entry(row: Row) -> KeptEntry:
    """A row as operators see it. Raises ValueError for a damaged one."""
    command = decoded(row)
    status = command.response.status if isinstance(command, Complete) else None
    _, operation_id, token, event, route, journaled_us, body_bytes, *refused = row[:9]
    return KeptEntry(UUID(bytes=operation_id), token, event, route, journaled_us, status, body_bytes, *refused)


def kept_outcome(path: Path, row: Row) -> KeptOutcome:
    """A row of `select_of` in a file. Raises `NotApplied`."""
    claim, memory = row[-2:]
    try:
        granted: Record | None = None if claim is None else decode_whole(unpack(claim), None)
    except Unreadable as error:
        raise NotApplied(f"a claim in the journal cannot be read: {error}") from error
    return KeptOutcome(EntryId(path.name, row[0]), kept_entry(row), decoded(row), granted, memory)


# -- its owner ---------------------------------------------------------------------------------------------------------


class JournalFile(Committer[apsw.Cursor]):
    """A file that this process has locked, from `make` or `adopt` until `close`."""

    # The commits of a killed process may be in the kernel's cache only, not on the disk.
    _is_distrusted = True
    ADVICE_WHEN_GONE = "put it back, or restart the gateway, which then makes a new one"

    def __init__(self, path: Path, descriptor: int) -> None:
        """Open the file for the first time. Raises what the driver raises."""
        super().__init__(path, BUSY_MS / 1_000)
        self.counts = JournalTally()
        self.held: set[bytes] = set()
        """The ids of the operations with outcomes here; another thread may look."""
        self._lock = descriptor
        self._file_id = file_id(path)
        self._regain_trust(self._open())

    @classmethod
    def make(cls, directory: Path, name: str, belongs_to: str) -> JournalFile:
        """Create a file (0600), empty and durable. Raises `NotApplied`, `StartRefused`."""
        path = directory / f"{name}{SUFFIX}"
        with _named_errors(path):
            make_directory(directory)
        with _locked(path) as descriptor:
            if descriptor is None:
                raise NotApplied(f"{path} is in use")
            unfinished = path.with_suffix(".new")
            try:
                prepare_file(unfinished)
                _fill(unfinished, belongs_to)
                unfinished.rename(path)
                sync_directory(directory)
                return cls(path, descriptor)
            except BaseException:
                _remove(unfinished)
                _remove(path)
                raise

    @classmethod
    def adopt(cls, path: Path, belongs_to: str) -> JournalFile | None:
        """Take over the file of a process that has ended; None when the file has an owner or is gone. Raises
        `NotApplied`, and `StartRefused` for a file that is damaged, too new or not ours; it stays as it is."""
        with _locked(path) as descriptor:
            if descriptor is None:
                return None
            if not path.exists():
                unlock(path, descriptor)
                return None
            prepare_file(path)
            journal = cls(path, descriptor)
            try:
                journal._examine(belongs_to)
            except BaseException:
                journal.drop()
                raise
        return journal

    def append(self, outcomes: Sequence[tuple[str, OutcomeCommand, str]], now_us: int) -> list[int | Exception]:
        """Write outcomes with their routes and memories durably in one transaction; return the row of each, or why it
        was not written. Raises `NotApplied` when none was written, and `Indefinite` when that is not known."""
        if self._is_distrusted:
            self._query(self._regain_trust)
        rows = self._transact(lambda cursor: [_insert(cursor, *outcome, now_us) for outcome in outcomes])
        kept = zip(outcomes, rows, strict=True)
        self.held.update(command.operation_id.bytes for (_, command, _), row in kept if isinstance(row, int))
        return rows

    def waiting(self, after: int, limit: int, bytes_max: int) -> list[JournalEntry]:
        """Outcomes behind row `after`, as many as the limits allow but one at least. Raises `NotApplied`."""

        def query(cursor: apsw.Cursor) -> list[JournalEntry]:
            found: list[JournalEntry] = []
            bytes_ = 0
            # The loop may end before the last row; an open cursor would then go on holding the log.
            with closing(cursor.connection.cursor()) as rows:
                for row in rows.execute(STATEMENTS["select_waiting"], (after,)):
                    entry_id, route, command = EntryId(self.path.name, row[0]), row[4], decoded(row)
                    if command is None:
                        # Only another version can read it: it must not hold up those behind it.
                        continue
                    found.append(JournalEntry(entry_id, route, command))
                    bytes_ += cost_bytes(command)
                    if len(found) >= limit or bytes_ >= bytes_max:
                        break
            return found

        return self._query(query)

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """All outcomes of an operation; whatever is encrypted stays so. Raises `NotApplied`."""
        if operation_id.bytes not in self.held:
            return []
        bindings = (operation_id.bytes, OF_ONE_MAX)
        rows = self._query(lambda cursor: fetch(cursor, STATEMENTS["select_of"], bindings))
        return [kept_outcome(self.path, row) for row in rows]

    def forget(self, rows: Sequence[int]) -> None:
        """Delete outcomes that the durable store has applied. Raises `NotApplied`, `Indefinite`."""

        def write(cursor: apsw.Cursor) -> set[bytes]:
            found = {each for row in rows for (each,) in fetch(cursor, STATEMENTS["delete_entry"], (row,))}
            return {each for each in found if not fetch(cursor, STATEMENTS["has_any"], (each,))}

        self.held -= self._transact(write)

    def refuse(self, rows: Sequence[tuple[int, str]], now_us: int) -> None:
        """Mark outcomes that the durable store refused, with the reason. Raises `NotApplied`, `Indefinite`."""
        refusals = [(row, now_us, why) for row, why in rows]
        self._transact(lambda cursor: cursor.executemany(STATEMENTS["update_refused"], refusals))

    def recount(self) -> None:
        """Count again, because an operator may have deleted refused outcomes. Raises `NotApplied`."""
        self._query(self._count)

    def close(self) -> None:
        """Release the file, and remove it when it is empty. Otherwise another process adopts it."""
        # After a dropped connection, the last count may be wrong.
        is_empty = self._handle is not None and self.counts.rows == 0
        self.drop()
        try:
            if is_empty:
                _remove(self.path)
                sync_directory(self.path.parent)
        finally:
            unlock(self.path, self._lock)

    def prepare(self, cursor: apsw.Cursor) -> apsw.Cursor:
        _check_ours(cursor, self.path)
        self._keep_log(cursor)
        # A failed commit may have changed the file all the same.
        self._count(cursor)
        return cursor

    def _count(self, cursor: apsw.Cursor) -> None:
        self.counts = _counted(cursor)
        operations = {each for (each,) in fetch(cursor, STATEMENTS["select_operations"])}
        # One that stays is there at every moment.
        self.held.update(operations)
        self.held.intersection_update(operations)

    def _examine(self, belongs_to: str) -> None:
        cursor = self.workplace()
        if (found := fetch(cursor, "PRAGMA quick_check(1)")) != [("ok",)]:
            raise apsw.CorruptError(str(found))
        owner = fetch(cursor, STATEMENTS["select_owner"])
        if owner != [(belongs_to,)]:
            raise StartRefused(f"{self.path} holds outcomes of {owner}, not of {belongs_to}; move it away")

    def _query(self, work: Callable[[apsw.Cursor], T]) -> T:
        cursor = self.workplace()
        try:
            return work(cursor)
        except apsw.Error as error:
            self._roll_back(error)
            raise self.not_applied(error) from error

    def _transact(self, work: Callable[[apsw.Cursor], T]) -> T:
        # Count before COMMIT, because nothing may fail after it.
        result, self.counts = self.transact(lambda cursor: (work(cursor), _counted(cursor)))
        return result


def _counted(cursor: apsw.Cursor) -> JournalTally:
    ((waiting, refused, oldest_us),) = fetch(cursor, STATEMENTS["count"])
    used_pages = _pragma(cursor, "page_count") - _pragma(cursor, "freelist_count")
    used_bytes = used_pages * _pragma(cursor, "page_size") if waiting + refused else 0
    return JournalTally(waiting, refused, used_bytes, oldest_us)


def _insert(cursor: apsw.Cursor, route: str, command: OutcomeCommand, memory: str, now_us: int) -> int | Exception:
    try:
        ((row,),) = fetch(cursor, STATEMENTS["insert_entry"], _encoded(route, command, memory, now_us))
    except (*DATA_ERRORS, ValueError, struct.error) as error:
        # SQLite undoes the failed statement only; the others stand.
        return Unstorable(f"a journal cannot keep this outcome: {type(error).__name__}")
    return int(row)


# -- its name and lock -------------------------------------------------------------------------------------------------


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Translate errors of opening: `NotApplied` for passing ones, `StartRefused` for those that need an operator."""
    try:
        yield
    except DAMAGED as error:
        raise StartRefused(
            f"{path} is damaged ({error}). Move it away; the operations of outcomes in it are then in doubt until an "
            "operator resolves them."
        ) from error
    except (apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError, PermissionError) as error:
        raise StartRefused(f"{path} cannot be written: {error}") from error
    except (apsw.Error, OSError) as error:
        raise NotApplied(f"{path} cannot be used: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Own the file at `path`, as `lock` does; given up where opening it fails."""
    with _named_errors(path):
        descriptor = lock(path)
        try:
            yield descriptor
        except BaseException:
            if descriptor is not None:
                unlock(path, descriptor)
            raise


def lock(path: Path) -> int | None:
    """Own the journal file at `path` until the returned descriptor is closed; None when another process does."""
    beside = path.with_suffix(".lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have removed the file that we opened, and then its lock means nothing.
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
    """Give up the ownership, and remove the lock's file when there is no journal file any more."""
    if not path.exists():
        path.with_suffix(".lock").unlink(missing_ok=True)
    os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a database that no process has open, and SQLite's files beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """Remove files whose creation was interrupted: no outcome was ever in them."""
    for unfinished in directory.glob("*.new"):
        path = unfinished.with_suffix(SUFFIX)
        descriptor = lock(path)
        if descriptor is not None:
            _remove(unfinished)
            unlock(path, descriptor)
