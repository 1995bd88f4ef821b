"""Statements for any number of operations, generated from the columns, and what executes the hot verbs by them.

A hot verb is one statement in a transaction of its own: a claim of a key that has no record, and the completion of a
claim by the record as it was granted. `step` makes the row, with times that count from zero; SQL adds the clock, draws
the token, and raises the witness. A command that is not among the rows that it returns changed nothing, and is executed
in the way of all others. So are all of them where the server refuses the statement, where the next token would be above
the ceiling, and where the witness is not what was acknowledged last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final
from uuid import UUID

from gateway.core.lifecycle import step
from gateway.core.operation import Applied, Claim, Command, Complete, Record, Result, operation_id_of
from gateway.core.outbox import Outbox
from gateway.store.base import EpochChanged
from gateway.store.batching import BATCH_SIZE_MAX, QUEUE_MAX, Batcher
from gateway.store.level import RECORD_VERSIONS
from gateway.store.memory.witness import Witness
from gateway.store.operations import WITNESS_KEEP_US, Epoch
from gateway.store.portable.memory import Memory
from gateway.store.portable.schema import TEXTS
from gateway.store.postgres.connection import Link, ServerRefused
from gateway.store.relational.rows import CHANGED, COLUMNS, Row, encode
from gateway.store.relational.statements import given_columns, type_of

_COMPLETED: Final = (*COLUMNS[CHANGED:], "body")
# The times that a claim, and a completion, count from now.
_CLAIM_TIMES: Final = frozenset(("first_claimed_us", "claimed_us", "lease_until_us", "due_us"))
_COMPLETION_TIMES: Final = frozenset(("replay_until_us", "remember_until_us", "completed_us", "due_us"))

_EVENT: Final = ("BYTEA[]", "TEXT", "TEXT[]", "TEXT[]", "TEXT[]", "BYTEA[]", "BYTEA[]")
_NOW: Final = "coalesce($1::BIGINT, (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT) AS now_us"


@dataclass(frozen=True)
class Frame:
    """What the statements of a dialect have in common.

    $1 is the clock, where it is not the server's, and $2 the link whose witness is raised, or NULL. The columns follow,
    and what is written of events.
    """

    first: int
    """The number of the first column."""
    state: str
    """What is read first, as `state`: the clock at the least."""
    token: str
    """The token of a new record, `i.token` being the number of its place."""
    bound: str
    """Under which condition it is made."""
    result: str
    """What is raised and returned, of `changed`."""


# $3 is the number of the witness, or NULL; $4 is higher than all tokens that this process has drawn.
PORTABLE: Final = Frame(
    first=5,
    state=f"""state AS (
    SELECT c.now_us, greatest(c.now_us, e.floor + 1, $4::BIGINT) AS token, e.ceiling
    FROM epoch AS e, (SELECT {_NOW}) AS c
    WHERE e.one = 1
        AND ($2::BYTEA IS NULL OR EXISTS (SELECT 1 FROM witness AS w WHERE w.link = $2 AND w.number = $3::BIGINT))
)""",  # noqa: S608
    token="s.token + i.token",
    bound="s.token + i.token <= s.ceiling",
    result="""raised AS (
    UPDATE witness SET number = number + 1 WHERE link = $2 AND EXISTS (SELECT 1 FROM changed)
)
SELECT * FROM changed UNION ALL SELECT NULL, NULL, s.now_us FROM state AS s""",
)


def is_absent_claim(command: Command) -> bool:
    """Whether the command may be a claim of a key without a record, about which nothing else has to be read."""
    return type(command) is Claim and command.read_token is None and command.content is None


def is_granted_completion(command: Command) -> bool:
    """Whether the command is a completion that changes the record as it was granted, and nothing else but events."""
    return type(command) is Complete and command.granted is not None and command.granted.delivery is None


class HotVerb:
    """One of the two verbs, over a link of its own, for the commands that arrive while the one before is under way."""

    def __init__(
        self,
        statement: Callable[..., str],
        dial: Callable[[], Awaitable[Any]],
        where: str,
        seconds: tuple[float, float],
        clock_us: Callable[[], int] | None,
        memory: Memory,
        witness: Witness | None,
        announce: Callable[[Sequence[Command], Sequence[Any]], None],
        outbox: Outbox,
    ) -> None:
        """`seconds` to connect, and for a statement. `announce` is called with commands and their results."""
        self._statement = statement
        self._dial = dial
        self._clock_us = clock_us
        self._memory = memory
        self._witness = witness
        self._announce = announce
        self._outbox = outbox
        self._link = Link(self._open, where, connect_seconds=seconds[0], command_seconds=seconds[1])
        self._batcher = Batcher(self._execute, key=operation_id_of, size_max=BATCH_SIZE_MAX, queue_max=QUEUE_MAX)

    async def apply(self, command: Command) -> Result | None:
        """The result; None if nothing was changed, and the command has to be executed in the way of all others."""
        return await self._batcher.submit(command)

    async def close(self) -> None:
        await self._batcher.close()
        await self._link.close()

    async def _open(self) -> Any:
        connection = await self._dial()
        try:
            if self._witness is not None:
                await self._compare(connection, self._witness)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _compare(self, connection: Any, witness: Witness) -> None:
        """Compare the data with all notes, and take over the number of the witness, which begins with 0."""
        reading = witness.read_notes()
        identity, token, memo, generation, level = await connection.fetchrow(TEXTS["select_epoch"])
        now_us = (await connection.fetchrow(TEXTS["select_clock"]))[0] if self._clock_us is None else self._clock_us()
        numbers: dict[UUID, int] = {}
        for link in {witness.link, *(note.link for note in reading.notes)}:
            for (number,) in await connection.fetch(TEXTS["select_witness"], link.bytes):
                numbers[link] = number
        witness.check(Epoch(identity, token, now_us, memo, generation, numbers, level=level), reading)
        if witness.link not in numbers:
            await connection.execute(_BEGIN, witness.link.bytes, now_us + WITNESS_KEEP_US)
        elif numbers[witness.link] < witness.number:
            raise EpochChanged("the store lacks changes that it had acknowledged")
        witness.number = numbers.get(witness.link, 0)

    async def _execute(self, commands: list[Command]) -> Sequence[Result | None]:
        # In the statement, each adds the number of its place to a token.
        draw, rows, events = count().__next__, [], []
        for command in commands:
            before = command.granted if isinstance(command, Complete) else None
            result, record = step(before, command, 0, draw)
            if record is not None and isinstance(result, Applied):
                body = None if record.response is None else record.response.body
                rows.append((*encode(record), body))
                if self._outbox.subscriptions:
                    events += event_rows(self._outbox, before, record)
        witness = self._witness
        changed = await self._fetch(rows, events) if rows else {}
        results: list[Result | None] = []
        for command in commands:
            row = changed.get(operation_id_of(command).bytes)
            if row is None:
                results.append(None)
                continue
            _, token, now_us = row
            before = command.granted if isinstance(command, Complete) else None
            results.append(step(before, command, now_us, token.__int__)[0])
        if changed:
            self._memory.draw(max(token for _, token, _ in changed.values()))
            if witness is not None:
                witness.acknowledge(witness.number + 1, next(iter(changed.values()))[2])
        # Here, and not in `apply`: its caller may have been cancelled.
        self._announce(commands, results)
        return results

    async def _fetch(self, rows: Sequence[Row], events: Sequence[Row]) -> dict[bytes, Any]:
        """What the statement returns of these, by id."""
        given = given_columns(_WITH_BODY, rows)
        clock_us = None if self._clock_us is None else self._clock_us()
        try:
            found = await self._link.run(
                lambda connection: connection.fetch(
                    self._statement(frozenset(given), has_events=True) if events else self._statement(frozenset(given)),
                    clock_us,
                    # Taken once the connection is there, which may give the witness another number.
                    *((None, None) if self._witness is None else (self._witness.link.bytes, self._witness.number)),
                    self._memory.draw(0),
                    *given.values(),
                    *event_columns(events),
                )
            )
        except ServerRefused:
            return {}
        if not found:
            # The witness was raised under a connection that was lost, or was deleted after a long time without traffic.
            self._link.drop()
        return {row[0]: row for row in found if row[0] is not None}


_WITH_BODY: Final = (*COLUMNS, "body")
_BEGIN: Final = "INSERT INTO witness (link, number, kept_number, check_us) VALUES ($1, 0, 0, $2)"


@cache
def insert_absent(given: frozenset[str], frame: Frame = PORTABLE) -> str:
    """absent --claim--> claimed, for many: those of these columns that any of them has. No event tells of it."""
    columns = [each for each in COLUMNS if each in given]
    values = (
        frame.token if each == "token" else f"i.{each} + s.now_us" if each in _CLAIM_TIMES else f"i.{each}"
        for each in columns
    )
    return f"""WITH {frame.state}, changed AS (
    INSERT INTO operation ({", ".join(columns)})
    SELECT {", ".join(values)} FROM state AS s, {_unnested(columns, frame.first)}
    WHERE {frame.bound}
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, token, claimed_us
), {frame.result}"""  # noqa: S608


@cache
def replace_granted(given: frozenset[str], frame: Frame = PORTABLE, *, has_events: bool = False) -> str:
    """claimed | in_doubt --complete--> completed (fenced: token and attempt id), for many, and their events."""
    columns = [each for each in _WITH_BODY if each in given]
    events = _events(frame.first + len(columns)) if has_events else ""
    return f"""WITH {frame.state}, changed AS (
    UPDATE operation AS o SET {_assigned(given, _COMPLETION_TIMES)}
    FROM state AS s, {_unnested(columns, frame.first)}
    WHERE o.id = i.id AND {_named(columns, frame.first)} AND o.token = i.token AND o.attempt_id = i.attempt_id
        AND o.version BETWEEN {RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}
        AND o.state IN ('claimed', 'in_doubt') AND NOT o.request_kept
    RETURNING o.id, o.token, o.completed_us
), {events}{frame.result}"""  # noqa: S608


def _events(first: int) -> str:
    arrays = ", ".join(f"${place}::{kind}" for place, kind in enumerate(_EVENT, first) if kind != "TEXT")
    return f"""written AS (
    INSERT INTO event (row, service, sink, event_id, type, at_us, since_us, due_us, content, response)
    SELECT convert_to(e.event_id || ' ' || e.sink, 'UTF8'), ${first + 1}::TEXT, e.sink, e.event_id, e.type,
        c.completed_us, c.completed_us, c.completed_us, e.content, e.response
    FROM changed AS c JOIN unnest({arrays}) AS e (id, sink, event_id, type, content, response) ON e.id = c.id
    ON CONFLICT (row) DO NOTHING
), """  # noqa: S608


def event_rows(outbox: Outbox, before: Record | None, record: Record) -> list[Row]:
    """The events of a change, none of them in a line, each with the operation's id in front."""
    return [
        (
            record.identity.operation_id.bytes,
            outbox.service,
            each.sink,
            each.event_id,
            each.type,
            each.content,
            each.response,
        )
        for each in outbox.rows(before, record)
    ]


def event_columns(rows: Sequence[Row]) -> list[Any]:
    """The arguments of a statement for these events; none for none."""
    if not rows:
        return []
    ids, services, *others = (list(column) for column in zip(*rows, strict=True))
    return [ids, services[0], *others]


def _assigned(given: frozenset[str], times: frozenset[str] = frozenset()) -> str:
    return ", ".join(
        f"{each} = " + ("NULL" if each not in given else f"i.{each} + s.now_us" if each in times else f"i.{each}")
        for each in _COMPLETED
    )


def _unnested(columns: Sequence[str], start: int = 1) -> str:
    arrays = ", ".join(f"${place}::{type_of(each)}[]" for place, each in enumerate(columns, start))
    return f"unnest({arrays}) AS i ({', '.join(columns)})"


def _named(columns: Sequence[str], start: int = 1) -> str:
    """Holds for the operations of these rows: by it, no plan reads others."""
    return f"o.id = ANY(${start + columns.index('id')}::BYTEA[])"
