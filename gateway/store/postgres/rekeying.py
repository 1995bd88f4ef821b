"""Rows of Postgres that are encrypted again: pages of them, and their replacement, each one statement.

Each replacement names all that was read, so that whatever changed in between stays. Records are locked in the order of
their ids, as every statement does, and for one statement only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import Record, State
from gateway.store.base import Unreadable
from gateway.store.postgres.rows import DELIVERY_WIDTH, WIDTH, pack_resource, record_of, with_response
from gateway.store.postgres.statements import load
from gateway.store.rekeying import EXAMPLES_MAX, SEALED, Kept, Place, Row, Values
from gateway.store.request_line import line_of

# Below the first row of each place, by the columns that order its rows.
_FIRST: Final[Mapping[Place, tuple[Any, ...]]] = {
    Place.RECORDS: (UUID(int=0),),
    Place.REQUESTS: (UUID(int=0),),
    Place.AUDITS: (UUID(int=0), 0),
    Place.PAUSES: ("", ""),
    Place.PAUSE_AUDITS: (0,),
    Place.SUSPENSIONS: ("", ""),
    Place.EVENTS: ("", "", ""),
}

_READ: Final = load("read")
_READ_NARROW: Final = load("read_narrow")
_SELECT: Final = {place: load(f"select_{place}_to_rekey") for place in Place}
_RESEAL: Final = {place: load(f"reseal_{place}") for place in SEALED}
_RESEAL_RECORDS: Final = load("reseal_operations")
_RESEAL_TOMBSTONE: Final = load("reseal_tombstone")
_SEALED_OPERATIONS: Final = load("select_sealed_operations")
_SEALED_REQUESTS: Final = load("select_sealed_requests")

Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def page(fetch: Fetch, place: Place, after: Any, limit: int) -> list[Row]:
    """See `SealedRows`."""
    keys = _FIRST[place] if after is None else after
    rows = await fetch(_SELECT[place], *keys, limit)
    if place is Place.RECORDS:
        return await _records(fetch, [row[0] for row in rows])
    return [Row(tuple(row[: len(keys)]), Values(place, tuple(row[len(keys) :]))) for row in rows]


async def examples(fetch: Fetch, key_id: str) -> list[Kept]:
    """See `ManagedStore.sealed_examples`."""
    ids = [row[0] for row in await fetch(_SEALED_OPERATIONS, key_id, EXAMPLES_MAX)]
    found = [row.kept for row in await _records(fetch, ids) if row.kept is not None]
    rows = await fetch(_SEALED_REQUESTS, key_id, EXAMPLES_MAX)
    return found + [Values(Place.REQUESTS, tuple(row)) for row in rows]


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
                Row((operation_id,), None, is_gone=True) if tombstone is None else _narrow(operation_id, tombstone)
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
        found.append(Row((operation_id,), record))
    return found


def _narrow(operation_id: UUID, row: Sequence[Any]) -> Row:
    try:
        return Row((operation_id,), record_of(row))
    except Unreadable:
        return Row((operation_id,), None)


async def reseal(fetch: Fetch, changes: Sequence[tuple[Row, Kept]]) -> int:
    """See `SealedRows`."""
    done, whole = 0, []
    for row, kept in changes:
        old = row.kept
        if isinstance(old, Values) and isinstance(kept, Values):
            done += len(await fetch(_RESEAL[old.place], *row.after, *old.values, *kept.values))
        elif isinstance(old, Record) and isinstance(kept, Record):
            if old.identity.service is None:
                whole.append(_columns(old, kept))
                continue
            which = (old.identity.operation_id, old.token)
            done += len(await fetch(_RESEAL_TOMBSTONE, *which, *map(pack_resource, (old.resource, kept.resource))))
    return done + (len(await fetch(_RESEAL_RECORDS, *map(list, zip(*whole, strict=True)))) if whole else 0)


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
