"""One connection to Postgres: opened on demand, replaced when it is lost, and with a limit on every wait.

It owns all timeouts, what a transaction is, and what is known after an error; it knows no statement. `dial` passes the
driver in, so that this file imports none.

Theory of operation
-------------------
*Time.* When a statement's time is over, its connection is aborted. The statement is not cancelled at the server: a
cancelled commit that waits for a synchronous standby would become visible without being there, and a server that hangs
would not receive the cancellation anyway.

*What is known.* Until a statement is passed to the driver, nothing was done. An error message of the server about the
statement means that it was rolled back, unless a commit can end with an error of that class. Everything else (a lost
connection, a timeout, an unknown error) is indefinite, except within a transaction whose COMMIT was not yet sent.

*No storms.* A link that could not connect refuses at once, with the last reason, until its pause is over; the pause
doubles up to a limit. There are few links, so few connections are tried at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeVar

from gateway.store.base import Indefinite, NotApplied, StartRefused, StoreError

# -- connection --------------------------------------------------------------------------------------------------------

T = TypeVar("T")

# What a transaction is like. The first: each statement sees what was committed while it waited for a lock.
READ_COMMITTED: Final = "READ COMMITTED"
SERIALIZABLE: Final = "SERIALIZABLE"
READING: Final = "REPEATABLE READ READ ONLY"
# Its one snapshot is taken by the first query. `Horizon` has to see it before, and this takes none.
_FIRST: Final = {SERIALIZABLE: ("LOCK TABLE ONLY idempotency_gateway.operation IN ROW EXCLUSIVE MODE",)}

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_CLOSE_SECONDS: Final = 1.0

# Classes and codes after which nothing was done: the statement was refused or rolled back (PostgreSQL, appendix A). Not
# 08, 40003, 57P01 to 57P05, 58 or XX: a commit may have been under way.
_DEFINITE_CLASSES: Final = frozenset(("0A", "21", "22", "23", "25", "26", "28", "3D", "3F", "42", "53", "54", "55"))
_DEFINITE_CODES: Final = frozenset(("40000", "40001", "40002", "40P01", "57014"))
# A check violation is of that class too, but the schema checks no values: the row has no partition.
CHECK_VIOLATION: Final = "23514"
_DATA_CLASSES: Final = frozenset(("22", "23", "54"))
LOCK_NOT_AVAILABLE: Final = "55P03"
# The last one: two insert the same key at the same moment.
_CONTENTION_CODES: Final = frozenset(("40001", "40P01", "23505"))
# Refusals that last until an operator changes the configuration.
_MISCONFIGURED_CLASSES: Final = frozenset(("28", "3D"))
# Not this role's, or not this server's: insufficient privilege, undefined function or table, unsupported.
INSUFFICIENT_PRIVILEGE: Final = "42501"
_FORBIDDEN_CODES: Final = frozenset((INSUFFICIENT_PRIVILEGE, "42883", "42P01", "0A000"))
# An unknown option in the URL.
_MISCONFIGURED_CODES: Final = frozenset(("42704",))


class Connection(Protocol):
    """What this needs of a driver's connection."""

    async def fetch(self, query: str, *arguments: Any) -> Sequence[Any]: ...
    async def execute(self, query: str, *arguments: Any) -> Any: ...
    async def add_listener(self, channel: str, callback: Callable[..., Any]) -> Any: ...
    def add_termination_listener(self, callback: Callable[..., Any]) -> Any: ...
    def get_server_pid(self) -> int: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self, *, timeout: float) -> None: ...


class ServerRefused(NotApplied):
    """The server refused the statement and rolled it back. Only inside the store, which distinguishes by `sqlstate`."""

    def __init__(self, text: str, sqlstate: str = "", table: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.table = table
        code_class = sqlstate[:2]
        self.is_contention = sqlstate in _CONTENTION_CODES
        """The statement lost against another one and can be repeated as it is."""
        self.is_of_some = code_class in _DATA_CLASSES and not self.is_contention
        """Some of the rows are refused. Without them the statement may succeed."""
        self.is_data = self.is_of_some and sqlstate != CHECK_VIOLATION
        """The statement can never succeed as it is: a value, a constraint or a limit."""
        self.is_forbidden = sqlstate in _FORBIDDEN_CODES
        """The role may not do this, or the server does not have it."""
        self.is_locked = sqlstate == LOCK_NOT_AVAILABLE
        """The statement waited too long for a lock."""
        self.is_misconfigured = code_class in _MISCONFIGURED_CLASSES or sqlstate in _MISCONFIGURED_CODES
        """The server does not know our user, password or database, or an option of the URL."""

    def again(self, text: str) -> ServerRefused:
        """The same refusal with another text."""
        return ServerRefused(text, self.sqlstate, self.table)


def fault_of(error: Exception) -> StoreError:
    """The `StoreError` for an error of a statement under way. Its text holds no value of the statement."""
    if isinstance(error, StoreError):
        return error
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None and isinstance(error, ValueError | TypeError | OverflowError):
        # The driver could not encode an argument: nothing was sent.
        return ServerRefused(f"a value does not fit its column ({type(error).__name__})", "22000")
    if sqlstate is None:
        return Indefinite(f"PostgreSQL: the response was lost ({type(error).__name__})")
    if sqlstate[:2] in _DATA_CLASSES:
        what = "a row" if sqlstate == CHECK_VIOLATION else "a value"
        text = f"PostgreSQL refused {what} ({sqlstate} {type(error).__name__})"
    else:
        text = f"PostgreSQL: {getattr(error, 'message', None) or type(error).__name__} ({sqlstate})"
    if sqlstate[:2] in _DEFINITE_CLASSES or sqlstate in _DEFINITE_CODES:
        return ServerRefused(text, sqlstate, getattr(error, "table_name", None))
    return Indefinite(text)


@asynccontextmanager
async def transaction(
    connection: Connection, settings: Mapping[str, str] | None, mode: str = READ_COMMITTED
) -> AsyncIterator[None]:
    """A transaction with its own settings, because behind a pooler no session keeps them; with those of the session, if
    they are None.

    They are sent in one message with BEGIN: a gateway that vanishes in the middle holds no lock for long, whatever the
    server's defaults are. An error before COMMIT was sent is definite: nothing was done.
    """
    begin = f"BEGIN ISOLATION LEVEL {mode}"
    if settings is not None:
        all_settings = {"idle_in_transaction_session_timeout": "5s", **settings}
        local = [f"SET LOCAL {name} = '{value}'" for name, value in all_settings.items()]
        begin = "; ".join([begin, *local, *_FIRST.get(mode, ())])
    try:
        await connection.execute(begin)
        yield
    except BaseException as error:
        if isinstance(error, Exception) and isinstance(fault := fault_of(error), Indefinite):
            connection.terminate()
            raise NotApplied(*fault.args) from error
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    try:
        status = await connection.execute("COMMIT")
    finally:
        # The server that refuses it has ended the transaction, or leaves that to its client.
        if not connection.is_closed() and connection.is_in_transaction():
            await connection.execute("ROLLBACK")
    if status != "COMMIT":
        raise NotApplied("the transaction was rolled back")


def connect_fault(error: Exception, where: str) -> NotApplied:
    sqlstate = getattr(error, "sqlstate", None) or ""
    reason = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        reason = "no response in time"
    if filename := getattr(error, "filename", None):
        reason = f"{filename}: {reason}"
    return ServerRefused(f"{where} cannot be used: {reason}", sqlstate)


class Link:
    """One connection, used by one caller at a time. Belongs to the event loop that uses it."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Connection]],
        where: str,
        *,
        connect_seconds: float,
        command_seconds: float,
        idle_seconds: float | None = None,
        reached: Callable[[], int] = int,
    ) -> None:
        """`where` names the server in error texts. `dial` opens a connection and greets the server; it may raise
        anything. `reached` returns how often that succeeded, also for other links."""
        self._dial = dial
        self._reached = reached
        self._where = where
        self._connect_seconds = connect_seconds
        self._command_seconds = command_seconds
        self._idle_seconds = idle_seconds
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._pause_seconds = 0.0
        self._retry_at = 0.0
        # As `reached` was when a connection failed: once it is more, the server is back, and the pause is over.
        self._reached_before = 0
        self._last_fault: NotApplied = NotApplied("not connected")

    async def open(self) -> None:
        """Connect now. Raises what `dial` raises of `StoreError`, else `NotApplied`."""
        async with self._turn:
            self._retry_at = 0.0
            await self._connected()

    async def fetch(self, query: str, *arguments: Any) -> Sequence[Any]:
        """One statement in its own transaction. Raises `ServerRefused` or another `NotApplied`, or `Indefinite`."""
        return await self.run(lambda connection: connection.fetch(query, *arguments))

    async def run(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do this work on the connection, within `seconds` (default: the time of a command). Raises as `fetch`.

        Cancelling the caller aborts the work and its connection.
        """
        try:
            async with asyncio.timeout(self._connect_seconds + self._command_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise NotApplied(f"{self._where} is busy") from None
        try:
            try:
                connection = await self._connected()
            except StartRefused as error:
                raise NotApplied(*error.args) from error
            return await self._bounded(connection, work, seconds or self._command_seconds)
        finally:
            self._turn.release()
            if self._idle_seconds is not None:
                if self._idle_timer is not None:
                    self._idle_timer.cancel()
                self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def _bounded(self, connection: Connection, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, connection.terminate)
        # A separate task: if the statement itself were cancelled, the driver would cancel it at the server.
        task = asyncio.ensure_future(work(connection))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            connection.terminate()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()
            raise
        except Exception as error:
            fault = fault_of(error)
            if isinstance(fault, Indefinite):
                connection.terminate()
                if timer.when() <= loop.time():
                    fault = Indefinite(f"{self._where}: no response within {seconds:g} s")
            raise fault from error
        finally:
            timer.cancel()

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at and self._reached() == self._reached_before:
            last = self._last_fault
            raise last.again(str(last)) if isinstance(last, ServerRefused) else type(last)(*last.args)
        try:
            async with asyncio.timeout(self._connect_seconds):
                self._connection = await self._dial()
        except Exception as error:
            if isinstance(error, StartRefused | NotApplied):
                fault: StoreError = error
            else:
                fault = connect_fault(error, self._where)
            self._last_fault = fault if isinstance(fault, NotApplied) else NotApplied(str(fault))
            self._reached_before = self._reached()
            self._pause_seconds = min(max(self._pause_seconds * 2, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
            # Jitter, so that the gateways do not all reconnect at the same moment.
            self._retry_at = loop.time() + self._pause_seconds * random.uniform(0.5, 1.5)  # noqa: S311
            raise fault from error
        self._pause_seconds = 0.0
        return self._connection

    def drop(self) -> None:
        """Abort the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Close the connection after the work under way, which ends within the time of a command."""
        async with self._turn:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            connection, self._connection = self._connection, None
            if connection is None or connection.is_closed():
                return
            try:
                await connection.close(timeout=_CLOSE_SECONDS)
            except Exception:  # noqa: BLE001 -- a connection that cannot be closed cleanly is aborted
                connection.terminate()


# -- engine ------------------------------------------------------------------------------------------------------------
#
# Which engine a server is, of those that speak PostgreSQL's protocol, and whether it keeps what it acknowledges.

SERVER_MAJOR_MIN: Final = 14

Durability = Literal["server", "external"]
"""`store.durability`: whether the server itself keeps what it acknowledged, or the storage below it does."""
# The settings that an acknowledged commit depends on, and what to do about each if it is off.
DURABILITY: Final[Mapping[str, str]] = {
    "fsync": (
        "after a crash of its host it may be corrupt, or have forgotten acknowledged responses. Set it to on; only "
        "where the storage itself keeps every acknowledged commit (as Neon's does), write store.durability: external"
    ),
    "full_page_writes": (
        "a page that a crash leaves half written is corrupt for good. Set it to on; only where the storage never "
        "leaves a page half written (as ZFS and Neon's do not), write store.durability: external"
    ),
    "synchronous_commit": (
        "a crash forgets the responses that were acknowledged last. Set it to on, for all or for this role "
        "(ALTER ROLE gateway SET synchronous_commit = on)"
    ),
}

# Those whose work some storage does by itself. There they may be off, but only the operator can know that.
_OF_STORAGE: Final = ("fsync", "full_page_writes")


class Engine(StrEnum):
    POSTGRESQL = "PostgreSQL"
    COCKROACHDB = "CockroachDB"
    YUGABYTEDB = "YugabyteDB"
    CITUS = "Citus"


async def engine_of(connection: Connection) -> Engine:
    """Which engine the server says that it is."""
    ((version,),) = await connection.fetch("SELECT version()")
    if "CockroachDB" in version:
        return Engine.COCKROACHDB
    if "-YB-" in version:
        return Engine.YUGABYTEDB
    if await connection.fetch("SELECT 1 FROM pg_extension WHERE extname = 'citus'"):
        return Engine.CITUS
    return Engine.POSTGRESQL


def losses(settings: Mapping[str, str], durability: Durability) -> dict[str, str]:
    """The settings of a server that make it lose commits, and what to do about each; empty if its commits are
    durable."""
    ignored = _OF_STORAGE if durability == "external" else ()
    return {name: what for name, what in DURABILITY.items() if settings[name] == "off" and name not in ignored}
