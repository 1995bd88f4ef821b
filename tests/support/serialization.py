"""Connections on which one statement in ten fails to serialize, as on an engine where many write the same."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

SHARE: Final = 0.1
# A transaction that lost so often in a row wins for once, as on a real engine.
IN_A_ROW_MAX: Final = 4


class SerializationFaults:
    """Fails statements, COMMIT among them, before they reach the server; `injected` counts them."""

    def __init__(self, seed: int = 20) -> None:
        self.injected = 0
        self._random = random.Random(seed)

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        return _Failing(await asyncpg.connect(*arguments, **options), self)

    def hits(self, in_a_row: int) -> bool:
        is_hit = in_a_row < IN_A_ROW_MAX and self._random.random() < SHARE
        self.injected += is_hit
        return is_hit


class _Failing:
    """A connection of the driver, as far as a store uses it."""

    def __init__(self, behind: Any, faults: SerializationFaults) -> None:
        self._behind = behind
        self._faults = faults
        self._in_a_row = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def execute(self, query: str, *arguments: Any) -> Any:
        return await self._unless_hit(self._behind.execute, query, *arguments)

    async def executemany(self, query: str, arguments: Any) -> Any:
        return await self._unless_hit(self._behind.executemany, query, arguments)

    async def fetch(self, query: str, *arguments: Any) -> Any:
        return await self._unless_hit(self._behind.fetch, query, *arguments)

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        return await self._unless_hit(self._behind.fetchrow, query, *arguments)

    async def _unless_hit(self, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        if self._behind.is_in_transaction() and query != "ROLLBACK" and self._faults.hits(self._in_a_row):
            self._in_a_row += 1
            raise asyncpg.SerializationError("injected")
        result = await call(query, *arguments)
        if query == "COMMIT":
            self._in_a_row = 0
        return result
