"""The memory budget: one limit for the bytes that all clients together keep in memory.

A complete response is held until its client has read it, and a client may be slow as long as it keeps a minimum pace. A
few hundred slow readers of long responses would fill the memory, and so would a few thousand beginnings of long
requests. So each of the two has a limit for all clients together. Above it, the client that holds the most is aborted:
one with a short response never suffers for one with a long response. Clients that had some time go first, the largest
of them first: otherwise many that hold a little less, for long, would cut off all that would be done in a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

# Most clients have read, or sent, everything in that time.
_FEW_SECONDS: Final = 5.0
# One in so many clients is aborted at a time, because finding the largest means ranking all.
_SHARE: Final = 64


class Holder(Protocol):
    """What the budget needs of a client's connection."""

    def abort(self) -> None:
        """Reset it."""


class _Held(NamedTuple):
    size_bytes: int
    since: float


class MemoryBudget:
    """One budget of one edge."""

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
        """Hold so many bytes for this client meanwhile. The client must hold no others here."""
        self.hold(holder, size_bytes)
        try:
            yield
        finally:
            self.hold(holder, 0)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the bytes held for this client. 0 ends that."""
        before = self._held.pop(holder, None)
        self._bytes += size_bytes - (0 if before is None else before.size_bytes)
        if size_bytes:
            self._held[holder] = _Held(size_bytes, self._clock() if before is None else before.since)
        if self._bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """Abort clients, the first in rank first, down to the limit.

        Where many hold a little, a share of them goes at once: ranking all of them for each byte that comes would block
        the loop.
        """
        had_time = self._clock() - _FEW_SECONDS

        def rank(holder: Holder) -> tuple[bool, int]:
            held = self._held[holder]
            return held.since <= had_time, held.size_bytes

        share = len(self._held) // _SHARE
        # The bytes of a single client have a limit of their own.
        while (self._bytes > self._bytes_max or share > 0) and len(self._held) > 1:
            for holder in nlargest(max(1, share), self._held, key=rank):
                self._bytes -= self._held.pop(holder).size_bytes
                holder.abort()
            share = 0
