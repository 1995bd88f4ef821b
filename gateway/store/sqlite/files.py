"""The place of an embedded database: made private, and refused where its commits could not be trusted.

It knows paths and permissions, not what is in the file. Everything it refuses, it refuses before anything was written.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from gateway.store.base import NotApplied, StartRefused
from gateway.store.directories import make_directory

FileId = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""

# The write-ahead log needs shared memory and working locks between all who open the file.
_NETWORK_FILESYSTEMS: Final = (
    "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "gfs2", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs",
)  # fmt: skip


def prepare(path: Path) -> FileId:
    """Make the directory (0700) and the file (0600) where they are missing. Raises `StartRefused`."""
    directory = path.parent
    try:
        if not directory.exists():
            make_directory(directory)
        _check_directory(directory)
        if (filesystem := filesystem_of(directory)) in _NETWORK_FILESYSTEMS:
            raise StartRefused(
                f"{directory} is on a network file system ({filesystem}), where SQLite's locks cannot be trusted; "
                "use a local disk, or Postgres"
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return _check_file(path, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError | FileExistsError):
            raise StartRefused(f"cannot write {path}: {error.strerror}") from error
        raise NotApplied(f"cannot open {path}: {error.strerror}") from error


def _check_directory(directory: Path) -> None:
    mode = directory.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise StartRefused(f"{directory} is not a directory")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise StartRefused(f"{directory} can be written by everybody; run: chmod o-w {directory}")


def _check_file(path: Path, descriptor: int) -> FileId:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise StartRefused(f"{path} is not a file")
    if status.st_mode & 0o077:
        # The log and the shared memory get the mode of the file, so this must come before they are made.
        os.fchmod(descriptor, 0o600)
    return status.st_dev, status.st_ino


def file_id(path: Path) -> FileId | None:
    """Which file has this name now; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def filesystem_of(directory: Path) -> str:
    """The type of the file system that holds the directory, as Linux names it; empty where that cannot be found out."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    # proc(5): identifiers, device, root, mount point, options … then " - ", type, source, options.
    for mount in mounts:
        described, _, filesystem = mount.partition(" - ")
        if described.split()[2] == wanted:
            return filesystem.split()[0]
    return ""
