"""Rows of Postgres that are encrypted again: pages of them, and their replacement, each one statement.

Each replacement names all that was read, so that whatever changed in between stays. Records are locked in the order of
their ids, as every statement does, and for one statement only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import Audit, Event, Record, SealedRequest, State
from gateway.store.base import Unreadable
from gateway.store.postgres.rows import DELIVERY_WIDTH, WIDTH, pack_resource, record_of, with_response
from gateway.store.postgres.statements import load
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
from gateway.store.request_line import line_of

_EVENTS: Final = {event.value: event for event in Event}
_FIRST: Final = UUID(int=0)

_READ: Final = load("read")
_READ_NARROW: Final = load("read_narrow")
_RECORDS: Final = load("select_to_rekey")
_RESEAL_RECORDS: Final = load("reseal_operations")
_RESEAL_TOMBSTONE: Final = load("reseal_tombstone")
_REQUESTS: Final = load("select_requests_to_rekey")
_SEALED_OPERATIONS: Final = load("select_sealed_operations")
_SEALED_REQUESTS: Final = load("select_sealed_requests")
_RESEAL_REQUEST: Final = load("reseal_request")
_AUDITS: Final = load("select_audits_to_rekey")
_RESEAL_AUDIT: Final = load("reseal_audit")
_PAUSES: Final = load("select_pauses_to_rekey")
_RESEAL_PAUSE: Final = load("reseal_pause")
_PAUSE_AUDITS: Final = load("select_pause_audits_to_rekey")
_RESEAL_PAUSE_AUDIT: Final = load("reseal_pause_audit")
_SUSPENSIONS: Final = load("select_suspensions_to_rekey")
_RESEAL_SUSPENSION: Final = load("reseal_suspension")
_EVENT_ROWS: Final = load("select_events_to_rekey")
_RESEAL_EVENT: Final = load("reseal_event")

Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def page(fetch: Fetch, place: Place, after: Any, limit: int) -> list[Row]:
    """See `SealedRows`."""
    match place:
        case Place.RECORDS:
            ids = [row[0] for row in await fetch(_RECORDS, after or _FIRST, limit)]
            return await _records(fetch, ids)
        case Place.REQUESTS:
            rows = await fetch(_REQUESTS, after or _FIRST, limit)
            return [Row(each, KeptRequest(each, SealedRequest(*request))) for each, *request in rows]
        case Place.AUDITS:
            rows = await fetch(_AUDITS, *(after or (_FIRST, 0)), limit)
            return [
                Row(
                    (each, entry),
                    KeptAudit(each, _EVENTS[event], token, Audit(who, why)) if event in _EVENTS else None,
                )
                for each, entry, event, token, who, why in rows
            ]
        case Place.PAUSES:
            rows = await fetch(_PAUSES, *(after or ("", "")), limit)
            return [
                Row((service, operation), KeptPause(service, operation, Audit(who, why)))
                for service, operation, who, why in rows
            ]
        case Place.PAUSE_AUDITS:
            rows = await fetch(_PAUSE_AUDITS, after or 0, limit)
            return [
                Row(entry, KeptPause(service, operation, Audit(who, why), is_resumed))
                for entry, service, operation, who, why, is_resumed in rows
            ]
        case Place.SUSPENSIONS:
            rows = await fetch(_SUSPENSIONS, *(after or ("", "")), limit)
            return [Row((service, sink), KeptSuspension(service, sink, why)) for service, sink, why in rows]
        case Place.EVENTS:
            rows = await fetch(_EVENT_ROWS, *(after or ("", "", "")), limit)
            return [
                Row((service, sink, event_id), KeptEventRow(event_id, sink, content, response, why))
                for service, sink, event_id, content, response, why in rows
            ]


async def examples(fetch: Fetch, key_id: str) -> list[Kept]:
    """See `ManagedStore.sealed_examples`."""
    ids = [row[0] for row in await fetch(_SEALED_OPERATIONS, key_id, EXAMPLES_MAX)]
    found = [row.kept for row in await _records(fetch, ids) if row.kept is not None]
    rows = await fetch(_SEALED_REQUESTS, key_id, EXAMPLES_MAX)
    return found + [KeptRequest(each, SealedRequest(*request)) for each, *request in rows]


async def _records(fetch: Fetch, ids: list[UUID]) -> list[Row]:
    """The records as they are stored, with their responses, as many of the first ones as one statement returns."""
    rows = {row[1]: row for row in await fetch(_READ, None, ids)} if ids else {}
    rest = [operation_id for operation_id in ids if operation_id not in rows]
    narrow = {row[0]: row for row in await fetch(_READ_NARROW, rest)} if rest else {}
    found: list[Row] = []
    for operation_id in ids:
        row = rows.get(operation_id)
        if row is None:
            tombstone = narrow.get(operation_id)
            found.append(
                Row(operation_id, None, is_gone=True) if tombstone is None else _narrow(operation_id, tombstone)
            )
            continue
        if row[-1] and found:
            # Its body did not fit: the next page begins with it.
            break
        try:
            end = 1 + WIDTH + DELIVERY_WIDTH
            record = record_of(row[1 : 1 + WIDTH], row[1 + WIDTH : end])
            if record is not None and record.state is State.COMPLETED:
                record = with_response(record, *row[end:-1])
        except Unreadable:
            record = None
        found.append(Row(operation_id, record))
    return found


def _narrow(operation_id: UUID, row: Sequence[Any]) -> Row:
    try:
        return Row(operation_id, record_of(row))
    except Unreadable:
        return Row(operation_id, None)


async def reseal(fetch: Fetch, place: Place, changes: Sequence[tuple[Row, Kept]]) -> int:
    """See `SealedRows`."""
    if place is Place.RECORDS:
        pairs = [(row.kept, kept) for row, kept in changes if isinstance(row.kept, Record) and isinstance(kept, Record)]
        columns = [_columns(old, new) for old, new in pairs if old.identity.service is None]
        done = len(await fetch(_RESEAL_RECORDS, *map(list, zip(*columns, strict=True)))) if columns else 0
        for old, new in pairs:
            if old.identity.service is not None:
                which = (old.identity.operation_id, old.token)
                done += len(await fetch(_RESEAL_TOMBSTONE, *which, *map(pack_resource, (old.resource, new.resource))))
        return done
    return sum([len(await _replace(fetch, place, row, kept)) for row, kept in changes])


async def _replace(fetch: Fetch, place: Place, row: Row, kept: Kept) -> Sequence[Any]:
    match row.kept, kept:
        case KeptRequest(operation_id, was), KeptRequest(request=request):
            ids = (operation_id, was.acceptance_id, was.key_id)
            return await fetch(_RESEAL_REQUEST, *ids, request.key_id, request.sealed)
        case KeptAudit(audit=audited), KeptAudit(audit=audit):
            return await fetch(_RESEAL_AUDIT, *row.after, audited.who, audited.why, audit.who, audit.why)
        case KeptPause(audit=paused), KeptPause(audit=audit):
            texts = (paused.who, paused.why, audit.who, audit.why)
            if place is Place.PAUSE_AUDITS:
                return await fetch(_RESEAL_PAUSE_AUDIT, row.after, *texts)
            return await fetch(_RESEAL_PAUSE, *row.after, *texts)
        case KeptSuspension(why=suspended), KeptSuspension(why=why):
            return await fetch(_RESEAL_SUSPENSION, *row.after, suspended, why)
        case KeptEventRow(_, _, content, response, why), KeptEventRow():
            old = (content, response, why)
            return await fetch(_RESEAL_EVENT, *row.after, *old, kept.content, kept.response, kept.why)
    return ()


def _columns(old: Record, new: Record) -> tuple[Any, ...]:
    """The arguments of one record, in the order of the statement."""
    response = new.response if new.state is State.COMPLETED else None
    was = old.response if old.state is State.COMPLETED else None
    return (
        new.identity.operation_id,
        new.token,
        *_own(old),
        *_own(new),
        sealed_by(new.identity, new.probe, new.request, new.response, new.resource),
        None if was is None else pack_headers(was.headers),
        *((None,) * 3 if response is None else (response.reason, pack_headers(response.headers), response.body)),
    )


def _own(record: Record) -> tuple[Any, ...]:
    """The confidential columns of the record's own row."""
    probe = record.probe
    return (
        record.identity.key,
        line_of(record.request),
        *((None, None) if probe is None else (probe.target, probe.host)),
        pack_resource(record.resource),
    )
