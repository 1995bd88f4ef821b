"""Directories whose names are on the disk.

A file that was synced is lost all the same in a loss of power, where a directory above it was only named in memory.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Make the directory (0700) and what is above it where they are missing; their names are durable then."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One that is there may have been made by a process that came no further.
    for made in missing or [directory]:
        sync_directory(made.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
