"""What workers and operators read and write about kept requests in SQLite, inside transactions of the caller.

It finds what is due, reads requests, counts what waits, and keeps pauses. It never changes a record otherwise than by
moving the time until which it has to be delivered.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from gateway.core.lifecycle import settle
from gateway.core.operation import MICROSECONDS, Audit, SealedRequest, Snapshot
from gateway.store.base import Unreadable
from gateway.store.operations import Backlog, RouteBacklog
from gateway.store.sqlite.rows import VERSION
from gateway.store.sqlite.statements import Cursor, prolong, record_of, statements

Place = tuple[int, int]
"""A place in the order in which `resume_some` goes through paused operations: the end of delivery, and the row."""
START: Place = (2**63 - 1, 2**63 - 1)


def find_due(cursor: Cursor, service: str, operations: Collection[str], now_us: int, limit: int) -> list[Snapshot]:
    """Accepted operations of these names that may be dispatched now and are not paused, the longest due first."""
    sql, due = statements(), []
    for operation in set(operations) - _pauses(cursor, service).keys():
        bounds = (service, operation, now_us, VERSION, limit)
        due += cursor.execute(sql["find_due"], bounds).fetchall()
    found = []
    for _, row in sorted(due)[:limit]:
        columns = cursor.execute(sql["select_operation_by_row"], (row,)).fetchone()
        # One that this program cannot read must not stop the others.
        with suppress(Unreadable):
            found.append(Snapshot(settle(record_of(cursor, columns), now_us), now_us))
    return found


def read_request(cursor: Cursor, operation_id: UUID) -> SealedRequest | None:
    """The kept request of an operation, if it has one."""
    found = cursor.execute(statements()["select_request"], (operation_id.bytes,)).fetchone()
    return None if found is None else SealedRequest(UUID(bytes=found[0]), *found[1:])


def count_pending(cursor: Cursor, service: str, operation: str, scope_digest: bytes, now_us: int, limit: int) -> int:
    """How many accepted operations a scope has under this name, counted up to `limit`."""
    bounds = (service, operation, scope_digest, now_us, limit)
    return int(cursor.execute(statements()["count_pending"], bounds).fetchone()[0])


def backlog(cursor: Cursor, service: str, now_us: int) -> Backlog:
    """What a service has not delivered. What expired since the last sweep still counts as accepted."""
    routes: dict[str, RouteBacklog] = {}
    for route, reason, number, request_bytes, accepted_us in cursor.execute(
        statements()["select_backlog"], (service,)
    ).fetchall():
        counted = routes.get(route, RouteBacklog())
        if reason:
            routes[route] = replace(counted, dead_letters={**counted.dead_letters, reason: number})
        else:
            oldest_seconds = max(now_us - accepted_us, 0) / MICROSECONDS
            routes[route] = RouteBacklog(number, request_bytes, oldest_seconds, counted.dead_letters)
    return Backlog(routes, _pauses(cursor, service))


def pause(cursor: Cursor, service: str, operation: str, now_us: int, audit: Audit) -> bool:
    """Pause an operation name; False if it was paused before."""
    cursor.execute(statements()["insert_pause"], (service, operation, now_us, audit.who, audit.why))
    return bool(cursor.connection.changes())


def resume_some(cursor: Cursor, service: str, operation: str, before: Place, now_us: int, limit: int) -> Place | None:
    """Add the pause to the time of at most `limit` operations, and return the place of the last; None at the end.

    Repeatable: what was added to an operation before, here or by a sweep, is not added again.
    """
    bounds = (service, operation, *before, now_us, VERSION, limit)
    rows = cursor.execute(statements()["select_paused"], bounds).fetchall()
    for row, _, counted_us in rows:
        if counted_us < now_us:
            prolong(cursor, row, now_us - counted_us, now_us)
    if len(rows) < limit:
        return None
    row, deliver_until_us, _ = rows[-1]
    return deliver_until_us, row


def end_pause(cursor: Cursor, service: str, operation: str) -> bool:
    """End the pause of an operation name; False if there was none."""
    cursor.execute(statements()["delete_pause"], (service, operation))
    return bool(cursor.connection.changes())


def _pauses(cursor: Cursor, service: str) -> dict[str, int]:
    """The paused operation names of the service, and since when they are."""
    return dict(cursor.execute(statements()["select_pauses"], (service,)).fetchall())
