"""The witness of a link to a store whose transactions execute the table; `epoch` explains what its numbers prove."""

from __future__ import annotations

from uuid import uuid4

from gateway.store.base import EpochChanged
from gateway.store.memory.epoch import WitnessNote, memory_digest, missing
from gateway.store.memory.witness_files import Reading, WitnessFiles
from gateway.store.operations import WITNESS_KEEP_US
from gateway.store.relational import statements as sql
from gateway.store.relational.statements import Cursor


class Witness:
    """The witness of a link over which a store changes its data, from one start to the next. `files` are open.

    It raises and compares the link's number inside a transaction, and notes it before the caller receives the results
    that it stands for. Only for the thread of the link.
    """

    def __init__(self, files: WitnessFiles, place: int) -> None:
        """`place` is the link's place in the files."""
        self._files = files
        self._place = place
        self._link = uuid4()
        self._number = 0
        self._memory = b""
        self._compared: object = None
        self._reading = Reading()

    def compare(self, cursor: Cursor, now_us: int) -> None:
        """Compare the data with all notes, unless it is as it was then but for changes of this link's.

        Raises `EpochChanged`, before anything was changed.
        """
        state = cursor.state()
        if state == self._compared:
            return
        reading = self._files.read()
        epoch = sql.check_memory(cursor, now_us, (note.link for note in reading.notes))
        why = missing(reading.notes, epoch, self._files.beyond)
        if why is not None:
            raise EpochChanged(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, state

    def raise_(self, cursor: Cursor, now_us: int) -> int:
        """Raise and return the number. Raises `EpochChanged` if it is behind what was acknowledged."""
        if self._number and cursor.change("advance_witness", (self._link.bytes, self._number)):
            # The number that was acknowledged last saves reading the row.
            return self._number + 1
        # Fetch all rows: the change is complete only after the last one.
        ((found,),) = cursor.rows("raise_witness", (self._link.bytes, now_us + WITNESS_KEEP_US))
        number = int(found)
        if number <= self._number:
            raise EpochChanged("the store lacks changes that it had acknowledged")
        return number

    def acknowledge(self, number: int, now_us: int) -> None:
        """Note the number; the transaction that raised it is committed."""
        self._number = number
        self._files.write(self._place, WitnessNote(self._link, number, now_us, self._files.beyond, self._memory))
        if self._reading.ended:
            self._files.cover(self._reading)
            self._reading = Reading()
