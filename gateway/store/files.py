"""Files of a process that others find: what makes their directory entries durable, one file for each worker, and the
marks of what the workers' attempts have sent.

*Marks.* A process that is killed leaves claims behind, which would lapse into doubt. These marks outlive it. A worker
marks an attempt before it asks for the claim, and once more before the first byte goes out. When it has died, other
workers of the host read under which of its attempts nothing was sent, so that surely nothing happened; of those with
the second mark it is known that their holder has ended. An attempt without a mark proves nothing.

A worker writes to its file in memory that it shares with the kernel: a mark costs no system call, and is there as soon
as it is written, however the process ends. It is not written to the disk, so it proves nothing after the machine itself
was down: a file names the boot of the machine that it was written in, and one of another boot is removed unread.

An older copy that is put back would say "unsent" of what was sent since. So a file has the time of its last mark too.
The kernel notes when a file was changed, which no program can set: a file that was changed after its last mark was not
changed by its worker, and proves nothing. Nor does one whose last mark is old, as after a file system was rolled back:
that is measured by the clock that counts from the boot, which nobody sets.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from gateway.core import immutable

# -- directories -------------------------------------------------------------------------------------------------------
#
# A synced file is still lost in a power loss if the entry of a directory above it was never synced.


def make_directory(directory: Path) -> None:
    """Make the directory (0700) and its parents if they are missing, and make their entries durable."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Also an existing one: the process that made it may have died before it synced.
    for made in missing or [directory]:
        sync_directory(made.parent)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- one file for each worker ------------------------------------------------------------------------------------------
#
# A worker locks its file for as long as it runs, however it ends. So whoever can lock a file knows that nobody writes
# to it any more. A file is seen by others once it is whole.

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_of_this_machine() -> bytes:
    """A name that this boot of this machine shares with no other; empty where there is none."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b""


class WorkerFile:
    """The file of this worker in a directory, and those of the others. Everything blocks on the disk."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        self._path: Path | None = None
        self._descriptor = -1
        self.id = uuid4()
        """The name of this worker's file; a new one each time that it is made."""

    def _make(self, content: bytes) -> None:
        """Make this worker's file, with this content and locked. Raises OSError."""
        self.id = uuid4()
        unfinished = self._directory / f".{self.id.hex}"
        path = self._directory / f"{self.id.hex}{self._suffix}"
        make_directory(self._directory)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.pwrite(descriptor, content, 0)
            # Its room on the disk, too: writing to shared memory without it would end the process.
            os.posix_fallocate(descriptor, 0, len(content))
            os.fsync(descriptor)
            unfinished.rename(path)
            sync_directory(self._directory)
        except BaseException:
            os.close(descriptor)
            unfinished.unlink(missing_ok=True)
            raise
        self._path, self._descriptor = path, descriptor

    def _release(self) -> None:
        """Let others have this worker's file."""
        descriptor, self._path, self._descriptor = self._descriptor, None, -1
        os.close(descriptor)

    def _paths(self) -> list[Path]:
        """The files of all workers. Raises OSError."""
        return sorted(path for path in self._directory.iterdir() if path.suffix == self._suffix)


def lock(descriptor: int, operation: int) -> bool:
    """Lock the file of another worker; False where it runs, another one has locked it, or this file system has no
    locks."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- the marks of attempts ---------------------------------------------------------------------------------------------

PLACES: Final = 8192
"""How many attempts can be marked at once. Those beyond have no mark."""
SUFFIX: Final = ".attempts"
NO_PLACE: Final = 0
"""The place of an attempt without a mark."""

_LOG = logging.getLogger("gateway")

# The boot's id, the time of the last mark (ns since the epoch, and since the boot), then the places: operation id,
# attempt id, mark.
_BOOT_BYTES: Final = 56
_TIMES: Final = struct.Struct(">QQ")
_HEAD_BYTES: Final = _BOOT_BYTES + _TIMES.size
_PLACE_BYTES: Final = 33
_FILE_BYTES: Final = _HEAD_BYTES + PLACES * _PLACE_BYTES
_FREE, _UNSENT, _SENT = 0, 1, 2
# The kernel notes the change that a mark makes within this time after the mark was given its own.
_NOTED_WITHIN_NS: Final = 100_000_000
# Long enough for a supervisor to start the gateway again.
_BELIEVED_FOR_NS: Final = 600_000_000_000


_since_boot_ns: Final[Callable[[], int]] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


@immutable
class MarkedAttempt:
    """An attempt that a process had under way when it ended."""

    operation_id: UUID
    attempt_id: UUID


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """What a worker of this host that has ended left behind. No other process has it until it is left or removed.

    `attempts` surely sent nothing. Those that `sent` may have; nobody holds their claims any more.
    """

    path: Path
    descriptor: int
    attempts: tuple[MarkedAttempt, ...]
    sent: tuple[MarkedAttempt, ...]

    def leave(self) -> None:
        """Let other workers take it."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """Nothing is left to do."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("%s cannot be removed: %s", self.path, error.strerror or error)
        finally:
            os.close(self.descriptor)


class AttemptFiles(WorkerFile):
    """What the attempts of this process have sent, and those of the host's ended workers.

    `open`, `take_ended` and `close` block on the disk. Marking never fails and never waits. Without a file, which is
    logged once, nothing is marked.
    """

    def __init__(
        self,
        directory: Path,
        boot: bytes | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        boot_clock: Callable[[], int] = _since_boot_ns,
    ) -> None:
        """`boot` as `boot_of_this_machine` returns it, which is the default; `clock` returns ns since the epoch, and
        `boot_clock` since the boot.
        """
        super().__init__(directory, SUFFIX)
        self._boot = (boot_of_this_machine() if boot is None else boot)[:_BOOT_BYTES]
        self._clock = clock
        self._boot_clock = boot_clock
        self._marks: mmap.mmap | None = None
        self._free_places: list[int] = []

    def open(self) -> None:
        """Make this worker's file, unless it is open."""
        if self._marks is not None or not self._boot:
            return
        try:
            self._make(self._boot.ljust(_HEAD_BYTES, b"\0") + bytes(_FILE_BYTES - _HEAD_BYTES))
            self._marks = mmap.mmap(self._descriptor, _FILE_BYTES)
        except OSError as error:
            _LOG.warning(
                "what attempts have sent cannot be marked in %s (%s): if this process is killed, all of its operations "
                "in flight come into doubt",
                self._directory,
                error.strerror or error,
            )
            return
        self._free_places = list(range(_HEAD_BYTES, _FILE_BYTES, _PLACE_BYTES))

    def mark_unsent(self, operation_id: UUID, attempt_id: UUID) -> int:
        """Mark an attempt before its claim is asked for; returns its place."""
        marks = self._marks
        if marks is None or not self._free_places:
            return NO_PLACE
        place = self._free_places.pop()
        # The time comes before the mark, here and below: a process that is killed between the two has changed nothing
        # since. The mark comes last: until then the place counts as free.
        marks[_BOOT_BYTES:_HEAD_BYTES] = _TIMES.pack(self._clock(), self._boot_clock())
        marks[place : place + 32] = operation_id.bytes + attempt_id.bytes
        marks[place + 32] = _UNSENT
        return place

    def mark_sent(self, place: int) -> None:
        """Mark it in the step in which its first byte goes out, and before that byte."""
        marks = self._marks
        if place != NO_PLACE and marks is not None:
            marks[_BOOT_BYTES:_HEAD_BYTES] = _TIMES.pack(self._clock(), self._boot_clock())
            marks[place + 32] = _SENT

    def unmark(self, place: int) -> None:
        """Remove the mark: its claim has ended, or nobody will use it."""
        marks = self._marks
        if place != NO_PLACE and marks is not None:
            marks[_BOOT_BYTES:_HEAD_BYTES] = _TIMES.pack(self._clock(), self._boot_clock())
            marks[place + 32] = _FREE
            self._free_places.append(place)

    def take_ended(self) -> list[EndedWorker]:
        """What workers left that have ended since, locked by this process."""
        taken: list[EndedWorker] = []
        try:
            paths = self._paths()
        except OSError:
            return taken
        for path in paths:
            with suppress(OSError):
                if path != self._path and (ended := self._take(path)) is not None:
                    taken.append(ended)
        return taken

    def _take(self, path: Path) -> EndedWorker | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if lock(descriptor, fcntl.LOCK_EX):
                content, changed_ns = os.pread(descriptor, _FILE_BYTES, 0), os.fstat(descriptor).st_ctime_ns
                is_believed = self._is_believed(content, changed_ns)
                unsent, sent = (_marked(content, mark) if is_believed else () for mark in (_UNSENT, _SENT))
                return EndedWorker(path, descriptor, unsent, sent)
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def close(self) -> None:
        """End this worker's marks. Its file stays only if it has some."""
        marks, path = self._marks, self._path
        if marks is None or path is None:
            return
        self._marks = None
        is_empty = len(self._free_places) == PLACES
        self._free_places = []
        marks.close()
        try:
            if is_empty:
                path.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("%s cannot be removed: %s", path, error.strerror or error)
        finally:
            self._release()

    def _is_believed(self, content: bytes, changed_ns: int) -> bool:
        if len(content) != _FILE_BYTES or not self._boot or content[:_BOOT_BYTES].rstrip(b"\0") != self._boot:
            return False
        marked_ns, marked_since_boot_ns = _TIMES.unpack_from(content, _BOOT_BYTES)
        age_ns: int = self._boot_clock() - marked_since_boot_ns
        return changed_ns <= marked_ns + _NOTED_WITHIN_NS and 0 <= age_ns < _BELIEVED_FOR_NS


def _marked(content: bytes, mark: int) -> tuple[MarkedAttempt, ...]:
    """The attempts with this mark."""
    return tuple(
        MarkedAttempt(UUID(bytes=content[place : place + 16]), UUID(bytes=content[place + 16 : place + 32]))
        for place in range(_HEAD_BYTES, _FILE_BYTES, _PLACE_BYTES)
        if content[place + 32] == mark
    )
