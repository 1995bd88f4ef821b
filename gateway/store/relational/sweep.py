"""Sweeps: what the clock did is written down, and what is no longer needed is deleted.

Inside a transaction of the caller, for a few records at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.lifecycle import DUE_TIMES, written_down
from gateway.core.operation import MICROSECONDS, Record, State
from gateway.core.outbox import Outbox, swept_rows, unpack
from gateway.store.base import NotApplied
from gateway.store.operations import (
    AUDIT_KEEP_US,
    LAPSES_NAMED_MAX,
    PAUSE_END_US,
    PAUSE_STEP_US,
    WITNESS_KEEP_US,
    Swept,
)
from gateway.store.relational.executor import Changes, Cursor, Stored, decoded, kinds_of
from gateway.store.relational.rows import Row, encode_tombstone

# What whoever begins, ends or observes pauses holds.
PAUSES: Final = b"pauses"
# How often a sweep checks whether a recovery lease, or the content of an operation, is still needed.
RECOVERY_CHECK_US: Final = 3_600 * MICROSECONDS

# What a sweep looks for: by which statement, and in which state. First the states that the clock changes, then leases
# that begin in the future, because the clock was set back.
SWEPT: Final = (
    *(("select_due", state) for state in DUE_TIMES),
    ("select_ended", State.TOMBSTONE),
    ("select_ahead", State.CLAIMED),
    ("select_doubt_ahead", State.IN_DOUBT),
)


class _Kinds:
    """The kinds of the tombstones that one transaction writes, of these services."""

    def __init__(self, cursor: Cursor, services: Iterable[str]) -> None:
        self._cursor = cursor
        self._services = frozenset(services)
        self._known: dict[bytes, Row] = {}

    async def narrowed(self, record: Record) -> Row | None:
        """The narrow row of a tombstone, whose kind is there; None if it has to stay as it is."""
        if record.state is not State.TOMBSTONE or record.token > self._cursor.narrows_up_to:
            return None
        found = encode_tombstone(record, self._services)
        if found is None:
            return None
        kind, row = found
        if kind[0] not in self._known:
            there = await kinds_of(self._cursor, kind[:1])
            if not there and await self._cursor.change("insert_kind", kind):
                there = {kind[0]: kind}
            self._known[kind[0]] = there.get(kind[0], ())
        return row if self._known[kind[0]] == kind else None


class EventsUnsynced(NotApplied):
    """A sweep has events to write, in a transaction that a power loss may undo. The next sweep would write them with
    another time under the same ids, and these may have been published by then."""


async def is_due(cursor: Cursor, now_us: int) -> bool:
    """Whether a sweep would find anything."""
    swept = [(name, (state.value, now_us, 1)) for name, state in cursor.swept]
    tidied = [(name, (now_us, 1)) for name, *_ in _TIDIED]
    return any(await cursor.together([*_pauses(now_us), *swept, *tidied]))


async def sweep_some(
    cursor: Cursor, now_us: int, limit: int, outbox: Outbox, *, is_synced: bool
) -> tuple[Swept, list[UUID]]:
    """Sweep at most `limit` records; `more` when there were that many. Returns the operations, too. Raises
    `EventsUnsynced` unless `is_synced`."""
    swept, written = list[UUID](), Counter[State]()
    lapsed: list[tuple[str, UUID]] = []
    await cursor.hold((PAUSES,))
    found = await cursor.together([("select_outboxes", ()), ("select_services", ()), *_pauses(now_us)])
    others, services, ahead, paused = found
    # Which events each service writes; this one's as it is now.
    outboxes = [outbox, *(unpack(each, outbox.sealing) for service, each in others if service != outbox.service)]
    if ahead:
        await cursor.change("move_pauses", (now_us,))
    if ahead or paused:
        limit -= await _hold_paused(cursor, now_us, limit)
    changes = Changes(cursor, now_us)
    kinds = _Kinds(cursor, (outbox.service, *(name for (name,) in services)))
    for name, state in cursor.swept:
        if written.total() >= limit:
            break
        rows = await cursor.due(name, (state.value, now_us, limit - written.total()))
        for columns, kept in zip(rows, await decoded(cursor, rows), strict=True):
            if isinstance(kept, Exception):
                raise kept
            record = kept.record
            settled = None if record is None else written_down(record, now_us)
            narrow = None if settled is None else await kinds.narrowed(settled)
            changes.replace(Stored(record) if cursor.drops_responses else kept, settled, narrow=narrow)
            if record is not None:
                service, events = swept_rows(outboxes, record, settled)
                if events and not is_synced:
                    raise EventsUnsynced
                changes.add_events(service, events)
            # One that only moved is still what it was.
            after = State.ABSENT if settled is None else settled.state
            is_same = record is not None and record.state is after
            written[State.CLAIMED if is_same else after] += 1
            swept.append(UUID(bytes=columns[1]))
            if settled is not None and not is_same and after is State.IN_DOUBT:
                lapsed.append((settled.identity.route, settled.identity.operation_id))
        # A record may be in the next state's as well, once it is written.
        await changes.write()
    more = written.total() + await _tidy(cursor, now_us, limit - written.total()) == limit
    number = Swept(
        written[State.IN_DOUBT],
        written[State.TOMBSTONE],
        written[State.ABSENT],
        more,
        written[State.DEAD_LETTER],
        tuple(lapsed[:LAPSES_NAMED_MAX]),
    )
    return number, swept


def _pauses(now_us: int) -> list[tuple[str, Sequence[Any]]]:
    """Whether pauses need anything: one begins in the future, or what is paused expires soon."""
    return [("find_pause_ahead", (now_us,)), ("select_paused_expiring", _expiring(now_us, 1))]


def _expiring(now_us: int, limit: int) -> tuple[int, ...]:
    return now_us, now_us + PAUSE_STEP_US, now_us + PAUSE_END_US, limit, now_us - PAUSE_END_US


async def _hold_paused(cursor: Cursor, now_us: int, limit: int) -> int:
    """Keep at most `limit` paused operations from expiring soon; return how many."""
    rows = await cursor.rows("select_paused_expiring", _expiring(now_us, limit))
    steps = [PAUSE_END_US if is_ending else PAUSE_STEP_US for _, _, is_ending in rows]
    await prolong(cursor, [(row, step, since_us + step) for (row, since_us, _), step in zip(rows, steps, strict=True)])
    return len(rows)


async def prolong(cursor: Cursor, prolonged: Sequence[tuple[Any, int, int]]) -> None:
    """Move the times until which accepted operations have to be delivered: of each row, by how much, and until when
    pauses count."""
    await cursor.change_all("prolong_delivery", prolonged)
    await cursor.change_all("prolong_operation", [each[:2] for each in prolonged])


# What a sweep tidies: the statement that finds rows that are due, each with its key and whether it is still needed; the
# one that moves the time of a row that is, by how much; and the one that deletes the others. No activity is needed.
_TIDIED: Final = (
    ("select_old_audits", "update_audit", AUDIT_KEEP_US, "delete_audit"),
    ("select_old_recoveries", "update_recovery", RECOVERY_CHECK_US, "delete_recovery"),
    ("select_old_contents", "update_content", RECOVERY_CHECK_US, "delete_content"),
    ("select_old_witnesses", "keep_witness", WITNESS_KEEP_US, "delete_witness"),
    ("select_old_activity", "delete_activity", 0, "delete_activity"),
)


async def _tidy(cursor: Cursor, now_us: int, limit: int) -> int:
    """Extend or delete at most `limit` due audits, recovery leases, contents and witnesses; return how many."""
    checked = 0
    for select, extend, keep_us, delete in _TIDIED:
        if checked >= limit:
            break
        rows = await cursor.rows(select, (now_us, limit - checked))
        await cursor.change_all(extend, [(now_us + keep_us, *key) for *key, is_needed in rows if is_needed])
        await cursor.change_all(delete, [key for *key, is_needed in rows if not is_needed])
        checked += len(rows)
    return checked
