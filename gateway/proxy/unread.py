"""Long answers on their way to clients: how many bytes of them are held for all together.

An answer that is here whole is held until its client has read it, and a client may take its time as long as it reads at
a pace. A few hundred who do so with long answers would fill the memory. So there is a bound for all of them, and above
it whoever holds the most is broken off: a client with a short answer never pays for one with a long one.
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
        self._held[reader] = size_bytes
        self._bytes += size_bytes
        # A single answer is bounded by whoever made it.
        while self._bytes > self._bytes_max and len(self._held) > 1:
            largest = max(self._held, key=self._held.__getitem__)
            self._let_go(largest)
            largest.abort()
        try:
            yield
        finally:
            self._let_go(reader)

    def _let_go(self, reader: Reader) -> None:
        self._bytes -= self._held.pop(reader, 0)
