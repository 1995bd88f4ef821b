"""The receiving half of one exchange: a buffer that the connection fills and the caller reads.

Owns the buffered part of the response, the flow control while the caller is slow, and the wait for more. It does not
know sockets or pools, and it outlives its connection: once the end of the response has arrived, the connection may
serve the next request while this body is still being read.

Whatever arrives together is stored piece by piece and wakes the caller once: it finds a head and its body together,
and never runs in the middle of the parser's work.

Invariant: after `body_ended` or `fail` only the buffer changes, and only shrinks. One caller at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.message import ResponseHead
from gateway.upstream.result import BodyLost, Framing, Lost, TooLong, Unknown

# The connection stops reading above this, until the caller reads.
BUFFER_BYTES_MAX: Final = 256 * 1024

NEVER: Final = float("inf")


class ResponseSource(Protocol):
    """The connection, as its receiver uses it."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_deadline(self, when: float) -> None: ...
    def abort(self, reason: Unknown, detail: str) -> None: ...
    def allow_to_outlast(self) -> None: ...


class ResponseReceiver:
    """Buffers one response.

    Times: the head, and a body read with `read_all`, must arrive by `deadline`, which counts from the first byte of the
    request. `read` allows `silence_seconds` from its call to the next bytes, so a stream may last for ever.
    """

    __slots__ = (
        "_buffer",
        "_buffered_bytes",
        "_interims",
        "_is_complete",
        "_loop",
        "_loss",
        "_paused_since",
        "_source",
        "_waiter",
        "deadline",
        "framing",
        "head",
        "length",
        "silence_seconds",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: ResponseSource, deadline: float, silence_seconds: float
    ) -> None:
        self._loop = loop
        self._source: ResponseSource | None = source
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._interims: list[ResponseHead] = []
        self._is_complete = False
        self._paused_since: float | None = None
        self._loss: Lost | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.deadline = deadline
        self.silence_seconds = silence_seconds
        self.head: ResponseHead | None = None
        self.framing = Framing.NONE
        self.length: int | None = None

    # -- for the connection -------------------------------------------------------------------------------------------

    def interim_arrived(self, head: ResponseHead) -> None:
        self._interims.append(head)

    def head_arrived(self, head: ResponseHead, framing: Framing, length: int | None) -> None:
        self.head = head
        self.framing = framing
        self.length = length

    def body_arrived(self, data: bytes) -> None:
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > BUFFER_BYTES_MAX and self._paused_since is None and self._source is not None:
            self._paused_since = self._loop.time()
            self._source.pause_reading()

    def body_ended(self) -> None:
        self._is_complete = True
        self._detach()

    def fail(self, reason: Unknown, detail: str) -> None:
        """The response will never be complete. Wakes the caller."""
        if not self._is_complete and self._loss is None:
            self._loss = Lost(reason, detail)
            self._detach()
            self.wake()

    def _detach(self) -> None:
        if self._source is not None:
            self._source.set_deadline(NEVER)
            if self._paused_since is not None:
                self._paused_since = None
                self._source.resume_reading()
            self._source = None

    def wake(self) -> None:
        """All that arrived together is stored: stop the clock and wake the caller."""
        if self._source is not None:
            self._source.set_deadline(NEVER)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def is_unread_for(self, seconds: float) -> bool:
        """Whether the buffer has been full for so long, with nothing read from it."""
        return self._paused_since is not None and self._loop.time() - self._paused_since >= seconds

    def restart_clock(self) -> None:
        """The request is still being sent: allow the whole time for the head again."""
        if self.head is None and self._source is not None:
            self.deadline = self._loop.time() + self.silence_seconds
            self._source.set_deadline(self.deadline)

    # -- for the caller -----------------------------------------------------------------------------------------------

    async def wait_head(self, on_interim: Callable[[ResponseHead], None] | None) -> ResponseHead | Lost:
        """The head, or its loss. `on_interim` receives each interim response before, as soon as it arrives."""
        while True:
            if self.head is None and self._loss is not None:
                return self._loss
            interims, self._interims = self._interims, []
            if on_interim is not None:
                for interim in interims:
                    on_interim(interim)
            if self.head is not None:
                return self.head
            await self._expect(self.deadline)

    def allow_to_outlast(self) -> None:
        """The rest is only forwarded, however long that takes: protected requests must not wait for this connection."""
        if self._source is not None:
            self._source.allow_to_outlast()

    async def read(self) -> bytes | BodyLost:
        """The next bytes of the body, at least one; `b""` at its proven end.

        What arrived before a loss is returned first. If cancelled, nothing is lost and it may be called again.
        """
        while True:
            if self._buffer:
                return self._take()
            if self._is_complete:
                return b""
            if self._loss is not None:
                return BodyLost(self._loss.reason, self._loss.detail)
            await self._expect(self._loop.time() + self.silence_seconds)

    def whole(self) -> bytes | None:
        """The buffered body if its proven end has arrived, else None. The whole body if nothing was read before."""
        return self._take() if self._is_complete else None

    async def read_all(self, limit_bytes: int) -> bytes | TooLong | BodyLost:
        """The rest of the body if it has at most `limit_bytes`.

        A body with a longer declared length is not read. Never holds more than the limit and one buffer. If cancelled,
        nothing is lost.
        """
        if self.length is not None and self.length > limit_bytes:
            return TooLong(b"")
        if self._is_complete and self._buffered_bytes <= limit_bytes:
            return self._take()
        taken: list[bytes] = []
        taken_bytes = 0
        while True:
            if self._buffer:
                taken.append(self._take())
                taken_bytes += len(taken[-1])
                if taken_bytes > limit_bytes:
                    return TooLong(b"".join(taken))
            if self._is_complete:
                return taken[0] if len(taken) == 1 else b"".join(taken)
            if self._loss is not None:
                return BodyLost(self._loss.reason, self._loss.detail)
            try:
                await self._expect(self.deadline)
            except asyncio.CancelledError:
                self._buffer[:0] = taken
                self._buffered_bytes += taken_bytes
                raise

    def close(self, reason: Unknown = Unknown.ABORTED) -> None:
        """Drop the rest: aborts the connection unless the response has ended already. May be called repeatedly."""
        if self._source is not None:
            self._source.abort(reason, "the caller dropped the rest")
        self._buffer.clear()
        self._buffered_bytes = 0

    def _take(self) -> bytes:
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._buffered_bytes = 0
        if self._paused_since is not None and self._source is not None:
            self._paused_since = None
            self._source.resume_reading()
        return data

    def _expect(self, deadline: float) -> asyncio.Future[None]:
        """A future for the next `wake`. Must not be called once the response has ended or is lost."""
        if self._source is not None:
            self._source.set_deadline(deadline)
        self._waiter = self._loop.create_future()
        return self._waiter
