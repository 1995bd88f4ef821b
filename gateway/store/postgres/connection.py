"""What is known of a connection to Postgres and of a server: what a transaction is, what an error means, and which
engine it is. It knows no statement and no driver.

*What is known.* Until a statement is passed to the driver, nothing was done. An error message of the server about the
statement means that it was rolled back, unless a commit can end with an error of that class. Everything else (a lost
connection, a timeout, an unknown error) is indefinite, except within a transaction whose COMMIT was not yet sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeVar

from gateway.store.base import Indefinite, NotApplied, StoreError

# -- connection --------------------------------------------------------------------------------------------------------

T = TypeVar("T")

# What a transaction is like. The first: each statement sees what was committed while it waited for a lock.
READ_COMMITTED: Final = "READ COMMITTED"
SERIALIZABLE: Final = "SERIALIZABLE"
READING: Final = "REPEATABLE READ READ ONLY"
# Its one snapshot is taken by the first query. `Horizon` has to see it before, and this takes none.
_FIRST: Final = {SERIALIZABLE: ("LOCK TABLE ONLY idempotency_gateway.operation IN ROW EXCLUSIVE MODE",)}

# Classes and codes after which nothing was done: the statement was refused or rolled back (PostgreSQL, appendix A). Not
# 08, 40003, 57P01 to 57P05, 58 or XX: a commit may have been under way.
_DEFINITE_CLASSES: Final = frozenset(("0A", "21", "22", "23", "25", "26", "28", "3D", "3F", "42", "53", "54", "55"))
_DEFINITE_CODES: Final = frozenset(("40000", "40001", "40002", "40P01", "57014"))
# A check violation is of that class too, but the schema checks no values: the row has no partition.
CHECK_VIOLATION: Final = "23514"
_DATA_CLASSES: Final = frozenset(("22", "23", "54"))
LOCK_NOT_AVAILABLE: Final = "55P03"
# The last one: two insert the same key at the same moment.
CONTENTION_CODES: Final = frozenset(("40001", "40P01", "23505"))
# Refusals that last until an operator changes the configuration.
_MISCONFIGURED_CLASSES: Final = frozenset(("28", "3D"))
# Not this role's, or not this server's: insufficient privilege, undefined function or table, unsupported.
INSUFFICIENT_PRIVILEGE: Final = "42501"
_FORBIDDEN_CODES: Final = frozenset((INSUFFICIENT_PRIVILEGE, "42883", "42P01", "0A000"))
# An unknown option in the URL.
_MISCONFIGURED_CODES: Final = frozenset(("42704",))


class Connection(Protocol):
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
        self.is_contention = sqlstate in CONTENTION_CODES
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
    they are None. They are sent in one message with BEGIN: a gateway that vanishes in the middle holds no lock for
    long, whatever the server's defaults are. An error before COMMIT was sent is definite: nothing was done."""
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


async def repeated(
    once: Callable[[], Awaitable[T]], passing: Collection[str], tries: int, pause_seconds: tuple[float, float] = (0, 0)
) -> T:
    """Repeat what the server refused with one of these codes, at most so often in all; what it was refused with last is
    raised. The pause doubles from the first number to the second."""
    pause, pause_max = pause_seconds
    for _ in range(tries - 1):
        try:
            return await once()
        except Exception as error:
            if getattr(error, "sqlstate", None) not in passing:
                raise
        # Jitter, or those that lost against one another would meet again.
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        pause = min(2 * pause, pause_max)
    return await once()


def connect_fault(error: Exception, where: str) -> NotApplied:
    sqlstate = getattr(error, "sqlstate", None) or ""
    reason = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        reason = "no response in time"
    if filename := getattr(error, "filename", None):
        reason = f"{filename}: {reason}"
    return ServerRefused(f"{where} cannot be used: {reason}", sqlstate)


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
