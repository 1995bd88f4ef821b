"""Writes the records that the lifecycle table returned, in the transaction that locked the old ones.

It owns which statement writes which part of a change, for commands and for sweeps. It decides nothing and ends no
transaction: the caller does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from gateway.core.lane import moved_lane, stopped_us
from gateway.core.message import pack_headers
from gateway.core.operation import Audit, Event, Record, SealedRequest, State
from gateway.core.outbox import OutboxRow
from gateway.store.base import NotApplied
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.rows import (
    DELIVERY_WIDTH,
    LANE_PLACE,
    Row,
    encode,
    encode_delivery,
    is_kept,
    waits_of,
)
from gateway.store.postgres.statements import load

_DELIVERIES: Final = load("deliveries")
_UPDATE: Final = load("update")
_DELETE: Final = load("delete")
_MOVE: Final = load("move")
_INSERT_RESPONSES: Final = load("insert_responses")
_DELETE_RESPONSES: Final = load("delete_responses")
_WRITE_DELIVERIES: Final = load("write_deliveries")
_INSERT_REQUESTS: Final = load("insert_requests")
_DROP_KEPT: Final = load("drop_kept")
_INSERT_AUDITS: Final = load("insert_audits")
_INSERT_EVENTS: Final = load("insert_events")
_LOCK_LINES: Final = load("lock_lines")
_LOCK_EVENT_HEADS: Final = load("lock_event_heads")
_GIVE_EVENT_TURNS: Final = load("give_event_turns")
_LOCK_LANES: Final = load("lock_lanes")
_GIVE_TURNS: Final = load("give_turns")


@dataclass(frozen=True, slots=True)
class Narrow:
    """What a narrow row of a tombstone has beside what it takes from the other one (`tombstone`)."""

    kept_s: int
    kind: int
    scope: UUID
    fingerprint: UUID


@dataclass(frozen=True, slots=True)
class Change:
    """A row, and the record that it becomes; None deletes the row. `kept` is a request to keep from now on. With
    `narrow` the row leaves the table for that of tombstones."""

    row: Row
    record: Record | None
    audit: Audit | None = None
    kept: SealedRequest | None = None
    narrow: Narrow | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether the request that was kept is kept no more."""
        is_still_kept = self.record is not None and self.record.delivery is not None
        return self.row.record.delivery is not None and not is_still_kept


async def deliveries(
    connection: Connection, rows: Sequence[Sequence[Any]], lanes: Collection[bytes] = ()
) -> Mapping[UUID, Sequence[Any]]:
    """What is known of the kept requests of these locked rows, which begin with the columns of a record. Locks their
    lanes, and these.

    A statement of its own, after the one that locked the records: that one may have waited for a change which is not
    in its snapshot. So it is with the locks of the lanes.
    """
    kept = [row[0] for row in rows if is_kept(row)]
    known = await connection.fetch(_DELIVERIES, kept) if kept else []
    found = {lane for row in known if (lane := row[LANE_PLACE]) is not None}
    if found or lanes:
        await lock_lanes(connection, found.union(lanes))
        known = await connection.fetch(_DELIVERIES, kept) if kept else []
    return {row[DELIVERY_WIDTH]: row[:DELIVERY_WIDTH] for row in known}


async def lock_lanes(connection: Connection, lanes: Iterable[bytes]) -> None:
    """Lock these lanes until the transaction ends, in the order that all transactions have."""
    keys = sorted({int.from_bytes(lane[:4], "big", signed=True) for lane in lanes})
    await connection.fetch(_LOCK_LANES, keys)


async def give_turns(connection: Connection, lanes: Sequence[bytes]) -> frozenset[UUID]:
    """Mark the heads of these locked lanes; a lane is named as often as its line was moved. Returns the heads."""
    if not lanes:
        return frozenset()
    moved_max = max(map(lanes.count, lanes))
    return frozenset(row[0] for row in await connection.fetch(_GIVE_TURNS, sorted(set(lanes)), moved_max + 1))


async def write(connection: Connection, changes: Sequence[Change], now_us: int) -> frozenset[UUID]:
    """Write all changes but their events. Raises `NotApplied` if the server did not; then roll back.

    Returns the heads of the lanes whose lines were moved.
    """
    kept = [(change.row, change.record) for change in changes if change.record is not None and change.narrow is None]
    moved_away = [
        (change.row.record.identity.operation_id, narrow.kept_s, narrow.kind, narrow.scope, narrow.fingerprint)
        for change in changes
        if (narrow := change.narrow) is not None
    ]
    gone = [change.row.record.identity.operation_id for change in changes if change.record is None]
    if kept:
        columns = _columns([encode(record, row, now_us) for row, record in kept])
        _check(await connection.fetch(_UPDATE, *columns), len(kept))
    if moved_away:
        _check(await connection.fetch(_MOVE, *_columns(moved_away)), len(moved_away))
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
    await _write_kept(connection, changes)
    audits = [_audit(change, change.audit) for change in changes if change.audit is not None]
    if audits:
        await connection.execute(_INSERT_AUDITS, now_us, *_columns(audits))
    moved = [lane for change in changes if (lane := moved_lane(change.row.record, change.record)) is not None]
    return await give_turns(connection, moved)


async def write_events(connection: Connection, service: str, rows: Sequence[OutboxRow], now_us: int) -> None:
    """Write the events of changes, in their transaction. Locks the lines of ordered ones, after all other locks."""
    if not rows:
        return
    lines = [(row.sink, row.line) for row in rows if row.line is not None]
    await lock_lines(connection, lines)
    await connection.execute(_INSERT_EVENTS, now_us, service, *event_columns(rows), [row.line for row in rows])
    await give_event_turns(connection, service, lines)


async def lock_lines(connection: Connection, lines: Collection[tuple[str, bytes]]) -> None:
    """Lock these lines of sinks until the transaction ends, in the order that all transactions have."""
    if lines:
        await connection.fetch(_LOCK_LINES, sorted({int.from_bytes(line[:4], "big", signed=True) for _, line in lines}))


async def give_event_turns(connection: Connection, service: str, lines: Collection[tuple[str, bytes]]) -> None:
    """Let the first events of these locked lines be published."""
    if not lines:
        return
    heads = await connection.fetch(_LOCK_EVENT_HEADS, service, *map(list, zip(*set(lines), strict=True)))
    if heads:
        await connection.execute(_GIVE_EVENT_TURNS, [row[0] for row in heads])


def event_columns(rows: Sequence[OutboxRow]) -> list[list[Any]]:
    """The columns of events without order."""
    return _columns([(row.sink, row.event_id, row.type, row.content, row.response) for row in rows])


async def _write_kept(connection: Connection, changes: Sequence[Change]) -> None:
    """Write what the changes do to deliveries and kept requests."""
    written = [
        encode_delivery(record, record.delivery)
        for change in changes
        if (record := change.record) is not None
        and record.delivery is not None
        and _is_new_delivery(change.row.record, record)
    ]
    if written:
        _check(await connection.fetch(_WRITE_DELIVERIES, *_columns(written)), len(written))
    requests = [
        (change.row.record.identity.operation_id, kept.acceptance_id, kept.key_id, kept.sealed)
        for change in changes
        if (kept := change.kept) is not None
    ]
    if requests:
        await connection.execute(_INSERT_REQUESTS, *_columns(requests))
    dropped = [change.row.record.identity.operation_id for change in changes if change.is_dropped]
    if dropped:
        _check(await connection.fetch(_DROP_KEPT, dropped), len(dropped))


def _is_new_delivery(before: Record, after: Record) -> bool:
    return (after.delivery, waits_of(after), stopped_us(after)) != (
        before.delivery,
        waits_of(before),
        stopped_us(before),
    )


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True)))


def _check(written: Sequence[Any], expected: int) -> None:
    if len(written) != expected:
        raise NotApplied("PostgreSQL changed other records than it should have: was the schema altered by hand?")


def _audit(change: Change, audit: Audit) -> tuple[UUID, int, str, str, str]:
    record = change.row.record
    event = Event.ERASE if change.record is None else change.record.last_event
    return record.identity.operation_id, record.token, event, audit.who, audit.why
