"""What recovery and operators ask of SQLite, inside a transaction that somebody else began and will end.

Finding records, their recovery leases, and who did what. None of it changes a record; what state a record is in,
`lifecycle` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from gateway.core.lifecycle import leading_to, settle
from gateway.core.operation import Event, Record, Snapshot, State
from gateway.store.base import AUDITS_MAX, PROBE_FLOOR_US, AuditEntry, Query, RecoveryLease, RecoveryState, Withheld
from gateway.store.sqlite.rows import VERSION, Row, decode
from gateway.store.sqlite.statements import RECOVERY_CHECK_US, Cursor, statements

# Records that are looked at in one go, while other reads wait.
PIECE_RECORDS_MAX: Final = 1_000

_IN_DOUBT: Final = frozenset((State.IN_DOUBT,))
# Beyond every id.
_NO_HORIZON: Final = b"\xff" * 17


@dataclass(frozen=True, slots=True)
class Piece:
    """What was found among the records that were looked at, and the last of these; None when there are no more."""

    found: list[Snapshot]
    last: UUID | None


def find_some(cursor: Cursor, query: Query, now_us: int) -> Piece:
    """Look through the next piece after `query.after`."""
    states = query.states & _IN_DOUBT if query.recoverable else query.states
    if not states or query.limit <= 0:
        return Piece([], None)
    sql, is_doubt_only = statements(), states == _IN_DOUBT
    after = b"" if query.after is None else query.after.bytes
    horizon = cursor.execute(
        sql["select_horizon_in_doubt" if is_doubt_only else "select_horizon"], (after, PIECE_RECORDS_MAX - 1)
    ).fetchone()
    bounds = (after, _NO_HORIZON if horizon is None else horizon[0], VERSION, now_us - query.age_us)
    routes = None if query.routes is None else json.dumps(sorted(query.routes))
    if is_doubt_only:
        rows = cursor.execute(
            sql["find_in_doubt"], (*bounds, routes, query.recoverable, now_us, query.limit)
        ).fetchall()
    else:
        wanted, earlier = _words(states), _words(leading_to(states))
        rows = cursor.execute(sql["find"], (*bounds, routes, wanted, earlier, now_us, query.limit)).fetchall()
    records = (settle(_decoded(row), now_us) for row in rows)
    found = [Snapshot(record, now_us) for record in records if record is not None and record.state in states]
    if len(rows) == query.limit:
        return Piece(found, UUID(bytes=rows[-1][1]))
    return Piece(found, None if horizon is None else UUID(bytes=horizon[0]))


def _words(states: Iterable[State]) -> str:
    return json.dumps([state.value for state in states])


def _decoded(row: Row) -> Record | None:
    """The record, its answer without the body; None when this program cannot read it."""
    try:
        record = decode(row)
    except Withheld:
        return None
    return record if record.response is None else replace(record, response=replace(record.response, body=None))


def recover(
    cursor: Cursor, operation_id: UUID, token: int, lease_us: int, now_us: int, *, is_urgent: bool
) -> RecoveryLease | None:
    """The recovery lease, if there is a doubt under this token and nobody else has it."""
    sql = statements()
    columns = cursor.execute(sql["select_operation"], (operation_id.bytes,)).fetchone()
    record = None if columns is None else settle(decode(columns), now_us)
    if record is None or record.state is not State.IN_DOUBT or record.token != token:
        return None
    kept = cursor.execute(sql["select_recovery"], (operation_id.bytes,)).fetchone()
    tries = put_off_until_us = asked_us = background_tries = 0
    finding = ""
    if kept is not None and kept[0] == token:
        _, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries = kept
        if held_until_us > now_us or (put_off_until_us > now_us and not is_urgent):
            return None
        # A time that is yet to come is of a clock that was set back.
        if asked_us <= now_us < asked_us + PROBE_FLOOR_US:
            return None
    cursor.execute(
        sql["upsert_recovery"],
        (
            operation_id.bytes,
            token,
            now_us + lease_us,
            put_off_until_us,
            tries + 1,
            # Whoever waits makes no pause longer.
            background_tries + (not is_urgent),
            asked_us,
            finding,
            now_us + RECOVERY_CHECK_US,
        ),
    )
    return RecoveryLease(operation_id, token, tries, background_tries)


def put_off(cursor: Cursor, lease: RecoveryLease, now_us: int, pause_us: int, finding: str) -> None:
    """Give the lease back, unless somebody else had it since."""
    cursor.execute(
        statements()["put_off_recovery"],
        (now_us + pause_us, now_us, finding, lease.operation_id.bytes, lease.token, lease.tries + 1),
    )


def recovery(cursor: Cursor, operation_id: UUID) -> RecoveryState | None:
    """What is kept of the probes of the operation."""
    kept = cursor.execute(statements()["select_recovery"], (operation_id.bytes,)).fetchone()
    return None if kept is None else RecoveryState(*kept[:-1])


def audits(cursor: Cursor, operation_id: UUID) -> list[AuditEntry]:
    """The last of what was done to the operation. Raises `Withheld` for what a newer program wrote."""
    rows = cursor.execute(statements()["select_audits"], (operation_id.bytes, AUDITS_MAX)).fetchall()
    try:
        return [AuditEntry(at_us, Event(event), token, who, why) for at_us, event, token, who, why in reversed(rows)]
    except ValueError:
        raise Withheld(f"operation {operation_id} was resolved by a newer program in a way unknown to this") from None
