"""The places of a journal's files: their names and their locks.

It knows paths and descriptors, not what is in a file. The lock is an advisory one on a file beside the database, held
by an open descriptor: it ends with the process, whatever ended that. It is a file of its own because closing any
descriptor of the database would drop SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from gateway.store.sqlite.files import file_id

SUFFIX: Final = ".db"


def lock(path: Path) -> int | None:
    """Own the journal file at `path` until the returned descriptor is closed; None when somebody else does."""
    beside = path.with_suffix(".lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The owner before may have removed what we opened: then it locks nothing any more.
        status = os.fstat(descriptor)
        if file_id(beside) == (status.st_dev, status.st_ino):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock(path: Path, descriptor: int) -> None:
    """Give the ownership back, and the lock's file with it when there is nothing to own any more."""
    if not path.exists():
        path.with_suffix(".lock").unlink(missing_ok=True)
    os.close(descriptor)


def named(directory: Path, prefix: str = "") -> list[Path]:
    """The journal files in a directory whose names begin so."""
    return sorted(directory.glob(f"{prefix}*{SUFFIX}"))


def remove(path: Path) -> None:
    """Remove a database that nobody has open, and what SQLite keeps beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


def remove_unborn(directory: Path) -> None:
    """Clear away files whose making was cut off: nothing was ever in them."""
    for unborn in directory.glob("*.new"):
        path = unborn.with_suffix(SUFFIX)
        descriptor = lock(path)
        if descriptor is not None:
            remove(unborn)
            unlock(path, descriptor)
