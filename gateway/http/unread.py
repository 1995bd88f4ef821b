"""What waits in memory between clients and those who work on their requests: how many bytes of it for all together.

An answer that is here whole is held until its client has read it, and a client may take its time as long as it reads at
a pace. A few hundred who do so with long answers would fill the memory; a few thousand would, each with the beginning
of a long request. So there is a bound for all of the one, and another for all of the other, and above it whoever holds
the most is broken off: a client with a short one never pays for one with a long one. Those who have had some time go
first, the most among them: many who hold a little less, for long, must not cut off everybody who would be done in a
moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

# In that time most clients have read, or sent, all of it.
_FEW_SECONDS: Final = 5.0


class Reader(Protocol):
    """A client, as far as it matters here."""

    def abort(self) -> None:
        """Break it off."""


class _Held(NamedTuple):
    size_bytes: int
    since: float


class Unread:
    """The held bytes of one edge."""

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._held: dict[Reader, _Held] = {}
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @contextmanager
    def held(self, reader: Reader, size_bytes: int) -> Iterator[None]:
        """While so many bytes are held for this reader, which has no other answer under way."""
        self.hold(reader, size_bytes)
        try:
            yield
        finally:
            self.hold(reader, 0)

    def hold(self, reader: Reader, size_bytes: int) -> None:
        """So many bytes are held for this reader from now on, whatever it was before."""
        before = self._held.pop(reader, None)
        self._bytes += size_bytes - (0 if before is None else before.size_bytes)
        if size_bytes:
            self._held[reader] = _Held(size_bytes, self._clock() if before is None else before.since)
        # A single one is bounded by whoever made it.
        while self._bytes > self._bytes_max and len(self._held) > 1:
            first = self._first_to_go()
            self._bytes -= self._held.pop(first).size_bytes
            first.abort()

    def _first_to_go(self) -> Reader:
        had_time = self._clock() - _FEW_SECONDS

        def rank(reader: Reader) -> tuple[bool, int]:
            held = self._held[reader]
            return held.since <= had_time, held.size_bytes

        return max(self._held, key=rank)
