"""What relays and operators do with kept events in Postgres. Changes write them, in `change` and `batch`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import MICROSECONDS
from gateway.core.outbox import EventType, PublishedEvent
from gateway.store.operations import BACKLOG_COUNT_MAX, EventFate, EventReport, KeptEvent, LeasedEvent, SinkBacklog
from gateway.store.postgres.change import give_event_turns, lock_lines
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.statements import load

_TYPES: Final = {each.value: each for each in EventType}

_LEASE: Final = load("lease_events")
_REPORT: Final = load("report_events")
_FIND_WAITING: Final = load("find_waiting_events")
_FIND_DEAD: Final = load("find_dead_events")
_DEAD_LINES: Final = load("dead_lines")
_REDELIVER: Final = load("redeliver_event")
_SUSPEND: Final = load("suspend_sink")
_RESUME: Final = load("resume_sink")
_SINKS: Final = load("sinks")


class KeptEvents:
    """These verbs of `ManagedStore`; each statement is its own transaction, but for what moves the lines of events."""

    def __init__(
        self,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        transact: Callable[[Callable[[Connection], Awaitable[int]]], Awaitable[int]],
        clock_us: Callable[[], int | None],
    ) -> None:
        self._fetch = fetch
        self._transact = transact
        self._clock_us = clock_us

    async def lease(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        which = (service, list(wanted), list(wanted.values()), lease_us)
        rows = await self._fetch(_LEASE, self._clock_us(), *which)
        return [
            LeasedEvent(
                row["sink"],
                PublishedEvent(row["event_id"], _TYPES[row["type"]], row["at_us"], row["content"], row["response"]),
                row["tries"],
                row["redeliveries"],
                row["now_us"] - row["since_us"],
                row["line"],
            )
            for row in sorted(rows, key=itemgetter("since_us"))
        ]

    async def report(self, service: str, reports: Collection[EventReport]) -> None:
        if not reports:
            return
        columns = [
            (
                each.sink,
                each.event_id,
                each.tries,
                each.redeliveries,
                each.fate.value,
                each.pause_us,
                _storable(each.why),
            )
            for each in reports
        ]
        arguments = (self._clock_us(), service, *map(list, zip(*columns, strict=True)))
        # What is put off keeps its place.
        moved = [each for each in reports if each.fate is not EventFate.PUT_OFF]
        lines = [(each.sink, each.line) for each in moved if each.line is not None]
        if not lines:
            await self._fetch(_REPORT, *arguments)
            return

        async def move(connection: Connection) -> int:
            await lock_lines(connection, lines)
            await connection.fetch(_REPORT, *arguments)
            await give_event_turns(connection, service, lines)
            return len(lines)

        await self._transact(move)

    async def find(self, service: str, sink: str, after: str | None, limit: int, *, is_dead: bool) -> list[KeptEvent]:
        statement = _FIND_DEAD if is_dead else _FIND_WAITING
        found = []
        for row in await self._fetch(statement, service, sink, after or "", limit):
            if row["type"] in _TYPES:
                event = PublishedEvent(row["event_id"], _TYPES[row["type"]], row["at_us"], row["content"])
                whose = (sink, event.id, event.type, UUID(event.operation_id))
                found.append(KeptEvent(*whose, event.at_us, row["tries"], row["is_dead"], row["why"]))
        return found

    async def redeliver(self, service: str, event_id: str, sink: str | None) -> int:
        sinks = list(await self.sinks(service)) if sink is None else [sink]

        async def move(connection: Connection) -> int:
            dead = await connection.fetch(_DEAD_LINES, service, event_id, sinks)
            lines = [(row["sink"], row["line"]) for row in dead]
            await lock_lines(connection, lines)
            redelivered = await connection.fetch(_REDELIVER, self._clock_us(), service, event_id, sinks)
            await give_event_turns(connection, service, lines)
            return len(redelivered)

        return await self._transact(move)

    async def suspend(self, service: str, sink: str, why: str) -> bool:
        return bool(await self._fetch(_SUSPEND, service, sink, _storable(why)))

    async def resume(self, service: str, sink: str) -> bool:
        return bool(await self._fetch(_RESUME, self._clock_us(), service, sink))

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        return {
            row["sink"]: SinkBacklog(
                row["pending"],
                0.0 if row["since_us"] is None else max(0, row["now_us"] - row["since_us"]) / MICROSECONDS,
                row["dead"],
                row["last_error"] or "",
                row["suspended_why"],
            )
            for row in await self._fetch(_SINKS, self._clock_us(), service, BACKLOG_COUNT_MAX)
        }


def _storable(text: str) -> str:
    """Postgres keeps no NUL in a text."""
    return text.replace("\0", "?")
