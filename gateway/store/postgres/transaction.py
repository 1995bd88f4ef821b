"""What the package "relational" does its work in: a transaction of a connection, on the event loop.

Transactions are serializable, but for those of commands that concern nothing but their records. These lock them first,
and what they read behind the locks is what was committed before: each statement has a snapshot of its own, and so has
the clock.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar

from gateway.core.operation import MICROSECONDS, Accept, Command, Record, State, microseconds
from gateway.store.base import boot_seconds
from gateway.store.postgres.connection import READ_COMMITTED, READING, Connection, Link, ServerRefused, transaction
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.horizon import Horizon
from gateway.store.postgres.statements import IS_NEW, load, portable_texts, qualified, statement_texts
from gateway.store.relational.executor import Cursor
from gateway.store.relational.rows import Row
from gateway.store.relational.statements import RECORD, WRITTEN, of_many
from gateway.store.relational.sweep import SWEPT

T = TypeVar("T")

# Somebody else changes what is locked, and the next sweep finds it.
_TEXTS: Final[Mapping[str, str]] = {
    **statement_texts(),
    "select_paused_expiring": f"{load('select_paused_expiring')} FOR UPDATE OF d, o SKIP LOCKED",
}
# Those of PostgreSQL alone that are given an array for each column, and the others of which many are one.
_WHOLE: Final = frozenset(("insert_response", "delete_response", "narrow_operation"))
AT_ONCE: Final = WRITTEN - _WHOLE
_CLOCK: Final = load("clock")
_DRAW: Final = load("draw_tokens")
_PASS: Final = load("pass")
_BEHIND_LOCKS: Final = load("behind_locks")
# The most steps of the walk for lapsed claims in one transaction.
_STEPS_MAX: Final = 20
_PARAMETER: Final = re.compile(r"\$(\d+)")
# How long a gateway that only looks goes by its own clock, so that it asks no more statements than it has to.
_CLOCK_SECONDS: Final = 30.0
_SERIALIZATION_FAILURE: Final = "40001"
# How far ahead the ceiling of tokens is moved, so that few transactions write it.
_CEILING_STEP_US: Final = 3_600 * MICROSECONDS


class Entangled(ServerRefused):
    """The commands concern more than their records: a serializable transaction has to execute them."""


class Transaction(Cursor):
    """Without `is_serial` it is told the clock behind the first locks. A sequence has the tokens, some of which may be
    left out."""

    now_us = 0
    first_row = b""
    last_row = b"\xff" * 17
    drops_responses = True
    is_remote = True
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
        self,
        connection: Any,
        now_us: int,
        tokens_expected: int,
        horizon: Horizon,
        seen_token: int,
        *,
        is_serial: bool,
        clock_us: int | None,
    ) -> None:
        """`seen_token`: up to which all claims can be seen."""
        self.now_us = now_us
        self.is_serial = is_serial
        self._clock_us = clock_us
        self._horizon = horizon
        self._seen_token = seen_token
        self._connection = connection
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

    async def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return await self._connection.fetchrow(self._texts[statement], *bindings)

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        rows = await self.rows(statement, (keys, *bindings))
        if statement == "lock_operation" and not self.is_serial:
            missing = set(keys).difference(row[1] for row in rows)
            wanted = max(self._tokens_expected - len(self._tokens), 0)
            ((self.now_us, has_moved, drawn),) = await self._connection.fetch(
                _BEHIND_LOCKS, self._clock_us, list(missing), wanted
            )
            self._tokens = [*reversed(drawn), *self._tokens]
            if has_moved:
                raise ServerRefused("a record moved while its lock was waited for", _SERIALIZATION_FAILURE)
        return rows

    async def hold(self, keys: Iterable[bytes], /) -> None:
        """Where it `is_serial`, nothing: of two that need the same, one is refused."""
        if not self.is_serial and list(keys):
            raise Entangled("something besides records has to be held")

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
            text = text.replace(" ORDER BY", f" WHERE {IS_NEW} ORDER BY")
        number = await self._execute(qualified(text), *arrays)
        if is_new and number < len(bindings):
            raise ServerRefused("another record came in between", _SERIALIZATION_FAILURE)

    async def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        if statement == "select_young":
            await self._walk()
            return []
        return [tuple(row) for row in await self._connection.fetch(_due(statement), *bindings)]

    async def _walk(self) -> None:
        """Pass by what cannot lapse any more."""
        for _ in range(_STEPS_MAX):
            ((is_more,),) = await self._connection.fetch(_PASS, self.now_us, self._seen_token)
            if not is_more:
                break

    @property
    def narrows_up_to(self) -> int:
        return self._horizon.token

    def state(self) -> object:
        return self._connection

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        least = await self._last_token(record, command)
        # Those that were drawn before the record's lock was had may be too low.
        while not self._tokens or self._tokens[-1] <= least:
            if self._tokens:
                self._tokens.pop()
            else:
                drawn = await self._connection.fetch(_DRAW, max(self._tokens_expected, 1))
                self._tokens = [token for (token,) in reversed(drawn)]

    async def _last_token(self, record: Record | None, command: Command) -> int:
        """The last one of the operation, and of the lane that the command accepts it into."""
        last = 0 if record is None else record.token
        if isinstance(command, Accept) and command.lane is not None:
            last = max(last, (await self.row("select_last_in_lane", (command.lane,)))[0] or 0)
        return last

    def draw(self) -> int:
        return self._tokens.pop()

    async def end(self) -> None:
        """Called before the commit."""


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
        text = _PARAMETER.sub(partial(_moved, first), load(name))
        texts.append(f"ARRAY(SELECT q FROM ({text}) AS q)")  # noqa: S608
        first += number
    return f"SELECT {', '.join(texts)}"


def _moved(by: int, parameter: re.Match[str]) -> str:
    return f"${int(parameter.group(1)) + by}"


class PortableTransaction(Transaction):
    """A transaction of the portable dialect: always serializable.

    Its tokens are times: the greatest of the clock in microseconds, the operation's last token + 1 and the `floor` + 1.
    Nothing is counted in one place, so tokens grow per operation only. A record that goes leaves its token in the
    floor. Most are below it already, because the floor is then raised to the present.
    """

    drops_responses = False
    swept = SWEPT
    narrows_up_to = Cursor.narrows_up_to

    def __init__(self, connection: Any, dialer: Dialer, now_us: int, floor: int, ceiling: int) -> None:
        self.now_us = now_us
        self._connection = connection
        self._texts = dialer.texts
        self._draw = dialer.draw
        # No token up to the floor is drawn, nor up to `_least`, and none above the ceiling has been.
        self._floor = self._floor_before = self._least = floor
        self._ceiling = ceiling
        self._highest = 0

    together = Cursor.together
    due = Cursor.due

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        if self._texts is portable_texts():
            return await self.rows(statement, (keys, *bindings))
        return [row for key in sorted(keys) for row in await self.rows(statement, (key, *bindings))]

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        if not bindings:
            return
        if statement in WRITTEN and self._texts is portable_texts():
            text, arrays = of_many(statement, bindings)
            await self._execute(qualified(text), *arrays)
        else:
            await self._connection.executemany(self._texts[statement], bindings)

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        self._least = max(self._floor, await self._last_token(record, command))

    def draw(self) -> int:
        token = self._draw(max(self.now_us, self._least + 1))
        self._highest = max(self._highest, token)
        return token

    def forget_token(self, token: int, /) -> None:
        if token > self._floor:
            self._floor = self._least = max(token, self.now_us)

    async def end(self) -> None:
        """Write down between which numbers tokens are drawn from now on."""
        if self._highest > self._ceiling:
            await self.change("update_ceiling", (self._highest + _CEILING_STEP_US,))
        if self._floor > self._floor_before:
            await self.change("update_floor", (self._floor,))


class Transactions:
    """The transactions over one link."""

    def __init__(self, dialer: Dialer, link: Link, horizon: Horizon, *, is_compared: bool = False) -> None:
        """Where it `is_compared`, each compares the memory first, if that can be another one than the session's."""
        self.link = link
        self._dialer = dialer
        self._horizon = horizon
        self._is_compared = is_compared
        # The server's clock when it was asked last, and the host's.
        self._asked = (0, float("-inf"))

    async def work(
        self,
        work: Callable[[Cursor], Awaitable[T]],
        mode: str,
        settings: Mapping[str, str] | None = None,
        tokens_expected: int = 0,
    ) -> T:
        """Do this work in one transaction with these settings. Raises as `Link.run`, and what the work raises."""

        async def inside(connection: Connection) -> T:
            async with transaction(connection, self._dialer.settings(settings), mode):
                if self._is_compared and self._dialer.pgbouncer:
                    await self._dialer.compare(connection)
                cursor = await self._begun(connection, mode, tokens_expected)
                result = await work(cursor)
                await cursor.end()
                return result

        return await self.link.run(inside)

    async def _begun(self, connection: Connection, mode: str, tokens_expected: int) -> Transaction:
        clock_us = self._dialer.clock_us()
        if self._dialer.is_portable:
            ((*bounds,),) = await connection.fetch(self._dialer.texts["select_clock"], clock_us)
            return PortableTransaction(connection, self._dialer, *bounds)
        # Before the snapshot is taken, which then has all these.
        seen_token, is_serial = self._horizon.seen, mode is not READ_COMMITTED
        now_us = await self._now_us(connection, only_reads=mode is READING) if is_serial else 0
        return Transaction(
            connection, now_us, tokens_expected, self._horizon, seen_token, is_serial=is_serial, clock_us=clock_us
        )

    async def _now_us(self, connection: Connection, *, only_reads: bool) -> int:
        """The store's clock, of what only reads as the host's clock has gone on since."""
        if (now_us := self._dialer.clock_us()) is not None:
            return now_us
        (asked_us, asked_at), now = self._asked, boot_seconds()
        if only_reads and now - asked_at < _CLOCK_SECONDS:
            return asked_us + microseconds(now - asked_at)
        ((now_us,),) = await connection.fetch(_CLOCK, None)
        self._asked = (now_us, boot_seconds())
        return int(now_us)
