"""Takes the body of a request in, whole, before anything is claimed: in memory while short, in a file when long.

Owns the files: they are made with mode 0600 and have no name from the start, so nothing is left behind whatever
happens. It does not know what a body means. A body over its limit is refused as soon as that is known, and one that is
cut short raises, so that nothing is ever done for half a request. The last of the disk is left to the journal, and to a
store that is there too: without them, what is executed cannot be recorded.

A body that has yet to arrive needs an upload slot. It costs a client no more than a head, and a byte now and then to
keep it. So the slots are apart from the places of operations, and when all are taken one whose body comes too slowly
loses its own to a newcomer. A body that comes at a pace keeps its slot: under a load of long uploads, what is half here
must not make room for more of the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

from gateway.core.identity.canonical import Body
from gateway.protect.reply import Cut, RequestBody, RequestCut
from gateway.upstream.request import closed_after
from gateway.upstream.result import FileBody

# A longer body is read in a thread.
INLINE_BYTES_MAX: Final = 16 << 10

_WRITE_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 256 * 1024
# What is left of the disk: the last tenth, but no more than that.
_LEFT_SHARE: Final = 10
_LEFT_BYTES_MAX: Final = 256 * 1024 * 1024

Result = TypeVar("Result")


@dataclass(slots=True)
class TakenBody:
    """A whole body. `digest` is the SHA-256 of its bytes, known already where it was hashed while it came in."""

    content: bytes | BinaryIO = field(repr=False)
    length: int
    digest: bytes | None = None
    is_closed: bool = field(default=False, init=False)

    def outbound(self) -> bytes | FileBody:
        """The body as the upstream client takes it. Valid until `close`; raises ValueError after it."""
        if self.is_closed:
            raise ValueError("the body was let go")
        if isinstance(self.content, bytes):
            return self.content
        return FileBody(self.content.fileno(), self.length)

    def close(self) -> None:
        """Let file and memory go. May be called more than once."""
        if not isinstance(self.content, bytes):
            self.content.close()
        self.content = b""
        self.is_closed = True

    async def read(self, use: Callable[[Body], Result]) -> Result:
        """What `use` makes of the bytes, without holding up the event loop: a short body is read where it stands, a
        long one, or one in a file, in a thread. The result depends on the bytes alone, never on where they are kept.

        Cancelled, it leaves a thread that ends by itself and holds the file's content, not the file: the body may be
        closed.
        """
        body = self.content
        if isinstance(body, bytes):
            return use(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(use, body)
        if os.fstat(body.fileno()).st_size == 0:
            return use(b"")
        # Mapped before the thread starts: the mapping is its own, whatever becomes of the file object.
        mapped = mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return await asyncio.to_thread(_use_and_close, mapped, use)
        except asyncio.CancelledError:
            # The thread may not have started, and then never will. One that reads closes it when it is done.
            with contextlib.suppress(BufferError):
                mapped.close()
            raise


def _use_and_close(mapped: mmap.mmap, use: Callable[[Body], Result]) -> Result:
    with mapped:
        return use(mapped)


class WholeBody:
    """A taken body as the body of a request that is forwarded after all."""

    def __init__(self, taken: TakenBody) -> None:
        self._taken = taken
        # A descriptor that is closed under a reading thread could hand it another request's bytes.
        self._lock = threading.Lock()
        self.length: int | None = taken.length

    def whole(self) -> bytes | None:
        """Its bytes, where they are in memory."""
        if self._taken.is_closed:
            raise ValueError("the body was let go")
        content = self._taken.content
        return content if isinstance(content, bytes) else None

    async def stream(self) -> AsyncIterator[bytes]:
        """Its bytes."""
        if self._taken.is_closed:
            raise ValueError("the body was let go")
        content = self._taken.content
        if isinstance(content, bytes):
            yield content
            return
        content.seek(0)
        while chunk := await _at_disk(self._read, content):
            yield chunk

    def _read(self, content: BinaryIO) -> bytes:
        with self._lock:
            if self._taken.is_closed:
                raise SpoolFailed("nobody waits for the body any more")
            return content.read(_READ_BYTES)

    def crowd_out(self) -> bool:
        """Never: it is here."""
        return False

    def close(self) -> None:
        """Let the file go, after a read that is under way."""
        with self._lock:
            self._taken.close()


def taken_now(body: RequestBody, *, bytes_max: int) -> TakenBody | None:
    """The body, where it is here whole and no longer than that; None takes nothing away."""
    if body.length is None or body.length > bytes_max:
        return None
    whole = body.whole()
    return None if whole is None else TakenBody(whole, len(whole))


class SpoolFailed(Exception):
    """The disk took no more. Nothing was done for the request."""


class Spool:
    """Makes taken bodies. `directory` must be there and belong to this program."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def take(self, body: RequestBody, *, bytes_max: int, spool_over_bytes: int) -> TakenBody | None:
        """The body, or None when it is longer than `bytes_max`. Cancelled or cut short, it leaves nothing.

        Raises what the body raises when it is cut short, and `SpoolFailed`.
        """
        if body.length is not None and body.length > bytes_max:
            return None
        async with closed_after(body.stream()) as chunks:
            return await self._take(chunks, bytes_max, spool_over_bytes)

    async def _take(self, chunks: AsyncIterator[bytes], bytes_max: int, spool_over_bytes: int) -> TakenBody | None:
        parts: list[bytes] = []
        length = 0
        while length <= min(spool_over_bytes, bytes_max):
            chunk = await anext(chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            length += len(chunk)
        if length > bytes_max:
            return None
        if length > spool_over_bytes:
            return await self._take_to_file(b"".join(parts), chunks, bytes_max)
        return TakenBody(parts[0] if len(parts) == 1 else b"".join(parts), length)

    async def _take_to_file(self, begun: bytes, chunks: AsyncIterator[bytes], bytes_max: int) -> TakenBody | None:
        file = _GrowingFile(self._directory)
        length = len(begun)
        buffer = bytearray(begun)
        is_whole = False
        try:
            async for chunk in chunks:
                length += len(chunk)
                if length > bytes_max:
                    return None
                buffer += chunk
                if len(buffer) >= _WRITE_BYTES:
                    await _at_disk(file.write, bytes(buffer))
                    buffer.clear()
            content, digest = await _at_disk(file.finish, bytes(buffer))
            is_whole = True
        finally:
            if not is_whole:
                file.give_up()
        return TakenBody(content, length, digest)


class _GrowingFile:
    """The file of a body that is still coming in, and the hash of what is in it.

    Opened and written in threads, which run on when whoever asked for them is cancelled; what they then still have to
    do is nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._hash = sha256()
        self._is_given_up = False

    def write(self, data: bytes) -> None:
        with self._lock:
            self._write(data)

    def finish(self, data: bytes) -> tuple[BinaryIO, bytes]:
        """Write the last bytes; returns the file and the digest of all of it."""
        with self._lock:
            return self._write(data), self._hash.digest()

    def give_up(self) -> None:
        """Let the file go, after a write that is under way."""
        with self._lock:
            self._is_given_up = True
            if self._file is not None:
                self._file.close()

    def _write(self, data: bytes) -> BinaryIO:
        if self._is_given_up:
            raise SpoolFailed("nobody waits for the body any more")
        if self._file is None:
            # Without a buffer, so that nothing is left to be written, and to fail, when it is closed.
            self._file = _unnamed_file(self._directory)
        _check_room(self._file.fileno())
        self._hash.update(data)
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        return self._file


def _check_room(descriptor: int) -> None:
    """Raises OSError where too little is left of the disk that this file is on."""
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail < min(disk.f_blocks // _LEFT_SHARE, _LEFT_BYTES_MAX // disk.f_frsize):
        raise OSError(errno.ENOSPC, "what is left of it is for the journal and the store")


def _unnamed_file(directory: Path) -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile(dir=directory, prefix="body-", buffering=0))


async def _at_disk(work: Callable[..., Result], *arguments: object) -> Result:
    """Do what reads or writes a file, in a thread. Raises `SpoolFailed`."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as error:
        raise SpoolFailed(f"the body could not be kept on disk: {error.strerror}") from error


class NoSlot(Exception):
    """There was no slot, or it was lost to another request. Nothing was done for this one."""


class UploadSlots:
    """The slots of one gateway process."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._bodies: set[RequestBody] = set()

    @contextmanager
    def slot(self, body: RequestBody) -> Iterator[None]:
        """A slot while the body is being taken. Raises `NoSlot`."""
        if len(self._bodies) >= self._slots and not self._make_room():
            raise NoSlot
        self._bodies.add(body)
        try:
            yield
        except RequestCut as cut:
            if cut.cut is Cut.CROWDED_OUT:
                raise NoSlot from None
            raise
        finally:
            self._bodies.discard(body)

    def _make_room(self) -> bool:
        for body in self._bodies:
            if body.crowd_out():
                self._bodies.discard(body)
                return True
        return False
