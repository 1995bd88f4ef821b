"""Keeps events for sinks, inside a transaction that the caller begins and ends: verbs of `operations.Publications`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.operation import MICROSECONDS
from gateway.core.outbox import EventType, Outbox, PublishedEvent
from gateway.store.operations import (
    BACKLOG_COUNT_MAX,
    EventFate,
    EventReport,
    KeptEvent,
    LeasedEvent,
    SinkBacklog,
)
from gateway.store.relational.executor import Cursor, line_key

_TYPES: Final = {each.value: each for each in EventType}
# A page of as many waiting events is found along the index of ids, which has no order of sinks; a page of fewer, by
# sorting all of them. Of a million events, either reads ten thousand for a page of a hundred at most.
_SORTED_MAX: Final = 10_000
# Of a row of `lease_events`.
_SINCE: Final = itemgetter(7)


async def remember(cursor: Cursor, service: str, outbox: Outbox) -> None:
    """Let sweeps of other services know which events this one writes."""
    await cursor.change("upsert_outbox", (service, outbox.pack()))


async def are_due(cursor: Cursor, service: str, wanted: Mapping[str, int]) -> bool:
    """Whether `lease` would find anything."""
    now_us = cursor.now_us
    sinks = [sink for sink, number in wanted.items() if number]
    return any(await cursor.together([("find_due_event", (service, sink, now_us)) for sink in sinks]))


async def lease(cursor: Cursor, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
    """Lease at most so many due events of each sink."""
    now_us, leased = cursor.now_us, []
    for sink, number in wanted.items():
        rows = await cursor.rows("lease_events", (service, sink, now_us, number, now_us + lease_us))
        # RETURNING has no order.
        for event_id, type_, at_us, content, response, tries, redeliveries, since_us, line in sorted(rows, key=_SINCE):
            event = PublishedEvent(event_id, _TYPES[type_], at_us, content, response)
            leased.append(LeasedEvent(sink, event, tries, redeliveries, now_us - since_us, line))
    return leased


async def report_events(cursor: Cursor, service: str, reports: Collection[EventReport]) -> None:
    """Write what became of leased events. One that is lost costs a duplicate."""
    now_us = cursor.now_us
    await cursor.hold({line_key(service, each.sink, each.line) for each in reports if each.line is not None})
    changes: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for each in reports:
        key = (service, each.sink, each.event_id)
        lease = (*key, each.tries, each.redeliveries)
        match each.fate:
            case EventFate.PUBLISHED:
                changes["delete_event"].append(key)
            case EventFate.PUT_OFF:
                changes["put_off_event"].append((*lease, now_us + each.pause_us, each.why, now_us))
            case EventFate.DEAD:
                changes["bury_event"].append((*lease, each.why))
            case _:
                assert_never(each.fate)
    for statement, rows in changes.items():
        await cursor.change_all(statement, rows)
    lines = {(service, each.sink, each.line) for each in reports if each.line is not None}
    await cursor.change_all("give_event_turn", sorted(lines))


async def find_events(
    cursor: Cursor, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
) -> list[KeptEvent]:
    page = "select_dead_events" if is_dead else await _page_of_waiting(cursor, service, sink)
    found = []
    for event_id, type_, at_us, content, tries, dead, why in await cursor.rows(
        page, (service, sink, after or "", limit)
    ):
        if type_ in _TYPES:
            event = PublishedEvent(event_id, _TYPES[type_], at_us, content)
            found.append(KeptEvent(sink, event_id, event.type, UUID(event.operation_id), at_us, tries, bool(dead), why))
    return found


async def _page_of_waiting(cursor: Cursor, service: str, sink: str) -> str:
    """The statement that reads least: ids are in no index of a sink's events, because each event would pay for it."""
    waiting, _ = await cursor.row("count_events", (service, sink, _SORTED_MAX))
    return "select_waiting_events" if waiting < _SORTED_MAX else "select_many_waiting_events"


async def redeliver_event(cursor: Cursor, service: str, event_id: str, sink: str | None) -> int:
    redelivered = await cursor.rows("redeliver_event", (service, event_id, sink, cursor.now_us))
    await cursor.hold({line_key(service, of_sink, line) for of_sink, line in redelivered if line is not None})
    for of_sink, line in redelivered:
        await cursor.change("give_event_turn", (service, of_sink, line))
    return len(redelivered)


async def suspend_sink(cursor: Cursor, service: str, sink: str, why: str) -> bool:
    return bool(await cursor.change("insert_suspension", (service, sink, why)))


async def resume_sink(cursor: Cursor, service: str, sink: str) -> bool:
    was_suspended = bool(await cursor.change("delete_suspension", (service, sink)))
    if was_suspended:
        await cursor.change("resume_events", (service, sink, cursor.now_us))
    return was_suspended


async def sinks(cursor: Cursor, service: str) -> dict[str, SinkBacklog]:
    now_us, name = cursor.now_us, ""
    found: dict[str, SinkBacklog] = {}
    while True:
        (next_name,) = await cursor.row("select_next_sink", (service, name))
        if next_name is None:
            return found
        name = next_name
        bounds = (service, name, BACKLOG_COUNT_MAX)
        pending, since_us = await cursor.row("count_events", bounds)
        dead, last_error, suspended_why = await cursor.row("select_sink", bounds)
        oldest_seconds = 0.0 if since_us is None else max(0, now_us - since_us) / MICROSECONDS
        found[name] = SinkBacklog(pending, oldest_seconds, dead, last_error or "", suspended_why)
