"""Reads and changes of the store: with the store's clock, and repeated while they lose against others.

Its invariant: nothing is read from or written to a memory other than the one that the store was started on. It knows
keys and records, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.store.base import NotApplied, StoreError, Unreadable
from gateway.store.redis import layout
from gateway.store.redis.change import Change, Kept, kept
from gateway.store.redis.connection import RedisCommand, time_us
from gateway.store.redis.primary import Primary

T = TypeVar("T")

# How often a change is tried that loses against others.
TRIES_MAX: Final = 32


class Client:
    """See `Primary.require_open` for what everything raises."""

    def __init__(self, primary: Primary, clock_us: Callable[[], int] | None) -> None:
        """`clock_us` takes the place of the server's clock."""
        self.primary = primary
        self._clock_us = clock_us
        # Of the memory that the store was started on, as Redis keeps it.
        self._identity = ""
        self._last_number = 0

    def _draw(self, least: int) -> int:
        """A number that is no lower than this, and higher than all that this process has drawn before."""
        self._last_number = max(least, self._last_number + 1)
        return self._last_number

    async def _read(self, commands: Sequence[RedisCommand], link: str = "reads") -> tuple[list[Any], int]:
        """The replies, and the store's time after them. Raises `NotApplied`."""
        *replies, time = await self.primary.read([*commands, ("TIME",)], link)
        return replies, time_us(time) if self._clock_us is None else self._clock_us()

    async def _change(
        self, attempt: Callable[[], Awaitable[tuple[T, Change | None]]], link: str = "changes", *, keeps: bool = True
    ) -> T:
        """Read and change, until nobody was faster; returns what the last `attempt` says, which has no change where
        nothing is to be changed. Raises `NotApplied`, `EpochChanged` and `Indefinite`."""
        for _ in range(TRIES_MAX):
            result, change = await attempt()
            if change is None:
                return result
            (done,) = await self.primary.write([change.call(self._identity)], link, keeps=keeps)
            if isinstance(done, StoreError):
                raise done
            if done:
                return result
        raise contended()

    async def _kept(self, operation_ids: Iterable[UUID], link: str) -> tuple[list[Kept | Unreadable], int, int]:
        """The operations with their whole records, or why one cannot be read; the floor of tokens; the time."""
        wanted = list(operation_ids)
        keys = [key for each in wanted for key in (layout.record_key(each), layout.body_key(each))]
        commands: list[RedisCommand] = [("HGET", layout.MEMORY, "floor")]
        commands += [("MGET", *keys)] if keys else []
        (floor, *values), now_us = await self._read(commands, link)
        pairs = iter(values[0] if values else ())
        found = [kept(each, value, body) for each, value, body in zip(wanted, pairs, pairs, strict=True)]
        return found, int(floor or 0), now_us


def contended() -> NotApplied:
    return NotApplied(f"the change lost against others {TRIES_MAX} times")
