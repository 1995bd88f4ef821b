"""Requests that are known by their bytes: sent again before, and now once more without a change.

A client that retries sends what it sent, and a herd of duplicates is one request many times. Reading it, telling whose
it is and digesting it depend on nothing but its bytes and on who sent them, so for a request that is known nothing of
that is done again. What it gets *now* is decided anew each time, by whoever decided it before.

Owns which requests those are, bounded in number, in bytes and in time, and refuses to know what they mean. Invariant:
one is known only as a whole, from the peer and over the scheme that it came with; and the credentials in it do not stay
in memory for longer than retries usually take.

They are kept in two generations: as soon as the younger one is full or old it is the older one, and that is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.core.immutable import immutable
from gateway.protect.hop import Hop
from gateway.protect.reply import Reply

REQUEST_BYTES_MAX: Final = 4096
GENERATION_SECONDS: Final = 30.0
_GENERATION_MAX: Final = 512


@immutable
class KnownRequest:
    """`again` gives the reply that the request gets now; None where that takes more than memory."""

    hop: Hop
    method: bytes
    shows_status: bool
    again: Callable[[], Reply | None]


class KnownRequests:
    """The requests that were answered lately and may be answered again out of memory. `close` it in the end."""

    def __init__(self, generation_seconds: float = GENERATION_SECONDS) -> None:
        self._seconds = generation_seconds
        self._young: dict[bytes, KnownRequest] = {}
        self._old: dict[bytes, KnownRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, data: bytes, hop: Hop) -> KnownRequest | None:
        """The request that these bytes are, all of them and no more, over this hop."""
        if len(data) > REQUEST_BYTES_MAX:
            # Hashing a long one is not free either.
            return None
        known = self._young.get(data) or self._old.get(data)
        return known if known is not None and (known.hop is hop or known.hop == hop) else None

    def remember(self, data: bytes, known: KnownRequest) -> None:
        """Know the request from now on. A longer one than `REQUEST_BYTES_MAX` is not kept."""
        if len(data) > REQUEST_BYTES_MAX:
            return
        if len(self._young) >= _GENERATION_MAX:
            self._old, self._young = self._young, {}
        self._young[data] = known
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._age)

    def forget(self, data: bytes) -> None:
        """Its answer is no longer in memory."""
        self._young.pop(data, None)
        self._old.pop(data, None)

    def close(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _age(self) -> None:
        self._old, self._young = self._young, {}
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._age) if self._old else None
