"""A transaction of SQLite as `relational` uses it: statements by their names, the clock, and the fencing tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.store import level
from gateway.store.base import StartRefused
from gateway.store.relational.executor import Cursor
from gateway.store.relational.rows import Row
from gateway.store.relational.statements import SHARED_TABLES, statements, texts_of
from gateway.store.relational.sweep import SWEPT

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
    """One for each connection, whose transactions follow one another: its lock excludes every other one. One result at
    a time: each statement ends the previous one."""

    __slots__ = ("_clock_us", "_drawn", "_sequence", "connection", "cursor")

    first_row = 0
    last_row = 2**63 - 1
    swept = SWEPT

    def __init__(self, cursor: Any, clock_us: Callable[[], int]) -> None:
        self.cursor = cursor
        """The driver's."""
        self.connection = cursor.connection
        self._clock_us = clock_us
        # The sequence is read for the first token of a transaction, and written once at its end.
        self._sequence = 0
        self._drawn = 0

    @property
    def now_us(self) -> int:
        return self._clock_us()

    async def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        found: list[Row] = self.cursor.execute(TEXTS[statement], bindings).fetchall()
        return found

    async def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return self.cursor.execute(TEXTS[statement], bindings).fetchone()

    async def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        self.cursor.execute(TEXTS[statement], bindings)
        changes: int = self.connection.changes()
        return changes

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        found: list[Row] = self.cursor.executemany(TEXTS[statement], [(key, *bindings) for key in keys]).fetchall()
        return found

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        self.cursor.executemany(TEXTS[statement], bindings)

    def state(self) -> object:
        # https://sqlite.org/pragma.html#pragma_data_version: commits of this connection do not change it.
        return self.connection, self.cursor.execute("PRAGMA data_version").fetchone()[0]

    def begin_tokens(self) -> None:
        self._drawn = 0

    def draw(self) -> int:
        if not self._drawn:
            self._sequence = int(self.cursor.execute(_SELECT_SEQUENCE).fetchone()[0])
        self._drawn += 1
        return self._sequence + self._drawn

    def take_back_token(self) -> None:
        self._drawn -= 1

    def keep_tokens(self) -> None:
        if self._drawn:
            self.cursor.execute(_UPDATE_SEQUENCE, (self._sequence + self._drawn,))


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
