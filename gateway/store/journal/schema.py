"""The schema of a journal's file: how a new file gets it, what tells a journal from another file, and its statements.

It owns the version of the schema, and works on a path or a handle that it is given. Who may open a file, and what an
error of SQLite means then, is said by those who open it: the owner (`journal_file`) and visitors (`journal_visit`).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import apsw

from gateway.store.base import StartRefused

SCHEMA_VERSION: Final = 1
# "igjl": says that a file is a journal of ours, as `PRAGMA application_id`.
APPLICATION_ID: Final = 0x69676A6C

# What an operator who looks in may keep us waiting.
BUSY_MS: Final = 1_000
# What SQLite raises for a file that was a journal once, or never.
DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)

Handle = apsw.Connection | apsw.Cursor


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
