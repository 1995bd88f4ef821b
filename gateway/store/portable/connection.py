"""Connections to distributed SQL, each used by one thread; what a transaction is, when it is repeated, and what is
known when one fails.

Theory of operation
-------------------
*Serializable.* A transaction reads, decides and writes as if it were alone. The server refuses one that would not have
been (40001, at any statement and at COMMIT), and nothing of it was done; it is then repeated from its first statement,
with growing pauses and up to `REPEATS_MAX` times. On Citus only what one node has is serializable: there the lock of
the row that is read (`lock_operation`) does the work.

*What is known.* An error before COMMIT was sent is definite. An error of COMMIT is definite only if the server says
that it rolled back. Everything else is `Indefinite`, and the connection is not used again. A statement whose time is
over is not cancelled at the server; its connection is aborted.

*Tokens* are times: a token is the greatest of the clock in microseconds, the operation's last token + 1 and the `floor`
+ 1. Nothing is counted in one place, so tokens grow per operation only. A record that goes leaves its token in the
floor. Most are below it already, because the floor is then raised to the present.

*The thread* runs an event loop of its own for the driver, and only while it waits for the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from gateway.core.operation import MICROSECONDS, Accept, Command, Record
from gateway.store.base import EpochChanged, NotApplied, StartRefused, StoreError
from gateway.store.portable.memory import Memory
from gateway.store.portable.schema import TEXTS, TEXTS_OF_ONE_ROW, applied_version, bring_up_to_date, check_server
from gateway.store.postgres.connection import ServerRefused, fault_of
from gateway.store.postgres.engine import Durability, Engine
from gateway.store.relational.executor import Contended, Cursor
from gateway.store.relational.rows import Row
from gateway.store.relational.statements import WRITTEN, of_many
from gateway.store.relational.sweep import SWEPT

T = TypeVar("T")

CONNECT_SECONDS: Final = 5.0
COMMAND_SECONDS: Final = 5.0
# How often a transaction is repeated, and how long it waits before that: up to the second number.
REPEATS_MAX: Final = 12
_PAUSE_SECONDS: Final = (0.001, 0.1)
_CLOSE_SECONDS: Final = 1.0
# A connection that could not be opened is not tried again sooner.
_RETRY_SECONDS: Final = (0.05, 1.0)
# How far ahead the ceiling is moved, so that few transactions write it.
_CEILING_STEP_US: Final = 3_600 * MICROSECONDS

_CHANGING: Final = "BEGIN ISOLATION LEVEL SERIALIZABLE"
_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_NO_PRIVILEGE: Final = "42501"
_ADVICE: Final = ": run `idempotency-gateway migrate --grant ROLE` as the role that owns the schema or may create it"
_SETTINGS: Final = {
    "application_name": "idempotency-gateway",
    "search_path": "idempotency_gateway",
    # The server gives up before this side does, so that it is known that nothing was done.
    "statement_timeout": str(round(COMMAND_SECONDS * 900)),
    "idle_in_transaction_session_timeout": str(round(COMMAND_SECONDS * 1_000)),
}

Connect = Callable[..., Awaitable[Any]]


class _Lost(Exception):
    """The transaction lost against another one. Nothing of it was done."""


class _Failed(Exception):
    """A statement failed. Not a `StoreError`, because those are about one command and leave the transaction alive."""

    def __init__(self, fault: StoreError) -> None:
        super().__init__(*fault.args)
        self.fault = fault


class Unfit(_Failed):
    """The server refused a value."""


def check_url(url: str) -> None:
    """Raise `StartRefused` for a URL that this dialect cannot use."""
    if dict(parse_qsl(urlsplit(url).query)).get("pgbouncer", "false").lower() in ("1", "true", "yes", "on"):
        raise StartRefused(
            "the portable dialect needs sessions of its own: give the server's address, not a pgbouncer's"
        )


class Link:
    """A connection that is opened when needed. `drop` it in the thread that uses it."""

    def __init__(
        self,
        url: str,
        clock_us: Callable[[], int] | None,
        memory: Memory,
        durability: Durability,
        connect: Connect | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._url = url
        self._clock_us = clock_us
        self._memory = memory
        self._durability: Durability = durability
        self._connect = connect or asyncpg.connect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Any = None
        self._pause_seconds = 0.0
        self._retry_at = 0.0
        self._fault: tuple[str, ...] = ()
        self.texts = TEXTS
        """The statements of the engine."""
        # Host and database only: the text goes to logs.
        self.where = f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"

    def start(self) -> None:
        """Connect now, and bring the schema up to date. Raises `StartRefused`, `NotApplied`."""
        self._retry_at = 0.0
        self._connected(is_start=True)

    def drop(self) -> None:
        """Close the connection and the loop."""
        connection, self._connection = self._connection, None
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if connection is not None and not connection.is_closed():
            try:
                loop.run_until_complete(connection.close(timeout=_CLOSE_SECONDS))
            except Exception:  # noqa: BLE001 -- a connection that cannot be closed cleanly is aborted
                connection.terminate()
        # What was aborted is closed in the loop's next turns.
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def change(self, work: Callable[[Cursor], T]) -> T:
        """Do this work in one durable transaction, repeated while it loses. Raises `NotApplied`, `Contended`,
        `Indefinite`, and what the work raises."""
        return self._repeated(work, _CHANGING)

    def query(self, work: Callable[[Cursor], T]) -> T:
        """Do this work, which only reads, on one consistent state. Raises as `change`."""
        return self._repeated(work, _READING)

    def _repeated(self, work: Callable[[Cursor], T], begin: str) -> T:
        pause_seconds, pause_max = _PAUSE_SECONDS
        for _ in range(REPEATS_MAX):
            try:
                return self._once(self._connected(), work, begin)
            except _Lost:
                # Jitter, or those that lost against one another would meet again.
                time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311
                pause_seconds = min(2 * pause_seconds, pause_max)
        raise Contended(f"{self.where}: the transaction lost against others {REPEATS_MAX} times")

    def _once(self, connection: Any, work: Callable[[Cursor], T], begin: str) -> T:
        try:
            self.run(connection.execute, begin)
            now_us, floor, ceiling = self.run(connection.fetchrow, TEXTS["select_clock"])
            transaction = Transaction(
                self, connection, now_us if self._clock_us is None else self._clock_us(), floor, ceiling, self._memory
            )
            result = work(transaction)
        except _Failed as failed:
            fault = failed.fault
            if not isinstance(fault, ServerRefused):
                connection.terminate()
                raise NotApplied(*fault.args) from failed
            self._roll_back(connection)
            if fault.is_contention:
                raise _Lost from failed
            raise fault from failed
        except BaseException:
            self._roll_back(connection)
            raise
        try:
            status = self.run(connection.execute, "COMMIT")
        except _Failed as failed:
            if isinstance(failed.fault, ServerRefused):
                self._roll_back(connection)
                if failed.fault.is_contention:
                    raise _Lost from failed
            else:
                connection.terminate()
            raise failed.fault from failed
        if status != "COMMIT":
            raise NotApplied(f"{self.where}: the transaction was rolled back")
        return result

    def run(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Wait for one statement. Raises `_Failed`."""
        loop = self._loop
        if loop is None:
            raise NotApplied("not connected")
        timer = loop.call_later(COMMAND_SECONDS, self._connection.terminate)
        try:
            return loop.run_until_complete(call(*arguments))
        except Exception as error:
            fault = fault_of(error)
            is_unfit = isinstance(fault, ServerRefused) and fault.is_data
            raise (Unfit if is_unfit else _Failed)(fault) from error
        finally:
            timer.cancel()

    def _roll_back(self, connection: Any) -> None:
        try:
            if not connection.is_closed() and connection.is_in_transaction():
                self.run(connection.execute, "ROLLBACK")
        except _Failed:
            connection.terminate()

    def _connected(self, *, is_start: bool = False) -> Any:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if time.monotonic() < self._retry_at:
            raise NotApplied(*self._fault)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            self._connection = self._loop.run_until_complete(self.dial(is_start=is_start))
        except Exception as error:
            least, most = _RETRY_SECONDS
            self._pause_seconds = min(max(2 * self._pause_seconds, least), most)
            self._retry_at = time.monotonic() + self._pause_seconds * random.uniform(0.5, 1.5)  # noqa: S311
            if isinstance(error, EpochChanged) or (is_start and isinstance(error, StartRefused | NotApplied)):
                raise
            fault = connect_fault(error, self.where)
            self._fault = fault.args
            if is_start and _will_stay(fault):
                raise StartRefused(f"{fault}{_ADVICE if fault.sqlstate == _NO_PRIVILEGE else ''}") from error
            raise fault from error
        self._pause_seconds = 0.0
        return self._connection

    async def dial(self, *, is_start: bool = False) -> Any:
        """Open a connection for the running loop."""
        async with asyncio.timeout(None if is_start else CONNECT_SECONDS + COMMAND_SECONDS):
            connection = await self._connect(self._url, timeout=CONNECT_SECONDS, server_settings=_SETTINGS)
            try:
                engine = await check_server(connection, self._durability)
                self.texts = TEXTS_OF_ONE_ROW if engine is Engine.CITUS else TEXTS
                if is_start:
                    await bring_up_to_date(connection)
                elif not await applied_version(connection):
                    raise EpochChanged(f"{engine} has no tables of the gateway any more")
                ((identity,),) = await connection.fetch("SELECT identity FROM epoch WHERE one = 1")
                self._memory.check(engine, identity, is_start=is_start)
            except BaseException:
                connection.terminate()
                raise
            return connection


class Transaction:
    """A `relational.executor.Cursor`."""

    first_row = b""
    last_row = b"\xff" * 17
    drops_responses = False
    is_remote = True
    is_serial = True
    narrows_up_to = 2**63 - 1
    swept = SWEPT

    def __init__(self, link: Link, connection: Any, now_us: int, floor: int, ceiling: int, memory: Memory) -> None:
        self.now_us = now_us
        self._link = link
        self._texts = link.texts
        self._connection = connection
        self._floor = self._before = floor
        self._ceiling = ceiling
        self._memory = memory
        self._highest = 0

    async def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        return [tuple(row) for row in self._link.run(self._connection.fetch, self._texts[statement], *bindings)]

    async def together(self, queries: Sequence[tuple[str, Sequence[Any]]], /) -> list[list[Row]]:
        return [await self.rows(*each) for each in queries]

    async def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return self._link.run(self._connection.fetchrow, self._texts[statement], *bindings)

    async def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        if self._texts is TEXTS:
            return await self.rows(statement, (keys, *bindings))
        return [row for key in keys for row in await self.rows(statement, (key, *bindings))]

    async def hold(self, _keys: Iterable[bytes], /) -> None:
        """Nothing: of two that need the same, one is refused."""

    async def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        return self._change(statement, bindings)

    def _change(self, statement: str, bindings: Sequence[Any]) -> int:
        status = self._link.run(self._connection.execute, self._texts[statement], *bindings)
        return int(status.rpartition(" ")[2])

    async def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        if not bindings:
            return
        if statement in WRITTEN and len(bindings) > 1 and self._texts is TEXTS:
            text, arrays = of_many(statement, bindings)
            self._link.run(self._connection.execute, text, *arrays)
        else:
            self._link.run(self._connection.executemany, self._texts[statement], bindings)

    async def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        found = sorted(operation_id for (operation_id,) in await self.rows(statement, bindings))
        return await self.among("lock_operation", found) if found else []

    def state(self) -> object:
        return self._connection

    def begin_tokens(self) -> None:
        """Nothing: they are those of one transaction."""

    async def ready_to_draw(self, record: Record | None, command: Command, /) -> None:
        self._before = self._floor if record is None else max(self._floor, record.token)
        if isinstance(command, Accept) and command.lane is not None:
            self._before = max(self._before, (await self.row("select_last_in_lane", (command.lane,)))[0] or 0)

    def draw(self) -> int:
        token = self._memory.draw(max(self.now_us, self._before + 1))
        self._highest = max(self._highest, token)
        return token

    def take_back_token(self) -> None:
        """Nothing: tokens may be left out."""

    def keep_tokens(self) -> None:
        if self._highest > self._ceiling:
            self._change("update_ceiling", (self._highest + _CEILING_STEP_US,))

    def forget_token(self, token: int) -> None:
        if token > self._floor:
            self._floor = max(token, self.now_us)
            self._change("update_floor", (self._floor,))


async def open_session(url: str) -> Any:
    """A connection for migrations, without a time limit. Raises `NotApplied`, `StartRefused`."""
    try:
        settings = {name: _SETTINGS[name] for name in ("application_name", "search_path")}
        return await asyncpg.connect(url, timeout=CONNECT_SECONDS, server_settings=settings)
    except Exception as error:
        fault = connect_fault(error, urlsplit(url).path)
        raise (StartRefused(*fault.args) if _will_stay(fault) else fault) from error


def connect_fault(error: Exception, where: str) -> ServerRefused:
    """What to say of a server that could not be connected to."""
    why = getattr(error, "message", None) or str(error) or type(error).__name__
    return ServerRefused(f"{where} cannot be used: {why}", getattr(error, "sqlstate", None) or "")


def _will_stay(fault: ServerRefused) -> bool:
    """Whether it stays so until an operator changes something."""
    return fault.is_misconfigured or fault.sqlstate == _NO_PRIVILEGE
