"""Bodies on their way in: whole or not at all, bounded, and with no file left behind."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from gateway.protect.request import Spool, SpoolFailed, TakenBody
from gateway.upstream import FileBody
from gateway.upstream.connection import FileReader
from tests.support.coordination import Pieces

KIB = 1024
BYTES_MAX = 1024 * KIB


def descriptors(directory: Path) -> list[str]:
    """The files in this directory that this process has open, those without a name included."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(entry.readlink())
            if target.startswith(str(directory)):
                found.append(target)
    return found


async def take(directory: Path, length: int) -> TakenBody | None:
    return await Spool(directory).take(Pieces(*pieces(length)), bytes_max=BYTES_MAX, spool_over_bytes=64 * KIB)


def pieces(length: int) -> list[bytes]:
    """That many bytes, no two pieces alike."""
    whole = b"".join(b"%08d" % number for number in range(length // 8 + 1))[:length]
    return [whole[start : start + 10_000] for start in range(0, length, 10_000)]


async def test_an_encrypted_file(tmp_path: Path) -> None:
    """It has no name, nothing of the body is in it, and each way to read it gives the body."""
    parts = pieces(600 * KIB + 7)
    body = b"".join(parts)
    taken = await Spool(tmp_path, encrypts=True).take(Pieces(*parts), bytes_max=BYTES_MAX, spool_over_bytes=KIB)
    assert taken is not None
    outbound = taken.outbound()
    assert isinstance(outbound, FileBody)
    assert os.fstat(outbound.descriptor).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - not in a loop that serves
    stored = os.pread(outbound.descriptor, BYTES_MAX, 0)
    assert len(stored) == len(body)
    assert not any(stored[at : at + 8] == body[at : at + 8] for at in range(0, len(body), 8))
    assert taken.digest == sha256(body).digest()
    assert b"".join([chunk async for chunk in taken.stream()]) == body
    assert await taken.read(bytes) == body
    with closing(FileReader(outbound)) as reader, ThreadPoolExecutor() as executor:
        assert b"".join([chunk async for chunk in reader.chunks(executor)]) == body
    taken.close()


async def test_longer_than_its_limit(tmp_path: Path) -> None:
    """A body that turns out to be too long is refused, and nothing is left open."""
    assert await take(tmp_path, BYTES_MAX + 1) is None
    assert descriptors(tmp_path) == []


@pytest.mark.parametrize("steps", range(1, 25))
async def test_cancelled_at_any_step(tmp_path: Path, steps: int) -> None:
    """Wherever it is cancelled, also while a file is being opened or written, the file is closed in the end."""
    taking = asyncio.create_task(take(tmp_path, 600 * KIB))
    for _ in range(steps):
        await asyncio.sleep(0)
    taking.cancel()
    taken = (await asyncio.gather(taking, return_exceptions=True))[0]
    if isinstance(taken, TakenBody):
        taken.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert descriptors(tmp_path) == []


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond 100 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * KIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("length", [100 * KIB + 1, 300 * KIB, 700 * KIB], ids=["last-bytes", "first-write", "later"])
async def test_the_disk_is_full(tmp_path: Path, length: int) -> None:
    """Whenever it fills up, also at the last bytes, it is told as such and leaves nothing."""
    with pytest.raises(SpoolFailed, match="could not be kept"):
        await take(tmp_path, length)
    assert descriptors(tmp_path) == []


def disk(size_bytes: int, free_bytes: int) -> os.statvfs_result:
    block = 4096
    return os.statvfs_result(
        (block, block, size_bytes // block, free_bytes // block, free_bytes // block, 0, 0, 0, 0, 255)
    )


@pytest.mark.parametrize(
    ("size_bytes", "left_bytes"), [(100 << 20, 10 << 20), (100 << 30, 256 << 20)], ids=["small-disk", "large-disk"]
)
async def test_the_last_of_the_disk_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, left_bytes: int
) -> None:
    """The journal needs it, and a store on the same disk; bodies are refused before it is touched."""
    free_bytes = [left_bytes + (1 << 20), left_bytes - (1 << 20)]
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(size_bytes, free_bytes.pop(0)))
    taken = await take(tmp_path, 200 * KIB)
    assert taken is not None
    taken.close()
    with pytest.raises(SpoolFailed, match="for the journal and the store"):
        await take(tmp_path, 200 * KIB)
    assert descriptors(tmp_path) == []


class SlowFile(io.FileIO):
    """Whose reads last until it is closed under them, or else for a moment."""

    is_closed_under_read = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_read, self._is_to_be_closed = threading.Event(), threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        self.is_read.set()
        self.is_closed_under_read = self._is_to_be_closed.wait(0.2)
        return b"its bytes"

    def close(self) -> None:
        self._is_to_be_closed.set()
        super().close()


async def test_a_file_is_not_closed_under_a_read(tmp_path: Path) -> None:
    """What its descriptor stands for next may be the body of another caller."""
    (tmp_path / "body").write_bytes(b"its bytes")
    file = SlowFile(tmp_path / "body")
    body = TakenBody(cast(BinaryIO, file), 9)
    stream = body.stream()
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(file.is_read.wait)
    body.close()
    assert await reading == b"its bytes"
    assert (file.closed, file.is_closed_under_read) == (True, False)
    with pytest.raises(SpoolFailed):
        await anext(stream)
