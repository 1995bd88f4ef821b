"""Reads and changes of the store: with the store's clock, and repeated while they lose against others.

Its invariant: nothing is written to a memory other than the one that the store was started on. It knows keys and
records, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.store.base import EpochChanged, Indefinite, NotApplied, StoreError, Unreadable
from gateway.store.redis import layout
from gateway.store.redis.change import DONE, MEMORY, WITNESS, Change, Kept
from gateway.store.redis.connection import RedisCommand, time_us
from gateway.store.redis.entry import unpacked_record
from gateway.store.redis.primary import Primary

# Replies by which the memory is another one.
_OTHERS: Final[dict[bytes | StoreError | None, str]] = {
    MEMORY: "the memory of Redis is another one than before: it was flushed, or replaced",
    WITNESS: "Redis lacks changes that it had acknowledged",
}
# How often a change is tried that loses against others.
TRIES_MAX: Final = 32


class Client:
    """`clock_us` takes the place of the server's clock."""

    def __init__(self, primary: Primary, clock_us: Callable[[], int] | None) -> None:
        self.primary = primary
        self.identity = ""
        """Of the memory that the store was started on, as Redis keeps it."""
        self._clock_us = clock_us
        self._last_number = 0

    def draw(self, least: int) -> int:
        """A number that is no lower than this, and higher than all that this process has drawn before."""
        self._last_number = max(least, self._last_number + 1)
        return self._last_number

    async def read(self, commands: Sequence[RedisCommand], link: str = "reads") -> tuple[list[Any], int]:
        """The replies, and the store's time after them. Raises `NotApplied`."""
        *replies, time = await self.primary.read([*commands, ("TIME",)], link)
        return replies, time_us(time) if self._clock_us is None else self._clock_us()

    async def write(
        self,
        calls: Sequence[RedisCommand],
        link: str = "changes",
        *,
        keeps: bool = True,
        news: Sequence[RedisCommand] = (),
    ) -> list[bool | StoreError]:
        """Execute calls of `Change`s: whether each was done, or what became of it. Raises `NotApplied` and
        `EpochChanged` where nothing was sent, and `Indefinite`. `news` tells other gateways of them."""
        written = await self.primary.write(calls, link, keeps=keeps, news=news)
        doubt = "" if written.is_kept else "a disk or a replica did not confirm in time that it has the command"
        if any(reply in _OTHERS for reply in written.replies):
            doubt = "the memory of Redis was replaced meanwhile"
        found: list[bool | StoreError] = []
        for reply in written.replies:
            if isinstance(reply, StoreError):
                found.append(reply)
            elif reply in _OTHERS:
                found.append(EpochChanged(_OTHERS[reply]))
            elif reply == DONE and doubt:
                found.append(Indefinite(doubt))
            else:
                found.append(reply == DONE)
        return found

    async def change(
        self, attempt: Callable[[], Awaitable[Change | None]], link: str = "changes", *, keeps: bool = True
    ) -> None:
        """Read and change, until nobody was faster; an `attempt` returns None where nothing is to be changed. Raises
        `NotApplied`, `EpochChanged` and `Indefinite`."""
        for _ in range(TRIES_MAX):
            change = await attempt()
            if change is None:
                return
            (done,) = await self.write([change.call(self.identity)], link, keeps=keeps)
            if isinstance(done, StoreError):
                raise done
            if done:
                return
        raise contended()

    async def kept(self, operation_ids: Iterable[UUID], link: str) -> tuple[list[Kept | StoreError], int, int]:
        """The operations with their whole records, or why one cannot be read; the floor of tokens; the time."""
        wanted = list(operation_ids)
        keys = [key for each in wanted for key in (layout.record_key(each), layout.body_key(each))]
        commands: list[RedisCommand] = [("HGET", layout.MEMORY, "floor")]
        commands += [("MGET", *keys)] if keys else []
        (floor, *values), now_us = await self.read(commands, link)
        found: list[Kept | StoreError] = []
        pairs = iter(values[0] if values else ())
        for operation_id, value, body in zip(wanted, pairs, pairs, strict=True):
            found.append(_decoded(operation_id, value, body))
        return found, int(floor or 0), now_us


def _decoded(operation_id: UUID, value: bytes | None, body: bytes | None) -> Kept | StoreError:
    try:
        record = None if value is None else unpacked_record(value, body)
    except Unreadable as error:
        return error
    return Kept(operation_id, value, record, body is not None)


def contended() -> NotApplied:
    return NotApplied(f"the change lost against others {TRIES_MAX} times")
