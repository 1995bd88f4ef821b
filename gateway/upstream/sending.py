"""Sends a request body that is not in memory: from a file, or as it arrives.

Owns the count of the bytes against what was declared, and a duplicate of the caller's file descriptor for as long as a
read may be under way, also when sending is cancelled in the middle of one: closing a descriptor under a reading thread
could hand the thread another file's bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Protocol

from gateway.upstream.result import FileBody, StreamBody

_CHUNK_BYTES = 128 * 1024


class BodySink(Protocol):
    """Where the body goes: the connection."""

    def write_body(self, data: bytes) -> bool: ...
    async def wait_writable(self) -> bool: ...


class FileReader:
    """Reads a file body once, off the event loop. `close` it in any case; that may be repeated."""

    def __init__(self, body: FileBody) -> None:
        """Raises OSError when the descriptor cannot be duplicated."""
        self.length = body.length
        self._descriptor = os.dup(body.descriptor)
        self._reading: Future[bytes] | None = None
        self._is_closed = False

    async def chunks(self, executor: Executor) -> AsyncIterator[bytes]:
        """The bytes of the file up to the length, fewer if the file is shorter."""
        offset = 0
        while offset < self.length:
            wanted = min(_CHUNK_BYTES, self.length - offset)
            self._reading = executor.submit(os.pread, self._descriptor, wanted, offset)
            chunk = await asyncio.wrap_future(self._reading)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def close(self) -> None:
        """Close the duplicate, after a read that is still under way."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._reading is None:
            os.close(self._descriptor)
        else:
            self._reading.add_done_callback(lambda _: os.close(self._descriptor))


async def send_body(
    sink: BodySink, body: FileReader | StreamBody, executor: Executor, sent: Callable[[], None] | None
) -> str | None:
    """Send the whole body, framed as declared; `sent` is called after each piece.

    Returns what was wrong with the body, in which case its end was not sent; None when all was sent or the connection
    is gone. If cancelled, sending stops where it is.
    """
    chunks = body.chunks(executor) if isinstance(body, FileReader) else body.chunks
    left = body.length
    try:
        async with closed_after(chunks):
            async for chunk in chunks:
                if not chunk:
                    continue
                if left is None:
                    is_open = sink.write_body(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                elif len(chunk) > left:
                    return "the request's body is longer than declared"
                else:
                    left -= len(chunk)
                    is_open = sink.write_body(chunk)
                if not is_open or not await sink.wait_writable():
                    return None
                if sent is not None:
                    sent()
    except Exception as error:  # noqa: BLE001 - the caller's iterator may fail in any way; all mean the same here
        return f"the request's body failed: {type(error).__name__}"
    if left:
        return "the request's body is shorter than declared"
    if left is None:
        sink.write_body(b"0\r\n\r\n")
    return None


@asynccontextmanager
async def closed_after(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks, whose source is closed in the end if it can be: not all of them may have been taken."""
    try:
        yield chunks
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
