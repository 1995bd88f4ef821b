"""Copies and news on their way to the fast tier, behind the caller's back.

Nothing here may be waited for by a caller, and nothing depends on its arrival: a copy that is lost costs a later caller
a question to the durable store. What is under way is bounded in number and bytes; more is shed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from uuid import UUID

from gateway.core.operation import Snapshot
from gateway.store.base import FastTier, StoreError
from gateway.store.tier_stats import TierStats

_LOG = logging.getLogger("gateway")

# What may wait to be spread; more is shed.
_SPREADING_MAX: Final = 1_000
_SPREADING_BYTES_MAX: Final = 32 * 1024 * 1024


class Spreading:
    """Tells the fast tier in the background. Without a fast tier, or while it is down, nothing is told."""

    def __init__(self, fast: FastTier | None, stats: TierStats) -> None:
        self._fast = fast
        self._stats = stats
        self._under_way: set[asyncio.Future[None]] = set()
        self._bytes = 0

    @property
    def under_way(self) -> Collection[asyncio.Future[None]]:
        return self._under_way

    def copy(self, snapshot: Snapshot, started_seconds: float) -> None:
        """A completed record; `started_seconds` as `FastTier.put` takes it."""
        if self._fast is None:
            return
        response = snapshot.record.response if snapshot.record else None
        body = response.body if response else None
        self._tell(lambda fast: fast.put(snapshot, started_seconds), len(body or b""))

    def news(self, operation_id: UUID) -> None:
        """That the operation changed, without a record."""
        self._tell(lambda fast: fast.announce(operation_id), 0)

    def _tell(self, say: Callable[[FastTier], Awaitable[None]], size_bytes: int) -> None:
        fast = self._fast
        if fast is None or not fast.up:
            return
        if len(self._under_way) >= _SPREADING_MAX or self._bytes + size_bytes > _SPREADING_BYTES_MAX:
            self._stats.shed += 1
            return
        try:
            told = asyncio.ensure_future(say(fast))
        except StoreError:
            self._stats.fast_failures += 1
            return
        self._bytes += size_bytes
        self._under_way.add(told)
        told.add_done_callback(lambda told: self._note(told, size_bytes))

    def _note(self, told: asyncio.Future[None], size_bytes: int) -> None:
        self._under_way.discard(told)
        self._bytes -= size_bytes
        if not told.cancelled() and (error := told.exception()) is not None:
            self._stats.fast_failures += 1
            if not isinstance(error, StoreError):
                _LOG.error("a copy was not spread because of a bug", exc_info=error)
