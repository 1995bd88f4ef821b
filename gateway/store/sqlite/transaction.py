"""A transaction of SQLite as `relational` uses it: statements by their names, the clock, and the fencing tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Command, Record
from gateway.store import level
from gateway.store.base import StartRefused
from gateway.store.relational.rows import Row, statements

SCHEMA_VERSION: Final = 1
# "igwy": marks a file as ours, as `PRAGMA application_id`.
APPLICATION_ID: Final = 0x69677779
_LEVEL: Final = "SELECT level FROM epoch WHERE one = 1"

TEXTS: Final[Mapping[str, str]] = statements(
    # A CROSS JOIN of SQLite keeps the order of its tables.
    "gateway.store.sqlite",
    row="row",
    greatest="max",
    join="CROSS JOIN",
)


class Transaction:
    """A `relational.statements.Cursor`. One result at a time: each statement ends the previous one."""

    first_row = 0
    last_row = 2**63 - 1

    def __init__(self, cursor: Any, clock_us: Callable[[], int]) -> None:
        self.cursor = cursor
        """The driver's."""
        self._clock_us = clock_us

    @property
    def now_us(self) -> int:
        return self._clock_us()

    def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        found: list[Row] = self.cursor.execute(TEXTS[statement], bindings).fetchall()
        return found

    def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return self.cursor.execute(TEXTS[statement], bindings).fetchone()

    def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        changes: int = self.cursor.execute(TEXTS[statement], bindings).connection.changes()
        return changes

    # Its lock excludes every other transaction.
    due = rows

    def inserted_row(self, _operation_id: UUID, /) -> Any:
        return self.cursor.connection.last_insert_rowid()

    def forget_token(self, _token: int, /) -> None:
        """Nothing: the sequence outlives every record."""

    def state(self) -> object:
        # https://sqlite.org/pragma.html#pragma_data_version: commits of this connection do not change it.
        return self.cursor.connection, self.cursor.execute("PRAGMA data_version").fetchone()[0]

    def tokens(self) -> _Tokens:
        return _Tokens(self)


class _Tokens:
    """The sequence is read for the first token, and written once at the end."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._read: int | None = None
        self._last: int | None = None

    def draw(self, _record: Record | None, _command: Command, /) -> int:
        if self._last is None:
            self._read = self._last = int(self._transaction.row("select_sequence")[0])
        self._last += 1
        return self._last

    def take_back(self) -> None:
        if self._last is not None:
            self._last -= 1

    def keep(self) -> None:
        if self._last != self._read:
            self._transaction.change("update_sequence", (self._last,))


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
        level.check(cursor.execute(_LEVEL).fetchone()[0])
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
        cursor.execute(TEXTS["raise_level"], (level.PROGRAM_LEVEL,))
