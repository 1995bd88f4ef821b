"""The schema of the Postgres store: its migrations, the rights that a role needs, the partitions of its responses, and
what a server that others run lets the gateway do.

Migrations only go forward, and one program runs them at a time. What they make serves the programs of the level before,
too (`agreement`). The role that runs a gateway owns nothing.

*Partitions.* There is one of the responses for each day from which all of them are expired, made ahead and dropped
whole, by two functions that run with the owner's rights. Whoever sweeps makes those of the coming days for all
gateways, and drops those of past ones. Each gateway makes its own first. A response that comes before its partition
waits until that is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final

from gateway.core.operation import MICROSECONDS
from gateway.store.agreement import PROGRAM_LEVEL
from gateway.store.base import NotApplied, StartRefused, StoreError
from gateway.store.postgres.connection import (
    DURABILITY,
    LOCK_NOT_AVAILABLE,
    SERVER_MAJOR_MIN,
    Connection,
    Durability,
    fault_of,
    losses,
    repeated,
    transaction,
)
from gateway.store.postgres.dialer import COMMAND_SECONDS, STARTED, SYSTEM, TIMELINE, Dialer, Link
from gateway.store.postgres.statements import (
    CHECK_SLACK_US,
    MIGRATE_LOCK,
    PARTITION_LOCK,
    Dialect,
    load,
    migrations,
)

_LOG = logging.getLogger("gateway")

# -- migrations and rights ---------------------------------------------------------------------------------------------

# The time limit of a migration, and of anything else that reads all records.
MIGRATE_SECONDS: Final = 300.0
# How often a migration tries to get its locks. Traffic queues behind a request for a lock, and goes first between two.
_LOCK_TRIES: Final = 46
_LOCK_TIMEOUT: Final = "300ms"
_PAUSE_SECONDS: Final = (1.0, 1.0)

# An engine may take long to make an index.
_LONG: Final = "SET statement_timeout = 0"
# What a statement that makes something ends with if another program makes it at the same moment.
_MADE_MEANWHILE: Final = frozenset(("23505", "40001", "42710", "42P06", "42P07"))
_TRIES_MAX: Final = 10

_APPLIED: Final = load("schema_applied")


async def is_up_to_date(connection: Connection, dialect: Dialect) -> bool:
    """Whether the schema exists and no migration is missing. Changes nothing. Raises `StartRefused` for a schema made
    by different migrations with the same numbers."""
    (row,) = await connection.fetch("SELECT to_regclass('idempotency_gateway.migration') IS NOT NULL AS is_there")
    if not row["is_there"]:
        return False
    applied = {row["version"]: row["checksum"] for row in await connection.fetch(_APPLIED)}
    ours = migrations(dialect)
    for version, _, script in ours:
        if applied.get(version, checksum(script)) != checksum(script):
            raise StartRefused(
                f"the schema idempotency_gateway is not this program's: its migration {version} differs. It was made "
                "by another program, or for another store.dialect: use that one, or give this one a database of its own"
            )
    return set(applied) >= {version for version, *_ in ours}


async def up_to_date_or_refused(connection: Connection, dialect: Dialect) -> bool:
    """Whether the schema is up to date; where it is not, raises `StartRefused` if the role may not bring it up to
    date. Changes nothing."""
    if await is_up_to_date(connection, dialect):
        return True
    if dialect == "portable":
        return False
    (row,) = await connection.fetch(load("schema_may_migrate"))
    if not row["may"]:
        raise StartRefused(f"its schema is missing or too old, and this role may not change that: {advice()}")
    return False


def checksum(script: str) -> str:
    """The checksum of a migration without its comment lines and line breaks."""
    return sha256(" ".join(_without_comments(script).split()).encode()).hexdigest()


def _without_comments(script: str) -> str:
    return "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))


async def bring_up_to_date(connection: Connection, dialect: Dialect) -> list[str]:
    """Apply the missing migrations, in PostgreSQL in one transaction, and return their names. Repeatable, and safe if
    several programs do it at once. The first migration needs CREATE on the database, unless the schema exists and
    belongs to the role. Without anything to do, no rights are needed."""
    if await is_up_to_date(connection, dialect):
        return []
    if dialect == "portable":
        return await _migrate(connection, dialect)

    async def migrate() -> list[str]:
        # The tables come without the schema's name.
        settings = {"lock_timeout": _LOCK_TIMEOUT, "statement_timeout": "0", "search_path": "idempotency_gateway"}
        async with transaction(connection, settings):
            return await _migrate(connection, dialect)

    return await repeated(migrate, (LOCK_NOT_AVAILABLE,), _LOCK_TRIES, _PAUSE_SECONDS)


async def _migrate(connection: Connection, dialect: Dialect) -> list[str]:
    """In the portable dialect statement by statement: not every engine makes tables in a transaction, and each may be
    repeated."""
    is_portable = dialect == "portable"
    tries = _TRIES_MAX if is_portable else 1

    async def execute(text: str, *arguments: Any) -> None:
        await repeated(partial(connection.execute, text, *arguments), _MADE_MEANWHILE, tries)

    await connection.execute(_LONG if is_portable else f"SELECT pg_advisory_xact_lock({MIGRATE_LOCK})")
    # Check first: the server requires the privilege to create even if there is nothing to create.
    if not await connection.fetch("SELECT 1 FROM pg_namespace WHERE nspname = 'idempotency_gateway'"):
        await execute("CREATE SCHEMA IF NOT EXISTS idempotency_gateway")
    await execute(load("schema_migrations"))
    applied = {row["version"] for row in await connection.fetch(_APPLIED)}
    missing = [each for each in migrations(dialect) if each[0] not in applied]
    for version, name, script in missing:
        for statement in _without_comments(script).split(";") if is_portable else (script,):
            if statement.strip():
                await execute(statement)
        if not applied:
            # No older program has ever used it.
            await execute(load("raise_level"), PROGRAM_LEVEL)
        await execute(load("schema_note"), version, name, checksum(script))
    if is_portable:
        await connection.execute("RESET statement_timeout")
    return [name for _, name, _ in missing]


async def grant(connection: Connection, role: str, dialect: Dialect) -> None:
    """Grant this role the rights that a gateway needs. Repeatable. Only the owner of the schema can do it."""
    ((quoted,),) = await connection.fetch("SELECT quote_ident($1)", role)
    is_portable = dialect == "portable"
    texts = load("schema_grant") + ("" if is_portable else load("schema_grant_more"))
    async with transaction(connection, None if is_portable else {"lock_timeout": _LOCK_TIMEOUT}):
        await connection.execute(texts.format(role=quoted))


async def check_role(connection: Connection) -> None:
    """Check that this role may do all that the store does, so that the start fails and not the first completion. Raises
    `StartRefused`."""
    rows = await connection.fetch(load("lacking"))
    if rows:
        role, owner = rows[0]["role"], rows[0]["owner"]
        lacking = ", ".join(row["what"] for row in rows)
        raise StartRefused(
            f"the role {role} lacks rights in the schema idempotency_gateway ({lacking}): {advice(role, owner)}"
        )


def advice(role: str = "ROLE", owner: str = "that owns the schema or may create it") -> str:
    return f"run `idempotency-gateway migrate --grant {role}` as the role {owner}"


def advice_on(refusal: str) -> str:
    """What to do about a refusal for lack of a right: in the schema, or at a function of the server."""
    if "function pg_" in refusal:
        return (
            "the gateway cannot do without it; an administrator of the server has to GRANT EXECUTE ON FUNCTION to this "
            "role. `check --store` lists what the server allows"
        )
    return advice()


# -- partitions --------------------------------------------------------------------------------------------------------

# Of how many operation names the last window is known.
_OPERATIONS_MAX: Final = 10_000
# How many days ahead partitions are made.
DAYS_AHEAD: Final = 2
_DAY_US: Final = 86_400 * MICROSECONDS
_ATTACH_TIMEOUT: Final = "100ms"
# Tries to attach one for a response. Each waits for a lock for a moment, while the rest of the queue waits.
_ATTACH_TRIES: Final = 5
# Dropping a day locks the whole table for a moment, and traffic queues behind the request for that lock.
_DROP_TIMEOUT: Final = "50ms"
# How often to look for a past day to drop, and the longest pause while a reader blocks that.
_DROP_PAUSE_SECONDS: Final = 60.0
_DROP_PAUSE_SECONDS_MAX: Final = 1_800.0
# How often to make those of coming days, and how soon to retry after a failure: there is a day's time for it.
_MAKE_PAUSE_SECONDS: Final = 600.0
_MAKE_AGAIN_SECONDS: Final = 10.0

_MISSING_DAYS: Final = load("missing_days")


class Days:
    """The partitions, as one gateway sees to them."""

    def __init__(self, clock_us: Callable[[], int | None]) -> None:
        self._clock_us = clock_us
        self.longest_us = 0
        """The longest replay window of what this gateway serves, and of what responses declared."""
        self._replay_us: dict[str, int] = {}
        self.late = 0
        """How often a response had to wait until its partition was made."""
        # When, on the event loop's clock, to make partitions and to look for a past day next.
        self._next_make_at = 0.0
        self._next_drop_at, self._drop_pause_seconds = 0.0, _DROP_PAUSE_SECONDS

    async def keep(self, link: Link) -> None:
        """From time to time, make the partitions of coming days, so that no completion has to, and drop a past one."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_make_at:
            is_done = await self._make(link, of_all=True)
            self._next_make_at = now + (_MAKE_PAUSE_SECONDS if is_done else _MAKE_AGAIN_SECONDS)
        if now >= self._next_drop_at:
            await self._drop(link, now)

    def learn(self, operation: str, replay_us: int) -> None:
        self.longest_us = max(self.longest_us, replay_us)
        if operation in self._replay_us or len(self._replay_us) < _OPERATIONS_MAX:
            self._replay_us[operation] = replay_us

    def expected_us(self, operation: str) -> int:
        """After how long a new claim expects that its response is over, a little late: by the last window of its
        operation name."""
        return self._replay_us.get(operation, _DAY_US) + CHECK_SLACK_US

    async def begin(self, link: Link, replay_us: int) -> None:
        """Make the partitions of a gateway whose longest window is this, also if whoever sweeps is late."""
        self.longest_us = max(self.longest_us, replay_us)
        await self._make(link)

    async def make_room(self, link: Link, replay_us: Collection[int]) -> None:
        """Make the partitions for responses that wait for them. Raises what the link does."""
        self.late += 1
        self.longest_us = max(self.longest_us, *replay_us)
        _LOG.warning("a response had to wait until the partition for its day was made")
        await repeated(
            lambda: link.run(lambda connection: self._add(connection, windows=replay_us)),
            (LOCK_NOT_AVAILABLE,),
            _ATTACH_TRIES,
        )

    async def _make(self, link: Link, *, of_all: bool = False) -> bool:
        async def make(connection: Connection) -> None:
            longest_us = self.longest_us
            if of_all:
                # Of all gateways.
                ((longest_us,),) = await connection.fetch(load("longest_window"))
            await self._add(connection, longest_us=longest_us)

        try:
            await link.run(make)
        except StoreError as error:
            _LOG.warning("the partitions for the responses of coming days could not be made yet: %s", error)
            return False
        return True

    async def _add(
        self, connection: Connection, *, windows: Collection[int] = (), longest_us: int | None = None
    ) -> None:
        """Make the partitions for responses with these windows, or with any up to the longest, recorded now or in the
        coming days. Attaching a partition does not block traffic. But it waits for an ANALYZE of the table or the build
        of an index, which may take hours. So this gives up soon, and the caller may retry."""
        wanted = (self._clock_us(), list(windows), longest_us, DAYS_AHEAD)
        if not await connection.fetch(_MISSING_DAYS, *wanted):
            return
        async with transaction(connection, {"lock_timeout": _ATTACH_TIMEOUT}):
            await connection.execute(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
            for row in await connection.fetch(_MISSING_DAYS, *wanted):
                await connection.execute("SELECT idempotency_gateway.add_partition($1)", row["day"])

    async def _drop(self, link: Link, now: float) -> None:
        """Drop the responses of one past day. It tries once and briefly to get the lock: a long read makes it fail."""

        async def drop(connection: Connection) -> bool:
            past = await connection.fetch(load("past_days"), self._clock_us())
            if past:
                async with transaction(connection, {"lock_timeout": _DROP_TIMEOUT}):
                    await connection.execute("SELECT idempotency_gateway.drop_partition($1)", past[0]["day"])
            return bool(past)

        try:
            is_dropped = await link.run(drop)
        except StoreError:
            # Another gateway does it, or a reader blocks it. Each try holds up traffic for a moment: pause longer.
            self._drop_pause_seconds = min(2 * self._drop_pause_seconds, _DROP_PAUSE_SECONDS_MAX)
            self._next_drop_at = now + self._drop_pause_seconds
            return
        self._drop_pause_seconds = _DROP_PAUSE_SECONDS
        self._next_drop_at = 0.0 if is_dropped else now + _DROP_PAUSE_SECONDS


# -- capabilities ------------------------------------------------------------------------------------------------------

_NO_TIMELINE: Final = (
    "a promotion is not noticed as one: that it lost something is seen only by a gateway that had been told of it, "
    "when it connects again. Replicate synchronously"
)
_WAITS: Final = "a gateway that starts waits for store.probation before it grants new keys"
# What is called, by which query, and what follows where it is refused.
_CALLS: Final = (
    (
        "pg_control_system()",
        f"SELECT {SYSTEM}",
        "a copy on another server is told from its original only by what it lacks",
    ),
    ("pg_walfile_name()", f"SELECT {TIMELINE}", _NO_TIMELINE),
    ("pg_conf_load_time()", "SELECT pg_conf_load_time()", f"{_WAITS}, also with a synchronous standby"),
    ("pg_stat_replication", "SELECT count(*) FROM pg_stat_replication", f"{_WAITS}, also without a standby"),
    (
        "pg_postmaster_start_time()",
        f"SELECT {STARTED}",
        "where the URL has several hosts, two names of one server count as two servers",
    ),
    (
        "advisory locks",
        "SELECT pg_try_advisory_xact_lock(0, 0)",
        "migrations fail, and so does all that needs the store",
    ),
    ("LISTEN", "LISTEN idempotency_gateway_check", "waiters of other gateways poll: write ?pgbouncer=true"),
)
# The same by the rights of the schema's owner, which the gateway goes by where the schema exists; null where it was
# refused.
_BY_OWNER: Final = {
    "pg_control_system()": "SELECT CASE WHEN system <> '' THEN {schema}.server_system() END FROM {schema}.epoch",
    "pg_walfile_name()": "SELECT CASE WHEN timeline <> '' THEN {schema}.server_timeline() END FROM {schema}.epoch",
    "pg_conf_load_time()": "SELECT {schema}.settings_loaded_at()",
    "pg_stat_replication": "SELECT {schema}.may_have_standby()",
}


@dataclass(frozen=True, slots=True)
class Capability:
    """What the gateway needs or makes use of. `state` is ok, refused, off or none; `then` is what follows from that."""

    name: str
    state: str
    then: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.state}{self.then and ', '}{self.then}"


async def capabilities(
    url: str, durability: Durability = "server", command_seconds: float = COMMAND_SECONDS
) -> list[Capability]:
    """What the server allows. Raises `NotApplied` where it cannot be asked, or has not told all in that time."""
    dialer = Dialer(url)
    connection = await dialer.connect_ungreeted()
    try:
        async with asyncio.timeout(command_seconds):
            (row,) = await connection.fetch(load("schema_greeting"))
            found = list(_of_settings(row, durability))
            for name, query, consequence in _CALLS:
                if name == "LISTEN" and dialer.pgbouncer:
                    found.append(Capability(name, "none", "waiters of other gateways poll behind a pooler"))
                    continue
                refused = await _why_refused(connection, name, query)
                found.append(
                    Capability(name, "refused", f"{consequence} ({refused})") if refused else Capability(name, "ok")
                )
            return found
    except Exception as error:
        raise NotApplied(*fault_of(error).args) from error
    finally:
        connection.terminate()


async def _why_refused(connection: Connection, name: str, query: str) -> str:
    """Why this cannot be called; empty if it can."""
    if name in _BY_OWNER:
        with suppress(Exception):
            ((value,),) = await connection.fetch(_BY_OWNER[name].format(schema="idempotency_gateway"))
            if value is not None:
                return ""
            return await _why_refused(connection, "", query) or "it is to the schema's owner, or was when that was made"
    try:
        await connection.fetch(query)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is refused
        return str(fault_of(error))
    return ""


def _of_settings(row: Any, durability: Durability) -> Iterator[Capability]:
    is_old = row["major"] < SERVER_MAJOR_MIN
    yield Capability(row["version"], *("refused", f"{SERVER_MAJOR_MIN} or later is needed") if is_old else ("ok",))
    is_standby = row["in_recovery"] or row["read_only"]
    yield Capability("writes", *("refused", "it is a standby, or read-only") if is_standby else ("ok",))
    lost = losses(row, durability)
    for name in DURABILITY:
        if row[name] == "off":
            yield Capability(name, "off", lost.get(name, "not looked at, because of store.durability: external"))
        else:
            yield Capability(name, "ok")
    has_standby = row["standbys"] and row["synchronous_commit"] in ("on", "remote_apply")
    alone = ("none", "a standby that is promoted may lack what was acknowledged, which is noticed")
    yield Capability("synchronous standby", *("ok",) if has_standby else alone)
