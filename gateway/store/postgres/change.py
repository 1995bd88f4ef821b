"""Writes the records that the lifecycle table returned, in the transaction that locked the old ones.

It owns which statement writes which part of a change, for commands and for sweeps. It decides nothing and ends no
transaction: the caller does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Audit, Event, Record, State
from gateway.store.base import NotApplied
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.rows import Row, encode, pack_headers
from gateway.store.postgres.statements import load

_UPDATE: Final = load("update")
_DELETE: Final = load("delete")
_INSERT_RESPONSES: Final = load("insert_responses")
_DELETE_RESPONSES: Final = load("delete_responses")
_INSERT_AUDITS: Final = load("insert_audits")


@dataclass(frozen=True, slots=True)
class Change:
    """A row, and the record that it becomes; None deletes the row."""

    row: Row
    record: Record | None
    audit: Audit | None = None


async def write(connection: Connection, changes: Sequence[Change], now_us: int) -> None:
    """Write all changes. Raises `NotApplied` if the server did not; roll the transaction back then."""
    kept = [(change.row, change.record) for change in changes if change.record is not None]
    gone = [change.row.record.identity.operation_id for change in changes if change.record is None]
    if kept:
        columns = _columns([encode(record, row, now_us) for row, record in kept])
        _check(await connection.fetch(_UPDATE, *columns), len(kept))
    if gone:
        _check(await connection.fetch(_DELETE, gone), len(gone))
    # No change starts and ends in `completed`, so each response here is new.
    responses = [
        (record.token, response.reason, pack_headers(response.headers), response.body)
        for _, record in kept
        if record.state is State.COMPLETED and (response := record.response) is not None
    ]
    if responses:
        await connection.execute(_INSERT_RESPONSES, *_columns(responses))
    purged = [(row.record.token, row.drop_day) for row, record in kept if record.last_event is Event.PURGE]
    if purged:
        await connection.execute(_DELETE_RESPONSES, *_columns(purged))
    audits = [_audit(change, change.audit) for change in changes if change.audit is not None]
    if audits:
        await connection.execute(_INSERT_AUDITS, now_us, *_columns(audits))


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True)))


def _check(written: Sequence[Any], expected: int) -> None:
    if len(written) != expected:
        raise NotApplied("PostgreSQL changed other records than it should have: was the schema altered by hand?")


def _audit(change: Change, audit: Audit) -> tuple[UUID, int, str, str, str]:
    record = change.row.record
    event = Event.ERASE if change.record is None else change.record.last_event
    return record.identity.operation_id, record.token, event, audit.who, audit.why
