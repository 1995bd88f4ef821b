"""Requests that are known by their bytes: answered before, and sent again without a change.

A client that retries sends what it sent, and a herd of duplicates is one request many times. Reading it, telling whose
it is and digesting it depend on nothing but its bytes and on who sent them, so for a request that is known nothing of
that is done again. What it gets *now* is decided anew each time, by whoever decided it before.

Owns which requests those are, bounded in number and in bytes, and refuses to know what they mean. Invariant: one is
known only as a whole, from the peer and over the scheme that it came with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.immutable import immutable
from gateway.proxy.reply import Peer, Reply

_KNOWN_MAX: Final = 1024
REQUEST_BYTES_MAX: Final = 4096


@immutable
class KnownRequest:
    """`again` gives the reply that the request gets now; None where that takes more than memory."""

    peer: Peer
    scheme: str
    method: bytes
    shows_status: bool
    again: Callable[[], Reply | None]


class KnownRequests:
    """The requests that were answered lately and may be answered again out of memory."""

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, KnownRequest] = {}

    def find(self, data: bytes, peer: Peer, scheme: str) -> KnownRequest | None:
        """The request that these bytes are, all of them and no more, from this peer."""
        if len(data) > REQUEST_BYTES_MAX:
            # Digesting a long one is not free either.
            return None
        known = self._by_bytes.get(data)
        if known is None or known.scheme != scheme or (known.peer is not peer and known.peer != peer):
            return None
        return known

    def remember(self, data: bytes, known: KnownRequest) -> None:
        """Know the request from now on. A longer one than `REQUEST_BYTES_MAX` is not kept."""
        if len(data) > REQUEST_BYTES_MAX:
            return
        if len(self._by_bytes) >= _KNOWN_MAX:
            del self._by_bytes[next(iter(self._by_bytes))]
        self._by_bytes[data] = known

    def forget(self, data: bytes) -> None:
        """Its answer is no longer in memory."""
        self._by_bytes.pop(data, None)
