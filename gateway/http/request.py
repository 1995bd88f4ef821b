"""A client's request: its body as it comes, and the checks that may refuse it first.

aiohttp's parser decides which bytes are a request. This module owns which are too big, what a client may not say of
itself (`ReservedHeaders`), reading the body at its consumer's pace, and `100 Continue`. That is sent when the body is
first read, so that a request which is refused by its head never uploads. Invariant: a body that did not arrive
completely raises `RequestCut`; it never just ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from gateway.core.message import IndexedHeaders, NameTable, RequestHead, connection_options, folded_name
from gateway.http.connection import ClientConnection, Payload
from gateway.http.limits import HEAD_TOO_BIG
from gateway.protect.ambiguity import Fault
from gateway.protect.reply import Cut

# How much of a body is read at once, when its consumer reads it; as much again is buffered for a slow consumer.
_PIECE_BYTES: Final = 64 * 1024
# The bytes around a header's name and value, and around the parts of a request line.
_FIELD_BYTES: Final = len(b": \r\n")
_LINE_BYTES: Final = len(b"  HTTP/1.1\r\n\r\n")

# A body loses its upload slot to another request if it was waited for that long and came more slowly than this.
# A mebibyte may take a minute.
_CROWDED_SECONDS: Final = 5.0
_CROWDED_BYTES_PER_SECOND: Final = 16 * 1024

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientBody:
    """See `reply.RequestBody`."""

    __slots__ = (
        "_connection",
        "_payload",
        "_taken_bytes",
        "_wait_began",
        "_waited_seconds",
        "expects_continue",
        "keeps_pace",
        "length",
    )

    def __init__(self, connection: ClientConnection, payload: Payload, length: int | None) -> None:
        self._connection = connection
        self._payload = payload
        self._taken_bytes = 0
        self._waited_seconds = 0.0
        self._wait_began: float | None = None
        self.length = length
        self.expects_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.keeps_pace = False
        """Whether it must come at a minimum pace, because it holds an upload slot meanwhile."""

    def whole(self) -> bytes | None:
        """All of its bytes, if they are here."""
        payload = self._payload
        if self.length == 0:
            return b""
        return payload.read_nowait() if payload.is_eof() and payload.exception() is None else None

    async def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come. Raises `RequestCut`."""
        payload = self._payload
        payload.set_read_chunk_size(_PIECE_BYTES)
        if self.expects_continue and not payload.is_eof():
            self.expects_continue = False
            if self._connection.is_open:
                self._connection.write(_CONTINUE)
        while not payload.at_eof():
            data = await self._read()
            if data:
                self._taken_bytes += len(data)
                yield data

    def crowd_out(self) -> bool:
        """Cut it short if it comes too slowly to keep its slot; returns whether it was cut."""
        waited_seconds = self._waited_seconds
        if self._wait_began is not None:
            waited_seconds += asyncio.get_running_loop().time() - self._wait_began
        if waited_seconds < _CROWDED_SECONDS or self._taken_bytes >= _CROWDED_BYTES_PER_SECOND * waited_seconds:
            return False
        return self._connection.cut_body(Cut.CROWDED_OUT)

    def close(self) -> None:
        """Holds nothing: the connection deals with what was not read."""

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        settings = self._connection.settings
        seconds = settings.silence_seconds
        if self.keeps_pace:
            # The first silence is free. After that, the bytes that came must make up for the time waited.
            earned = self._taken_bytes / settings.bytes_per_second_min
            seconds = max(0.0, min(seconds, seconds + earned - self._waited_seconds))
        began = self._wait_began = loop.time()
        try:
            return await self._connection.read_body(self._payload, seconds)
        finally:
            self._wait_began = None
            self._waited_seconds += loop.time() - began


def too_big(head: RequestHead, header_bytes_max: int) -> Fault | None:
    """Why a head is over its limit as a whole."""
    size = sum([len(name) + len(value) + _FIELD_BYTES for name, value in head.headers], len(head.target) + _LINE_BYTES)
    return HEAD_TOO_BIG if size + len(head.method) > header_bytes_max else None


class ReservedHeaders:
    """Headers that a client may not send, because a service takes them from the gateway.

    They are dropped from every request, whatever its path, and in every spelling that a service may take for the same
    name.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        reserved = frozenset(map(folded_name, names))
        self._is_reserved = NameTable(lambda name: folded_name(name) in reserved)

    def without(self, head: RequestHead) -> RequestHead:
        """The head as the service may get it."""
        options = connection_options(head.headers)
        # Mostly.
        if not any(map(self._is_reserved.__getitem__, [*options, *[name for name, _ in head.headers]])):
            return head
        kept: list[tuple[bytes, bytes]] = []
        for name, value in head.headers:
            if name.lower() == b"connection":
                # It would have the gateway drop what it adds itself.
                listed = [option for option in value.split(b",") if not self._is_reserved[option.strip()]]
                kept.append((name, b",".join(listed)))
            elif not self._is_reserved[name]:
                kept.append((name, value))
        return RequestHead(head.method, head.target, IndexedHeaders(kept))
