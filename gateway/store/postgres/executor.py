"""Executes batches of commands over one link that changes operations, and derives each result from the table.

Theory of operation
-------------------
Claims of new keys and usual completions are one generated statement each (`hot`). Whatever such a statement
changed nothing for is unclear, and so is the key's record: the caller reads it. All other commands lock their records
in one transaction, execute the table, and write what it returns.

A batch that lost against another transaction is repeated. One with a value that cannot be stored is executed in halves,
and one with a record that somebody has locked one by one, because each transaction waits for the full lock timeout.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.lifecycle import step
from gateway.core.operation import (
    Accept,
    Applied,
    Claim,
    Command,
    Complete,
    Prove,
    Result,
    Snapshot,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import Outbox
from gateway.store.base import KNOWN, Indefinite, NotApplied, StoreError, Unreadable, Unstorable
from gateway.store.batching import Batcher
from gateway.store.postgres.connection import (
    CHECK_VIOLATION,
    READ_COMMITTED,
    SERIALIZABLE,
    ServerRefused,
)
from gateway.store.postgres.days import Days
from gateway.store.postgres.dialer import WitnessedLink
from gateway.store.postgres.hot import (
    NOTHING,
    PORTABLE,
    POSTGRES,
    Statement,
    event_columns,
    events_of,
    given_of,
    granted,
    insert_absent,
    is_absent_claim,
    is_granted_completion,
    replace_granted,
    text_of,
)
from gateway.store.postgres.transaction import Entangled, Transactions
from gateway.store.relational.executor import DRAWING, Cursor, execute

T = TypeVar("T")

# How often a command is tried whose record changes each time.
_TRIES: Final = 10
# How often a transaction that lost is repeated, and how long it waits before that: up to the second number.
REPEATS_MAX: Final = 12
_PAUSE_SECONDS: Final = (0.001, 0.1)
# The most locked operations in one batch. At one more the rest is given up, because other batches wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024


BatchResult = Result | None
"""None: nothing was changed, and the statement does not show the result. Read the record."""
Results = list[BatchResult | Exception]


class Executor:
    """The commands of one link: those that wait for their statement, and those that wait for a transaction.

    The operations of a batch are all different; the results are in their order. An error is the result of the commands
    that it concerns.
    """

    def __init__(
        self,
        link: WitnessedLink,
        transactions: Transactions,
        outbox: Outbox,
        days: Days,
        announce: Callable[[Sequence[Command], Sequence[Any]], None],
        read: Callable[[UUID], Awaitable[Snapshot]],
    ) -> None:
        """`announce` is called with commands and their results. `read` is the store's."""
        self._link = link
        self._transactions = transactions
        self._outbox = outbox
        self._days = days
        self._announce = announce
        self._read = read
        self._commands, self._changes = (
            # Integers have the same order as the UUIDs, and hash and compare much faster.
            Batcher[Command, BatchResult](execute, key=lambda command: operation_id_of(command).int)
            for execute in (self._execute_all, self._change_all)
        )

    async def close(self) -> None:
        await self._commands.close()
        await self._changes.close()

    async def apply(self, command: Command) -> Result:
        result = await self._commands.submit(command)
        for _ in range(_TRIES):
            if result is not None:
                return result
            read = await _known(self._read(operation_id_of(command)))
            result = result_of_read(read, command)
            if isinstance(result, Applied):
                await self._link.touch()
                self._announce((command,), (result,))
            elif result is None:
                result = await _known(self._changes.submit(command))
        # Every try returned, and changed nothing.
        raise Unreadable("the operation changed each time between the statement and the read after it")

    async def _execute_all(self, commands: Sequence[Command]) -> Results:
        """Execute each in the way that fits it."""
        is_of_many = self._link.has_statements_of_many
        claims = [each for each in commands if is_of_many and is_absent_claim(each)]
        # Where events are in lines, the place of one follows from those before it.
        is_of_many = is_of_many and not self._outbox.is_ordered
        completions = [each for each in commands if is_of_many and is_granted_completion(each)]
        by_id = await self._in_parts(claims, self._claim) | await self._in_parts(completions, self._complete)
        if self._link.is_portable:
            # There it may be the number of the next token that was in the way: no record is known.
            by_id = {each: result for each, result in by_id.items() if result is not None}
        if len(by_id) < len(commands):
            rest = [each for each in commands if operation_id_of(each) not in by_id]
            by_id |= await self._in_parts(rest, self._change)
        return self._concluded(commands, by_id)

    async def _change_all(self, commands: Sequence[Command]) -> Results:
        """Execute each on its locked record."""
        return self._concluded(commands, await self._in_parts(commands, self._change))

    def _concluded(self, commands: Sequence[Command], by_id: dict[UUID, BatchResult | Exception]) -> Results:
        results = [by_id[operation_id_of(command)] for command in commands]
        # Here, and not where the caller waits, who may have been cancelled.
        self._announce(commands, results)
        return results

    async def _in_parts(
        self, commands: Sequence[Command], once: Callable[[Sequence[Command]], Awaitable[Results]]
    ) -> dict[UUID, BatchResult | Exception]:
        """The results by operation id."""
        found: dict[UUID, BatchResult | Exception] = {}
        for part in _parts(commands):
            found.update(zip(map(operation_id_of, part), await self._execute(part, once), strict=True))
        return found

    async def _execute(
        self, commands: Sequence[Command], once: Callable[[Sequence[Command]], Awaitable[Results]]
    ) -> Results:
        results: Results = []
        # The next part is the last one here.
        parts, locked, makes_room = [commands], 0, True
        while parts:
            part = parts.pop()
            try:
                try:
                    results += await repeated(partial(once, part))
                except ServerRefused as refused:
                    if not (makes_room and _lacks_partition(refused)):
                        raise
                    # Once: the commands that have room need not wait for that again.
                    makes_room = False
                    await self._make_room(part, refused)
                    results += await repeated(partial(once, part))
            except ServerRefused as refused:
                locked += refused.is_locked and len(part) == 1
                if len(part) > 1 and (refused.is_of_some or refused.is_contention):
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif len(part) > 1 and refused.is_locked:
                    parts += [[command] for command in reversed(part)]
                else:
                    results += [_refusal(command, refused) for command in part]
                    if locked > _LOCKED_MAX:
                        results += [_refusal(command, refused) for rest in reversed(parts) for command in rest]
                        break
            except (NotApplied, Indefinite) as fault:
                results += [type(fault)(*fault.args) for _ in part]
        return results

    async def _make_room(self, commands: Sequence[Command], refused: ServerRefused) -> None:
        """Add the partitions for these responses. Raises `ServerRefused` like the statement, which did nothing."""
        windows = [each.replay_us for each in commands if isinstance(each, Complete | Prove)]
        try:
            await self._days.make_room(self._link, windows)
        except StoreError as fault:
            text = f"there is no room for responses of that day yet: {fault}"
            raise ServerRefused(text, refused.sqlstate, refused.table) from fault

    async def _claim(self, commands: Sequence[Any]) -> Results:
        if self._link.is_portable:
            return await self._at_once(commands, insert_absent)
        expected = [self._days.expected_us(command.identity.operation) for command in commands]
        return await self._at_once(commands, insert_absent, {"expected_us": expected}, is_compared=True)

    async def _complete(self, commands: Sequence[Any]) -> Results:
        for command in commands:
            self._days.learn(command.granted.identity.operation, command.replay_us)
        return await self._at_once(commands, replace_granted)

    async def _at_once(
        self,
        commands: Sequence[Command],
        statement: Statement,
        more: Mapping[str, Sequence[Any]] = NOTHING,
        *,
        is_compared: bool = False,
    ) -> Results:
        """Execute by one statement, which is given more than the commands have."""
        given, events = given_of(statement, commands, more), events_of(self._outbox, commands)
        frame = PORTABLE if self._link.is_portable else POSTGRES
        text = text_of(statement, tuple(given), frame, has_events=bool(events))
        found = await self._link.change(text, *given.values(), *event_columns(events), is_compared=is_compared)
        changed = {row[1]: row for row in found}
        results: Results = []
        for command, operation_id in zip(commands, given["id"], strict=True):
            row = changed.get(operation_id)
            results.append(None if row is None else granted(command, row[2], row[0]))
        return results

    async def _change(self, commands: Sequence[Command]) -> Results:
        if not (self._link.is_portable or self._outbox.is_ordered or any(map(_is_entangled, commands))):
            try:
                return await self._transact(commands, READ_COMMITTED)
            except Entangled:
                # A record is in a lane.
                pass
        return await self._transact(commands, SERIALIZABLE)

    async def _transact(self, commands: Sequence[Command], mode: str) -> Results:
        async def change(cursor: Cursor) -> tuple[Results, Sequence[Any]]:
            results: Results = list(await execute(cursor, commands, cursor.now_us, self._outbox))
            # Also for a repeated command that took effect before: its number may never have been noted.
            raised = await self._link.raised(cursor) if any(isinstance(each, Applied) for each in results) else ()
            return results, raised

        expected = sum(isinstance(command, DRAWING) for command in commands)
        results, raised = await self._transactions.work(change, mode, tokens_expected=expected)
        self._link.note(raised)
        return results


async def _known(result: Awaitable[T]) -> T:
    """Wait for what concerns a record that a statement has found. Errors still report that the key is known."""
    try:
        return await result
    except Unstorable:
        raise
    except StoreError as error:
        raise Unreadable(f"the key is known, and its record cannot be read: {error}") from error
    except asyncio.CancelledError as cancelled:
        raise asyncio.CancelledError(KNOWN) from cancelled


def _is_entangled(command: Command) -> bool:
    """Whether the command concerns the records of others: those of its lane, or with its content."""
    return content_of(command) is not None or (isinstance(command, Accept) and command.lane is not None)


async def repeated(once: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat what lost against other transactions. Raises `ServerRefused` if it lost every time."""
    pause_seconds, pause_max = _PAUSE_SECONDS
    for tries_left in reversed(range(REPEATS_MAX)):
        try:
            return await once()
        except ServerRefused as refused:
            if not refused.is_contention:
                raise
            if not tries_left:
                text = f"the transaction lost against others {REPEATS_MAX} times: {refused}"
                raise ServerRefused(text, refused.sqlstate, refused.table) from refused
        # Jitter, or those that lost against one another would meet again.
        await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311
        pause_seconds = min(2 * pause_seconds, pause_max)
    raise NotApplied("unreachable")


def result_of_read(snapshot: Snapshot, command: Command) -> BatchResult:
    """The result of a command on a record that was only read; None when the command would change it."""
    result, after = step(snapshot.record, command, snapshot.now_us, lambda: 0)
    return result if after is snapshot.record else None


def _refusal(command: Command, refused: ServerRefused) -> StoreError:
    """The error of a command that was refused for good, or given up because other commands were locked."""
    if refused.is_data:
        return Unstorable(*refused.args)
    if refused.is_locked and isinstance(command, Claim | Accept):
        # The claim that holds the lock may be granted yet, so the key may be taken.
        return Unreadable(f"another claim on this operation may be under way: {refused}")
    return NotApplied(*refused.args)


def _lacks_partition(refused: ServerRefused) -> bool:
    """Whether a response has no partition for its day: the table checks nothing else."""
    return refused.sqlstate == CHECK_VIOLATION and refused.table == "response"


def _parts(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    """Split the commands so that the responses and requests of each part fit a statement."""
    part: list[Command] = []
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
            size = len(command.response.body or b"")
            for name, value in command.response.headers:
                size += len(name) + len(value) + 8
            return size
        case Accept():
            return len(command.kept.sealed)
        case _:
            return 0
