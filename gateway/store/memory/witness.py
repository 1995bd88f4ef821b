"""The witness of a link: what proves that the data has everything that was acknowledged over it (`store.epoch`)."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from gateway.store.base import EpochChanged, StartRefused
from gateway.store.files import WorkerFile, lock
from gateway.store.memory.epoch import WitnessNote, memory_digest, missing
from gateway.store.operations import WITNESS_KEEP_US, Epoch

# -- witness_files -----------------------------------------------------------------------------------------------------
#
# The files in which the workers of a host note what the durable store acknowledged to them.
#
# It owns their bytes, and draws no conclusions (`epoch` does). All workers read the files of ended workers, and remove
# them once a later acknowledgement stands for them. A note is one small write at a fixed place, with a checksum. When
# `write` returns, the note survives the end of the process; after the next `sync` it is on the disk.

# Links of one worker.
PLACES: Final = 8
SUFFIX: Final = ".notes"

_LOG = logging.getLogger("gateway")

# Link, number, time, token of the last known loss, memory; then the checksum of these.
_NOTE: Final = struct.Struct("<16sQqQ16s")
_CHECKSUM: Final = struct.Struct("<I4x")
_NOTE_BYTES: Final = _NOTE.size + _CHECKSUM.size
_UNUSED: Final = bytes(_NOTE_BYTES)
# A reader may meet a write half done, but hardly this often in a row.
_READ_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """The notes of all workers of the host, and the files of those workers that had ended before."""

    notes: tuple[WitnessNote, ...] = ()
    ended: frozenset[Path] = frozenset()

    @property
    def ended_ids(self) -> list[UUID]:
        """The ids of the ended workers' files."""
        return [id_ for path in self.ended if (id_ := _id_of(path)) is not None]


class WitnessFiles(WorkerFile):
    """One worker's file, and those of the host's other workers. Its verbs block: `open`, `sync` and `close` on the
    disk, the others only in the kernel. They may be called in any thread, `write` in one at a time.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SUFFIX)
        # Without it, a write could reach another file that got the number of the closed descriptor.
        self._lock = threading.Lock()
        self._is_synced = True
        self._has_failed = False
        self._covered: frozenset[Path] = frozenset()
        self._latest: dict[int, WitnessNote] = {}
        self.beyond = 0
        """`Amnesia.beyond` of the last known loss; each new note carries it."""

    @property
    def latest(self) -> tuple[WitnessNote, ...]:
        """This worker's own notes."""
        return tuple(self._latest.values())

    def open(self) -> None:
        """Make this worker's file, unless it is open. Raises `StartRefused`."""
        if self._path is not None:
            return
        try:
            self._make(_UNUSED * PLACES)
        except OSError as error:
            raise StartRefused(f"{self._directory} cannot be written to: {error.strerror}") from error
        self._latest = {}

    def read(self) -> Reading:
        """All current notes. Raises `StartRefused` for a file that cannot be read."""
        for _ in range(_READ_TRIES):
            try:
                paths = self._paths()
            except FileNotFoundError:
                return Reading()
            except OSError as error:
                raise _unreadable(self._directory, error) from error
            try:
                return self._read_all(paths)
            except FileNotFoundError:
                # Another worker removed it, and may have made its own file after this listing: list again.
                continue
        raise _unreadable(self._directory, "its files keep disappearing, or are dangling links")

    def write(self, place: int, note: WitnessNote) -> None:
        """Keep the latest note of one of this worker's links. The first of several failed writes is logged."""
        self._latest[place] = note
        values = _NOTE.pack(note.link.bytes, note.number, note.at_us, note.beyond, note.memory)
        try:
            with self._lock:
                os.pwrite(self._descriptor, values + _CHECKSUM.pack(zlib.crc32(values)), place * _NOTE_BYTES)
        except OSError as error:
            if not self._has_failed:
                _LOG.error("what the durable store acknowledged could not be noted in %s: %s", self._path, error)
            self._has_failed = True
        else:
            self._is_synced = self._has_failed = False

    def cover(self, reading: Reading) -> None:
        """Mark the ended files of this reading for removal: after it was compared, a new number was acknowledged and
        noted, which stands for all notes in it."""
        self._covered |= reading.ended

    def sync(self) -> None:
        """Sync this worker's notes to the disk, and remove the files that they stand for. Raises OSError."""
        if self._is_synced or self._path is None:
            return
        self._is_synced, covered = True, self._covered
        try:
            os.fsync(self._descriptor)
        except OSError:
            self._is_synced = False
            raise
        for path in covered:
            path.unlink(missing_ok=True)
        self._covered -= covered

    def close(self) -> None:
        """Release this worker's file; it stays for later workers to read. Raises OSError."""
        if self._path is None:
            return
        try:
            self.sync()
        finally:
            with self._lock:
                self._release()

    def _read_all(self, paths: list[Path]) -> Reading:
        notes: list[WitnessNote] = []
        ended: set[Path] = set()
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    # Check the lock before reading: a worker that has ended writes no more.
                    if path != self._path and lock(descriptor, fcntl.LOCK_SH):
                        ended.add(path)
                    notes += _notes_in(descriptor)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                raise
            except (OSError, ValueError) as error:
                raise _unreadable(path, error) from error
        return Reading(tuple(notes), frozenset(ended))


def _id_of(path: Path) -> UUID | None:
    try:
        return UUID(path.stem)
    except ValueError:
        return None


def _unreadable(path: Path, why: object) -> StartRefused:
    return StartRefused(
        f"{path}, the notes of what the durable store acknowledged, cannot be read ({why}); without them a lost memory "
        "could go unnoticed. Repair it, or remove it to trust the store as it is"
    )


def _notes_in(descriptor: int) -> list[WitnessNote]:
    """The notes of one file. Raises ValueError for bytes that are no notes."""
    size = os.fstat(descriptor).st_size
    if size != PLACES * _NOTE_BYTES:
        raise ValueError(f"it has {size} bytes")
    notes = (_note_at(descriptor, place) for place in range(PLACES))
    return [note for note in notes if note is not None]


def _note_at(descriptor: int, place: int) -> WitnessNote | None:
    for _ in range(_READ_TRIES):
        found = os.pread(descriptor, _NOTE_BYTES, place * _NOTE_BYTES)
        if found == _UNUSED:
            return None
        values = found[: _NOTE.size]
        if found[_NOTE.size :] == _CHECKSUM.pack(zlib.crc32(values)):
            link, number, at_us, beyond, memory = _NOTE.unpack(values)
            return WitnessNote(UUID(bytes=link), number, at_us, beyond, memory)
    raise ValueError(f"the checksum of note {place} is wrong")


# -- witness -----------------------------------------------------------------------------------------------------------

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
