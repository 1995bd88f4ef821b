"""What recovery and operators read and write in Postgres: searches, recovery leases and audits.

It never changes a record, and no request waits for it, except for one that recovers. It owns how much one statement may
read; `lifecycle` decides what state a record is in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.core.lifecycle import leading_to, settle
from gateway.core.operation import Record, Snapshot, State
from gateway.store.base import Unreadable
from gateway.store.operations import (
    AUDITS_MAX,
    AuditEntry,
    NumberedAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    audit_entry,
)
from gateway.store.postgres.rows import DELIVERY_WIDTH, WIDTH, record_of, with_response
from gateway.store.postgres.statements import load

# Records that one statement reads, and holds in the server's memory.
PIECE_RECORDS_MAX: Final = 2_000
# Rows of deliveries, which are narrow.
_PIECE_DELIVERIES_MAX: Final = 10_000

_IN_DOUBT: Final = frozenset((State.IN_DOUBT,))
_UNDELIVERED: Final = frozenset((State.ACCEPTED, State.DEAD_LETTER))
_DEAD_LETTER: Final = frozenset((State.DEAD_LETTER,))
_HIGHEST_ID: Final = 2**128 - 1

_FIND: Final = load("find")
_FIND_UNDELIVERED: Final = load("find_undelivered")
_FIND_IN_DOUBT: Final = load("find_in_doubt")
_RECOVER: Final = load("recover")
_PUT_OFF: Final = load("put_off")
_RECOVERY: Final = load("recovery")
_AUDITS: Final = load("audits")
_LATEST_AUDITS: Final = load("latest_audits")
_NUMBER_MAX: Final = 2**63 - 1


class Inquiry:
    """These verbs of `ManagedStore`; each statement is its own transaction."""

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], clock_us: Callable[[], int | None]) -> None:
        self._fetch = fetch
        self._clock_us = clock_us

    async def find(self, query: Query) -> list[Snapshot]:
        """Search in pieces, so that no statement takes long even if few of many records match."""
        found: list[Snapshot] = []
        after = query.after
        while len(found) < query.limit and (after is None or after.int < _HIGHEST_ID):
            piece, after = await self._find_some(replace(query, after=after, limit=query.limit - len(found)))
            found += piece
            if after is None:
                break
        return found

    async def _find_some(self, query: Query) -> tuple[list[Snapshot], UUID | None]:
        """The records found in the next piece after `query.after`, and the piece's last id; None at the end."""
        states = query.states & _IN_DOUBT if query.recoverable else query.states
        if query.reason is not None:
            states &= _DEAD_LETTER
        begin = UUID(int=0 if query.after is None else query.after.int + 1)
        routes = None if query.routes is None else list(query.routes)
        now_us, narrowed = self._clock_us(), (query.age_us, routes)
        if not states:
            return [], None
        if states == _IN_DOUBT:
            which = (*narrowed, query.recoverable)
            rows = await self._fetch(_FIND_IN_DOUBT, now_us, begin, PIECE_RECORDS_MAX, *which, query.limit)
        elif states <= _UNDELIVERED:
            wanted = (*narrowed, _values(states), query.reason)
            rows = await self._fetch(_FIND_UNDELIVERED, now_us, begin, _PIECE_DELIVERIES_MAX, *wanted, query.limit)
        else:
            among = (_values(states), _values(leading_to(states)))
            with_narrow = State.TOMBSTONE in states
            bounds = (*narrowed, *among, query.limit, with_narrow)
            rows = await self._fetch(_FIND, now_us, begin, PIECE_RECORDS_MAX, *bounds)
        now_us, last_id = rows[0][0], rows[0][1]
        found = [row for row in rows if row[2] is not None]
        records = (settle(_record_of(row), now_us) for row in found)
        snapshots = [Snapshot(record, now_us) for record in records if record is not None and record.state in states]
        return snapshots, found[-1][2] if len(found) == query.limit else last_id

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        rows = await self._fetch(_RECOVER, self._clock_us(), operation_id, token, lease_us, is_urgent)
        if not rows:
            return None
        return RecoveryLease(operation_id, token, rows[0]["tries"] - 1, rows[0]["background_tries"] - (not is_urgent))

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        which = (lease.operation_id, lease.token, lease.tries + 1)
        await self._fetch(_PUT_OFF, self._clock_us(), *which, pause_us, finding)

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        rows = await self._fetch(_RECOVERY, operation_id)
        return RecoveryState(*rows[0]) if rows else None

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return [audit_entry(operation_id, *row) for row in await self._fetch(_AUDITS, operation_id, AUDITS_MAX)]

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        rows = await self._fetch(_LATEST_AUDITS, _NUMBER_MAX if before is None else before, limit)
        return [
            NumberedAudit(number, operation_id, audit_entry(operation_id, *row)) for number, operation_id, *row in rows
        ]


def _values(states: Iterable[State]) -> list[str]:
    return [state.value for state in states]


def _record_of(row: Sequence[Any]) -> Record | None:
    """The record without its response body; None when this program cannot read it.

    If only the response cannot be read, the record has the part of it that is in the row.
    """
    try:
        record = record_of(row[2 : 2 + WIDTH], row[2 + WIDTH : 2 + WIDTH + DELIVERY_WIDTH])
    except Unreadable:
        return None
    if record is not None and record.state is State.COMPLETED:
        reason, headers = row[2 + WIDTH + DELIVERY_WIDTH :]
        with suppress(Unreadable):
            return with_response(record, reason, headers, None)
    return record
