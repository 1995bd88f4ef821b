"""The embedded store: one SQLite file, for one host.

What differs on the contract of `base`: the clock is the host's, several processes may open the file, and news reaches
only those who wait in the process that made the change; others find it when they poll.

Theory of operation
-------------------
Two threads own a connection each. The writer takes the commands that arrived while it was busy as one batch and
executes them in one `BEGIN IMMEDIATE` transaction: read the row, let `lifecycle.step` decide, write what it made. So it
is the table itself that runs, under the lock that excludes every other process, and one `fsync` serves the whole batch.
The reader sees what is committed, which is all that was ever acknowledged, and waits for no write.

Whatever fails before COMMIT is rolled back: `NotApplied`. When COMMIT itself fails it is `Indefinite`, and the
connection is not used again, because after a failed `fsync` the kernel may take pages for written that are not. A new
connection first copies its whole log into the database file and syncs both; until that succeeds there is no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID, uuid4

import apsw

from gateway.core.lifecycle import settle
from gateway.core.operation import Applied, Command, Result, Snapshot, operation_id_of
from gateway.store import sqlite_files
from gateway.store import sqlite_statements as sql
from gateway.store.base import Indefinite, NotApplied, RecipeConflict, Rejected, StartRefused, Swept, Tally, Watch
from gateway.store.batching import BATCH_SIZE_MAX, QUEUE_MAX, Batcher
from gateway.store.watching import Watchers
from gateway.store.worker import Worker

T = TypeVar("T")

# The first release in which two connections cannot corrupt the file when the log is reset.
LIBRARY_FLOOR: Final = (3, 51, 3)

BUSY_SECONDS: Final = 5.0
# Records per transaction of a sweep: what a command may have to wait for.
SWEEP_TRANSACTION_MAX: Final = 100

_DATA_ERRORS: Final = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    OverflowError,
    UnicodeError,
)
_UNFIT: Final = (apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.PermissionsError, apsw.ReadOnlyError)

# The log is copied into the file after so many pages, by the commit that meets the number.
_CHECKPOINT_PAGES: Final = 4_000
_CACHE_KIB: Final = 16 * 1_024


def wall_clock_us() -> int:
    """The host's clock, which all processes on the file share and which a restart does not reset."""
    return time.time_ns() // 1_000


class _Connection:
    """A connection as its thread uses it: opened when needed, dropped when no longer to be trusted."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self._file_id: sqlite_files.FileId | None = None
        self._handle: apsw.Connection | None = None
        self._cursor: apsw.Cursor | None = None

    def start(self, file_id: sqlite_files.FileId) -> None:
        """Connect to this file, now and whenever the connection was dropped. Raises `StartRefused`, `NotApplied`."""
        self._file_id = file_id
        try:
            self._open()
        except _UNFIT as error:
            raise StartRefused(f"{self.path} cannot be used as a database: {error}") from error
        except apsw.Error as error:
            raise self.not_applied(error) from error

    def drop(self) -> None:
        """Close the connection whatever state it is in; what was not committed is rolled back."""
        handle, self._handle, self._cursor = self._handle, None, None
        if handle is not None:
            try:
                handle.close(True)
            except apsw.Error:
                # The log could not be tidied up. The next opening does it, or says so.
                return

    def cursor(self) -> apsw.Cursor:
        """A cursor on the file that was there at the start. Raises `NotApplied`."""
        if sqlite_files.file_id(self.path) != self._file_id:
            # Going on in another file would be to forget everything, unnoticed.
            self.drop()
            raise NotApplied(f"{self.path} was removed or replaced while in use; restart the gateway to accept that")
        if self._cursor is None:
            try:
                return self._open()
            except StartRefused as error:
                raise NotApplied(*error.args) from error
            except apsw.Error as error:
                raise self.not_applied(error) from error
        return self._cursor

    def _open(self) -> apsw.Cursor:
        self.drop()
        handle = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=64)
        try:
            handle.set_busy_timeout(round(self.busy_seconds * 1_000))
            cursor = handle.cursor()
            self.prepare(cursor)
        except BaseException:
            handle.close(True)
            raise
        self._handle, self._cursor = handle, cursor
        return cursor

    def prepare(self, cursor: apsw.Cursor) -> None:
        """Make a new connection ready for what it is for."""
        raise NotImplementedError

    def not_applied(self, error: apsw.Error) -> NotApplied:
        """What the error means to the operator, when nothing was changed."""
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return NotApplied(f"{self.path} was locked by another process for {self.busy_seconds:g} s")
            case apsw.FullError():
                return NotApplied(f"no space is left for {self.path}")
            case _:
                return NotApplied(f"{self.path}: {error}")


class _Writer(_Connection):
    """The connection that changes things, and on which commits are durable."""

    # After a failed commit the file is used again only when all of it is known to be on the disk.
    _is_distrusted = False

    def prepare(self, cursor: apsw.Cursor) -> None:
        # Asked first, so that the file of another program is left as it is.
        cursor.execute("BEGIN")
        sql.check_ours(cursor, self.path)
        cursor.execute("COMMIT")
        journal_mode = cursor.execute("PRAGMA journal_mode = WAL").fetchall()
        cursor.execute("PRAGMA synchronous = FULL")
        synchronous = cursor.execute("PRAGMA synchronous").fetchall()
        if (journal_mode, synchronous) != ([("wal",)], [(2,)]):
            raise StartRefused(f"{self.path} is on a file system where SQLite cannot keep a write-ahead log safely")
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        cursor.execute("BEGIN IMMEDIATE")
        sql.migrate(cursor, self.path)
        cursor.execute("COMMIT")
        # A killed process may have left commits that its kernel knows and the disk does not. While others have the file
        # open there are none that anybody can see, and then waiting for them is not worth refusing.
        ((is_busy, _, _),) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if is_busy and self._is_distrusted:
            raise NotApplied(f"{self.path} failed to commit, and is in use by others: its log cannot be copied yet")
        self._is_distrusted = False

    def transact(self, work: Callable[[apsw.Cursor], T]) -> T:
        """Do the work in one durable transaction. Raises `NotApplied`, `Indefinite`, and what the work raises."""
        cursor = self.cursor()
        try:
            cursor.execute("BEGIN IMMEDIATE")
            result = work(cursor)
        except apsw.Error as error:
            self._roll_back(error)
            raise self.not_applied(error) from error
        except BaseException as error:
            self._roll_back(error)
            raise
        try:
            cursor.execute("COMMIT")
        except apsw.BusyError as error:
            self._roll_back(error)
            raise self.not_applied(error) from error
        except apsw.Error as error:
            self._is_distrusted = True
            self.drop()
            raise Indefinite(f"{self.path}: the commit failed: {error}") from error
        return result

    def _roll_back(self, error: BaseException) -> None:
        """Undo the transaction; a connection that had more than a lock or a value against it is not used again."""
        is_harmless = not isinstance(error, apsw.Error) or isinstance(error, apsw.BusyError | apsw.FullError)
        try:
            if self._handle is not None and self._handle.in_transaction:
                self._handle.execute("ROLLBACK")
        except apsw.Error:
            is_harmless = False
        if not is_harmless:
            self.drop()


class _Reader(_Connection):
    """The connection that sees what is committed and cannot change it."""

    def prepare(self, cursor: apsw.Cursor) -> None:
        cursor.execute("PRAGMA query_only = 1")

    def look(self, work: Callable[[apsw.Cursor], T]) -> T:
        """Do the work on one consistent state. Raises `NotApplied`."""
        cursor = self.cursor()
        try:
            cursor.execute("BEGIN")
            try:
                return work(cursor)
            finally:
                cursor.execute("COMMIT")
        except apsw.Error as error:
            self.drop()
            raise self.not_applied(error) from error


class _Looker(_Connection):
    """A connection that only finds out which schema the file has."""

    version = 0

    def prepare(self, cursor: apsw.Cursor) -> None:
        cursor.execute("PRAGMA query_only = 1")
        self.version = sql.check_ours(cursor, self.path)


@dataclass(frozen=True, slots=True)
class _Running:
    """What there is between start and close."""

    writing: Worker
    reading: Worker
    commands: Batcher[Command, Result]
    reads: Batcher[UUID, Snapshot]


def is_migrated(path: Path) -> bool:
    """Whether the file is there and `start` would find its schema up to date. Changes nothing; raises as `start`.

    Blocks; not for a thread that has other things to do.
    """
    found = sqlite_files.file_id(path)
    if found is None:
        return False
    connection = _Looker(path, BUSY_SECONDS)
    try:
        connection.start(found)
        return connection.version >= sql.SCHEMA_VERSION
    finally:
        connection.drop()


class SqliteStore:
    """The `Store` in the file at `path`, which is made (0600, in a directory 0700) when it is missing.

    `clock_us` gives the store's time in microseconds and is called in the store's threads. `start` may follow `close`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock_us: Callable[[], int] = wall_clock_us,
        busy_seconds: float = BUSY_SECONDS,
        batch_size_max: int = BATCH_SIZE_MAX,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._path = Path(path).absolute()
        self._clock_us = clock_us
        self._batch_size_max = batch_size_max
        self._queue_max = queue_max
        self._writer = _Writer(self._path, busy_seconds)
        self._reader = _Reader(self._path, busy_seconds)
        self._watchers = Watchers()
        self._sweeper_id = uuid4().bytes
        self._is_sweeping = False
        self._running: _Running | None = None

    async def start(self) -> None:
        if self._running is not None:
            return
        if tuple(map(int, apsw.sqlite_lib_version().split("."))) < LIBRARY_FLOOR:
            raise StartRefused(
                f"SQLite {apsw.sqlite_lib_version()} can corrupt its file; install an apsw that carries "
                f"{'.'.join(map(str, LIBRARY_FLOOR))} or later"
            )
        writing, reading = Worker("sqlite-writer"), Worker("sqlite-reader")
        try:
            file_id = await writing.run(sqlite_files.prepare, self._path)
            await writing.run(self._writer.start, file_id)
            await reading.run(self._reader.start, file_id)
        except Exception:
            await reading.stop(self._reader.drop)
            await writing.stop(self._writer.drop)
            raise
        except BaseException:
            reading.end(self._reader.drop)
            writing.end(self._writer.drop)
            raise
        self._running = _Running(
            writing,
            reading,
            Batcher(partial(self._apply, writing), size_max=self._batch_size_max, queue_max=self._queue_max),
            Batcher(partial(self._read, reading), size_max=self._batch_size_max, queue_max=self._queue_max),
        )

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        await running.commands.close()
        await running.reads.close()
        # The writer last: the last connection to go copies the log into the file and removes it.
        await running.reading.stop(self._reader.drop)
        await running.writing.stop(self._writer.drop)

    async def apply(self, command: Command) -> Result:
        return await self._started().commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def sweep(self, limit: int) -> Swept:
        running = self._started()
        lapsed = retired = collected = 0
        if self._is_sweeping or not await running.reading.run(self._is_due):
            return Swept()
        self._is_sweeping = True
        try:
            left = limit
            more = True
            while more and left > 0:
                size = min(left, SWEEP_TRANSACTION_MAX)
                left -= size
                part = await running.writing.run(self._sweep_some, size, is_last=left == 0)
                self._watchers.announce_all(part.operation_ids)
                lapsed += part.swept.lapsed
                retired += part.swept.retired
                collected += part.swept.collected
                more = part.swept.more
            return Swept(lapsed, retired, collected, more)
        finally:
            self._is_sweeping = False

    async def tally(self) -> Tally:
        return await self._started().reading.run(self._reader.look, lambda cursor: sql.tally(cursor, self._clock_us()))

    async def agree_recipes(self, recipes: Mapping[str, bytes], accept: frozenset[str]) -> list[RecipeConflict]:
        return await self._started().writing.run(
            self._writer.transact, lambda cursor: sql.agree_recipes(cursor, recipes, accept, self._clock_us())
        )

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    async def _apply(self, writing: Worker, commands: list[Command]) -> Sequence[Result | Exception]:
        results = await writing.run(self._apply_batch, commands)
        # Here, and not where the answer is awaited: that caller may be gone.
        if self._watchers:
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Applied):
                    self._watchers.announce(operation_id_of(command))
        return results

    async def _read(self, reading: Worker, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        return await reading.run(self._read_batch, operation_ids)

    # What runs in the threads.

    def _apply_batch(self, commands: Sequence[Command]) -> list[Result | Exception]:
        rejected: dict[int, Exception] = {}
        while True:
            try:
                # The clock is read under the lock, so that of two processes the later one has the later time.
                return self._writer.transact(
                    lambda cursor: sql.apply_all(cursor, commands, rejected, self._clock_us(), _DATA_ERRORS)
                )
            except sql.Misfit as misfit:
                rejected[misfit.index] = Rejected(f"SQLite cannot keep this command: {type(misfit.__cause__).__name__}")

    def _read_batch(self, operation_ids: Sequence[UUID]) -> list[Snapshot | Exception]:
        records = self._reader.look(lambda cursor: sql.read_all(cursor, operation_ids))
        # Read after the records, or one that was just written would be from the future.
        now_us = self._clock_us()
        return [
            record if isinstance(record, Exception) else Snapshot(settle(record, now_us), now_us) for record in records
        ]

    def _is_due(self) -> bool:
        return self._reader.look(lambda cursor: sql.is_due(cursor, self._clock_us()))

    def _sweep_some(self, limit: int, *, is_last: bool) -> sql.SweptPart:
        return self._writer.transact(
            lambda cursor: sql.sweep_some(cursor, self._sweeper_id, self._clock_us(), limit, is_last=is_last)
        )
