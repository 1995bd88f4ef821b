"""Directories whose entries are durable.

A synced file is still lost in a power loss if the entry of a directory above it was never synced.
"""

from __future__ import annotations

import os
from pathlib import Path


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
