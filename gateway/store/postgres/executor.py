"""Executes batches of commands over one link that changes operations, and derives each result from the table.

Theory of operation
-------------------
Claims of new keys and usual completions are one generated statement each. Of whatever such a statement changed nothing
for, the caller reads the record. All other commands lock their records in one transaction, execute the table, and write
what it returns.

A batch that lost against another transaction is repeated. One with a value that cannot be stored is executed in halves,
and one with a record that somebody has locked one by one, because each transaction waits for the full lock timeout.

Transactions are serializable, but for those of commands that concern nothing but their records. These lock them first,
and what they read behind the locks is what was committed before: each statement has a snapshot of its own, and so has
the clock.

*Horizon.* Whoever writes to the table of operations locks it (`writers`) before the snapshot is taken and before a
token is drawn, until the changes can be seen. So once all have ended that were writing when a token was drawn, every
claim with that token or a lower one can be seen (`seen`); and once all have ended that were writing at that moment, the
snapshot of every statement that may insert has it (`token`). That takes no time limit and no clock: a statement that
hangs delays both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.lifecycle import step
from gateway.core.operation import (
    MICROSECONDS,
    Accept,
    Applied,
    Claim,
    Command,
    Complete,
    Prove,
    Record,
    Result,
    Snapshot,
    State,
    content_of,
    microseconds,
    operation_id_of,
)
from gateway.core.outbox import Outbox
from gateway.store.base import KNOWN, Indefinite, NotApplied, StoreError, Unreadable, Unstorable, boot_seconds
from gateway.store.batching import Batcher
from gateway.store.postgres import statements
from gateway.store.postgres.connection import (
    CHECK_VIOLATION,
    CONTENTION_CODES,
    READ_COMMITTED,
    READING,
    SERIALIZABLE,
    Connection,
    ServerRefused,
    repeated,
    transaction,
)
from gateway.store.postgres.dialer import Dialer, Link, WitnessedLink
from gateway.store.postgres.schema import Days
from gateway.store.postgres.statements import load
from gateway.store.relational.executor import DRAWING, SWEPT, Contended, Cursor, Entangled, execute
from gateway.store.relational.rows import RECORD, WRITTEN, Row, of_many

# -- horizon -----------------------------------------------------------------------------------------------------------

# As many as it takes to find out all while nobody writes.
_LOOKS: Final = 3
_REACH_TRIES: Final = 20
_REACH_PAUSE_SECONDS: Final = 0.05


class Horizon:
    """See the module; 0 while it is not known."""

    def __init__(self) -> None:
        self.token = 0
        self.seen = 0
        # What had been drawn at the last look that was waited out, and who was writing then.
        self._drawn = 0
        self._awaited: frozenset[str] = frozenset()

    async def reach(self, link: Link) -> None:
        """Move on. The first time this waits a little for the statements that are under way; outside transactions,
        whose snapshots may be older."""
        for _ in range(_REACH_TRIES):
            await link.run(self._look)
            if self.token or not self._drawn:
                return
            await asyncio.sleep(_REACH_PAUSE_SECONDS)

    async def _look(self, connection: Connection) -> None:
        for _ in range(_LOOKS):
            ((drawn, writers),) = await connection.fetch(load("writers"))
            self._awaited &= frozenset(writers)
            if self._awaited:
                return
            self.token, self.seen, self._drawn = self.seen, self._drawn, drawn
            self._awaited = frozenset(writers)
            if self.token == drawn:
                return


# -- transactions ------------------------------------------------------------------------------------------------------

T = TypeVar("T")

# Somebody else changes what is locked, and the next sweep finds it.
_TEXTS: Final[Mapping[str, str]] = {
    **statements.statement_texts(),
    "select_paused_expiring": f"{load('select_paused_expiring')} FOR UPDATE OF d, o SKIP LOCKED",
}
# Those of PostgreSQL alone that are given an array for each column, and the others of which many are one.
_WHOLE: Final = frozenset(("insert_response", "delete_response", "narrow_operation"))
AT_ONCE: Final = WRITTEN - _WHOLE
# The most steps of the walk for lapsed claims in one transaction.
_STEPS_MAX: Final = 20
_PARAMETER: Final = re.compile(r"\$(\d+)")
# How long a gateway that only looks goes by its own clock, so that it asks no more statements than it has to.
_CLOCK_SECONDS: Final = 30.0
_SERIALIZATION_FAILURE: Final = "40001"
# How far ahead the ceiling of tokens is moved, so that few transactions write it.
_CEILING_STEP_US: Final = 3_600 * MICROSECONDS


class Transaction(Cursor):
    """Without `is_serial` it is told the clock behind the first locks. A sequence has the tokens, some of which may be
    left out."""

    now_us = 0
    first_row = b""
    last_row = b"\xff" * 17
    drops_responses = True
    _texts = _TEXTS
    # What is due of all states at once, and what the walk for lapsed claims comes to, once it has gone on.
    swept: Sequence[tuple[str, State]] = (
        ("select_due", State.COMPLETED),
        ("select_young", State.CLAIMED),
        ("select_lapsed", State.CLAIMED),
        ("select_ended", State.TOMBSTONE),
        ("select_doubt_ahead", State.IN_DOUBT),
    )

    def __init__(
        self, connection: Any, dialer: Dialer, horizon: Horizon, is_serial: bool, tokens_expected: int
    ) -> None:
        self.is_serial = is_serial
        self._connection = connection
        self._dialer = dialer
        self._horizon = horizon
        # Up to which all claims can be seen.
        self._seen_token = horizon.seen
        self._tokens_expected = tokens_expected
        self._tokens: list[int] = []

    async def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(self._texts[statement], *bindings)]

    async def together(self, queries: Sequence[tuple[str, Sequence[Any]]], /) -> list[list[Row]]:
        if not queries:
            return []
        text = _together(tuple((name, len(bindings)) for name, bindings in queries))
        (found,) = await self._connection.fetch(text, *(each for _, bindings in queries for each in bindings))
        return [[tuple(row) for row in rows] for rows in found]

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        rows = await self.rows(statement, (keys, *bindings))
        if statement == "lock_operation" and not self.is_serial:
            missing = set(keys).difference(row[1] for row in rows)
            wanted = max(self._tokens_expected - len(self._tokens), 0)
            ((self.now_us, has_moved, drawn),) = await self._connection.fetch(
                load("behind_locks"), self._dialer.clock_us(), list(missing), wanted
            )
            self._tokens = [*reversed(drawn), *self._tokens]
            if has_moved:
                raise ServerRefused("a record moved while its lock was waited for", _SERIALIZATION_FAILURE)
        return rows

    async def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        return await self._execute(self._texts[statement], *bindings)

    async def _execute(self, query: str, *bindings: Any) -> int:
        status: str = await self._connection.execute(query, *bindings)
        return int(status.rpartition(" ")[2])

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        if not bindings:
            return
        if statement in _WHOLE:
            await self._execute(self._texts[statement], *zip(*bindings, strict=True))
            return
        if statement not in AT_ONCE:
            await self._connection.executemany(self._texts[statement], bindings)
            return
        text, arrays = of_many(statement, bindings)
        is_new = statement == "insert_operation"
        if is_new:
            text = text.replace(" ORDER BY", f" WHERE {statements.IS_NEW} ORDER BY")
        number = await self._execute(statements.qualified(text), *arrays)
        if is_new and number < len(bindings):
            raise ServerRefused("another record came in between", _SERIALIZATION_FAILURE)

    async def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        if statement != "select_young":
            return [tuple(row) for row in await self._connection.fetch(_due(statement), *bindings)]
        # Walk by what cannot lapse any more.
        for _ in range(_STEPS_MAX):
            ((is_more,),) = await self._connection.fetch(load("pass"), self.now_us, self._seen_token)
            if not is_more:
                break
        return []

    @property
    def narrows_up_to(self) -> int:
        return self._horizon.token

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        least = await self._last_token(record, command)
        # Those that were drawn before the record's lock was had may be too low.
        while not self._tokens or self._tokens[-1] <= least:
            if self._tokens:
                self._tokens.pop()
            else:
                drawn = await self._connection.fetch(load("draw_tokens"), max(self._tokens_expected, 1))
                self._tokens = [token for (token,) in reversed(drawn)]

    async def _last_token(self, record: Record | None, command: Command) -> int:
        """The last one of the operation, and of the lane that the command accepts it into."""
        last = 0 if record is None else record.token
        if isinstance(command, Accept) and command.lane is not None:
            last = max(last, (await self.row("select_last_in_lane", (command.lane,)))[0] or 0)
        return last

    def draw(self) -> int:
        return self._tokens.pop()


@cache
def _due(statement: str) -> str:
    """The records with the ids that the statement finds, without bodies; those that are locked are left alone."""
    columns = RECORD.replace("{row}", "id")
    return (
        f"SELECT {columns}, NULL::BYTEA FROM idempotency_gateway.operation AS o "  # noqa: S608
        f"WHERE o.id = ANY(ARRAY({load(statement)})) FOR UPDATE SKIP LOCKED"
    )


@cache
def _together(queries: Sequence[tuple[str, int]]) -> str:
    """One statement with the rows of each of these, by their names and how many parameters they have."""
    texts, first = [], 0
    for name, number in queries:
        text = _PARAMETER.sub(lambda found: f"${int(found[1]) + first}", load(name))  # noqa: B023 -- called at once
        texts.append(f"ARRAY(SELECT q FROM ({text}) AS q)")  # noqa: S608
        first += number
    return f"SELECT {', '.join(texts)}"


class PortableTransaction(Transaction):
    """A transaction of the portable dialect: always serializable. Its tokens are times: the greatest of the clock in
    microseconds, the operation's last token + 1 and the `floor` + 1. Nothing is counted in one place, so tokens grow
    per operation only. A record that goes leaves its token in the floor. Most are below it already, because the floor
    is then raised to the present."""

    drops_responses = False
    swept = SWEPT
    narrows_up_to = Cursor.narrows_up_to

    def __init__(self, connection: Any, dialer: Dialer, now_us: int, floor: int, ceiling: int) -> None:
        self.now_us = now_us
        self._connection = connection
        self._texts = dialer.texts
        self._dialer = dialer
        # No token up to the floor is drawn, nor up to `_least`, and none above the ceiling has been.
        self._floor = self._floor_before = self._least = floor
        self._ceiling = ceiling
        self._highest = 0

    together = Cursor.together
    due = Cursor.due

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        if self._texts is statements.portable_texts():
            return await self.rows(statement, (keys, *bindings))
        return [row for key in sorted(keys) for row in await self.rows(statement, (key, *bindings))]

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        if not bindings:
            return
        if statement in WRITTEN and self._texts is statements.portable_texts():
            text, arrays = of_many(statement, bindings)
            await self._execute(statements.qualified(text), *arrays)
        else:
            await self._connection.executemany(self._texts[statement], bindings)

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        self._least = max(self._floor, await self._last_token(record, command))

    def draw(self) -> int:
        token = self._dialer.draw(max(self.now_us, self._least + 1))
        self._highest = max(self._highest, token)
        return token

    def forget_token(self, token: int, /) -> None:
        if token > self._floor:
            self._floor = self._least = max(token, self.now_us)

    async def write_bounds(self) -> None:
        """Called before the commit. Write down between which numbers tokens are drawn from now on."""
        if self._highest > self._ceiling:
            await self.change("update_ceiling", (self._highest + _CEILING_STEP_US,))
        if self._floor > self._floor_before:
            await self.change("update_floor", (self._floor,))


class Transactions:
    def __init__(self, dialer: Dialer, link: Link, horizon: Horizon) -> None:
        self.link = link
        self._dialer = dialer
        self._horizon = horizon
        # The server's clock when it was asked last, and the host's.
        self._asked = (0, float("-inf"))

    async def work(
        self, work: Callable[[Cursor], Awaitable[T]], mode: str, settings: Mapping[str, str] | None = None
    ) -> T:
        """Do this work in one transaction with these settings, again where it lost. Raises `Contended`, and as
        `once`."""
        try:
            result: T = await _repeated(partial(self.once, work, mode, settings))
        except ServerRefused as refused:
            if refused.is_contention:
                raise Contended(*refused.args) from refused
            raise
        return result

    async def once(
        self,
        work: Callable[[Cursor], Awaitable[T]],
        mode: str,
        settings: Mapping[str, str] | None = None,
        tokens_expected: int = 0,
    ) -> T:
        """Do this work in one transaction. Raises as `Link.run`, and what the work raises."""

        async def inside(connection: Connection) -> T:
            async with transaction(connection, self._dialer.settings(settings), mode):
                if self._dialer.pgbouncer and isinstance(self.link, WitnessedLink):
                    # The memory can be another one than the session's.
                    await self._dialer.compare(connection)
                if self._dialer.is_portable:
                    ((*bounds,),) = await connection.fetch(self._dialer.texts["select_clock"], self._dialer.clock_us())
                    portable = PortableTransaction(connection, self._dialer, *bounds)
                    result = await work(portable)
                    await portable.write_bounds()
                    return result
                is_serial = mode is not READ_COMMITTED
                # Before the snapshot is taken, which then has what the horizon knows.
                cursor = Transaction(connection, self._dialer, self._horizon, is_serial, tokens_expected)
                if is_serial:
                    cursor.now_us = await self._now_us(connection, only_reads=mode is READING)
                return await work(cursor)

        return await self.link.run(inside)

    async def _now_us(self, connection: Connection, *, only_reads: bool) -> int:
        """The store's clock, of what only reads as the host's clock has gone on since."""
        if (now_us := self._dialer.clock_us()) is not None:
            return now_us
        (asked_us, asked_at), now = self._asked, boot_seconds()
        if only_reads and now - asked_at < _CLOCK_SECONDS:
            return asked_us + microseconds(now - asked_at)
        ((now_us,),) = await connection.fetch(load("clock"), None)
        # Never behind, however long that took: what was written to be due at once is due.
        self._asked = (now_us, now)
        return int(now_us)


# -- commands ----------------------------------------------------------------------------------------------------------

# How often a command is tried whose record changes each time.
_TRIES: Final = 10
# How often a transaction that lost is tried, and how long it waits in between.
REPEATS_MAX: Final = 12
_PAUSE_SECONDS: Final = (0.001, 0.1)
# The most locked operations in one batch. At one more the rest is given up, because other batches wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024


BatchResult = Result | None
"""None: nothing was changed, and the statement does not show the result. Read the record."""
Results = list[BatchResult | Exception]
_Entry = tuple[Command, bool]
"""A command, and whether its record is known to be in the way of its statement."""


class Executor:
    """The commands of one link: those that wait for their statement, and those that wait for a transaction. The
    operations of a batch are all different; the results are in their order. An error is the result of the commands that
    it concerns."""

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
        # Integers have the same order as the UUIDs, and hash and compare much faster.
        self.batches = Batcher[_Entry, BatchResult](self._execute_all, key=lambda entry: operation_id_of(entry[0]).int)

    async def apply(self, command: Command) -> Result:
        result = await self.batches.submit((command, False))
        for _ in range(_TRIES):
            if result is not None:
                return result
            read = await _known(self._read(operation_id_of(command)))
            result = result_of_read(read, command)
            if isinstance(result, Applied):
                await self._link.touch()
                self._announce((command,), (result,))
            elif result is None:
                result = await _known(self.batches.submit((command, True)))
        # Every try returned, and changed nothing.
        raise Unreadable("the operation changed each time between the statement and the read after it")

    async def _execute_all(self, entries: Sequence[_Entry]) -> Results:
        is_of_many = self._link.has_statements_of_many
        new = [command for command, is_known in entries if is_of_many and not is_known]
        claims = [each for each in new if statements.is_absent_claim(each)]
        # Where events are in lines, the place of one follows from those before it.
        completions = [each for each in new if not self._outbox.is_ordered and statements.is_granted_completion(each)]
        by_id = await self._in_parts(claims, self._claim) | await self._in_parts(completions, self._complete)
        if self._link.is_portable:
            # There it may be the number of the next token that was in the way: no record is known.
            by_id = {each: result for each, result in by_id.items() if result is not None}
        commands = [command for command, _ in entries]
        if len(by_id) < len(commands):
            rest = [each for each in commands if operation_id_of(each) not in by_id]
            by_id |= await self._in_parts(rest, self._change)
        results = [by_id[operation_id_of(command)] for command in commands]
        # Here, and not where the caller waits, who may have been cancelled.
        self._announce(commands, results)
        return results

    async def _in_parts(
        self, commands: Sequence[Command], once: Callable[[Sequence[Command]], Awaitable[Results]]
    ) -> dict[UUID, BatchResult | Exception]:
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
                    results += await _repeated(partial(once, part))
                except ServerRefused as refused:
                    # The table of responses checks nothing but that a partition is there for the day.
                    lacks_partition = (refused.sqlstate, refused.table) == (CHECK_VIOLATION, "response")
                    if not (makes_room and lacks_partition):
                        raise
                    # Once: the commands that have room need not wait for that again.
                    makes_room = False
                    await self._make_room(part, refused)
                    results += await _repeated(partial(once, part))
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
            raise refused.again(f"there is no room for responses of that day yet: {fault}") from fault

    async def _claim(self, commands: Sequence[Any]) -> Results:
        if self._link.is_portable:
            return await self._at_once(commands, "insert_absent", {})
        expected = [self._days.expected_us(command.identity.operation) for command in commands]
        return await self._at_once(commands, "insert_absent", {"expected_us": expected})

    async def _complete(self, commands: Sequence[Any]) -> Results:
        for command in commands:
            self._days.learn(command.granted.identity.operation, command.replay_us)
        return await self._at_once(commands, "replace_granted", {})

    async def _at_once(
        self, commands: Sequence[Command], verb: statements.Verb, more: Mapping[str, Sequence[Any]]
    ) -> Results:
        """Execute by one statement, which is given more than the commands have."""
        given, events = statements.given_of(verb, commands, more), statements.events_of(self._outbox, commands)
        text = statements.hot_text(verb, tuple(given), is_portable=self._link.is_portable, has_events=bool(events))
        # A completion is fenced by what this memory granted.
        is_compared = verb == "insert_absent"
        found = await self._link.change(text, *given.values(), *events, is_compared=is_compared)
        changed = {row[1]: row for row in found}
        results: Results = []
        for command, operation_id in zip(commands, given["id"], strict=True):
            row = changed.get(operation_id)
            results.append(None if row is None else statements.granted(command, row[2], row[0]))
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
            results: Results = list(await execute(cursor, commands, self._outbox))
            # Also for a repeated command that took effect before: its number may never have been noted.
            raised = await self._link.raised(cursor) if any(isinstance(each, Applied) for each in results) else ()
            return results, raised

        expected = sum(isinstance(command, DRAWING) for command in commands)
        results, raised = await self._transactions.once(change, mode, tokens_expected=expected)
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


async def _repeated(once: Callable[[], Awaitable[T]]) -> T:
    """Repeat what lost against other transactions. Raises `ServerRefused` if it lost every time."""
    try:
        return await repeated(once, CONTENTION_CODES, REPEATS_MAX, _PAUSE_SECONDS)
    except ServerRefused as refused:
        if refused.is_contention:
            raise refused.again(f"the transaction lost against others {REPEATS_MAX} times: {refused}") from refused
        raise


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
    if isinstance(command, Accept):
        return len(command.kept.sealed)
    if not isinstance(command, Complete | Prove):
        return 0
    headers = sum(len(name) + len(value) + 8 for name, value in command.response.headers)
    return headers + len(command.response.body or b"")
