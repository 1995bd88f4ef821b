"""Executes commands and sweeps as statements, inside a transaction that the caller begins and ends.

It owns which statement is executed when, and knows neither the driver nor the dialect (`Cursor`). It decides nothing:
it reads a record, calls `lifecycle`, and writes the record that this returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from gateway.core.lane import moved_lane, with_turn
from gateway.core.lifecycle import DUE_TIMES, no_token, settle, step, written_down
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Accept,
    Applied,
    Claim,
    Command,
    Complete,
    Content,
    Erase,
    Purge,
    Record,
    Result,
    SealedRequest,
    State,
    audit_of,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import Outbox, OutboxRow, swept_rows, unpack
from gateway.store.base import StoreError
from gateway.store.operations import (
    AUDIT_KEEP_US,
    LAPSES_NAMED_MAX,
    PAUSE_END_US,
    PAUSE_STEP_US,
    SEALED_COUNT_MAX,
    WITNESS_KEEP_US,
    Epoch,
    Swept,
    Tally,
    sealed_counts,
)
from gateway.store.relational.rows import (
    Row,
    decode,
    encode,
    encode_delivery,
    encode_delivery_change,
    encode_identity,
    keeps_body,
    keeps_request,
)

# How often a sweep checks whether a recovery lease, or the content of an operation, is still needed.
RECOVERY_CHECK_US: Final = 3_600 * MICROSECONDS

# What a sweep looks for: by which statement, and in which state. First the states that the clock changes, then leases
# that begin in the future, because the clock was set back.
_SWEPT: Final = (
    *(("select_due", state) for state in DUE_TIMES),
    ("select_ahead", State.CLAIMED),
    ("select_doubt_ahead", State.IN_DOUBT),
)

# A constant, because a union inside `isinstance` is built on every call.
_PURGING: Final = (Purge, Erase)


class Cursor(Protocol):
    """A transaction, and the statements of a store by their names."""

    first_row: Any
    """Below and beyond the rows of all operations."""
    last_row: Any

    @property
    def now_us(self) -> int:
        """The store's clock, read inside the transaction: the later of two changes has the later time."""

    def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]: ...

    def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        """The first row, or None."""

    def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        """How many rows were changed."""

    def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        """Rows of `{record}`, which nobody else changes until the transaction ends."""

    def inserted_row(self, operation_id: UUID, /) -> Any:
        """The row of the operation that the last statement inserted."""

    def forget_token(self, token: int, /) -> None:
        """An operation with this token is about to be deleted; it never draws the token again."""

    def state(self) -> object:
        """Equals an earlier one only as long as nobody else may have replaced the data since."""

    def tokens(self) -> Tokens: ...


class Tokens(Protocol):
    """Draws the fencing tokens of one transaction."""

    def draw(self, record: Record | None, command: Command, /) -> int:
        """A token higher than any before of the operation that has this record, and than any of the lane that the
        command accepts it into."""

    def take_back(self) -> None:
        """The last token was not used."""

    def keep(self) -> None:
        """Called once, before the transaction ends."""


class Misfit(Exception):
    """The command at `index` cannot be written. Roll the transaction back, and retry without that command."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def apply_all(
    cursor: Cursor,
    commands: Sequence[Command],
    rejected: Mapping[int, Exception],
    now_us: int,
    data_errors: tuple[type[Exception], ...],
    outbox: Outbox,
) -> list[Result | Exception]:
    """Execute the commands in order, except the rejected ones. Raises `Misfit` for a further one to reject."""
    tokens = cursor.tokens()
    results: list[Result | Exception] = []
    for index, command in enumerate(commands):
        if index in rejected:
            results.append(rejected[index])
            continue
        try:
            results.append(_apply(cursor, command, now_us, tokens, outbox))
        except data_errors as error:
            raise Misfit(index) from error
        except StoreError as error:
            # About this record alone, and raised before any write.
            results.append(error)
    tokens.keep()
    return results


def check_memory(cursor: Cursor, now_us: int, links: Iterable[UUID] = ()) -> Epoch:
    """The file's epoch, with the witnesses of these links."""
    identity, token, memo, generation, level = cursor.row("select_epoch")
    witnesses = {}
    for link in links:
        for (number,) in cursor.rows("select_witness", (link.bytes,)):
            witnesses[link] = int(number)
    return Epoch(identity, int(token), now_us, memo, generation, witnesses, level=int(level))


def begin_epoch(cursor: Cursor, memo: bytes, beyond_token: int) -> None:
    """Replace the memo, and draw only tokens above this one from now on."""
    cursor.change("update_memo", (memo,))
    cursor.change("advance_sequence", (beyond_token,))


@dataclass(slots=True)
class _Kept:
    """A record as it is in the file; without a row, the file has none."""

    row: Any = None
    record: Record | None = None
    has_body: bool = False


def _kept(cursor: Cursor, columns: Row | None) -> _Kept:
    if columns is None:
        return _Kept()
    return _Kept(columns[0], record_of(cursor, columns), keeps_body(columns))


def record_of(cursor: Cursor, columns: Row) -> Record:
    """The record of a row of `{record}` and the body. Raises `Unreadable` when this program cannot read it.

    Executes a further statement where the row keeps a request.
    """
    if not keeps_request(columns):
        return decode(columns)
    return decode(columns, cursor.row("select_delivery", (columns[0],)))


def _apply(cursor: Cursor, command: Command, now_us: int, tokens: Tokens, outbox: Outbox) -> Result:
    content = content_of(command)
    holder = None if content is None else _content_holder(cursor, command, content, now_us)
    # The usual claim and completion take one statement. If it changes nothing, the record is read.
    if (
        isinstance(command, Claim)
        and holder is None
        and (granted := _claim_absent(cursor, command, now_us, tokens)) is not None
    ):
        if content is not None:
            _hold_content(cursor, content, granted.snapshot.record, now_us)
        return granted
    if isinstance(command, Complete) and (completed := _complete_granted(cursor, command, now_us, outbox)) is not None:
        return completed
    kept = _kept(cursor, cursor.row("lock_operation", (operation_id_of(command).bytes,)))
    settled = settle(kept.record, now_us)
    result, record = step(settled, command, now_us, lambda: tokens.draw(kept.record, command), holder)
    if isinstance(result, Applied) and record is not kept.record:
        if content is not None and record is not settled:
            _hold_content(cursor, content, record, now_us)
        row = _write(cursor, kept, record, command.kept if isinstance(command, Accept) else None)
        if (lane := moved_lane(kept.record, record)) is not None:
            result = Applied(with_turn(result.snapshot, is_behind=_give_turn(cursor, lane) != row))
        write_events(cursor, outbox.service, outbox.rows(kept.record, record), now_us)
        if isinstance(command, _PURGING):
            cursor.change("update_generation", (uuid4().hex,))
    # A repeated command leaves the settled record as it is, and so writes no second audit.
    if record is not settled and settled is not None and (audit := audit_of(command)) is not None:
        cursor.change(
            "insert_audit",
            (
                operation_id_of(command).bytes,
                now_us,
                EVENT_OF[type(command)].value,
                settled.token,
                audit.who,
                audit.why,
                now_us + AUDIT_KEEP_US,
            ),
        )
    return result


def _content_holder(cursor: Cursor, command: Command, content: Content, now_us: int) -> UUID | None:
    """Another operation that holds the content, unless the caller means this one too."""
    if content.is_distinct:
        return None
    bounds = (content.digest, operation_id_of(command).bytes, now_us)
    found = cursor.row("select_content_holder", bounds)
    return None if found is None else UUID(bytes=found[0])


def _hold_content(cursor: Cursor, content: Content, record: Record | None, now_us: int) -> None:
    """The record's operation holds the content from now on."""
    if record is not None and record.fingerprint is not None:
        row = (
            content.digest,
            record.identity.operation_id.bytes,
            record.fingerprint.digest,
            now_us + content.within_us,
        )
        cursor.change("upsert_content", row)


def _read(cursor: Cursor, operation_id: UUID) -> Row | None:
    columns: Row | None = cursor.row("select_operation", (operation_id.bytes,))
    return columns


def _claim_absent(cursor: Cursor, command: Claim, now_us: int, tokens: Tokens) -> Result | None:
    """Claim a key without a record; None if there is a record, and nothing was changed."""
    if command.read_token is not None:
        return None
    result, record = step(None, command, now_us, lambda: tokens.draw(None, command))
    if record is None:
        return None
    if cursor.change("insert_operation", (*encode(record), *encode_identity(record.identity))):
        return result
    tokens.take_back()
    return None


def _complete_granted(cursor: Cursor, command: Complete, now_us: int, outbox: Outbox) -> Result | None:
    """Complete a claim without reading its record; None if it has to be read, and nothing was changed."""
    granted = command.granted
    # A kept request has to be dropped with the completion, which takes more than one statement.
    if granted is None or granted.delivery is not None:
        return None
    result, record = step(granted, command, now_us, no_token)
    if record is None or not isinstance(result, Applied):
        return None
    # The fence identifies the record: token and attempt id belong to this claim alone. RETURNING the row would add more
    # than half of the update's cost.
    operation_id = command.operation_id.bytes
    fence = (operation_id, record.token, record.attempt_id.bytes)
    if not cursor.change("update_granted", (*encode(record), *fence)):
        return None
    if command.response.body is not None:
        cursor.change("insert_response_of", (command.response.body, operation_id))
    write_events(cursor, outbox.service, outbox.rows(granted, record), now_us)
    return result


def _write(cursor: Cursor, kept: _Kept, record: Record | None, request: SealedRequest | None = None) -> Any:
    """Write the record that the table returned, with the request that is kept from now on; returns its row."""
    # A new operation may take the id of an expired one; that is no change of the old one.
    is_new = record is not None and (kept.record is None or record.identity is not kept.record.identity)
    response = None if record is None else record.response
    had_delivery = kept.record is not None and kept.record.delivery is not None
    if had_delivery and (record is None or record.delivery is None):
        cursor.change("delete_delivery", (kept.row,))
        cursor.change("delete_request", (kept.row,))
    # Every row of the table that leaves `completed` removes the response body.
    if kept.has_body:
        cursor.change("delete_response", (kept.row,))
    if kept.record is not None and (is_new or record is None):
        cursor.forget_token(kept.record.token)
        cursor.change("delete_operation", (kept.row,))
    if record is None:
        return None
    if is_new:
        # Made by a claim or an acceptance, which have no response.
        cursor.change("insert_operation", (*encode(record), *encode_identity(record.identity)))
        row = cursor.inserted_row(record.identity.operation_id)
    else:
        row = kept.row
        cursor.change("update_operation", (*encode(record), row))
        if response is not None and response.body is not None:
            cursor.change("insert_response", (row, response.body))
    if record.delivery is None:
        return row
    if had_delivery:
        cursor.change("update_delivery", (*encode_delivery_change(record, record.delivery), row))
    elif request is not None:
        cursor.change("insert_delivery", encode_delivery(row, record, record.delivery))
        cursor.change("insert_request", (row, request.key_id, request.sealed))
    return row


def _give_turn(cursor: Cursor, lane: bytes) -> Any:
    """Mark the head of a lane as not behind, and whichever was the head before as behind; returns the head's row."""
    line = cursor.rows("select_line", (lane,))
    for place, (row, is_behind) in enumerate(line):
        if bool(is_behind) is not (place > 0):
            cursor.change("give_turn", (place > 0, row))
    return line[0][0] if line else None


def write_events(cursor: Cursor, service: str, rows: Iterable[OutboxRow], now_us: int) -> None:
    """Write the events of a change, in its transaction."""
    for row in rows:
        values = (service, row.sink, row.event_id, row.type, now_us, row.content, row.response)
        if row.line is None:
            cursor.change("insert_event", values)
        else:
            cursor.change("insert_ordered_event", (*values, row.line))
            cursor.change("give_event_turn", (service, row.sink, row.line))


def _outboxes(cursor: Cursor, outbox: Outbox) -> list[Outbox]:
    """Which events each service writes; this one's as it is now."""
    others = cursor.rows("select_outboxes")
    return [outbox, *(unpack(content, outbox.sealing) for service, content in others if service != outbox.service)]


def read_all(cursor: Cursor, operation_ids: Sequence[UUID]) -> list[Record | Exception | None]:
    """The records as last written; for one that cannot be read, the error."""
    records: list[Record | Exception | None] = []
    for operation_id in operation_ids:
        try:
            records.append(_kept(cursor, _read(cursor, operation_id)).record)
        except StoreError as error:
            records.append(error)
    return records


@dataclass(slots=True)
class SweptPart:
    """What one transaction of a sweep wrote, and for which operations."""

    swept: Swept = field(default_factory=Swept)
    operation_ids: list[UUID] = field(default_factory=list)


class EventsUnsynced(Exception):
    """A sweep has events to write, in a transaction that a power loss may undo. The next sweep would write them with
    another time under the same ids, and these may have been published by then."""


def is_due(cursor: Cursor, now_us: int) -> bool:
    """Whether a sweep would find anything."""
    if cursor.row("find_pause_ahead", (now_us,)) or _paused_expiring(cursor, now_us, 1):
        return True
    return any(cursor.row(name, (state.value, now_us, 1)) for name, state in _SWEPT) or any(
        cursor.row(name, (now_us, 1)) for name, *_ in _TIDIED
    )


def sweep_some(cursor: Cursor, now_us: int, limit: int, outbox: Outbox, *, is_synced: bool) -> SweptPart:
    """Sweep at most `limit` records; `more` when there were that many. Raises `EventsUnsynced` unless `is_synced`."""
    part, written = SweptPart(), Counter[State]()
    lapsed: list[tuple[str, UUID]] = []
    outboxes = _outboxes(cursor, outbox)
    cursor.change("move_pauses", (now_us,))
    prolonged = _hold_paused(cursor, now_us, limit)
    limit -= prolonged
    for name, state in _SWEPT:
        bounds = (state.value, now_us, limit - written.total())
        for columns in cursor.due(name, bounds):
            kept = _kept(cursor, columns)
            settled = None if kept.record is None else written_down(kept.record, now_us)
            _write(cursor, kept, settled)
            if (lane := moved_lane(kept.record, settled)) is not None:
                _give_turn(cursor, lane)
            if kept.record is not None:
                service, rows = swept_rows(outboxes, kept.record, settled)
                if rows and not is_synced:
                    raise EventsUnsynced
                write_events(cursor, service, rows, now_us)
            # One that only moved is still what it was.
            after = State.ABSENT if settled is None else settled.state
            written[State.CLAIMED if state is after else after] += 1
            part.operation_ids.append(UUID(bytes=columns[1]))
            if settled is not None and state is not after is State.IN_DOUBT:
                lapsed.append((settled.identity.route, settled.identity.operation_id))
    more = written.total() + _tidy(cursor, now_us, limit - written.total()) == limit
    part.swept = Swept(
        written[State.IN_DOUBT],
        written[State.TOMBSTONE],
        written[State.ABSENT],
        more,
        written[State.DEAD_LETTER],
        tuple(lapsed[:LAPSES_NAMED_MAX]),
    )
    return part


def _paused_expiring(cursor: Cursor, now_us: int, limit: int) -> list[Row]:
    bounds = (now_us, now_us + PAUSE_STEP_US, now_us + PAUSE_END_US, limit, now_us - PAUSE_END_US)
    rows: list[Row] = cursor.rows("select_paused_expiring", bounds)
    return rows


def _hold_paused(cursor: Cursor, now_us: int, limit: int) -> int:
    """Keep at most `limit` paused operations from expiring soon; return how many."""
    rows = _paused_expiring(cursor, now_us, limit)
    for row, counted_us, is_ending in rows:
        step_us = PAUSE_END_US if is_ending else PAUSE_STEP_US
        prolong(cursor, row, step_us, counted_us + step_us)
    return len(rows)


def prolong(cursor: Cursor, row: Any, by_us: int, credited_us: int) -> None:
    """Move the time until which an accepted operation has to be delivered; pauses count until `credited_us`."""
    cursor.change("prolong_delivery", (row, by_us, credited_us))
    cursor.change("prolong_operation", (row, by_us))


# What a sweep tidies: the statement that finds rows that are due, each with its key and whether it is still needed; the
# one that moves the time of a row that is, by how much; and the one that deletes the others.
_TIDIED: Final = (
    ("select_old_audits", "update_audit", AUDIT_KEEP_US, "delete_audit"),
    ("select_old_recoveries", "update_recovery", RECOVERY_CHECK_US, "delete_recovery"),
    ("select_old_contents", "update_content", RECOVERY_CHECK_US, "delete_content"),
    ("select_old_witnesses", "keep_witness", WITNESS_KEEP_US, "delete_witness"),
)


def _tidy(cursor: Cursor, now_us: int, limit: int) -> int:
    """Extend or delete at most `limit` due audits, recovery leases, contents and witnesses; return how many."""
    checked = 0
    for select, extend, keep_us, delete in _TIDIED:
        rows = cursor.rows(select, (now_us, limit - checked))
        for *key, is_needed in rows:
            if is_needed:
                cursor.change(extend, (now_us + keep_us, *key))
            else:
                cursor.change(delete, key)
        checked += len(rows)
    return checked


def tally(cursor: Cursor, now_us: int) -> Tally:
    """Count the operations in doubt as of now, including lapsed claims not yet swept."""
    in_doubt, oldest_us = Counter[str](), now_us
    for route, number, since_us in cursor.rows("tally", (now_us,)):
        in_doubt[route] += number
        oldest_us = min(oldest_us, since_us)
    return Tally(in_doubt, (now_us - oldest_us) / MICROSECONDS, sealed_counts(_sealed(cursor)))


def _sealed(cursor: Cursor) -> Iterator[tuple[str, int]]:
    """Which keys are used together, and by how many rows."""
    key_ids = ""
    while (found := cursor.row("select_next_sealed", (key_ids,))[0]) is not None:
        key_ids = found
        yield key_ids, cursor.row("count_sealed", (key_ids, SEALED_COUNT_MAX))[0]
