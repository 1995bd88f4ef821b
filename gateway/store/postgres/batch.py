"""Executes batches of commands on Postgres, and derives each result from the table.

It turns a list of commands into a list of results over one link: it repeats what lost to contention, and splits a batch
with a value that cannot be stored or an operation that is locked. It reads no clock and knows no driver.

Theory of operation
-------------------
`claim` and `complete` are hot: each is one statement. Its WHERE decides, and it returns the records as they were under
its locks, with its time. From those `lifecycle.step` derives the results. The statement must have changed exactly the
records that the table changes. If not, it is unknown what was done, and every command of the batch gets `Indefinite`.
All other commands lock their records in one transaction, execute `lifecycle.step`, and write what it returns.

An acceptance of a new key is an insert, because there is no record to lock: who inserts the key first has it. Of a
known key, it locks the record like the others; so does the completion of a record that keeps its request, which is
dropped with it.

Where repeats of a content are refused, a claim or an acceptance takes a transaction: it locks the contents, reads who
holds them in a statement of its own (whose snapshot has all that was waited for), and then does the same as the others.
Locks of contents come before those of records.

If a statement cannot show enough, its result is `Unclear`, and the caller reads the record. That happens when a claim
lost a race to a record that is not in its snapshot, and when the result needs a response or a delivery, which only a
read returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.lane import moved_lane, rank, with_turn
from gateway.core.lifecycle import no_token, settle, step
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    Accept,
    Applied,
    Claim,
    Command,
    Complete,
    Dispatch,
    Erase,
    Prove,
    Purge,
    Record,
    Renew,
    Result,
    Snapshot,
    State,
    Takeover,
    audit_of,
    operation_id_of,
)
from gateway.core.outbox import EventType, Outbox, OutboxRow
from gateway.store.base import Indefinite, NotApplied, StoreError, Unreadable, Unstorable
from gateway.store.postgres.arguments import acceptance_arguments, claim_arguments, completion_arguments
from gateway.store.postgres.change import (
    Change,
    deliveries,
    event_columns,
    give_turns,
    lock_lanes,
    write,
    write_events,
)
from gateway.store.postgres.connection import CHECK_VIOLATION, Connection, ServerRefused
from gateway.store.postgres.content import Contents
from gateway.store.postgres.dialer import WitnessedLink
from gateway.store.postgres.rows import DUE_SLACK_US, WIDTH, is_kept, record_of, row_of
from gateway.store.postgres.statements import load

C = TypeVar("C", bound=Command)

# Rows of one statement of the driver.
Rows = Sequence[Any]

_CONTENTION_TRIES: Final = 5
# The most locked operations in one batch. At one more the rest is given up, because other batches wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_EXPECTED_REPLAY_US: Final = 24 * 3600 * 1_000_000
_OPERATIONS_MAX: Final = 10_000
# Where the record begins in a row of `claim`.
_RECORD_PLACE: Final = 5

_CLAIM: Final = load("claim")
_COMPLETE: Final = load("complete")
_COMPLETE_WITH_EVENTS: Final = load("complete_with_events")
_ACCEPT: Final = load("accept")
_LOCK: Final = load("lock")
_LOCK_TOMBSTONES: Final = load("lock_tombstones")
_DRAW_NUMBERS: Final = load("draw_numbers")
_BEGIN_GENERATION: Final = load("begin_generation")


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing was changed, and the statement does not show the result: read the record, which exists."""


class _Left(Unclear):
    """Unclear, and to be executed on the locked record: the statement leaves that to `_change`."""


BatchResult = Result | Unclear
Results = list[BatchResult | Exception]


class Windows:
    """The replay windows in use: the longest configured one, and the last one of each operation name.

    The latter predicts when upkeep has to check a new claim; a response may declare a longer one than is configured.
    """

    def __init__(self) -> None:
        self.configured_us = 0
        self._replay_us: dict[str, int] = {}

    @property
    def longest_us(self) -> int:
        return max((self.configured_us, *self._replay_us.values()))

    def due_in_us(self, operation: str) -> int:
        return self._replay_us.get(operation, _EXPECTED_REPLAY_US) + DUE_SLACK_US

    def learn(self, operation: str, replay_us: int) -> None:
        if operation in self._replay_us or len(self._replay_us) < _OPERATIONS_MAX:
            self._replay_us[operation] = replay_us


# The commands that draw a token once their record is locked.
_DRAWING: Final = (Claim, Accept, Dispatch, Takeover)


class Executor:
    """Executes the batches of one link. The operations of a batch are all different; the results are in their order.

    Never raises: an error is the result of the commands that it concerns.
    """

    def __init__(
        self,
        link: WitnessedLink,
        add_partitions: Callable[[Sequence[int]], Awaitable[None]],
        clock_us: Callable[[], int | None],
        windows: Windows,
        outbox: Outbox,
    ) -> None:
        self._link = link
        self._outbox = outbox
        self._add_partitions = add_partitions
        self._clock_us = clock_us
        self._windows = windows

    async def claim(self, commands: Sequence[Claim]) -> Results:
        with_content = [each for each in commands if each.content is not None]
        if not with_content:
            return await self._execute(commands, self._claim)
        others = [each for each in commands if each.content is None]
        by_id = await self._in_parts(others, self._claim) | await self._in_parts(with_content, self._take)
        return [by_id[operation_id_of(command)] for command in commands]

    async def record(self, commands: Sequence[Complete | Accept]) -> Results:
        """Execute what carries bodies: completions and acceptances."""
        completions = [each for each in commands if isinstance(each, Complete) and not self._needs_record(each)]
        acceptances = [each for each in commands if isinstance(each, Accept)]
        plain = [each for each in acceptances if each.content is None and each.lane is None]
        ordered = [each for each in acceptances if each.content is None and each.lane is not None]
        with_content = [each for each in acceptances if each.content is not None]
        by_id = await self._in_parts(completions, self._complete) | await self._in_parts(plain, self._accept)
        by_id |= await self._in_parts(ordered, self._accept_by_steps)
        by_id |= await self._in_parts(with_content, self._take)
        left = [each for each in commands if isinstance(by_id.get(operation_id_of(each), _Left()), _Left)]
        by_id |= await self._in_parts(left, self._change)
        return [by_id[operation_id_of(command)] for command in commands]

    async def change(self, commands: Sequence[Command]) -> Results:
        """Execute all other commands. Renewals go first, so that no lease lapses because another record is locked."""
        renewals = [each for each in commands if isinstance(each, Renew)]
        others = [each for each in commands if not isinstance(each, Renew)]
        by_id = await self._in_parts(renewals, self._change) | await self._in_parts(others, self._change)
        return [by_id[operation_id_of(command)] for command in commands]

    async def _in_parts(
        self, commands: Sequence[C], once: Callable[[Sequence[C]], Awaitable[Results]]
    ) -> dict[UUID, BatchResult | Exception]:
        """The results by operation id."""
        found: dict[UUID, BatchResult | Exception] = {}
        for part in _parts(commands):
            found.update(zip(map(operation_id_of, part), await self._execute(part, once), strict=True))
        return found

    async def _execute(self, commands: Sequence[C], once: Callable[[Sequence[C]], Awaitable[Results]]) -> Results:
        results: Results = []
        # The next part is the last one here.
        parts, locked, makes_room = [commands], 0, True
        while parts:
            part = parts.pop()
            try:
                results += await self._persist(part, once, makes_room=makes_room)
            except ServerRefused as refused:
                locked += refused.is_locked and len(part) == 1
                # Make room only once: the commands that have room need not wait for that again.
                makes_room = makes_room and not _lacks_partition(refused)
                if len(part) > 1 and refused.is_of_some:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif len(part) > 1 and refused.is_locked:
                    # One by one, because each statement with the locked record waits for the full lock timeout.
                    parts += [[command] for command in reversed(part)]
                else:
                    results += [_refusal(command, refused) for command in part]
                    if locked > _LOCKED_MAX:
                        results += [_refusal(command, refused) for rest in reversed(parts) for command in rest]
                        break
            except (NotApplied, Indefinite) as fault:
                results += [type(fault)(*fault.args) for _ in part]
        return results

    async def _persist(
        self, commands: Sequence[C], once: Callable[[Sequence[C]], Awaitable[Results]], *, makes_room: bool
    ) -> Results:
        """Execute, and repeat after contention or for want of a partition."""
        for tries_left in reversed(range(_CONTENTION_TRIES)):
            try:
                return await once(commands)
            except ServerRefused as refused:
                if _lacks_partition(refused) and makes_room and tries_left:
                    await self._make_room(commands, refused)
                elif not refused.is_contention or not tries_left:
                    raise
        raise NotApplied("the statement lost to other statements every time")

    async def _make_room(self, commands: Sequence[Command], refused: ServerRefused) -> None:
        """Add the partitions for these responses. Raises `ServerRefused` like the statement, which did nothing."""
        try:
            await self._add_partitions([each.replay_us for each in commands if isinstance(each, Complete | Prove)])
        except StoreError as fault:
            text = f"there is no room for responses of that day yet: {fault}"
            raise ServerRefused(text, refused.sqlstate, refused.table) from fault

    async def _claim(self, commands: Sequence[Claim]) -> Results:
        arguments = claim_arguments(commands, self._windows.due_in_us)
        rows = await self._link.fetch(_CLAIM, self._clock_us(), *arguments, is_compared=True)
        return await self._witnessed(rows, _granted(commands, rows))

    async def _complete(self, commands: Sequence[Complete]) -> Results:
        arguments, events = completion_arguments(commands), self._events_of(commands)
        if events:
            arguments += (self._outbox.service, *events)
        statement = _COMPLETE_WITH_EVENTS if events else _COMPLETE
        rows = await self._link.fetch(statement, self._clock_us(), *arguments)
        results = _completed(commands, rows)
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, Applied) and result.snapshot.record is not None:
                self._windows.learn(result.snapshot.record.identity.operation, command.replay_us)
        return await self._witnessed(rows, results)

    def _needs_record(self, command: Complete) -> bool:
        """Whether the record has to be locked first: to drop its request, to make an event of what it says, or to give
        an event its place."""
        unknown = command.granted is None and bool(self._outbox.subscriptions)
        return _is_of_kept(command) or unknown or self._outbox.is_ordered

    def _events_of(self, commands: Sequence[Complete]) -> list[list[Any]]:
        """The events of these completions, as columns that begin with the ordinal of the command; empty without any.

        All that the statement can change of the record is as it was granted.
        """
        ordinals: list[int] = []
        rows: list[OutboxRow] = []
        for ordinal, command in enumerate(commands, start=1):
            granted = command.granted
            if granted is not None and self._outbox.subscriptions:
                found = self._outbox.rows(granted, step(granted, command, granted.claimed_us, no_token)[1])
                ordinals += [ordinal] * len(found)
                rows += found
        return [ordinals, *event_columns(rows)] if rows else []

    async def _accept(self, commands: Sequence[Accept]) -> Results:
        if self._outbox.has(EventType.ACCEPTED):
            return await self._accept_by_steps(commands)
        arguments = acceptance_arguments(commands)
        rows = await self._link.fetch(_ACCEPT, self._clock_us(), *arguments, is_compared=True)
        return _accepted(commands, rows)

    async def _accept_by_steps(self, commands: Sequence[Accept]) -> Results:
        """As `_accept`, with what takes further statements: locks of lanes, before numbers are drawn in them, and
        events, whose ids have the tokens, which only the statement knows."""
        results: Results = []

        async def accept(connection: Connection, link_id: UUID | None) -> Rows:
            rows, accepted = await self._insert_accepted(connection, link_id, commands)
            results.extend(accepted)
            return rows

        await self._link.transact(accept)
        return results

    async def _insert_accepted(
        self, connection: Connection, link_id: UUID | None, commands: Sequence[Accept]
    ) -> tuple[Rows, Results]:
        """Execute `accept`, and write the events of what it accepted. Locks the lanes that are not locked yet."""
        lanes = _lanes_of(commands)
        if lanes:
            await lock_lanes(connection, lanes)
        rows = await connection.fetch(_ACCEPT, self._clock_us(), *acceptance_arguments(commands), link_id)
        results = _accepted(commands, rows)
        if lanes:
            results = _with_turns(results, lanes, await give_turns(connection, lanes))
        new = {row["for_id"] for row in rows if row["accepted_token"] is not None}
        events = [
            row
            for command, result in zip(commands, results, strict=True)
            if isinstance(result, Applied) and command.identity.operation_id in new
            for row in self._outbox.rows(None, result.snapshot.record)
        ]
        await write_events(connection, self._outbox.service, events, rows[0][0])
        return rows, results

    async def _take(self, commands: Sequence[Claim | Accept]) -> Results:
        """Claims or acceptances of contents that other operations may hold."""
        by_id: dict[UUID, BatchResult | Exception] = {}

        async def take(connection: Connection, link_id: UUID | None) -> Rows:
            contents = await Contents.lock(connection, commands, self._clock_us())
            witnessed: Rows = []
            known = [command for command in commands if contents.is_known(command)]
            if known:
                rows, results = await self._change_locked(connection, link_id, known, contents, _lanes_of(commands))
                by_id.update(zip(map(operation_id_of, known), results, strict=True))
                witnessed = rows
            elif lanes := _lanes_of(commands):
                await lock_lanes(connection, lanes)
            pending = [command for command in commands if not contents.is_known(command)]
            while pending:
                refused, wave, pending = contents.next_wave(pending)
                by_id.update(refused)
                if wave:
                    rows, results = await self._insert(connection, link_id, wave)
                    for command, result in zip(wave, results, strict=True):
                        # A record that came in between is read, and executed on with the next try.
                        by_id[operation_id_of(command)] = Unclear() if isinstance(result, _Left) else result
                        contents.note(command, result)
                    witnessed = rows if rows and rows[0][-1] is not None else witnessed
            await contents.write(connection)
            return witnessed

        await self._link.transact(take)
        return [by_id[operation_id_of(command)] for command in commands]

    async def _insert(
        self, connection: Connection, link_id: UUID | None, commands: Sequence[Claim | Accept]
    ) -> tuple[Rows, Results]:
        """Claim or accept operations without a record."""
        if accepted := [each for each in commands if isinstance(each, Accept)]:
            return await self._insert_accepted(connection, link_id, accepted)
        claims = [each for each in commands if isinstance(each, Claim)]
        arguments = claim_arguments(claims, self._windows.due_in_us)
        rows = await connection.fetch(_CLAIM, self._clock_us(), *arguments, link_id)
        return rows, _granted(claims, rows)

    async def _witnessed(self, rows: Rows, results: Results) -> Results:
        if (not rows or rows[0][-1] is None) and any(isinstance(result, Applied) for result in results):
            # An earlier statement did it, and its witness number was lost with its result.
            await self._link.touch()
        return results

    async def _change(self, commands: Sequence[Command]) -> Results:
        results: Results = []

        async def change(connection: Connection, link_id: UUID | None) -> Rows:
            rows, changed = await self._change_locked(connection, link_id, commands)
            results.extend(changed)
            return rows

        await self._link.transact(change)
        return results

    async def _change_locked(
        self,
        connection: Connection,
        link_id: UUID | None,
        commands: Sequence[Command],
        contents: Contents | None = None,
        lanes: Sequence[bytes] = (),
    ) -> tuple[Rows, Results]:
        """Lock the records of these commands, execute the table on them, and write what it returns. Locks `lanes`, too,
        for what follows: the locks of lanes are taken all at once."""
        operation_ids = list(map(operation_id_of, commands))
        taken = [operation_id_of(command) for command in commands if isinstance(command, _DRAWING)]
        rows = await connection.fetch(_LOCK, self._clock_us(), operation_ids, taken, link_id)
        tokens = {row[1]: row[-2] for row in rows}
        locked = {row[1]: row[1:-2] for row in rows if row[1] is not None}
        elsewhere = [operation_id for operation_id in operation_ids if operation_id not in locked]
        if elsewhere:
            # A statement of its own: a record that moved while its lock was waited for is in no earlier snapshot.
            locked |= {row[0]: row for row in await connection.fetch(_LOCK_TOMBSTONES, elsewhere)}
        ordered = [command for command in commands if isinstance(command, Accept) and command.lane is not None]
        known = await deliveries(connection, list(locked.values()), [*lanes, *_lanes_of(ordered)])
        if ordered:
            numbers = await connection.fetch(_DRAW_NUMBERS, len(ordered))
            tokens |= {operation_id_of(each): row[0] for each, row in zip(ordered, numbers, strict=True)}
        now_us = rows[0][0]
        results: Results = []
        changes: list[Change] = []
        for command in commands:
            operation_id = operation_id_of(command)
            holder = None if contents is None else contents.holder_of(command)
            result, change = _decide(
                command,
                locked.get(operation_id),
                known.get(operation_id, ()),
                now_us,
                tokens.get(operation_id) or 0,
                content_holder=holder,
            )
            results.append(result)
            if change is not None:
                changes.append(change)
                if contents is not None:
                    contents.note(command, result)
        heads = await write(connection, changes, now_us)
        moved = [lane for each in changes if (lane := moved_lane(each.row.record, each.record)) is not None]
        results = _with_turns(results, moved, heads)
        events = [row for each in changes for row in self._outbox.rows(each.row.record, each.record)]
        await write_events(connection, self._outbox.service, events, now_us)
        changed = {each.row.record.identity.operation_id for each in changes}
        if any(isinstance(command, Purge | Erase) and command.operation_id in changed for command in commands):
            await connection.execute(_BEGIN_GENERATION)
        return rows, results


def _decide(
    command: Command,
    values: Sequence[Any] | None,
    delivery: Sequence[Any],
    now_us: int,
    token: int,
    *,
    content_holder: UUID | None = None,
) -> tuple[BatchResult | Exception, Change | None]:
    """Execute the table on a locked row and its delivery: the result of the command, and what to write. `token` was
    drawn for it, if it needs one."""
    try:
        row = None if values is None else row_of(values, delivery)
    except Unreadable as error:
        return error, None
    settled = None if row is None else settle(row.record, now_us)
    if row is not None and settled is None and row.record.identity.service is not None:
        # A tombstone that is over is no row to write to.
        row = None
    result, record = step(settled, command, now_us, lambda: token, content_holder)
    if row is None:
        # A record that was to be accepted again is gone. Try once more, as with a new key.
        return Unclear() if record is not None else result, None
    if record is settled:
        return Unclear() if _lacks_response(settled) else result, None
    return result, Change(row, record, audit_of(command), command.kept if isinstance(command, Accept) else None)


def _lanes_of(commands: Sequence[Command]) -> list[bytes]:
    """The lanes of these acceptances, each as often as something is accepted in it."""
    return [each.lane for each in commands if isinstance(each, Accept) and each.lane is not None]


def _with_turns(results: Results, moved: Collection[bytes], heads: Collection[UUID]) -> Results:
    """The results, with whether each operation in the lines of these lanes, also one that did not move, is a head."""
    return [_with_turn(result, moved, heads) if moved and isinstance(result, Applied) else result for result in results]


def _with_turn(result: Applied, moved: Collection[bytes], heads: Collection[UUID]) -> Applied:
    record = result.snapshot.record
    if record is None or record.delivery is None or record.delivery.lane not in moved or rank(record) is None:
        return result
    return Applied(with_turn(result.snapshot, is_behind=record.identity.operation_id not in heads))


def _is_of_kept(command: Complete) -> bool:
    """Whether the caller knows that the record keeps its request. If not, the statement finds it out."""
    return command.granted is not None and command.granted.delivery is not None


def _lacks_partition(refused: ServerRefused) -> bool:
    """Whether a response has no partition for its day: the table checks nothing else."""
    return refused.sqlstate == CHECK_VIOLATION and refused.table == "response"


def _refusal(command: Command, refused: ServerRefused) -> StoreError:
    """The error of a command that was refused for good, or given up because other commands were locked."""
    if refused.is_data:
        return Unstorable(*refused.args)
    if refused.is_locked and isinstance(command, Claim | Accept):
        # The claim that holds the lock may be granted yet, so the key may be taken.
        return Unreadable(f"another claim on this operation may be under way: {refused}")
    return NotApplied(*refused.args)


def _parts(commands: Sequence[C]) -> Iterator[Sequence[C]]:
    """Split the commands so that the responses and requests of each part fit a statement."""
    part: list[C] = []
    part_bytes = 0
    for command in commands:
        size = _size_of(command)
        if part and part_bytes + size > _STATEMENT_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(command)
        part_bytes += size
    if part:
        yield part


def _size_of(command: Command) -> int:
    """An estimate of the bytes that the command adds to a statement."""
    match command:
        case Complete() | Prove():
            return _response_size(command.response)
        case Accept():
            return len(command.kept.sealed)
        case _:
            return 0


def _response_size(response: StoredResponse) -> int:
    size = len(response.body or b"") + 8 * len(response.headers)
    for name, value in response.headers:
        size += len(name) + len(value)
    return size


def _granted(commands: Sequence[Claim], rows: Rows) -> Results:
    """The results of a `claim` statement: grants, and existing records."""
    grants: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    for row in rows:
        if row[1] is not None:
            grants[row[1].int] = row
        else:
            seen[row[_RECORD_PLACE].int] = row
    results: Results = []
    for command in commands:
        number = command.identity.operation_id.int
        grant, there = grants.get(number), seen.get(number)
        if there is not None and is_kept(there[_RECORD_PLACE:]):
            results.append(Unclear())
            continue
        try:
            before = None if there is None else record_of(there[_RECORD_PLACE : _RECORD_PLACE + WIDTH])
        except Unreadable as error:
            results.append(error)
            continue
        if grant is not None:
            results.append(_grant(command, before, grant))
        elif there is None:
            results.append(Unclear())
        else:
            now_us = there[0]
            results.append(result_of_read(Snapshot(settle(before, now_us), now_us), command, has_response=False))
    return results


def _grant(command: Claim, before: Record | None, grant: Sequence[Any]) -> Result | Indefinite:
    """The result of a granted claim: on the released record that the statement returned, or on none."""
    now_us, _, token, attempts, first_claimed_us = grant[:_RECORD_PLACE]
    settled = settle(before, now_us)
    if settled is None or settled.first_claimed_us != first_claimed_us:
        settled, follows = None, (attempts, first_claimed_us) == (1, now_us)
    else:
        follows = attempts == settled.attempts + 1
    if not follows:
        return Indefinite("PostgreSQL granted a claim on a record that its statement did not return")
    return step(settled, command, now_us, lambda: token)[0]


def _completed(commands: Sequence[Complete], rows: Rows) -> Results:
    """The results of a `complete` statement, which names the changed records and may leave out their contents."""
    now_us, changed = rows[0][0], frozenset[int](rows[0][1])
    before = {row[2].int: row for row in rows if row[2] is not None}
    results: Results = []
    for ordinal, command in enumerate(commands, start=1):
        row, is_changed = before.get(command.operation_id.int), ordinal in changed
        if row is not None and is_kept(row[2:]) and not is_changed:
            results.append(_Left())
            continue
        if row is None and not is_changed:
            # Absent, or a tombstone: this statement looks at neither.
            results.append(Unclear())
            continue
        try:
            record = record_of(row[2 : 2 + WIDTH]) if row is not None else command.granted if is_changed else None
        except Unreadable as error:
            results.append(error)
            continue
        settled = settle(record, now_us)
        result, after = step(settled, command, now_us, no_token)
        if (after is not settled) is not is_changed:
            raise Indefinite("PostgreSQL changed other records than the table says: was the schema altered by hand?")
        results.append(Unclear() if not is_changed and _lacks_response(settled) else result)
    return results


def _accepted(commands: Sequence[Accept], rows: Rows) -> Results:
    """The results of an `accept` statement."""
    by_number = {row[1].int: row for row in rows}
    results: Results = []
    for command in commands:
        row = by_number[command.identity.operation_id.int]
        now_us, token, is_open = row[0], row[2], row[3]
        if token is not None:
            results.append(step(None, command, now_us, partial(int, token))[0])
        else:
            results.append(_Left() if is_open else Unclear())
    return results


def result_of_read(snapshot: Snapshot, command: Command, *, has_response: bool) -> BatchResult:
    """The result of a command on a record that was only read; unclear when the command would change it."""
    result, after = step(snapshot.record, command, snapshot.now_us, lambda: 0)
    if after is not snapshot.record or (not has_response and _lacks_response(snapshot.record)):
        return Unclear()
    return result


def _lacks_response(record: Record | None) -> bool:
    """Whether a statement's record has a response, which only a read returns."""
    return record is not None and record.state is State.COMPLETED
