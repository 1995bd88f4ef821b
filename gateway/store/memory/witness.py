"""The witness of a link: what proves that the data has everything that was acknowledged over it (`store.epoch`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from gateway.store.base import EpochChanged
from gateway.store.memory.epoch import WitnessNote, memory_digest, missing
from gateway.store.memory.witness_files import Reading, WitnessFiles
from gateway.store.operations import WITNESS_KEEP_US, Epoch

if TYPE_CHECKING:
    from gateway.store.relational.executor import Cursor


class Witness:
    """The witness of a link over which a store changes its data, from one start to the next. `files` are open.

    It raises and compares the link's number inside a transaction, and notes it before the caller receives the results
    that it stands for. `epoch` explains what the numbers prove. Only for the thread of the link.
    """

    def __init__(self, files: WitnessFiles, place: int) -> None:
        """`place` is the link's place in the files."""
        self._files = files
        self._place = place
        self.begin()

    def begin(self) -> None:
        """Begin anew, with a link of which nothing is known."""
        self.link = uuid4()
        self.number = 0
        """What was acknowledged last; 0 for nothing."""
        self._memory = b""
        self._compared: object = None
        self._reading: Reading | None = None

    async def compare(self, cursor: Cursor, now_us: int) -> None:
        """Compare the data with all notes, unless it is as it was then but for changes of this link's.

        Raises `EpochChanged`, before anything was changed.
        """
        state = cursor.state()
        if state == self._compared:
            return
        # Before the epoch that they are compared with.
        reading = self._files.read()
        epoch = await read_epoch(cursor, now_us, (note.link for note in reading.notes))
        why = missing(reading.notes, epoch, self._files.beyond)
        if why is not None:
            raise EpochChanged(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, state

    async def raise_(self, cursor: Cursor, now_us: int) -> int:
        """Raise and return the number. Raises `EpochChanged` if it is behind what was acknowledged."""
        # A number that nobody lowered is raised without reading it.
        if self.number and await cursor.change("advance_witness", (self.link.bytes, self.number)):
            return self.number + 1
        # Fetch all rows: the change is complete only after the last one.
        ((number,),) = await cursor.rows("raise_witness", (self.link.bytes, now_us + WITNESS_KEEP_US))
        if number <= self.number:
            raise EpochChanged("the store lacks changes that it had acknowledged")
        return int(number)

    def acknowledge(self, number: int, now_us: int) -> None:
        """Note the number; the transaction that raised it is committed."""
        self.number = number
        self._files.write(self._place, WitnessNote(self.link, number, now_us, self._files.beyond, self._memory))
        if self._reading is not None:
            self._files.cover(self._reading)
            self._reading = None


async def read_epoch(cursor: Cursor, now_us: int, links: Iterable[UUID] = ()) -> Epoch:
    """The data's epoch, with the witnesses of these links."""
    identity, token, memo, generation, level = await cursor.row("select_epoch")
    witnesses = {}
    for link in links:
        for (number,) in await cursor.rows("select_witness", (link.bytes,)):
            witnesses[link] = int(number)
    return Epoch(identity, int(token), now_us, memo, generation, witnesses, level=int(level))


async def check_memory(cursor: Cursor, links: Collection[UUID] = ()) -> Epoch:
    """The data's epoch as of this moment, with the witnesses of these links."""
    return await read_epoch(cursor, cursor.now_us, links)


async def begin_epoch(cursor: Cursor, memo: bytes, beyond_token: int) -> None:
    """Replace the memo, and draw only tokens above this one from now on."""
    await cursor.change("update_memo", (memo,))
    await cursor.change("advance_sequence", (beyond_token,))
