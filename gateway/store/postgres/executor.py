"""Executes batches of commands over one link that changes operations, and derives each result from the table.

Theory of operation
-------------------
Claims of new keys and usual completions are one generated statement each (`portable.hot`). Whatever such a statement
changed nothing for is `Unclear`, and so is the key's record: the caller reads it. All other commands lock their records
in one transaction, which is serializable, execute the table, and write what it returns.

A batch that lost against another transaction is repeated. One with a value that cannot be stored is executed in halves,
and one with a record that somebody has locked one by one, because each transaction waits for the full lock timeout.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Final
from uuid import UUID

from gateway.core.lifecycle import step
from gateway.core.operation import (
    Accept,
    Applied,
    Claim,
    Command,
    Complete,
    Dispatch,
    Prove,
    Result,
    Snapshot,
    Takeover,
    operation_id_of,
)
from gateway.core.outbox import Outbox
from gateway.store.base import Indefinite, NotApplied, StoreError, Unreadable, Unstorable
from gateway.store.portable.hot import (
    NOW,
    Frame,
    event_columns,
    event_rows,
    given_of,
    insert_absent,
    is_absent_claim,
    is_granted_completion,
    replace_granted,
)
from gateway.store.postgres.connection import SERIALIZABLE, Connection, ServerRefused
from gateway.store.postgres.dialer import WitnessedLink
from gateway.store.postgres.statements import qualified
from gateway.store.postgres.transaction import Thread
from gateway.store.relational.executor import Cursor, execute
from gateway.store.relational.rows import Row, encode

# How often a transaction that lost is repeated, and how long it waits before that: up to the second number.
_CONTENTION_TRIES: Final = 12
_PAUSE_SECONDS: Final = (0.001, 0.1)
# The most locked operations in one batch. At one more the rest is given up, because other batches wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
# The commands that draw a token.
_DRAWING: Final = (Claim, Accept, Dispatch, Takeover)

_FRAME: Final = Frame(
    first=3,
    state=f"state AS (SELECT {NOW})",
    token="nextval('idempotency_gateway.token')",
    bound="TRUE",
    result="""raised AS (
    UPDATE witness SET number = number + 1 WHERE link = $2::BYTEA AND EXISTS (SELECT 1 FROM changed) RETURNING number
)
SELECT c.now_us, c.id, c.token, (SELECT r.number FROM raised AS r) FROM changed AS c (id, token, now_us)
UNION ALL SELECT s.now_us, NULL, NULL, (SELECT r.number FROM raised AS r) FROM state AS s""",
)


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing was changed, and the statement does not show the result: read the record."""


BatchResult = Result | Unclear
Results = list[BatchResult | Exception]


class Executor:
    """Executes the batches of one link. The operations of a batch are all different; the results are in their order.

    Never raises: an error is the result of the commands that it concerns.
    """

    def __init__(
        self,
        link: WitnessedLink,
        thread: Thread,
        outbox: Outbox,
        announce: Callable[[Sequence[Command], Sequence[Any]], None],
    ) -> None:
        """`announce` is called with commands and their results."""
        self._link = link
        self._thread = thread
        self._outbox = outbox
        self._announce = announce

    async def execute(self, commands: Sequence[Command]) -> Results:
        """Execute each in the way that fits it."""
        by_id: dict[UUID, BatchResult | Exception] = {}
        for fits, way in (
            (is_absent_claim, self._claim),
            (self._is_completion, self._complete),
            (lambda _: True, self._change),
        ):
            fitting = [each for each in commands if operation_id_of(each) not in by_id and fits(each)]
            by_id |= await self._in_parts(fitting, way)
        return self._concluded(commands, by_id)

    async def change(self, commands: Sequence[Command]) -> Results:
        """Execute each on its locked record."""
        return self._concluded(commands, await self._in_parts(commands, self._change))

    def _concluded(self, commands: Sequence[Command], by_id: dict[UUID, BatchResult | Exception]) -> Results:
        results = [by_id[operation_id_of(command)] for command in commands]
        # Here, and not where the caller waits, who may have been cancelled.
        self._announce(commands, results)
        return results

    def _is_completion(self, command: Command) -> bool:
        # A place in a line follows from the events before it.
        return is_granted_completion(command) and not self._outbox.is_ordered

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
        parts, locked = [commands], 0
        while parts:
            part = parts.pop()
            try:
                results += await repeated(partial(once, part))
            except ServerRefused as refused:
                locked += refused.is_locked and len(part) == 1
                if len(part) > 1 and (refused.is_data or refused.is_contention):
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

    async def _claim(self, commands: Sequence[Command]) -> Results:
        return await self._at_once(commands, insert_absent, is_compared=True)

    async def _complete(self, commands: Sequence[Command]) -> Results:
        return await self._at_once(commands, replace_granted)

    async def _at_once(
        self, commands: Sequence[Command], statement: Callable[..., str], *, is_compared: bool = False
    ) -> Results:
        """Execute by one statement."""
        # In the statement, each adds the number of its place to a token.
        draw, rows, events = count().__next__, [], list[Row]()
        for command in commands:
            before = _before(command)
            result, record = step(before, command, 0, draw)
            if record is not None and isinstance(result, Applied):
                rows.append((*encode(record), None if record.response is None else record.response.body))
                if before is not None and self._outbox.subscriptions:
                    events += event_rows(self._outbox, before, record)
        if not rows:
            return [Unclear() for _ in commands]
        given = given_of(statement, rows)
        text = _text(statement, frozenset(given), bool(events))
        arguments = (*given.values(), *event_columns(events))
        found = await self._link.fetch(text, *arguments, is_compared=is_compared)
        changed = {row[1]: row for row in found}
        results: Results = []
        for command in commands:
            row = changed.get(operation_id_of(command).bytes)
            if row is None:
                results.append(Unclear())
            else:
                results.append(step(_before(command), command, row[0], row[2].__int__)[0])
        return results

    async def _change(self, commands: Sequence[Command]) -> Results:
        def change(cursor: Cursor) -> list[Any]:
            return execute(cursor, commands, cursor.now_us, self._outbox)

        expected = sum(isinstance(command, _DRAWING) for command in commands)

        async def inside(connection: Connection) -> tuple[Results, bool]:
            results: Results = list(await self._thread.work(connection, change, expected))
            # Also for a repeated command that took effect before: its number may never have been noted.
            return results, any(isinstance(result, Applied) for result in results)

        return await self._link.transact(inside, SERIALIZABLE)


@cache
def _text(statement: Callable[..., str], given: frozenset[str], has_events: bool) -> str:
    return qualified(statement(given, _FRAME, has_events=True) if has_events else statement(given, _FRAME))


async def repeated(once: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat what lost against other transactions. Raises `ServerRefused` if it lost every time."""
    pause_seconds, pause_max = _PAUSE_SECONDS
    for tries_left in reversed(range(_CONTENTION_TRIES)):
        try:
            return await once()
        except ServerRefused as refused:
            if not refused.is_contention or not tries_left:
                raise
        # Jitter, or those that lost against one another would meet again.
        await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311
        pause_seconds = min(2 * pause_seconds, pause_max)
    raise NotApplied("unreachable")


def result_of_read(snapshot: Snapshot, command: Command) -> BatchResult:
    """The result of a command on a record that was only read; unclear when the command would change it."""
    result, after = step(snapshot.record, command, snapshot.now_us, lambda: 0)
    return result if after is snapshot.record else Unclear()


def _before(command: Command) -> Any:
    """The record that a statement assumes."""
    return command.granted if isinstance(command, Complete) else None


def _refusal(command: Command, refused: ServerRefused) -> StoreError:
    """The error of a command that was refused for good, or given up because other commands were locked."""
    if refused.is_data:
        return Unstorable(*refused.args)
    if refused.is_locked and isinstance(command, Claim | Accept):
        # The claim that holds the lock may be granted yet, so the key may be taken.
        return Unreadable(f"another claim on this operation may be under way: {refused}")
    return NotApplied(*refused.args)


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
