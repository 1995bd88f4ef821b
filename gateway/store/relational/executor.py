"""Changes records inside a transaction that the caller begins and ends: lock the rows, let the table decide, write.

It owns which statement is executed when, and knows neither the driver nor the dialect (`Cursor`). It decides nothing.

Theory of operation
-------------------
*The hot verbs* are each store's own: a claim of a key that has no record, and a completion of the record as it was
granted. Their statements change nothing if the row is not the one that `step` assumed; then the command goes the way of
all others.

*All others* are executed as a set: their records are locked at once, `step` decides on each, and `Changes` writes what
it returned, by statement. Commands about one operation, lane or content have effect one after the other: the second one
is of another round, which reads again what the first one left.

*Sweeps* write down what the clock did, and delete what is no longer needed, a few records at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from gateway.core.delivery import moved_lane, with_turn
from gateway.core.lifecycle import DUE_TIMES, settle, step, written_down
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Accept,
    Applied,
    Claim,
    Command,
    Dispatch,
    Erase,
    Purge,
    Record,
    Result,
    SealedRequest,
    Snapshot,
    State,
    Takeover,
    audit_of,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import Outbox, OutboxRow, swept_rows, unpack
from gateway.store import operations
from gateway.store.base import NotApplied, StoreError
from gateway.store.operations import Swept
from gateway.store.relational import rows as columns
from gateway.store.relational.rows import Row, keeps_body, kind_of

T = TypeVar("T")

# A constant, because a union inside `isinstance` is built on every call.
_PURGING: Final = (Purge, Erase)
DRAWING: Final = (Claim, Accept, Dispatch, Takeover)
"""The commands that may draw a token."""
# What a sweep looks for: by which statement, and in which state. First the states that the clock changes, then leases
# that begin in the future, because the clock was set back.
SWEPT: Final = (
    *(("select_due", state) for state in DUE_TIMES),
    ("select_ended", State.TOMBSTONE),
    ("select_ahead", State.CLAIMED),
    ("select_doubt_ahead", State.IN_DOUBT),
)


class Contended(NotApplied):
    """The transaction lost against others each time that it was tried. A smaller one may succeed."""


class Entangled(NotApplied):
    """The commands concern more than their records: a transaction that `is_serial` has to execute them."""


class Cursor:
    """A transaction, and the statements of a store by their names. By itself it is one of a store that draws tokens in
    one place, whose transactions have the effect of one after the other."""

    __slots__ = ()

    first_row: Any
    """Below and beyond the rows of all operations."""
    last_row: Any
    drops_responses = False
    """Whether responses that are over leave by themselves."""
    is_serial = True
    """Whether transactions have the effect of one after the other. If not, only records are certain once locked."""
    swept: Sequence[tuple[str, State]] = SWEPT

    @property
    def narrows_up_to(self) -> int:
        """Up to which token a record may become a narrow row."""
        return 2**63 - 1

    @property
    @abstractmethod
    def now_us(self) -> int:
        """The store's clock, read inside the transaction: the later of two changes has the later time."""

    @abstractmethod
    async def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]: ...

    async def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return next(iter(await self.rows(statement, bindings)), None)

    async def together(self, queries: Sequence[tuple[str, Sequence[Any]]], /) -> list[list[Row]]:
        """The rows of each of these statements, which only read: in one round trip, where that matters."""
        return [await self.rows(*each) for each in queries]

    @abstractmethod
    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        """The rows that have one of these keys, in any order."""

    @abstractmethod
    async def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        """How many rows were changed."""

    @abstractmethod
    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        """Execute the statement with each of these, in their order."""

    async def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        """Rows of `{record}` of the operations whose ids the statement finds, which nobody else changes until the
        transaction ends."""
        found = [each for (each,) in await self.rows(statement, bindings)]
        return await self.among("lock_operation", found) if found else []

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        """Make the next token higher than any before of the operation that has this record, and than any of the lane
        that the command accepts it into."""

    @abstractmethod
    def draw(self) -> int:
        """The next fencing token, of a new operation or as `ready_to_draw` has it."""

    def forget_token(self, token: int, /) -> None:
        """An operation with this token is about to be deleted; it never draws the token again."""


def drive(work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """The result of work over a transaction whose statements wait for nothing."""
    coroutine: Any = work(*arguments)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the work waited for something")


# -- records -----------------------------------------------------------------------------------------------------------


Found = Record | StoreError
"""The error is that of a record that this program cannot read."""


async def read_batch(operation_ids: Sequence[UUID], cursor: Cursor) -> list[Snapshot | Exception]:
    found = await read_all(cursor, operation_ids)
    # Read the clock after the records, or one that was just written would lie in the future.
    now_us = cursor.now_us
    return [snapshot_of(found.get(each), now_us) for each in operation_ids]


def snapshot_of(found: Found | None, now_us: int) -> Snapshot | Exception:
    return found if isinstance(found, StoreError) else Snapshot(settle(found, now_us), now_us)


async def read_all(cursor: Cursor, operation_ids: Sequence[UUID]) -> dict[UUID, Found]:
    """The records as last written, of those operations that have one."""
    return await _by_id(cursor, await cursor.among("select_operation", [each.bytes for each in operation_ids]))


async def lock_all(cursor: Cursor, operation_ids: Iterable[UUID]) -> dict[UUID, Found]:
    """As `read_all`, of records that nobody else changes until the transaction ends."""
    rows = await cursor.among("lock_operation", sorted(each.bytes for each in operation_ids))
    # Behind the locks, as all that belongs to a record: the statement that waits for one may see what was before.
    kept = [row[1] for row in rows if keeps_body(row)]
    bodies: dict[bytes, bytes] = dict(await cursor.among("select_response", kept)) if kept else {}
    return await _by_id(cursor, [(*row[:-1], bodies.get(row[1])) for row in rows])


async def _by_id(cursor: Cursor, rows: Sequence[Row]) -> dict[UUID, Found]:
    return dict(zip((UUID(bytes=row[1]) for row in rows), await decoded(cursor, rows), strict=True))


async def decoded(cursor: Cursor, rows: Sequence[Row]) -> list[Found]:
    """The records of rows of `{record}` and the body. Executes a further statement where rows keep a request, and where
    they are narrow."""
    keeping = [row[0] for row in rows if columns.keeps_request(row)]
    deliveries = {row[0]: row[1:] for row in await cursor.among("select_delivery", keeping)} if keeping else {}
    kinds = await _kinds_of(cursor, map(kind_of, rows))
    return [decode(row, deliveries.get(row[0]), kinds.get(kind_of(row))) for row in rows]


def decode(row: Row, delivery: Row | None, kind: Row | None) -> Found:
    """See `rows.decode`."""
    try:
        return columns.decode(row, delivery, kind)
    except StoreError as error:
        return error


async def _kinds_of(cursor: Cursor, ids: Iterable[bytes | None]) -> dict[bytes | None, Row]:
    """Those of these kinds that are there, by id."""
    wanted = sorted({each for each in ids if each is not None})
    return {row[0]: row for row in await cursor.among("select_kind", wanted)} if wanted else {}


class Changes:
    """What is to be written, by the statement that writes it: of each operation one change at most."""

    # In this order. What belongs to an operation goes before it.
    _STATEMENTS: Final = (
        "delete_delivery", "delete_request", "delete_response", "delete_operation",
        "insert_operation", "update_operation", "narrow_operation", "insert_response",
        "update_delivery", "insert_delivery", "insert_request",
        "upsert_content", "insert_audit", "insert_event", "insert_ordered_event", "give_event_turn",
        "update_generation",
    )  # fmt: skip

    def __init__(self, cursor: Cursor, now_us: int) -> None:
        self._cursor = cursor
        self._now_us = now_us
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._lanes: set[bytes] = set()

    def replace(
        self,
        old: Record | None,
        after: Record | None,
        request: SealedRequest | None = None,
        narrow: Row | None = None,
        *,
        drops_response: bool = True,
    ) -> bytes | None:
        """Write the record that the table returned, with the request that is kept from now on, or as a narrow row;
        returns the lane whose line that moves."""
        rows = self._rows
        # A new operation may take the id of an expired one; that is no change of the old one.
        is_new = after is not None and (old is None or after.identity is not old.identity)
        had_delivery = False
        if old is not None:
            key = (old.identity.operation_id.bytes,)
            had_delivery = old.delivery is not None
            if had_delivery and (after is None or after.delivery is None):
                rows["delete_delivery"].append(key)
                rows["delete_request"].append(key)
            # Every row of the table that leaves `completed` removes the response body.
            if drops_response and old.state is State.COMPLETED:
                rows["delete_response"].append(key)
            if is_new or after is None:
                self._cursor.forget_token(old.token)
                rows["delete_operation"].append(key)
        if narrow is not None:
            rows["narrow_operation"].append(narrow)
        elif after is not None:
            self._write(after, request, is_new=is_new, had_delivery=had_delivery)
        lane = moved_lane(old, after)
        if lane is not None:
            self._lanes.add(lane)
        return lane

    def _write(self, record: Record, request: SealedRequest | None, *, is_new: bool, had_delivery: bool) -> None:
        rows, row, delivery = self._rows, columns.encode(record), record.delivery
        operation_id = row[0]
        if is_new:
            # Made by a claim or an acceptance, which have no response.
            rows["insert_operation"].append(row)
        else:
            rows["update_operation"].append((*row[columns.CHANGED :], operation_id))
            if record.response is not None and record.response.body is not None:
                rows["insert_response"].append((record.response.body, operation_id))
        if delivery is None:
            return
        if had_delivery:
            rows["update_delivery"].append(columns.delivery_changed_of(columns.encode_delivery(record, delivery)))
        elif request is not None:
            rows["insert_delivery"].append(columns.encode_delivery(record, delivery))
            rows["insert_request"].append((request.key_id, request.sealed, operation_id))

    def add_events(self, service: str, events: Iterable[OutboxRow]) -> None:
        for event in events:
            names, now_us = (service, event.sink, event.event_id, event.type), self._now_us
            if event.line is None:
                self._rows["insert_event"].append((*names, now_us, now_us, now_us, event.content, event.response))
            else:
                self._rows["insert_ordered_event"].append((*names, now_us, event.content, event.response, event.line))
                self._rows["give_event_turn"].append((service, event.sink, event.line))

    def add(
        self, command: Command, before: Record | None, settled: Record | None, after: Record | None, outbox: Outbox
    ) -> bytes | None:
        """Write what a command made of the `settled` record, and what goes with that; returns as `replace`."""
        rows, now_us = self._rows, self._now_us
        if (content := content_of(command)) is not None and after is not None and after.fingerprint is not None:
            # The operation holds the content from now on.
            ids = (content.digest, after.identity.operation_id.bytes)
            until_us = now_us + content.within_us
            rows["upsert_content"].append((*ids, after.fingerprint.digest, until_us, until_us))
        lane = self.replace(before, after, command.kept if isinstance(command, Accept) else None)
        self.add_events(outbox.service, outbox.rows(before, after))
        if isinstance(command, _PURGING):
            # All earlier copies are invalid from now on.
            rows["update_generation"] = [(uuid4().hex,)]
        if settled is not None and (audit := audit_of(command)) is not None:
            of = (settled.identity.operation_id.bytes, now_us, EVENT_OF[type(command)].value, settled.token)
            rows["insert_audit"].append((*of, audit.who, audit.why, now_us + operations.AUDIT_KEEP_US))
        return lane

    async def write(self) -> dict[bytes, UUID | None]:
        """Write everything; returns the heads of the lanes whose lines moved."""
        rows, self._rows = self._rows, defaultdict(list)
        lanes, self._lanes = self._lanes, set()
        for statement in self._STATEMENTS:
            if statement in rows:
                await self._cursor.change_all(statement, rows[statement])
        return await _give_turns(self._cursor, sorted(lanes)) if lanes else {}


async def _give_turns(cursor: Cursor, lanes: Sequence[bytes]) -> dict[bytes, UUID | None]:
    """Mark the head of each lane as not behind, and whichever was the head before as behind; returns the heads."""
    heads: dict[bytes, UUID | None] = dict.fromkeys(lanes)
    changed = []
    line = await cursor.among("select_line", lanes)
    for lane, operation_id, was_behind, _ in sorted(line, key=itemgetter(3)):
        is_behind = heads[lane] is not None
        if not is_behind:
            heads[lane] = UUID(bytes=operation_id)
        if bool(was_behind) is not is_behind:
            changed.append((is_behind, operation_id))
    if changed:
        await cursor.change_all("give_turn", changed)
    return heads


# -- commands ----------------------------------------------------------------------------------------------------------

_Placed = tuple[int, Command]


async def execute(cursor: Cursor, commands: Sequence[Command], outbox: Outbox) -> list[Result | Exception]:
    """Execute the commands; for one about a record that this program cannot read, the result is the error. Raises
    `Entangled`, before anything was changed."""
    results: dict[int, Result | Exception] = {}
    left = list(enumerate(commands))
    while left:
        left = await _execute_some(cursor, left, outbox, results)
    return [results[place] for place in range(len(commands))]


async def _execute_some(
    cursor: Cursor, commands: Sequence[_Placed], outbox: Outbox, results: dict[int, Result | Exception]
) -> list[_Placed]:
    """Execute those that concern nothing that one before them does; returns the others."""
    first, later, taken = list[_Placed](), list[_Placed](), set[object]()
    for each in commands:
        about = _about(each[1])
        (first if about.isdisjoint(taken) else later).append(each)
        taken |= about
    locked = await lock_all(cursor, [operation_id_of(command) for _, command in first])
    contents = {content.digest for _, command in first if (content := content_of(command)) is not None}
    if not cursor.is_serial and (contents or any(_lane_of(each) for each in locked.values())):
        raise Entangled
    # No earlier than what was waited for.
    now_us = cursor.now_us
    holders = await _holders_of(cursor, contents, now_us)
    changes, moved, lanes = Changes(cursor, now_us), list[tuple[int, UUID, bytes]](), set[bytes]()
    for place, command in first:
        operation_id = operation_id_of(command)
        stored = locked.get(operation_id)
        if isinstance(stored, StoreError):
            results[place] = stored
            continue
        if (lane := _lane_of(stored)) is not None and lane in lanes:
            later.append((place, command))
            continue
        lanes.update(each for each in (lane, _new_lane_of(command)) if each is not None)
        content, settled = content_of(command), settle(stored, now_us)
        # Another operation that holds the content, unless the caller means this one too.
        others = () if content is None or content.is_distinct else holders[content.digest]
        holder = next((each for each in others if each != operation_id), None)
        if isinstance(command, DRAWING):
            await cursor.ready_to_draw(stored, command)
        results[place], record = step(settled, command, now_us, cursor.draw, holder)
        # A repeated command leaves the settled record as it is. What the clock did to it is for a sweep to write.
        if record is settled:
            continue
        if (lane := changes.add(command, stored, settled, record, outbox)) is not None:
            moved.append((place, operation_id, lane))
    heads = await changes.write()
    for place, operation_id, lane in moved:
        result: Any = results[place]
        results[place] = Applied(with_turn(result.snapshot, is_behind=heads[lane] != operation_id))
    return sorted(later, key=itemgetter(0))


def _about(command: Command) -> set[object]:
    """What the command is about, as far as it says that itself: the operation, its lane, and its content."""
    content = content_of(command)
    named = (("lane", _new_lane_of(command)), ("content", None if content is None else content.digest))
    return {operation_id_of(command), *(each for each in named if each[1] is not None)}


def _new_lane_of(command: Command) -> bytes | None:
    return command.lane if isinstance(command, Accept) else None


def _lane_of(found: Found | None) -> bytes | None:
    return found.delivery.lane if isinstance(found, Record) and found.delivery is not None else None


async def _holders_of(cursor: Cursor, contents: Collection[bytes], now_us: int) -> dict[bytes, list[UUID]]:
    """The operations that hold these contents, those first that claimed it first."""
    holders: dict[bytes, list[UUID]] = {each: [] for each in contents}
    if contents:
        for _, holder, digest in sorted(await cursor.among("select_content_holders", sorted(contents), now_us)):
            holders[digest].append(UUID(bytes=holder))
    return holders


# -- sweeps ------------------------------------------------------------------------------------------------------------

# How often a sweep checks whether a recovery lease, or the content of an operation, is still needed.
RECOVERY_CHECK_US: Final = 3_600 * MICROSECONDS
# What a sweep tidies: the statement that finds rows that are due, each with its key and whether it is still needed; the
# one that moves the time of a row that is, by how much; and the one that deletes the others. No activity is needed.
_TIDIED: Final = (
    ("select_old_audits", "update_audit", operations.AUDIT_KEEP_US, "delete_audit"),
    ("select_old_recoveries", "update_recovery", RECOVERY_CHECK_US, "delete_recovery"),
    ("select_old_contents", "update_content", RECOVERY_CHECK_US, "delete_content"),
    ("select_old_witnesses", "keep_witness", operations.WITNESS_KEEP_US, "delete_witness"),
    ("select_old_activity", "delete_activity", 0, "delete_activity"),
)


class EventsUnsynced(NotApplied):
    """A sweep has events to write, in a transaction that a power loss may undo. The next sweep would write them with
    another time under the same ids, and these may have been published by then."""


async def is_due(cursor: Cursor) -> bool:
    now_us = cursor.now_us
    swept = [(name, (state.value, now_us, 1)) for name, state in cursor.swept]
    tidied = [(name, (now_us, 1)) for name, *_ in _TIDIED]
    return any(await cursor.together([*_pauses(now_us), *swept, *tidied]))


async def sweep_some(cursor: Cursor, limit: int, outbox: Outbox, *, is_synced: bool) -> tuple[Swept, list[UUID]]:
    """Sweep at most `limit` records; `more` when there were that many. Returns the operations, too. Raises
    `EventsUnsynced` unless `is_synced`."""
    now_us, swept, written = cursor.now_us, list[UUID](), Counter[State]()
    lapsed: list[tuple[str, UUID]] = []
    found = await cursor.together([("select_outboxes", ()), ("select_services", ()), *_pauses(now_us)])
    others, services, ahead, paused = found
    # Which events each service writes; this one's as it is now.
    outboxes = [outbox, *(unpack(each, outbox.sealing) for service, each in others if service != outbox.service)]
    if ahead:
        await cursor.change("move_pauses", (now_us,))
    if ahead or paused:
        limit -= await _hold_paused(cursor, now_us, limit)
    changes = Changes(cursor, now_us)
    names, kinds = {outbox.service, *(name for (name,) in services)}, dict[bytes, Row]()
    for name, state in cursor.swept:
        if written.total() >= limit:
            break
        rows = await cursor.due(name, (state.value, now_us, limit - written.total()))
        for record in await decoded(cursor, rows):
            if isinstance(record, StoreError):
                raise record
            settled = written_down(record, now_us)
            narrow = None if settled is None else await _narrowed(cursor, settled, names, kinds)
            changes.replace(record, settled, narrow=narrow, drops_response=not cursor.drops_responses)
            service, events = swept_rows(outboxes, record, settled)
            if events and not is_synced:
                raise EventsUnsynced
            changes.add_events(service, events)
            # One that only moved is still what it was.
            after = State.ABSENT if settled is None else settled.state
            is_same = record.state is after
            written[State.CLAIMED if is_same else after] += 1
            swept.append(record.identity.operation_id)
            if not is_same and after is State.IN_DOUBT:
                lapsed.append((record.identity.route, record.identity.operation_id))
        # A record may be in the next state's as well, once it is written.
        await changes.write()
    more = written.total() + await _tidy(cursor, now_us, limit - written.total()) == limit
    return Swept.of(written, lapsed, more=more), swept


async def _narrowed(cursor: Cursor, record: Record, services: Collection[str], known: dict[bytes, Row]) -> Row | None:
    """The narrow row of a tombstone of one of these services, whose kind is there; None if it has to stay as it is.
    `known` are the kinds of this transaction."""
    if record.token > cursor.narrows_up_to or (found := columns.encode_tombstone(record, services)) is None:
        return None
    kind, row = found
    if kind[0] not in known:
        there = await _kinds_of(cursor, kind[:1])
        if not there and await cursor.change("insert_kind", kind):
            there = {kind[0]: kind}
        known[kind[0]] = there.get(kind[0], ())
    return row if known[kind[0]] == kind else None


def _pauses(now_us: int) -> list[tuple[str, Sequence[Any]]]:
    """Whether pauses need anything: one begins in the future, or what is paused expires soon."""
    return [("find_pause_ahead", (now_us,)), ("select_paused_expiring", _expiring(now_us, 1))]


def _expiring(now_us: int, limit: int) -> tuple[int, ...]:
    end_us = operations.PAUSE_END_US
    return now_us, now_us + operations.PAUSE_STEP_US, now_us + end_us, limit, now_us - end_us


async def _hold_paused(cursor: Cursor, now_us: int, limit: int) -> int:
    """Keep at most `limit` paused operations from expiring soon; return how many."""
    found = await cursor.rows("select_paused_expiring", _expiring(now_us, limit))
    steps = [operations.PAUSE_END_US if is_ending else operations.PAUSE_STEP_US for *_, is_ending in found]
    await prolong(cursor, [(row, step, since_us + step) for (row, since_us, _), step in zip(found, steps, strict=True)])
    return len(found)


async def prolong(cursor: Cursor, prolonged: Sequence[tuple[Any, int, int]]) -> None:
    """Move the times until which accepted operations have to be delivered: of each row, by how much, and until when
    pauses count."""
    await cursor.change_all("prolong_delivery", prolonged)
    await cursor.change_all("prolong_operation", [each[:2] for each in prolonged])


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
