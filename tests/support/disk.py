"""A disk that can be full: a small file system where one may be mounted, else a limit on the length of files."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_SIZE = "4m"


class Disk(Protocol):
    """`directory` is on it. What is there stays there; when it is full nothing is added."""

    directory: Path

    def fill(self, pid: int) -> None:
        """Leave no room. What the process then frees of its own it may use again, until it is filled once more."""

    def empty(self, pid: int) -> None:
        """There is room again."""


class _Mounted:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._filler = directory / "filler"

    def fill(self, _: int) -> None:
        with self._filler.open("ab", buffering=0) as filler:
            for size in (65_536, 4_096, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    continue

    def empty(self, _: int) -> None:
        self._filler.unlink()


class _Limited:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self, pid: int) -> None:
        size = max(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def empty(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_disk(directory: Path) -> Iterator[Disk]:
    """One at `directory`, which is made."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "gateway-tests", str(directory)]
    try:
        is_mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        yield _Limited(directory)
        return
    try:
        yield _Mounted(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
