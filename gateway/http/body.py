"""The body of a request on its way in.

Owns what of it has arrived and was not taken, the reading of it at the pace of whoever takes it and within a bound of
silence, and `100 Continue`, sent when the body is first asked for rather than before, so that a request which is
refused by its head alone never uploads. Invariant: a body that did not arrive whole raises `RequestCut`; it never just
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from gateway.protect.reply import Cut, RequestCut

# The connection stops reading above this, until what is there was taken.
BUFFER_BYTES_MAX: Final = 128 * 1024
# The same as long as nobody has asked for it: it may never be taken, and there may be one on every connection.
UNASKED_BYTES_MAX: Final = 16 * 1024
# What each piece costs beside its bytes: a client that sends few at a time must not make much be kept.
_PIECE_BYTES: Final = 64

# What a body is given up for when others want its place: it was waited for that long, and came more slowly than this.
# A mebibyte may take a minute.
_CROWDED_SECONDS: Final = 5.0
_CROWDED_BYTES_PER_SECOND: Final = 16 * 1024


class BodySource(Protocol):
    """Where the body comes from: the connection."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ClientBody:
    """See `reply.RequestBody`. `ask` is called once before the first wait, to send `100 Continue` where it is due."""

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_bytes_per_second_min",
        "_cut",
        "_silence_seconds",
        "_source",
        "_taken_bytes",
        "_wait_began",
        "_waited_seconds",
        "_waiter",
        "ask",
        "is_received",
        "keeps_pace",
        "length",
    )

    def __init__(
        self, source: BodySource, length: int | None, silence_seconds: float, bytes_per_second_min: float
    ) -> None:
        self._source = source
        self._silence_seconds = silence_seconds
        self._bytes_per_second_min = bytes_per_second_min
        self._taken_bytes = 0
        self._waited_seconds = 0.0
        self._wait_began: float | None = None
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._cut: Cut | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.ask: Callable[[], None] | None = None
        self.length = length
        self.is_received = False
        """Whether all of it has arrived, taken or not."""
        self.keeps_pace = False
        """Whether it is waited for only as long as it comes at a pace: where it takes a place while it comes."""

    # -- put in, by the connection ------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """These bytes came."""
        self._buffer.append(data)
        self._buffer_bytes += len(data) + _PIECE_BYTES
        is_asked_for = self._waiter is not None or self._taken_bytes > 0
        if self._buffer_bytes > (BUFFER_BYTES_MAX if is_asked_for else UNASKED_BYTES_MAX):
            self._source.pause_reading()
        if self._waiter is not None:
            self._wake()

    def ended(self) -> None:
        """All of it came."""
        self.is_received = True
        if self._waiter is not None:
            self._wake()

    def cut_short(self, cut: Cut) -> None:
        """The rest of it will not come."""
        if not self.is_received and self._cut is None:
            self._cut = cut
            self._wake()

    def give_up(self) -> None:
        """Nobody takes what is here, and the rest is not looked at."""
        self.cut_short(Cut.GONE)
        self._buffer.clear()
        self._buffer_bytes = 0

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- taken out: `RequestBody` -------------------------------------------------------------------------------------

    def whole(self) -> bytes | None:
        if not self.is_received:
            return None
        return self._take()

    async def stream(self) -> AsyncIterator[bytes]:
        while True:
            if self._buffer:
                yield self._take()
            elif self.is_received:
                return
            elif self._cut is not None:
                raise RequestCut(self._cut)
            else:
                await self._wait()

    def crowd_out(self) -> bool:
        waited_seconds = self._waited_seconds
        if self._wait_began is not None:
            waited_seconds += asyncio.get_running_loop().time() - self._wait_began
        if waited_seconds < _CROWDED_SECONDS or self._taken_bytes >= _CROWDED_BYTES_PER_SECOND * waited_seconds:
            return False
        self.cut_short(Cut.CROWDED_OUT)
        return self._cut is Cut.CROWDED_OUT

    def close(self) -> None:
        """Nothing is held: what was not read is the connection's business."""

    def _take(self) -> bytes:
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        if self._buffer_bytes > UNASKED_BYTES_MAX:
            self._source.resume_reading()
        self._buffer_bytes = 0
        self._taken_bytes += len(data)
        return data

    async def _wait(self) -> None:
        """Wait for more, or for the news that there will be none."""
        if self.ask is not None:
            ask, self.ask = self.ask, None
            ask()
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        seconds = self._silence_seconds
        if self.keeps_pace:
            # The first silence is free; a byte in each of the next ones does not pay for them.
            earned = self._taken_bytes / self._bytes_per_second_min
            seconds = max(0.0, min(seconds, seconds + earned - self._waited_seconds))
        began = self._wait_began = loop.time()
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            raise RequestCut(Cut.SLOW) from None
        finally:
            self._wait_began = None
            self._waited_seconds += loop.time() - began
