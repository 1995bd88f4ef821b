"""Rows that are encrypted again, inside transactions of the caller: pages of them, and their replacement.

Each replacement names all that was read, so that whatever changed in between stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import NO_ATTEMPT, Record
from gateway.store.rekeying import EXAMPLES_MAX, SEALED, Kept, Place, Row, Values
from gateway.store.relational.executor import Cursor, Stored, read_all
from gateway.store.relational.rows import encode_resource, line_of

_REQUEST: Final = "request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row"
# Where the rows of a place are, the columns that order them with what is below the first (None: `Cursor.first_row`),
# and what their values are bound to.
_TABLES: Final[Mapping[Place, tuple[str, tuple[str, ...], tuple[Any, ...] | None, tuple[str, ...]]]] = {
    Place.REQUESTS: (_REQUEST, ("r.row",), None, ("o.id", "d.acceptance_id")),
    Place.AUDITS: ("audit", ("row",), (0,), ("id", "event", "token")),
    Place.PAUSES: ("pause", ("service", "operation"), ("", ""), SEALED[Place.PAUSES].about),
    Place.PAUSE_AUDITS: ("pause_audit", ("row",), (0,), SEALED[Place.PAUSE_AUDITS].about),
    Place.SUSPENSIONS: ("suspension", ("service", "sink"), ("", ""), SEALED[Place.SUSPENSIONS].about),
    Place.EVENTS: ("event", ("row",), None, SEALED[Place.EVENTS].about),
}
# The columns with the ids of keys that something of a row is encrypted with, each with an index.
_KEY_IDS: Final = (
    ("operation", "sealed_by"), ("request", "key_id"), ("audit", "sealed_by"), ("pause", "sealed_by"),
    ("pause_audit", "sealed_by"), ("suspension", "sealed_by"), ("event", "sealed_by"), ("event", "why_sealed_by"),
)  # fmt: skip
_COUNTED: Final = " UNION ALL ".join(
    f"SELECT 1 FROM (SELECT 1 FROM {table} AS t WHERE t.{column} = ?1 LIMIT ?2) AS t{place}"  # noqa: S608
    for place, (table, column) in enumerate(_KEY_IDS)
)
_NEXT: Final = " UNION ALL ".join(
    f"SELECT (SELECT t.{column} FROM {table} AS t WHERE t.{column} > ?1 ORDER BY t.{column} LIMIT 1) AS key_ids"  # noqa: S608
    for table, column in _KEY_IDS
)


def texts() -> dict[str, str]:
    """The statements that read pages of each place, and replace values, by their names; and those that find what is
    encrypted with which keys, from indexes alone, but of small tables."""
    found = {
        # no row of the table: how many rows are encrypted with these keys, of each column up to a bound
        "count_sealed": f"SELECT count(*) FROM ({_COUNTED}) AS counted",  # noqa: S608
        # no row of the table: the next ids of keys that rows are encrypted with, each set of them once
        "select_next_sealed": f"SELECT min(n.key_ids) FROM ({_NEXT}) AS n",  # noqa: S608
    }
    for place, (source, keys, _, about) in _TABLES.items():
        values, table = SEALED[place].values, source.partition(" ")[0]
        named, places = ", ".join(keys), ", ".join("?" for _ in keys)
        found[f"select_{place}_to_rekey"] = (
            # no row of the table: rows in their order
            f"SELECT {', '.join((*keys, *about, *values))} FROM {source} "  # noqa: S608
            f"WHERE ({named}) > ({places}) ORDER BY {named} LIMIT ?"
        )
        given = ", ".join(f"{each} = ?" for each in values)
        as_read = [f"{each.removeprefix('r.')} = ?" for each in keys]
        as_read += (f"{each} IS NOT DISTINCT FROM ?" for each in values)
        # no row of the table: the same values under another key, if they are as they were read
        found[f"reseal_{place}"] = f"UPDATE {table} SET {given} WHERE {' AND '.join(as_read)}"  # noqa: S608
    return found


async def sealed_rows(cursor: Cursor, place: Place, after: Any, limit: int) -> list[Row]:
    if place is Place.RECORDS:
        ids = [UUID(bytes=each) for (each,) in await cursor.rows("select_to_rekey", (after or b"", limit))]
        records = await _records(cursor, ids)
        return [Row(each.bytes, records.get(each)) for each in ids]
    _, keys, first, _ = _TABLES[place]
    bindings = (*(after or first or (cursor.first_row,)), limit)
    rows = await cursor.rows(f"select_{place}_to_rekey", bindings)
    return [Row(tuple(row[: len(keys)]), _values(place, row[len(keys) :])) for row in rows]


def _values(place: Place, columns: Sequence[Any]) -> Values:
    width = len(SEALED[place].about)
    # Of these, only ids are bytes here.
    about = (UUID(bytes=each) if isinstance(each, bytes) else each for each in columns[:width])
    return Values(place, (*about, *columns[width:]))


async def sealed_examples(cursor: Cursor, key_id: str) -> list[Kept]:
    ids = [UUID(bytes=each) for (each,) in await cursor.rows("select_sealed_operations", (key_id, EXAMPLES_MAX))]
    rows = await cursor.rows("select_sealed_requests", (key_id, EXAMPLES_MAX))
    return [*(await _records(cursor, ids)).values(), *(_values(Place.REQUESTS, row) for row in rows)]


async def reseal(cursor: Cursor, changes: Sequence[tuple[Row, Kept]]) -> int:
    return sum([await _replace(cursor, row, kept) for row, kept in changes])


async def _replace(cursor: Cursor, row: Row, kept: Kept) -> int:
    old = row.kept
    if isinstance(old, Values) and isinstance(kept, Values):
        return await cursor.change(f"reseal_{old.place}", (*kept.values, *row.after, *old.values))
    if not isinstance(old, Record) or not isinstance(kept, Record):
        return 0
    ids = (old.identity.operation_id.bytes, old.token)
    parts = sealed_by(kept.identity, kept.probe, kept.request, kept.response, kept.resource)
    changed = await cursor.change("reseal_operation", (*_columns(kept), parts, *ids, *_columns(old)))
    body = None if kept.response is None else kept.response.body
    if changed and body is not None:
        await cursor.change("reseal_response", (body, ids[0]))
    return changed


async def _records(cursor: Cursor, ids: Sequence[UUID]) -> dict[UUID, Record]:
    """Those that this program can read."""
    found = (await read_all(cursor, ids)).items()
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
