"""What workers and operators read and write about kept requests, inside transactions of the caller: verbs of
`operations.Deliveries`, and parts of them.

It finds what is due, reads requests, counts what waits, and keeps pauses. It never changes a record otherwise than by
moving the time until which it has to be delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.lifecycle import settle
from gateway.core.operation import MICROSECONDS, Audit, SealedRequest, Snapshot
from gateway.store.operations import (
    AUDIT_KEEP_US,
    AUDITS_MAX,
    BACKLOG_COUNT_MAX,
    FORMER_ROUTES_MAX,
    PAUSE_END_US,
    Backlog,
    Due,
    Pause,
    PauseAudit,
    RouteBacklog,
)
from gateway.store.relational.executor import Cursor, Stored, decoded
from gateway.store.relational.rows import Row
from gateway.store.relational.sweep import PAUSES, prolong


async def find_due(cursor: Cursor, service: str, delivering: Delivering, limit: int) -> Due:
    now_us, accepting, alone = cursor.now_us, list(delivering.accepting), list(delivering.alone)

    def due_of(places: Iterable[tuple[str, str]]) -> list[tuple[str, tuple[Any, ...]]]:
        return [("find_due", (service, operation, route, now_us, limit)) for route, operation in places]

    pauses, *found = await cursor.together(
        [
            ("select_pauses", (service,)),
            *due_of(accepting),
            *(("select_next_route", (service, operation, "")) for operation in alone),
        ]
    )
    # What waits of the former names of its routes.
    former = [
        (route, operation)
        for operation, waiting in zip(alone, found[len(accepting) :], strict=True)
        for route in await _waiting(cursor, service, operation, waiting)
        if route not in delivering.names
    ]
    found = [*found[: len(accepting)], *(await cursor.together(due_of(former)))]
    paused = frozenset(name for name, *_ in pauses)
    places = zip((*accepting, *former), found, strict=True)
    due = [row for (_, operation), rows in places if operation not in paused for row in rows]
    first = [row for _, row in sorted(due)[:limit]]
    columns = await cursor.among("select_operation_by_row", first) if first else []
    records = dict(zip((row[0] for row in columns), await decoded(cursor, columns), strict=True))
    # One that this program cannot read must not stop the others.
    readable = [kept.record for row in first if isinstance(kept := records.get(row), Stored)]
    return Due([Snapshot(settle(record, now_us), now_us) for record in readable], paused)


async def _waiting(cursor: Cursor, service: str, operation: str, first: Sequence[Row]) -> list[str]:
    """The first routes of which something waits under an operation name, of which this is the first."""
    found: list[str] = []
    while first and len(found) < FORMER_ROUTES_MAX:
        ((route,),) = first
        found.append(route)
        first = await cursor.rows("select_next_route", (service, operation, route))
    return found


async def read_kept(cursor: Cursor, operation_id: UUID) -> SealedRequest | None:
    found = await cursor.row("select_request", (operation_id.bytes,))
    return None if found is None else SealedRequest(UUID(bytes=found[0]), *found[1:])


async def count_pending(cursor: Cursor, service: str, route: str, scope_digest: bytes, limit: int) -> int:
    bounds = (service, route, scope_digest, cursor.now_us, limit)
    return int((await cursor.row("count_pending", bounds))[0])


async def backlog(cursor: Cursor, service: str) -> Backlog:
    """What a service has not delivered. What expired since the last sweep still counts as accepted."""
    now_us = cursor.now_us
    routes: dict[str, RouteBacklog] = {}
    stopped = ("select_lanes_stopped", (service, BACKLOG_COUNT_MAX))
    kept, lanes, pauses = await cursor.together(
        [("select_backlog", (service,)), stopped, ("select_pauses", (service,))]
    )
    for route, reason, number, request_bytes, accepted_us in kept:
        counted = routes.get(route, RouteBacklog())
        if reason:
            routes[route] = replace(counted, dead_letters={**counted.dead_letters, reason: number})
        else:
            age_seconds = max(now_us - accepted_us, 0) / MICROSECONDS
            routes[route] = replace(counted, accepted=number, request_bytes=request_bytes, oldest_seconds=age_seconds)
    for route, number, since_us in lanes:
        stopped_seconds = max(now_us - since_us, 0) / MICROSECONDS
        counted = routes.get(route, RouteBacklog())
        routes[route] = replace(counted, lanes_stopped=number, oldest_stopped_seconds=stopped_seconds)
    return Backlog(routes, {name: Pause(*rest) for name, *rest in pauses})


async def pause(cursor: Cursor, service: str, operation: str, audit: Audit) -> bool:
    now_us = cursor.now_us
    await cursor.hold((PAUSES,))
    if not await cursor.change("insert_pause", (service, operation, now_us, audit.who, audit.why, cursor.last_row)):
        return False
    await cursor.change("insert_pause_audit", (service, operation, now_us, False, audit.who, audit.why))
    await cursor.change("delete_pause_audits", (service, now_us - AUDIT_KEEP_US))
    return True


async def pause_audits(cursor: Cursor, service: str) -> list[PauseAudit]:
    rows = await cursor.rows("select_pause_audits", (service, AUDITS_MAX))
    return [PauseAudit(at_us, name, bool(is_resumed), who, why) for at_us, name, is_resumed, who, why in reversed(rows)]


async def resume_some(cursor: Cursor, service: str, operation: str, limit: int, *, is_first: bool) -> bool:
    """Add the pause to the time of at most `limit` operations; False when there are no more.

    A later call goes on where this one stopped, also of another process; the first one of an end that has rested for
    long begins anew. What is moved back is read once more.
    """
    now_us, name = cursor.now_us, (service, operation)
    await cursor.hold((PAUSES,))
    rested_since_us = now_us - PAUSE_END_US if is_first else 0
    await cursor.change("move_pauses", (now_us,))
    await cursor.change("resume_pause", (*name, now_us, rested_since_us, cursor.last_row))
    rows = await cursor.rows("select_paused", (*name, now_us, limit))
    await prolong(cursor, [(row, by_us, credited_us) for row, _, credited_us, by_us in rows if by_us])
    if len(rows) < limit:
        return False
    last, deliver_until_us, *_ = rows[-1]
    await cursor.change("update_pause", (*name, deliver_until_us, last))
    return True


async def end_pause(cursor: Cursor, service: str, operation: str, audit: Audit) -> bool:
    """End the pause of an operation name; False if there was none."""
    now_us = cursor.now_us
    await cursor.hold((PAUSES,))
    if not await cursor.change("delete_pause", (service, operation)):
        return False
    await cursor.change("insert_pause_audit", (service, operation, now_us, True, audit.who, audit.why))
    return True
