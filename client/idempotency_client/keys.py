"""Keys of intents, which outlive the program that made them.

A key is safe before anything is sent under it, and none is replaced: a second key for one intent is how a card is
charged twice. So a file that is full takes no further intent, and drops none.
"""

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

Keys = Callable[[str], str]
"""The key of an intent by its name: the same one every time and in every process, and safe before this returns."""


class New(str):
    """A key that this very call has made. Under one that is a mere `str` something may have been sent before."""

    __slots__ = ()


class FileKeys:
    """Keys in a file, for all threads and processes of a host: a database, which locks and syncs."""

    def __init__(self, path: Path | str, *, intents_max: int = 1_000_000) -> None:
        """The file is made where there is none; its directory is not."""
        self._path, self._intents_max = path, intents_max
        with self._open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS keys (intent TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID")

    def __call__(self, intent: str) -> str:
        """See `Keys`. Raises RuntimeError where the file is full."""
        with self._open() as db:
            if found := db.execute("SELECT key FROM keys WHERE intent = ?", (intent,)).fetchone():
                return str(found[0])
            (count,) = db.execute("SELECT count(*) FROM keys").fetchone()
            if count >= self._intents_max:
                raise RuntimeError(f"{self._path} holds {count} intents: forget those that are settled")
            key = New(uuid.uuid4())
            db.execute("INSERT INTO keys VALUES (?, ?)", (intent, key))
        return key

    def forget(self, intent: str) -> None:
        """Drop the key of an intent that is settled, and whose name never comes again: it would get another key."""
        with self._open() as db:
            db.execute("DELETE FROM keys WHERE intent = ?", (intent,))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction, beside which nobody else writes."""
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db
