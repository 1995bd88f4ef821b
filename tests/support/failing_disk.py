"""A disk that fails SQLite when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw


class FailingDisk(apsw.VFS):
    """The default way to the disk. `fails` names what it refuses: "sync", "write" or "space". `log_syncs` counts how
    often a write-ahead log was synced."""

    def __init__(self) -> None:
        self.name = "failing"
        self.fails: set[str] = set()
        self.log_syncs = 0
        super().__init__(self.name, "", makedefault=True)

    def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 -- SQLite's name
        return _FailingFile(self, name, flags)


class _FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: object, flags: list[int]) -> None:
        self._disk = disk
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("unix", name, flags)  # type: ignore[arg-type]

    def xSync(self, flags: int) -> None:  # noqa: N802 -- SQLite's name
        if "sync" in self._disk.fails:
            raise apsw.IOError("the disk said no")
        self._disk.log_syncs += self._is_log
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 -- SQLite's name
        if "write" in self._disk.fails:
            raise apsw.IOError("the disk said no")
        if "space" in self._disk.fails:
            raise apsw.FullError("the disk is full")
        super().xWrite(data, offset)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    """Every SQLite database that is opened meanwhile is on this disk."""
    usual = apsw.vfs_names()[0]
    disk = FailingDisk()
    try:
        yield disk
    finally:
        apsw.set_default_vfs(usual)
        disk.unregister()
