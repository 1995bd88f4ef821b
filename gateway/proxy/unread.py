"""What waits in memory between clients and those who work on their requests: how many bytes of it for all together.

An answer that is here whole is held until its client has read it, and a client may take its time as long as it reads at
a pace. A few hundred who do so with long answers would fill the memory; a few thousand would, each with the beginning
of a long request. So there is a bound for all of the one, and another for all of the other, and above it whoever holds
the most is broken off: a client with a short one never pays for one with a long one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Reader(Protocol):
    """A client, as far as it matters here."""

    def abort(self) -> None:
        """Break it off."""


class Unread:
    """The held bytes of one edge."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Reader, int] = {}
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
        self._bytes += size_bytes - self._held.pop(reader, 0)
        if size_bytes:
            self._held[reader] = size_bytes
        # A single one is bounded by whoever made it.
        while self._bytes > self._bytes_max and len(self._held) > 1:
            largest = max(self._held, key=self._held.__getitem__)
            self._bytes -= self._held.pop(largest)
            largest.abort()
