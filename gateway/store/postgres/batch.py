"""Batches of commands, one statement for each verb in them, and what the answers mean by the table.

It owns the road from a list of commands to a list of results over one link: grouping, repeating what lost to
contention, splitting what holds a value that cannot be stored or an operation that somebody has locked. It reads no
clock and knows no driver.

Theory of operation
-------------------
A statement decides by its own WHERE and returns the records as they were, under its locks, with its time.
`lifecycle.step` then says from that record and that time what the statement has done: the result. The statement's own
number of changes must be the table's. If it is not, what was done is not known, and every command hears that.

Where a statement cannot show enough, its result is `Unclear`: the caller looks again. That is so when a claim lost a
race to a record that its snapshot had not, and where an answer has to be shown that only a read brings along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

from gateway.core.lifecycle import no_token, settle, step
from gateway.core.operation import (
    EVENT_OF,
    Applied,
    Claim,
    Command,
    Complete,
    Prove,
    Record,
    Result,
    Snapshot,
    State,
    Takeover,
    operation_id_of,
)
from gateway.store.base import Indefinite, NotApplied, Rejected, StoreError, Withheld
from gateway.store.postgres.link import CHECK_VIOLATION, Refused
from gateway.store.postgres.rows import WIDTH, record_of
from gateway.store.postgres.statements import COLUMNS, DUE_SLACK_US, answer_bytes, claim_columns, load

# Rows of one statement of the driver.
Rows = Sequence[Any]
Fetch = Callable[..., Awaitable[Rows]]

_CONTENTION_TRIES: Final = 5
# Of operations that somebody has locked in one batch. At one more the rest is given up, for others wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_EXPECTED_REPLAY_US: Final = 24 * 3600 * 1_000_000
_OPERATIONS_MAX: Final = 10_000
_OTHER_CHANGES: Final = "PostgreSQL changed other records than the table says: was the schema altered by hand?"


@dataclass(frozen=True, slots=True)
class Unclear:
    """The statement changed nothing, and could not show what the command came to: read the record, which is there."""


BatchAnswer = Result | Unclear
STATEMENTS: Final[dict[type[Command], str]] = {kind: load(event.value) for kind, event in EVENT_OF.items()}


class Windows:
    """The replay windows in use: those that are configured, and the one that each operation name had last.

    The latter is a guess at when upkeep has to look at a new claim.
    """

    def __init__(self, configured_us: Collection[int] = ()) -> None:
        self._configured_us = frozenset(configured_us)
        self._replay_us: dict[str, int] = {}

    @property
    def in_use(self) -> frozenset[int]:
        """Each of them, in microseconds."""
        return self._configured_us.union(self._replay_us.values())

    def due_in_us(self, operation: str) -> int:
        return self._replay_us.get(operation, _EXPECTED_REPLAY_US) + DUE_SLACK_US

    def learn(self, operation: str, replay_us: int) -> None:
        if operation in self._replay_us or len(self._replay_us) < _OPERATIONS_MAX:
            self._replay_us[operation] = replay_us


class Executor:
    """Executes the batches of one link. Satisfies what a `Batcher` needs."""

    def __init__(
        self,
        fetch: Fetch,
        touch: Callable[[], Awaitable[None]],
        add_partitions: Callable[[Sequence[int]], Awaitable[None]],
        clock_us: Callable[[], int | None],
        windows: Windows,
    ) -> None:
        """`fetch` adds the link to a statement's arguments, and notes its number; `touch` raises that by itself."""
        self._fetch = fetch
        self._touch = touch
        self._add_partitions = add_partitions
        self._clock_us = clock_us
        self._windows = windows

    async def execute(self, commands: list[Command]) -> Sequence[BatchAnswer | Exception]:
        """One answer per command, in order: of operations that are all different."""
        groups = list(_groups(commands))
        if len(groups) == 1:
            return await self._execute_kind(groups[0])
        by_id: dict[UUID, BatchAnswer | Exception] = {}
        for group in groups:
            ids = map(operation_id_of, group)
            by_id.update(zip(ids, await self._execute_kind(group), strict=True))
        return [by_id[operation_id_of(command)] for command in commands]

    async def _execute_kind(self, commands: list[Any]) -> Sequence[BatchAnswer | Exception]:
        """One verb. Never raises: an error is the answer of those whom it concerns."""
        answers: list[BatchAnswer | Exception] = []
        # The next part is the last one here.
        parts, locked, makes_room = [commands], 0, True
        while parts:
            part = parts.pop()
            try:
                answers += await self._persist(part, makes_room=makes_room)
            except Refused as refused:
                locked += refused.is_locked and len(part) == 1
                # Tried once for all of them: those for whom there is room need not wait for that again.
                makes_room = makes_room and not _lacks_partition(refused)
                if len(part) > 1 and refused.is_of_some:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif len(part) > 1 and refused.is_locked:
                    # One by one: each statement with the one that somebody holds takes the whole time again.
                    parts += [[command] for command in reversed(part)]
                else:
                    answers += [_refusal(command, refused) for command in part]
                    if locked > _LOCKED_MAX:
                        answers += [_refusal(command, refused) for rest in reversed(parts) for command in rest]
                        break
            except (NotApplied, Indefinite) as fault:
                answers += [type(fault)(*fault.args) for _ in part]
        return answers

    async def _persist(self, commands: list[Any], *, makes_room: bool) -> list[BatchAnswer | Exception]:
        """The statement, said again as long as it was refused for something that passes."""
        for tries_left in reversed(range(_CONTENTION_TRIES)):
            try:
                return await self._say(commands)
            except Refused as refused:
                if _lacks_partition(refused) and makes_room and tries_left:
                    await self._make_room(commands, refused)
                elif not refused.is_contention or not tries_left:
                    raise
        raise NotApplied("the statement lost to others every time")

    async def _make_room(self, commands: Sequence[Complete | Prove], refused: Refused) -> None:
        """Add the partitions for their days. Raises `Refused` as the statement did, which was definitely not done."""
        try:
            await self._add_partitions([command.replay_us for command in commands])
        except StoreError as fault:
            text = f"there is no room for responses of that day yet: {fault}"
            raise Refused(text, refused.sqlstate, refused.table) from fault

    async def _say(self, commands: list[Any]) -> list[BatchAnswer | Exception]:
        kind = type(commands[0])
        columns = claim_columns(commands, self._windows.due_in_us) if kind is Claim else COLUMNS[kind](commands)
        rows = await self._fetch(STATEMENTS[kind], self._clock_us(), *columns)
        if kind is Claim:
            answers = _granted(commands, rows)
        elif kind is Complete:
            answers = _completed(commands, rows)
            self._learn(commands, answers)
        else:
            answers = _changed(commands, rows)
        if not _is_witnessed(rows) and any(isinstance(answer, Applied) for answer in answers):
            # Done by an earlier statement, whose number was lost with its answer.
            await self._touch()
        return answers

    def _learn(self, commands: Sequence[Complete], answers: Sequence[BatchAnswer | Exception]) -> None:
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, Applied) and answer.snapshot.record is not None:
                self._windows.learn(answer.snapshot.record.identity.operation, command.replay_us)


def _lacks_partition(refused: Refused) -> bool:
    """Whether a response is of a day that has no partition: nothing else is checked by the table as a whole."""
    return refused.sqlstate == CHECK_VIOLATION and refused.table == "response"


def _is_witnessed(rows: Rows) -> bool:
    """Whether the statement has raised the witness of its link."""
    return bool(rows) and rows[0][-1] is not None


def _refusal(command: Command, refused: Refused) -> StoreError:
    """What a command hears that was refused for good, or given up because others were."""
    if refused.is_data:
        return Rejected(*refused.args)
    if refused.is_locked and isinstance(command, Claim):
        # Another one may be granted yet: that this key is free is not known.
        return Withheld(f"somebody else may be at this operation: {refused}")
    return NotApplied(*refused.args)


def _groups(commands: Sequence[Command]) -> Iterator[list[Command]]:
    """The commands by verb, in groups that make a statement of bearable size."""
    kinds: dict[type[Command], list[Command]] = {}
    for command in commands:
        kinds.setdefault(type(command), []).append(command)
    for kind, group in kinds.items():
        if kind is not Complete and kind is not Prove:
            yield group
            continue
        part: list[Command] = []
        part_bytes = 0
        for command in cast("list[Complete | Prove]", group):
            size = answer_bytes(command.response)
            if part and part_bytes + size > _STATEMENT_BYTES_MAX:
                yield part
                part, part_bytes = [], 0
            part.append(command)
            part_bytes += size
        yield part


def _granted(commands: Sequence[Claim], rows: Rows) -> list[BatchAnswer | Exception]:
    """The answers of a `claim` statement: grants, and records that were seen."""
    grants: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    for row in rows:
        if row[1] is not None:
            grants[row[1].int] = row
        else:
            seen[row[4].int] = row
    answers: list[BatchAnswer | Exception] = []
    for command in commands:
        number = command.identity.operation_id.int
        grant, there = grants.get(number), seen.get(number)
        try:
            before = None if there is None else record_of(there[4 : 4 + WIDTH])
        except Withheld as error:
            answers.append(error)
            continue
        if grant is not None:
            answers.append(_grant(command, before, grant[2], grant[3], grant[0]))
        elif there is None:
            answers.append(Unclear())
        else:
            now_us = there[0]
            answers.append(result_of_read(Snapshot(settle(before, now_us), now_us), command, has_answer=False))
    return answers


def _grant(command: Claim, before: Record | None, token: int, attempts: int, now_us: int) -> Result | Indefinite:
    """The answer to a claim that was granted: the first attempt found nothing, a later one a released record."""
    if attempts == 1:
        before = None
    elif before is None or before.attempts + 1 != attempts:
        return Indefinite("PostgreSQL granted a claim on a record that its statement has not seen")
    return step(before, command, now_us, lambda: token)[0]


def _completed(commands: Sequence[Complete], rows: Rows) -> list[BatchAnswer | Exception]:
    """The answers of a `complete` statement, which tells whom it changed, and may leave out how those were."""
    now_us, changed = rows[0][0], frozenset(rows[0][1])
    before = {row[2].int: row for row in rows if row[2] is not None}
    answers: list[BatchAnswer | Exception] = []
    for ordinal, command in enumerate(commands, start=1):
        row, is_changed = before.get(command.operation_id.int), ordinal in changed
        try:
            record = record_of(row[2 : 2 + WIDTH]) if row is not None else command.granted if is_changed else None
        except Withheld as error:
            answers.append(error)
            continue
        settled = settle(record, now_us)
        result, after = step(settled, command, now_us, no_token)
        if (after is not settled) is not is_changed:
            raise Indefinite(_OTHER_CHANGES)
        answers.append(Unclear() if not is_changed and _lacks_answer(settled) else result)
    return answers


def _changed(commands: Sequence[Command], rows: Rows) -> list[BatchAnswer | Exception]:
    """The answers of every other statement: what the table makes of the records as they were."""
    now_us, changed_by_statement = rows[0][0], rows[0][1]
    before = {row[2]: row for row in rows}
    answers: list[BatchAnswer | Exception] = []
    changed = 0
    for command in commands:
        row = before.get(operation_id_of(command))
        try:
            settled = settle(record_of(row[2 : 2 + WIDTH]), now_us) if row is not None else None
        except Withheld as error:
            answers.append(error)
            continue
        # In a takeover's row the token that was drawn is behind the record.
        token = row[2 + WIDTH] if isinstance(command, Takeover) and row is not None else None
        result, after = step(settled, command, now_us, _drawing(token or 0))
        if after is not settled:
            changed += 1
            answers.append(result)
        else:
            answers.append(Unclear() if _lacks_answer(settled) else result)
    if changed != changed_by_statement:
        raise Indefinite(_OTHER_CHANGES)
    return answers


def _drawing(token: int) -> Callable[[], int]:
    """What the statement drew, drawn again."""
    return lambda: token


def result_of_read(snapshot: Snapshot, command: Command, *, has_answer: bool) -> BatchAnswer:
    """What a command comes to on a record that was only read; unclear when it would change it."""
    result, after = step(snapshot.record, command, snapshot.now_us, lambda: 0)
    if after is not snapshot.record or (not has_answer and _lacks_answer(snapshot.record)):
        return Unclear()
    return result


def _lacks_answer(record: Record | None) -> bool:
    """Whether a record out of a statement has an answer, which only a read brings along."""
    return record is not None and record.state is State.COMPLETED
