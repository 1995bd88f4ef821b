"""Counts what a service has not delivered, also where that is much.

Up to `BACKLOG_COUNT_MAX` rows are counted by their index. Beyond that a sample of the table says how many there are: a
limit of more than that is held to, too. A count of many rows is kept for a while, because every gateway that accepts
asks once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gateway.store.operations import BACKLOG_COUNT_MAX, Backlog, Pause, RouteBacklog
from gateway.store.relational import kept
from gateway.store.relational.executor import Cursor

# What an estimate reads of the table.
_SAMPLED_BYTES: Final = 16 << 20
# Of more rows than this, the count is kept: for so many times as long as it took, within these seconds.
_COUNTED_ANEW_MAX: Final = 1_000
_KEPT_TIMES: Final = 50
_KEPT_SECONDS_MIN: Final = 1.0
_KEPT_SECONDS_MAX: Final = 5.0


class Backlogs:
    """`backlog` of a store. Lives on one event loop."""

    def __init__(self, query: Callable[[Callable[[Cursor], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._query = query
        # The last large count of each service: when it began, and until when it is used, by the event loop's clock.
        self._kept: dict[str, tuple[float, float, Backlog]] = {}

    async def of(self, service: str) -> Backlog:
        """Pauses are never of before. Raises `StoreError`."""
        clock = asyncio.get_running_loop().time
        now = clock()
        began, until, backlog = self._kept.get(service, (now, now, Backlog()))
        if now < until:
            return replace(backlog, paused=await self._query(partial(_pauses, service)), age_seconds=now - began)
        counted: Backlog = await self._query(partial(_counted, service))
        if sum(map(_rows_of, counted.waiting.values())) > _COUNTED_ANEW_MAX:
            ended = clock()
            kept_seconds = min(max(_KEPT_TIMES * (ended - now), _KEPT_SECONDS_MIN), _KEPT_SECONDS_MAX)
            # Another count may have begun later, and ended sooner.
            if self._kept.get(service, (now,))[0] <= now:
                self._kept[service] = (now, ended + kept_seconds, counted)
        return counted


def _rows_of(counted: RouteBacklog) -> int:
    return counted.accepted + sum(counted.dead_letters.values())


async def _pauses(service: str, cursor: Cursor) -> dict[str, Pause]:
    return {name: Pause(*rest) for name, *rest in await cursor.rows("select_pauses", (service,))}


async def _counted(service: str, cursor: Cursor) -> Backlog:
    backlog = await kept.backlog(cursor, service)
    accepted = sum(route.accepted for route in backlog.waiting.values())
    dead = sum(map(_rows_of, backlog.waiting.values())) - accepted
    if max(accepted, dead) < BACKLOG_COUNT_MAX:
        return backlog
    ((size_bytes,),) = await cursor.rows("delivery_bytes")
    share = min(1.0, _SAMPLED_BYTES / max(size_bytes, 1))
    # A sample may miss the oldest, so that and what is stopped stay as they were found.
    waiting = {
        name: replace(route, accepted=0, request_bytes=0, dead_letters={}) for name, route in backlog.waiting.items()
    }
    for name, reason, found, request_bytes in await cursor.rows("sample_backlog", (100 * share, service)):
        route, number = waiting.get(name, RouteBacklog()), round(found / share)
        if reason:
            waiting[name] = replace(route, dead_letters={**route.dead_letters, reason: number})
        else:
            waiting[name] = replace(route, accepted=number, request_bytes=round(request_bytes / share))
    return replace(backlog, waiting=waiting)
