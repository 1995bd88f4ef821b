"""How many bytes wait in memory between clients and those who work on their requests: one limit for all together.

A response that is here whole is held until its client has read it, and a client may take its time as long as it reads
at a pace. A few hundred who do so with long responses would fill the memory; a few thousand would, each with the
beginning of a long request. So there is a limit for all of the one, and another for all of the other, and above it
whoever holds the most is broken off: a client with a short one never pays for one with a long one. Those who have had
some time go first, the most among them: many who hold a little less, for long, must not cut off everybody who would be
done in a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

# In that time most clients have read, or sent, all of it.
_FEW_SECONDS: Final = 5.0
# One in so many is broken off at a time, where that many are needed: finding them takes a look at all.
_SHARE: Final = 64


class Holder(Protocol):
    """A client, as far as it matters here."""

    def abort(self) -> None:
        """Break it off."""


class _Held(NamedTuple):
    size_bytes: int
    since: float


class MemoryBudget:
    """The held bytes of one edge."""

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._held: dict[Holder, _Held] = {}
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @contextmanager
    def held(self, holder: Holder, size_bytes: int) -> Iterator[None]:
        """While so many bytes are held for this client, which holds no others here."""
        self.hold(holder, size_bytes)
        try:
            yield
        finally:
            self.hold(holder, 0)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """So many bytes are held for this client from now on, whatever it was before."""
        before = self._held.pop(holder, None)
        self._bytes += size_bytes - (0 if before is None else before.size_bytes)
        if size_bytes:
            self._held[holder] = _Held(size_bytes, self._clock() if before is None else before.since)
        if self._bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """Break off whoever goes first, down to the limit.

        Where many hold a little, a share of them goes at once: one look at all of them for each byte that comes would
        hold everybody up.
        """
        had_time = self._clock() - _FEW_SECONDS

        def rank(holder: Holder) -> tuple[bool, int]:
            held = self._held[holder]
            return held.since <= had_time, held.size_bytes

        share = len(self._held) // _SHARE
        # A single one is bounded by whoever made it.
        while (self._bytes > self._bytes_max or share > 0) and len(self._held) > 1:
            for holder in nlargest(max(1, share), self._held, key=rank):
                self._bytes -= self._held.pop(holder).size_bytes
                holder.abort()
            share = 0
