"""Files of a process that others find: what makes their directory entries durable, and one file for each worker."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final
from uuid import uuid4

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
# Files of which each worker of a host has one, for others to read when it has ended. It owns their names and locks.
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
