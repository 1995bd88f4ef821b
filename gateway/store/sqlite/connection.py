"""Connections to an embedded database, each used by one thread, and what is known when one fails.

It owns where the file may be (private, and where commits are reliable), how a connection is opened, trusted and
dropped, and which errors mean that nothing was changed. The journal commits to its files in the same way.

A failure before COMMIT is rolled back: `NotApplied`. A failure of COMMIT itself is `Indefinite`, and the connection is
not used again, because after a failed `fsync` the kernel may count unwritten pages as written. The file is trusted
again once its whole log was copied into the database and both were synced: on each new connection, and the store is
down until that succeeds.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import apsw

from gateway.store.agreement import PROGRAM_LEVEL, check_level
from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused, wall_clock_us
from gateway.store.files import make_directory
from gateway.store.relational.executor import Cursor
from gateway.store.relational.rows import SHARED_TABLES, Row, statements, texts_of

FileId = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""

# The write-ahead log needs shared memory and working locks between all processes that open the file.
_NETWORK_FILESYSTEMS: Final = (
    "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "gfs2", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs",
)  # fmt: skip

SCHEMA_VERSION: Final = 1
# "igwy": marks a file as ours, as `PRAGMA application_id`.
APPLICATION_ID: Final = 0x69677779
_LEVEL: Final = "SELECT level FROM epoch WHERE one = 1"

# What tables have here, in place of what distributed SQL has.
_INSTEAD: Final = {
    "CREATE TABLE IF NOT EXISTS": "CREATE TABLE",
    " row BYTEA NOT NULL PRIMARY KEY": " row INTEGER PRIMARY KEY",
    "'\\x01'::BYTEA": "x'01'",
    "split_part(encode(substr(response, 2, 65), 'escape'), ':', 1)": (
        "CAST(substr(response, 2, instr(response, x'3a') - 2) AS TEXT)"
    ),
    "left(why, 1) = E'\\x01'": "substr(why, 1, 1) = char(1)",
    "split_part(substr(why, 2), ':', 1)": "substr(why, 2, instr(why, ':') - 2)",
    " GENERATED ALWAYS AS": " AS",
    " STORED": "",
    "BYTEA": "BLOB",
    "BIGINT": "INTEGER",
    "BOOLEAN": "INTEGER",
}
_TABLE: Final = re.compile(r"CREATE TABLE .*?\n\)(?=;)", re.DOTALL)
_IS_NUMBERED: Final = re.compile(r"\n *(?:row|one) ")


def _tables() -> str:
    """The shared tables. What has no row number of its own is in the order of its key."""
    text = re.sub(r"^ *--(?!sqlite:).*\n", "", re.sub(r".*--sqlite:", "", SHARED_TABLES), flags=re.MULTILINE)
    for before, after in _INSTEAD.items():
        text = text.replace(before, after)
    return _TABLE.sub(lambda made: made[0] + ("" if _IS_NUMBERED.search(made[0]) else " WITHOUT ROWID"), text)


_OWN: Final = texts_of("gateway.store.sqlite")
TEXTS: Final[Mapping[str, str]] = statements(
    {**_OWN, "schema_0001": _tables() + _OWN["schema_0001"]},
    {
        "row": "row",
        "row_of": "(SELECT row FROM operation WHERE id = ?)",
        "greatest": "max",
        # It keeps the order of its tables.
        "join": "CROSS JOIN",
        "among": "= ?",
        "response": "r.row = o.row",
        "locked": "",
        "bytes": "BLOB",
        "each": "json_each(?)",
    },
)

_SELECT_SEQUENCE: Final = TEXTS["select_sequence"]
_UPDATE_SEQUENCE: Final = TEXTS["update_sequence"]


class Transaction(Cursor):
    """One for each connection, whose transactions follow one another. Each statement ends the previous one."""

    __slots__ = ("_sequence", "clock_us", "connection", "cursor", "drawn")

    first_row = 0
    last_row = 2**63 - 1

    def __init__(self, cursor: Any, clock_us: Callable[[], int]) -> None:
        self.cursor = cursor
        self.connection = cursor.connection
        self.clock_us = clock_us
        # The sequence is read for the first token of a transaction, and written once at its end.
        self._sequence = 0
        self.drawn = 0

    # No function of ours in between: it is asked in each transaction.
    now_us = property(methodcaller("clock_us"))

    async def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        found: list[Row] = self.cursor.execute(TEXTS[statement], bindings).fetchall()
        return found

    async def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        self.cursor.execute(TEXTS[statement], bindings)
        changes: int = self.connection.changes()
        return changes

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        found: list[Row] = self.cursor.executemany(TEXTS[statement], [(key, *bindings) for key in keys]).fetchall()
        return found

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        self.cursor.executemany(TEXTS[statement], bindings)

    def draw(self) -> int:
        if not self.drawn:
            self._sequence = int(self.cursor.execute(_SELECT_SEQUENCE).fetchone()[0])
        self.drawn += 1
        return self._sequence + self.drawn

    def keep_tokens(self) -> None:
        """Called after the last token was drawn."""
        self.cursor.execute(_UPDATE_SEQUENCE, (self._sequence + self.drawn,))
        self.drawn = 0


def check_ours(cursor: Any, path: object) -> int:
    """The version of the schema, 0 when there is none yet. Raises `StartRefused` for a foreign file, and for a level
    that this program does not serve."""
    application_id, version, tables = (
        int(cursor.execute(query).fetchone()[0])
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
    )
    if tables and application_id != APPLICATION_ID:
        raise StartRefused(f"{path} is the database of another program; give the gateway a file of its own")
    if version:
        check_level(cursor.execute(_LEVEL).fetchone()[0])
    return version


def migrate(cursor: Any, path: object) -> None:
    """Bring the schema up to date; safe if another process migrates too. Raises `StartRefused`."""
    found = check_ours(cursor, path)
    for number in range(found + 1, SCHEMA_VERSION + 1):
        cursor.execute(TEXTS[f"schema_{number:04}"])
        cursor.execute(f"PRAGMA user_version = {number}")
        cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    if not found:
        # No older program has ever used it.
        cursor.execute(TEXTS["raise_level"], (PROGRAM_LEVEL,))


# -- connections -------------------------------------------------------------------------------------------------------

# Tables and indexes with the statements that made them, except for SQLite's own.
_OBJECTS: Final = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"

T = TypeVar("T")
W = TypeVar("W")

# The first release in which two connections cannot corrupt the file when the log is reset.
LIBRARY_FLOOR: Final = (3, 51, 3)

# What the driver raises for a value that the file cannot hold.
DATA_ERRORS: Final = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    OverflowError,
    UnicodeError,
)
_UNFIT: Final = (apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.PermissionsError, apsw.ReadOnlyError)

# The commit that brings the log to this many pages copies it into the file.
_CHECKPOINT_PAGES: Final = 4_000
_CACHE_KIB: Final = 16 * 1_024


def check_library() -> None:
    """Raise `StartRefused` for a version of the library that can corrupt its file."""
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split("."))) < LIBRARY_FLOOR:
        raise StartRefused(
            f"SQLite {version} can corrupt its file; install an apsw that carries "
            f"{'.'.join(map(str, LIBRARY_FLOOR))} or later"
        )


def prepare_file(path: Path) -> FileId:
    """Create the directory (0700) and the file (0600) if they are missing. Raises `StartRefused`, `NotApplied`."""
    directory = path.parent
    try:
        if not directory.exists():
            make_directory(directory)
        mode = directory.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise StartRefused(f"{directory} is not a directory")
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StartRefused(f"{directory} can be written by everybody; run: chmod o-w {directory}")
        if (filesystem := filesystem_of(directory)) in _NETWORK_FILESYSTEMS:
            raise StartRefused(
                f"{directory} is on a network file system ({filesystem}), where SQLite's locks cannot be trusted; "
                "use a local disk, or Postgres"
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StartRefused(f"{path} is not a file")
            if status.st_mode & 0o077:
                # Before the log and the shared memory exist, because SQLite gives them the file's mode.
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError | FileExistsError):
            raise StartRefused(f"cannot write {path}: {error.strerror}") from error
        raise NotApplied(f"cannot open {path}: {error.strerror}") from error
    return status.st_dev, status.st_ino


def file_id(path: Path | str) -> FileId | None:
    """The id of the file that has this name now; None when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 -- before each transaction
    except OSError:
        return None
    return status.st_dev, status.st_ino


def filesystem_of(directory: Path) -> str:
    """The type of the directory's file system, as Linux names it; empty if it cannot be found out."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    # proc(5): identifiers, device, root, mount point, options … then " - ", type, source, options.
    for mount in mounts:
        described, _, filesystem = mount.partition(" - ")
        if described.split()[2] == wanted:
            return filesystem.split()[0]
    return ""


class Connection(Generic[W]):
    """A connection of one thread: opened when needed, dropped when it cannot be trusted any more. `W` is what work on
    it gets."""

    ADVICE_WHEN_GONE: ClassVar[str] = (
        "put it back, and the gateway goes on. A restart without it makes a store that does not know which keys were "
        "used, so that new ones are refused: see docs/operate/lost-memory.md"
    )
    """What to do where the file was removed."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path = path
        # For the look before each transaction, which a `Path` makes half as dear again.
        self._name = str(path)
        self.busy_seconds = busy_seconds
        self._file_id: FileId | None = None
        self._handle: apsw.Connection | None = None
        self._cursor: apsw.Cursor
        self._workplace: W | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the file that was there at the start was removed or replaced."""
        return file_id(self.path) != self._file_id

    def start(self, file_id: FileId) -> None:
        """Connect to this file; `workplace` reconnects to the same one after a `drop`. Raises `StartRefused`,
        `NotApplied`."""
        self._file_id = file_id
        try:
            self._open()
        except _UNFIT as error:
            raise StartRefused(f"{self.path} cannot be used as a database: {error}") from error
        except apsw.Error as error:
            raise self.not_applied(error) from error

    def drop(self) -> None:
        """Close the connection in whatever state it is; what was not committed is rolled back."""
        handle, self._handle, self._workplace = self._handle, None, None
        if handle is not None:
            try:
                handle.close(True)
            except apsw.Error:
                # The log could not be cleaned up. The next connection does it, or raises.
                return

    def workplace(self) -> W:
        """The file that was there at the start, to work on. Raises `NotApplied`, `EpochChanged` for another file."""
        if file_id(self.path) != self._file_id:
            # Another file under this name would silently forget every record.
            self.drop()
            why = f"{self.path} was removed or replaced while in use"
            if self.path.exists():
                raise EpochChanged(f"{why}; the file that is there now has to be compared first")
            raise NotApplied(f"{why}; {self.ADVICE_WHEN_GONE}")
        if self._workplace is None:
            try:
                return self._open()
            except StartRefused as error:
                raise NotApplied(*error.args) from error
            except apsw.Error as error:
                raise self.not_applied(error) from error
        return self._workplace

    def _open(self) -> W:
        self.drop()
        handle = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=64)
        try:
            handle.set_busy_timeout(round(self.busy_seconds * 1_000))
            cursor = handle.cursor()
            workplace = self.prepare(cursor)
        except BaseException:
            handle.close(True)
            raise
        self._handle, self._cursor, self._workplace = handle, cursor, workplace
        return workplace

    def prepare(self, cursor: apsw.Cursor) -> W:
        raise NotImplementedError

    def not_applied(self, error: apsw.Error) -> NotApplied:
        """Translate an error for the operator; nothing was changed."""
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return NotApplied(f"{self.path} was locked by another process for {self.busy_seconds:g} s")
            case apsw.FullError():
                return NotApplied(f"no space is left for {self.path}")
            case _:
                return NotApplied(f"{self.path}: {error}")


class Committer(Connection[W]):
    """A connection that writes, with durable commits. Subclasses call `_keep_log` in `prepare`, and decide when to call
    `_regain_trust`."""

    # After a failed commit, nothing may be written to the file until all of it is known to be on the disk.
    _is_distrusted = False

    def transact(self, work: Callable[[W], T]) -> T:
        """Do the work in one durable transaction. Raises `NotApplied`, `Indefinite`, and what the work raises."""
        workplace = self._workplace
        if workplace is None or file_id(self._name) != self._file_id:
            workplace = self.workplace()
        cursor = self._cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            result = work(workplace)
        except apsw.Error as error:
            self._roll_back(error)
            raise self.not_applied(error) from error
        except BaseException as error:
            self._roll_back(error)
            raise
        try:
            # By the same cursor, which ends the last statement of the work: it would go on holding the log.
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
        """Roll back. Drop the connection, unless the error was only a lock, a full disk or a bad value."""
        is_harmless = not isinstance(error, apsw.Error) or isinstance(error, apsw.BusyError | apsw.FullError)
        try:
            if self._handle is not None and self._handle.in_transaction:
                self._handle.execute("ROLLBACK")
        except apsw.Error:
            is_harmless = False
        if not is_harmless:
            self.drop()

    def _keep_log(self, cursor: apsw.Cursor) -> None:
        """Make every commit sync a write-ahead log. Raises `StartRefused` if that is impossible."""
        journal_mode = cursor.execute("PRAGMA journal_mode = WAL").fetchall()
        cursor.execute("PRAGMA synchronous = FULL")
        synchronous = cursor.execute("PRAGMA synchronous").fetchall()
        if (journal_mode, synchronous) != ([("wal",)], [(2,)]):
            raise StartRefused(f"{self.path} is on a file system where SQLite cannot keep a write-ahead log safely")

    def _regain_trust(self, cursor: apsw.Cursor) -> None:
        """Copy the whole log into the file and sync both. Raises `NotApplied` if a distrusted file is in use."""
        ((is_busy, _, _),) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if is_busy and self._is_distrusted:
            raise NotApplied(f"{self.path} is in use by others: its log cannot be copied yet")
        self._is_distrusted = False


class Writer(Committer[Transaction]):
    """The connection through which a store changes its file. With `erases`, what is deleted or replaced is overwritten:
    it may be from before encryption was switched on, or under a key that was given up."""

    def __init__(
        self, path: Path, busy_seconds: float, clock_us: Callable[[], int] = wall_clock_us, *, erases: bool = False
    ) -> None:
        super().__init__(path, busy_seconds)
        self._clock_us = clock_us
        self._erases = erases

    def prepare(self, cursor: apsw.Cursor) -> Transaction:
        # Check first, so that the file of another program is not touched.
        cursor.execute("BEGIN")
        check_ours(cursor, self.path)
        cursor.execute("COMMIT")
        self._keep_log(cursor)
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(f"PRAGMA secure_delete = {int(self._erases)}")
        cursor.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        cursor.execute("BEGIN IMMEDIATE")
        migrate(cursor, self.path)
        _check_tables(cursor, self.path)
        cursor.execute("COMMIT")
        # A killed process may have left commits in the kernel's cache that are not on the disk. While other processes
        # have the file open, no such commit can be seen, so a busy log is no reason to refuse.
        self._regain_trust(cursor)
        return Transaction(cursor, self._clock_us)

    def _roll_back(self, error: BaseException) -> None:
        super()._roll_back(error)
        if self._workplace is not None:
            self._workplace.drawn = 0

    def change_without_fsync(self, work: Callable[[Transaction], T]) -> T:
        """As `transact`, for changes that a power loss may undo until the next commit syncs them: the log is read back
        only as far as it is intact."""
        try:
            self.workplace().cursor.execute("PRAGMA synchronous = NORMAL")
        except apsw.Error as error:
            raise self.not_applied(error) from error
        try:
            return self.transact(work)
        finally:
            if self._handle is not None:
                try:
                    self._cursor.execute("PRAGMA synchronous = FULL")
                except apsw.Error:
                    # The next connection starts with syncs.
                    self.drop()


class Reader(Connection[Transaction]):
    """The connection that reads committed data and cannot write."""

    version = 0

    def __init__(self, path: Path, busy_seconds: float, clock_us: Callable[[], int] = wall_clock_us) -> None:
        super().__init__(path, busy_seconds)
        self._clock_us = clock_us

    def prepare(self, cursor: apsw.Cursor) -> Transaction:
        cursor.execute("PRAGMA query_only = 1")
        self.version = check_ours(cursor, self.path)
        _check_tables(cursor, self.path)
        return Transaction(cursor, self._clock_us)

    def query(self, work: Callable[[Transaction], T]) -> T:
        """Do the work on one consistent state. Raises `NotApplied`."""
        transaction = self.workplace()
        try:
            transaction.cursor.execute("BEGIN")
            try:
                return work(transaction)
            finally:
                transaction.cursor.execute("COMMIT")
        except apsw.Error as error:
            self.drop()
            raise self.not_applied(error) from error


def _check_tables(cursor: apsw.Cursor, path: Path) -> None:
    """Raise `StartRefused` if a schema with this program's version has other tables."""
    version = cursor.execute("PRAGMA user_version").get
    if version == SCHEMA_VERSION and not _expected() <= set(cursor.execute(_OBJECTS)):
        raise StartRefused(
            f"{path} has other tables than this program's schema {version}. Run the program that made it, or give this "
            "one a file of its own"
        )


@cache
def _expected() -> frozenset[tuple[str, str]]:
    memory = apsw.Connection(":memory:")
    try:
        migrate(memory.cursor(), ":memory:")
        return frozenset(memory.execute(_OBJECTS))
    finally:
        memory.close()
