"""The witness of the link over which one store changes an SQLite file.

It owns the link's number: how it is raised and compared inside a transaction, and that it is noted before anybody hears
what it stands for. What the numbers prove, `epoch` says. Used in the writer's thread alone.
"""

from __future__ import annotations

from uuid import uuid4

from gateway.store.base import EpochChanged
from gateway.store.epoch import WitnessNote, memory_digest, missing
from gateway.store.sqlite import statements as sql
from gateway.store.witness_files import Reading, WitnessFiles

_PLACE = 0


class Witness:
    """One from a start of the store to the next. `files` are open."""

    def __init__(self, files: WitnessFiles) -> None:
        self._files = files
        self._link = uuid4()
        self._number = 0
        self._memory = b""
        # The connection that was compared, and its count of what others committed.
        self._compared: tuple[object, int] | None = None
        self._reading = Reading()

    def compare(self, cursor: sql.Cursor, now_us: int) -> None:
        """Compare the file with all notes, where others may have changed it since the last transaction.

        Raises `EpochChanged`, before anything was changed.
        """
        # https://sqlite.org/pragma.html#pragma_data_version: it stays as it is with commits of this connection.
        version = cursor.execute("PRAGMA data_version").fetchone()[0]
        compared = (cursor.connection, version)
        if compared == self._compared:
            return
        reading = self._files.read()
        epoch = sql.look_epoch(cursor, now_us, (note.link for note in reading.notes))
        why = missing(reading.notes, epoch, self._files.beyond)
        if why is not None:
            raise EpochChanged(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, compared

    def raise_(self, cursor: sql.Cursor, now_us: int) -> int:
        """Raise the number. Raises `EpochChanged` where it is behind what was acknowledged."""
        number = sql.raise_witness(cursor, self._link, now_us)
        if number <= self._number:
            raise EpochChanged("the file lacks changes that it had acknowledged")
        return number

    def acknowledge(self, number: int, now_us: int) -> None:
        """The transaction that raised it is committed."""
        self._number = number
        self._files.write(_PLACE, WitnessNote(self._link, number, now_us, self._files.beyond, self._memory))
        self._files.cover(self._reading)
