"""Rows that are encrypted again, inside transactions of the caller: pages of them, and their replacement.

Each replacement names all that was read, so that whatever changed in between stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import NO_ATTEMPT, Audit, Event, Record, SealedRequest
from gateway.store.rekeying import (
    EXAMPLES_MAX,
    Kept,
    KeptAudit,
    KeptEventRow,
    KeptPause,
    KeptRequest,
    KeptSuspension,
    Place,
    Row,
)
from gateway.store.relational.executor import Cursor, Stored, read_all
from gateway.store.relational.rows import encode_resource
from gateway.store.request_line import line_of

_EVENTS: Final = {event.value: event for event in Event}


def page(cursor: Cursor, place: Place, after: Any, limit: int) -> list[Row]:
    """See `SealedRows`."""
    match place:
        case Place.RECORDS:
            ids = [UUID(bytes=each) for (each,) in cursor.rows("select_to_rekey", (after or b"", limit))]
            records = _records(cursor, ids)
            return [Row(each.bytes, records.get(each)) for each in ids]
        case Place.REQUESTS:
            rows = cursor.rows("select_requests_to_rekey", (after or cursor.first_row, limit))
            return [
                Row(row, KeptRequest(UUID(bytes=each), SealedRequest(UUID(bytes=acceptance_id), key_id, sealed)))
                for row, each, acceptance_id, key_id, sealed in rows
            ]
        case Place.AUDITS:
            rows = cursor.rows("select_audits_to_rekey", (after or 0, limit))
            return [
                Row(
                    row,
                    KeptAudit(UUID(bytes=each), _EVENTS[event], token, Audit(who, why)) if event in _EVENTS else None,
                )
                for row, each, event, token, who, why in rows
            ]
        case Place.PAUSES:
            rows = cursor.rows("select_pauses_to_rekey", (*(after or ("", "")), limit))
            return [
                Row((service, operation), KeptPause(service, operation, Audit(who, why)))
                for service, operation, who, why in rows
            ]
        case Place.PAUSE_AUDITS:
            rows = cursor.rows("select_pause_audits_to_rekey", (after or 0, limit))
            return [
                Row(row, KeptPause(service, operation, Audit(who, why), bool(is_resumed)))
                for row, service, operation, who, why, is_resumed in rows
            ]
        case Place.SUSPENSIONS:
            rows = cursor.rows("select_suspensions_to_rekey", (*(after or ("", "")), limit))
            return [Row((service, sink), KeptSuspension(service, sink, why)) for service, sink, why in rows]
        case Place.EVENTS:
            rows = cursor.rows("select_events_to_rekey", (after or cursor.first_row, limit))
            return [Row(row, KeptEventRow(*event)) for row, *event in rows]


def examples(cursor: Cursor, key_id: str) -> list[Kept]:
    """See `ManagedStore.sealed_examples`."""
    ids = [UUID(bytes=each) for (each,) in cursor.rows("select_sealed_operations", (key_id, EXAMPLES_MAX))]
    rows = cursor.rows("select_sealed_requests", (key_id, EXAMPLES_MAX))
    return [
        *_records(cursor, ids).values(),
        *(
            KeptRequest(UUID(bytes=each), SealedRequest(UUID(bytes=acceptance_id), key_id, sealed))
            for each, acceptance_id, sealed in rows
        ),
    ]


def reseal(cursor: Cursor, place: Place, changes: Sequence[tuple[Row, Kept]]) -> int:
    """See `SealedRows`."""
    return sum(_replace(cursor, place, row, kept) for row, kept in changes)


def _replace(cursor: Cursor, place: Place, row: Row, kept: Kept) -> int:
    old = row.kept
    match old, kept:
        case Record(), Record():
            ids = (old.identity.operation_id.bytes, old.token)
            parts = sealed_by(kept.identity, kept.probe, kept.request, kept.response, kept.resource)
            changed = cursor.change("reseal_operation", (*_columns(kept), parts, *ids, *_columns(old)))
            body = None if kept.response is None else kept.response.body
            if changed and body is not None:
                cursor.change("reseal_response", (body, ids[0]))
            return changed
        case KeptRequest(request=was), KeptRequest(request=request):
            new = (request.key_id, request.sealed)
            return cursor.change("reseal_request", (*new, row.after, was.key_id, was.sealed))
        case KeptAudit(audit=audited), KeptAudit(audit=audit):
            return cursor.change("reseal_audit", (audit.who, audit.why, row.after, audited.who, audited.why))
        case KeptPause(audit=paused), KeptPause(audit=audit):
            is_audit = place is Place.PAUSE_AUDITS
            names = (row.after,) if is_audit else row.after
            statement = "reseal_pause_audit" if is_audit else "reseal_pause"
            return cursor.change(statement, (audit.who, audit.why, *names, paused.who, paused.why))
        case KeptSuspension(why=suspended), KeptSuspension(why=why):
            return cursor.change("reseal_suspension", (why, *row.after, suspended))
        case KeptEventRow(event_id, sink, content, response, why), KeptEventRow():
            event = (row.after, event_id, sink, content, response, why)
            return cursor.change("reseal_event", (kept.content, kept.response, kept.why, *event))
    return 0


def _records(cursor: Cursor, ids: Sequence[UUID]) -> dict[UUID, Record]:
    """Those that this program can read."""
    found = read_all(cursor, ids).items()
    return {each: stored.record for each, stored in found if isinstance(stored, Stored) and stored.record is not None}


def _columns(record: Record) -> tuple[Any, ...]:
    """The confidential columns of a record."""
    probe, response = record.probe, record.response
    if record.attempt_id == NO_ATTEMPT:
        response = None
    return (
        record.identity.key,
        line_of(record.request),
        *((None, None) if probe is None else (probe.target, probe.host)),
        *((None, None) if response is None else (response.reason, pack_headers(response.headers))),
        encode_resource(record.resource),
    )
