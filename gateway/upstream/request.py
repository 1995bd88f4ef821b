"""The sending half of one exchange: a request head as bytes on the wire, and a body that is not in memory.

Owns the headers that a hop writes itself, refuses anything that two parsers could read in two ways, and checks the
body's length against the declared one. The framing is ours, everything else is as given.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Final, Protocol

from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, NameTable, RequestHead, asks_upgrade
from gateway.upstream.result import FileBody, OutboundBody, StreamBody

# Written here or not at all. `Expect` is dropped because nothing waits for a 100: it would only add a second timeout.
_OWN: Final = HOP_BY_HOP | {b"content-length", b"expect"}

# Methods that usually have no content need no `Content-Length: 0` (RFC 9110 section 8.6).
_BODILESS: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"))

_REQUEST_LINE: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~\x80-\xff]+ HTTP/1\.1")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")

_CHUNK_BYTES: Final = 128 * 1024

# What to do with a header, by its name.
_SENT, _LEFT_OUT, _UPGRADE, _INVALID = range(4)


@immutable
class RequestBytes:
    """The head including its empty line, and whether it asks for an upgrade."""

    head: bytes
    wants_upgrade: bool


def request_bytes(request: RequestHead, body: OutboundBody) -> RequestBytes | None:
    """The head as it is sent; None when it cannot be written unambiguously.

    Hop-by-hop headers are left out, except `Upgrade` where the request asks for one. CONNECT is refused: its response
    has a framing of its own.
    """
    headers: list[tuple[bytes, bytes]] = []
    upgrade = False
    for header in request.headers:
        kind = _KINDS[header[0]]
        if kind == _SENT:
            headers.append(header)
        elif kind == _UPGRADE and asks_upgrade(request.headers):
            upgrade = True
            headers.append(header)
        elif kind == _INVALID:
            return None
    if upgrade:
        headers.append((b"Connection", b"Upgrade"))
    match body:
        case bytes():
            if body or request.method not in _BODILESS:
                headers.append((b"Content-Length", b"%d" % len(body)))
        case FileBody(length=length) | StreamBody(length=int(length)):
            headers.append((b"Content-Length", b"%d" % length))
        case StreamBody():
            headers.append((b"Transfer-Encoding", b"chunked"))
    request_line = b"%b %b HTTP/1.1" % (request.method, request.target)
    head = b"\r\n".join((request_line, *map(b": ".join, headers), b"", b""))
    lines = len(headers) + 2
    # A value with a smuggled line would leave the head well formed, with one line more than there are headers.
    if (
        not _REQUEST_LINE.fullmatch(request_line)
        or head.count(b"\n") != lines
        or head.count(b"\r") != lines
        or b"\0" in head
        or request.method == b"CONNECT"
    ):
        return None
    return RequestBytes(head, upgrade)


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    if not _NAME.fullmatch(name):
        # This includes a colon, which would make a header of another name.
        kind = _INVALID
    elif lower == b"upgrade":
        kind = _UPGRADE
    else:
        kind = _LEFT_OUT if lower in _OWN else _SENT
    return kind


_KINDS: Final = NameTable(_kind_of)


class BodySink(Protocol):
    """Where the body goes: the connection."""

    def write_body(self, data: bytes) -> bool: ...
    async def wait_writable(self) -> bool: ...


class FileReader:
    """Reads a file body once, off the event loop. Always `close` it; that may be repeated.

    Owns a duplicate of the caller's descriptor for as long as a read may be under way, also when sending is cancelled
    in the middle of one: if the descriptor were closed under a reading thread, the thread could read another file.
    """

    def __init__(self, body: FileBody) -> None:
        """Raises OSError when the descriptor cannot be duplicated."""
        self.length = body.length
        self._descriptor = os.dup(body.descriptor)
        self._decrypt = body.decrypt
        self._reading: Future[bytes] | None = None
        self._is_closed = False

    async def chunks(self, executor: Executor) -> AsyncIterator[bytes]:
        """The first `length` bytes of the file, fewer if the file is shorter."""
        offset = 0
        while offset < self.length:
            wanted = min(_CHUNK_BYTES, self.length - offset)
            self._reading = executor.submit(self._read, wanted, offset)
            chunk = await asyncio.wrap_future(self._reading)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _read(self, wanted: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, wanted, offset)
        return data if self._decrypt is None else self._decrypt(data, offset)

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
    """Send the whole body, framed as declared; `sent` is called after each chunk.

    Returns what was wrong with the body, whose end was then not sent; None when all was sent or the connection is gone.
    If cancelled, sending stops where it is.
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
    """The chunks, with their source closed in the end if possible: some may not have been read."""
    try:
        yield chunks
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
