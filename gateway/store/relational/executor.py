"""Executes commands inside a transaction that the caller begins and ends: lock the rows, let the table decide, write.

It owns which statement is executed when, and knows neither the driver nor the dialect (`Cursor`). It decides nothing:
it reads records, calls `lifecycle`, and writes the records that this returns.

Theory of operation
-------------------
*The hot verbs* are each store's own: a claim of a key that has no record, and a completion of the record as it was
granted. Their statements change nothing if the row is not the one that `step` assumed; then the command goes the way of
all others.

*All others* are executed as a set. The records of all commands are read and locked at once, `step` decides on each, and
`Changes` collects what is to be written, by statement. It is written when all are decided, or before a command about
something that a change before it is about: the operation, its lane, or its content. Such a command reads its record
anew.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from gateway.core.delivery import moved_lane, with_turn
from gateway.core.framing import digest
from gateway.core.lifecycle import settle, step
from gateway.core.operation import (
    EVENT_OF,
    Accept,
    Applied,
    Claim,
    Command,
    Content,
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
from gateway.core.outbox import Outbox, OutboxRow
from gateway.store.base import NotApplied, StoreError
from gateway.store.operations import AUDIT_KEEP_US
from gateway.store.relational.rows import (
    CHANGED,
    Row,
    decode,
    encode,
    encode_delivery,
    encode_delivery_change,
    keeps_body,
    keeps_request,
    kind_of,
)

T = TypeVar("T")

# A constant, because a union inside `isinstance` is built on every call.
_PURGING: Final = (Purge, Erase)
DRAWING: Final = (Claim, Accept, Dispatch, Takeover)
"""The commands that may draw a token."""


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
    """Whether transactions have the effect of one after the other. If not, what they read can change until they hold
    it."""
    swept: Sequence[tuple[str, State]]
    """What a sweep looks for: by which statement, and in which state."""

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

    @abstractmethod
    async def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        """The first row, or None."""

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

    async def hold(self, keys: Iterable[bytes], /) -> None:
        """Exclude all others that hold one of these keys, until the transaction ends; where `is_serial`, nothing."""

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


class Contended(NotApplied):
    """The transaction lost against others each time that it was tried. A smaller one may succeed."""


async def read_batch(operation_ids: Sequence[UUID], cursor: Cursor) -> list[Snapshot | Exception]:
    """The settled records."""
    found = await read_all(cursor, operation_ids)
    # Read the clock after the records, or one that was just written would lie in the future.
    now_us = cursor.now_us
    results: list[Snapshot | Exception] = []
    for operation_id in operation_ids:
        stored = found.get(operation_id, ABSENT)
        if isinstance(stored, Stored):
            results.append(Snapshot(settle(stored.record, now_us), now_us))
        else:
            results.append(stored)
    return results


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of an operation, if anything."""

    record: Record | None = None
    has_body: bool = False


ABSENT: Final = Stored()


async def read_all(cursor: Cursor, operation_ids: Sequence[UUID]) -> dict[UUID, Stored | StoreError]:
    """The records as last written, of those operations that have one; for one that cannot be read, the error."""
    return await _by_id(cursor, await cursor.among("select_operation", [each.bytes for each in operation_ids]))


async def lock_all(cursor: Cursor, operation_ids: Iterable[UUID]) -> dict[UUID, Stored | StoreError]:
    """As `read_all`, of records that nobody else changes until the transaction ends."""
    rows = await cursor.among("lock_operation", sorted(each.bytes for each in operation_ids))
    # Behind the locks, as all that belongs to a record: the statement that waits for one may see what was before.
    kept = [row[1] for row in rows if keeps_body(row)]
    bodies: dict[bytes, bytes] = dict(await cursor.among("select_response", kept)) if kept else {}
    return await _by_id(cursor, [(*row[:-1], bodies.get(row[1])) for row in rows])


async def _by_id(cursor: Cursor, rows: Sequence[Row]) -> dict[UUID, Stored | StoreError]:
    return dict(zip((UUID(bytes=row[1]) for row in rows), await decoded(cursor, rows), strict=True))


async def decoded(cursor: Cursor, rows: Sequence[Row]) -> list[Stored | StoreError]:
    """The records of rows of `{record}` and the body; for one that this program cannot read, the error.

    Executes a further statement where rows keep a request, and where they are narrow.
    """
    keeping = [row[0] for row in rows if keeps_request(row)]
    deliveries = {row[0]: row[1:] for row in await cursor.among("select_delivery", keeping)} if keeping else {}
    kinds = await kinds_of(cursor, map(kind_of, rows))
    found: list[Stored | StoreError] = []
    for row in rows:
        try:
            record = decode(row, tuple(deliveries.get(row[0], ())) or None, kinds.get(kind_of(row)))
            found.append(Stored(record, keeps_body(row)))
        except StoreError as error:
            found.append(error)
    return found


async def kinds_of(cursor: Cursor, ids: Iterable[bytes | None]) -> dict[bytes | None, Row]:
    """Those of these kinds that are there, by id."""
    wanted = sorted({each for each in ids if each is not None})
    return {row[0]: row for row in await cursor.among("select_kind", wanted)} if wanted else {}


def line_key(service: str, sink: str, line: bytes) -> bytes:
    """What whoever writes to a line of ordered events holds."""
    return digest(b"line", service.encode(), sink.encode(), line)


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
        self, before: Stored, after: Record | None, request: SealedRequest | None = None, narrow: Row | None = None
    ) -> bytes | None:
        """Write the record that the table returned, with the request that is kept from now on, or as a narrow row;
        returns the lane whose line that moves."""
        rows, old = self._rows, before.record
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
            if before.has_body:
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
        rows, row, delivery = self._rows, encode(record), record.delivery
        operation_id = row[0]
        if is_new:
            # Made by a claim or an acceptance, which have no response.
            rows["insert_operation"].append(row)
        else:
            rows["update_operation"].append((*row[CHANGED:], operation_id))
            if record.response is not None and record.response.body is not None:
                rows["insert_response"].append((record.response.body, operation_id))
        if delivery is None:
            return
        if had_delivery:
            rows["update_delivery"].append((*encode_delivery_change(record, delivery), operation_id))
        elif request is not None:
            rows["insert_delivery"].append(encode_delivery(record, delivery))
            rows["insert_request"].append((request.key_id, request.sealed, operation_id))

    def add_events(self, service: str, events: Iterable[OutboxRow]) -> None:
        """Write the events of a change."""
        for event in events:
            names, now_us = (service, event.sink, event.event_id, event.type), self._now_us
            if event.line is None:
                self._rows["insert_event"].append((*names, now_us, now_us, now_us, event.content, event.response))
            else:
                self._rows["insert_ordered_event"].append((*names, now_us, event.content, event.response, event.line))
                self._rows["give_event_turn"].append((service, event.sink, event.line))

    def hold_content(self, content: Content, record: Record) -> None:
        """The record's operation holds the content from now on."""
        if record.fingerprint is not None:
            ids = (content.digest, record.identity.operation_id.bytes)
            until_us = self._now_us + content.within_us
            self._rows["upsert_content"].append((*ids, record.fingerprint.digest, until_us, until_us))

    def add_audit(self, record: Record, command: Command) -> None:
        """Write down who gave the command, and why, if that is to be known; `record` is the one before."""
        if (audit := audit_of(command)) is not None:
            now_us, event = self._now_us, EVENT_OF[type(command)].value
            who = (record.token, audit.who, audit.why)
            self._rows["insert_audit"].append(
                (record.identity.operation_id.bytes, now_us, event, *who, now_us + AUDIT_KEEP_US)
            )

    def make_generation(self) -> None:
        """All earlier copies are invalid from now on."""
        self._rows["update_generation"] = [(uuid4().hex,)]

    async def write(self) -> dict[bytes, UUID | None]:
        """Write everything; returns the heads of the lanes whose lines moved."""
        rows, self._rows = self._rows, defaultdict(list)
        lanes, self._lanes = self._lanes, set()
        if "insert_ordered_event" in rows:
            await self._cursor.hold({line_key(each[0], each[1], each[-1]) for each in rows["insert_ordered_event"]})
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


async def execute(cursor: Cursor, commands: Sequence[Command], now_us: int, outbox: Outbox) -> list[Result | Exception]:
    """Execute the commands; for one about a record that this program cannot read, the result is the error."""
    results: list[Any] = [None] * len(commands)
    if commands:
        await _Execution(cursor, now_us, outbox, commands, results).run()
    return results


class _Execution:
    """The commands of a batch, which read their records."""

    def __init__(
        self, cursor: Cursor, now_us: int, outbox: Outbox, commands: Sequence[Command], results: list[Any]
    ) -> None:
        self._cursor = cursor
        self._now_us = now_us
        self._outbox = outbox
        self._commands = commands
        self._results = results
        self._changes = Changes(cursor, now_us)
        # What the changes are about that are not written yet, and which of them move a lane.
        self._changed: set[object] = set()
        self._moved: list[tuple[int, bytes]] = []
        self._holders: dict[bytes, list[UUID]] = {}

    async def run(self) -> None:
        """Execute all, and set their results."""
        commands = self._commands
        contents = {content.digest for each in commands if (content := content_of(each)) is not None}
        await self._cursor.hold(contents)
        locked = await self._lock({operation_id_of(each) for each in commands})
        if not self._cursor.is_serial:
            locked |= await self._hold_lanes(commands, locked)
            # No earlier than what was waited for.
            self._now_us = self._cursor.now_us
            self._changes = Changes(self._cursor, self._now_us)
        await self._find_holders(contents)
        stale: set[object] = set()
        for place, command in enumerate(commands):
            operation_id = operation_id_of(command)
            stored = locked.get(operation_id, ABSENT)
            about = _about(command, stored)
            if not about.isdisjoint(self._changed):
                await self._write()
            if not about.isdisjoint(stale):
                await self._find_holders(
                    {each[1] for each in about if isinstance(each, tuple) and each[0] == "content"}
                )
                stored = (await self._lock((operation_id,))).get(operation_id, ABSENT)
            if isinstance(stored, StoreError):
                self._results[place] = stored
            elif await self._apply(place, command, stored):
                self._changed |= about
                stale |= about
        await self._write()

    async def _hold_lanes(
        self, commands: Sequence[Command], locked: Mapping[UUID, Stored | StoreError]
    ) -> dict[UUID, Any]:
        """Hold the lanes of what is locked and accepted, and read again what is in them: its turn may be another's."""
        found = {operation_id: lane for operation_id, each in locked.items() if (lane := _lane_of(each)) is not None}
        new = {each.lane for each in commands if isinstance(each, Accept) and each.lane is not None}
        await self._cursor.hold(new.union(found.values()))
        return await self._lock(found) if found else {}

    async def _lock(self, operation_ids: Iterable[UUID]) -> dict[UUID, Stored | StoreError]:
        return await lock_all(self._cursor, operation_ids)

    async def _apply(self, place: int, command: Command, stored: Stored) -> bool:
        """Execute the command on its record; returns whether anything changes."""
        now_us, changes, content = self._now_us, self._changes, content_of(command)
        holder = None if content is None else self._content_holder(command, content)
        settled = settle(stored.record, now_us)
        if isinstance(command, DRAWING):
            await self._cursor.ready_to_draw(stored.record, command)
        result, record = step(settled, command, now_us, self._cursor.draw, holder)
        self._results[place] = result
        # A repeated command leaves the settled record as it is. What the clock did to it is for a sweep to write.
        is_changed = record is not settled
        if is_changed:
            if content is not None and record is not None:
                changes.hold_content(content, record)
            lane = changes.replace(stored, record, command.kept if isinstance(command, Accept) else None)
            if lane is not None:
                self._moved.append((place, lane))
            changes.add_events(self._outbox.service, self._outbox.rows(stored.record, record))
            if isinstance(command, _PURGING):
                changes.make_generation()
            if settled is not None:
                changes.add_audit(settled, command)
        return is_changed

    async def _find_holders(self, contents: Collection[bytes]) -> None:
        """Find the operations that hold these contents, those first that claimed it first."""
        self._holders |= {digest: [] for digest in contents}
        if contents:
            rows = await self._cursor.among("select_content_holders", sorted(contents), self._now_us)
            for _, holder, digest in sorted(rows):
                self._holders[digest].append(UUID(bytes=holder))

    def _content_holder(self, command: Command, content: Content) -> UUID | None:
        """Another operation that holds the content, unless the caller means this one too."""
        if content.is_distinct:
            return None
        own = operation_id_of(command)
        return next((each for each in self._holders[content.digest] if each != own), None)

    async def _write(self) -> None:
        heads = await self._changes.write()
        for place, lane in self._moved:
            is_behind = heads[lane] != operation_id_of(self._commands[place])
            self._results[place] = Applied(with_turn(self._results[place].snapshot, is_behind=is_behind))
        self._moved.clear()
        self._changed.clear()


def _lane_of(stored: Stored | StoreError) -> bytes | None:
    record = stored.record if isinstance(stored, Stored) else None
    return None if record is None or record.delivery is None else record.delivery.lane


def _about(command: Command, stored: Stored | StoreError) -> set[object]:
    """What the command is about: the operation, its lane, and its content."""
    about: set[object] = {operation_id_of(command)}
    if (lane := _lane_of(stored)) is not None:
        about.add(("lane", lane))
    if isinstance(command, Accept) and command.lane is not None:
        about.add(("lane", command.lane))
    if (content := content_of(command)) is not None:
        about.add(("content", content.digest))
    return about
