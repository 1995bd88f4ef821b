"""The schema of the Postgres store: how it comes up to date, what a role needs in it, and the partitions of its days.

It owns migrations, rights and partitions, over a connection that it is given. Migrations go forward only and run one
program at a time. A schema serves the program that knows it and the one before. The role that runs a gateway owns
nothing: what only an owner may do, make and drop the partitions of a day, two functions of the schema do for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from hashlib import sha256
from typing import Final

from gateway.store.base import StartRefused
from gateway.store.postgres.connection import LOCK_NOT_AVAILABLE, Connection, transaction
from gateway.store.postgres.dialer import KNOWN_VERSION
from gateway.store.postgres.statements import MIGRATE_LOCK, PARTITION_LOCK, load, migrations

# What a migration may take, or whatever else has to go through all records.
MIGRATE_SECONDS: Final = 300.0
# For how long a migration tries to get its locks. Traffic queues behind a request for one, so each try is short.
_LOCK_SECONDS: Final = 60.0
_LOCK_TIMEOUT: Final = "300ms"
_PAUSE_SECONDS: Final = 1.0

# For how many days room is made before they begin.
DAYS_AHEAD: Final = 2
_ATTACH_TIMEOUT: Final = "100ms"
# To drop a day locks the whole table for a moment, and traffic queues behind the request for that lock.
_DROP_TIMEOUT: Final = "50ms"

_MIGRATION_TABLE: Final = """
CREATE TABLE IF NOT EXISTS idempotency_gateway.migration (
    version    integer     NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL DEFAULT '',
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
# Also where the table has no such column yet.
_APPLIED: Final = """
SELECT version, coalesce(to_jsonb(m) ->> 'checksum', '') AS checksum FROM idempotency_gateway.migration AS m
"""

# All that `lacking` asks for, and no more.
_GRANT: Final = """
GRANT USAGE ON SCHEMA idempotency_gateway TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idempotency_gateway TO {role};
REVOKE INSERT, UPDATE, DELETE ON idempotency_gateway.migration FROM {role};
GRANT SELECT, UPDATE ON SEQUENCE idempotency_gateway.token TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idempotency_gateway TO {role}
"""

_LACKING: Final = load("lacking")
_PAST_DAYS: Final = load("past_days")
_MISSING_DAYS: Final = load("missing_days")


async def is_up_to_date(connection: Connection) -> bool:
    """Whether the schema is there and no migration is missing. Changes nothing.

    Raises `StartRefused` for a schema that was made by other migrations of these numbers.
    """
    (row,) = await connection.fetch("SELECT to_regclass('idempotency_gateway.migration') IS NOT NULL AS is_there")
    if not row["is_there"]:
        return False
    applied = {row["version"]: row["checksum"] for row in await connection.fetch(_APPLIED)}
    for version, _, script in migrations():
        if applied.get(version, checksum(script)) != checksum(script):
            raise StartRefused(
                f"the schema idempotency_gateway is another one than this program's: its migration {version} was "
                "changed since. Run the program that made it, or give this one a database of its own"
            )
    return max(applied, default=0) >= KNOWN_VERSION


def checksum(script: str) -> str:
    """Of what a migration does: lines of comment, and how its lines are broken, do not count."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return sha256(" ".join(" ".join(lines).split()).encode()).hexdigest()


async def bring_up_to_date(connection: Connection) -> list[str]:
    """Apply the migrations that are missing, in one transaction, and return their names. Repeatable, and safe beside
    others.

    Needs CREATE on the database for the first, unless the schema exists and belongs to the role; nothing where there is
    nothing to do.
    """
    if await is_up_to_date(connection):
        return []
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _LOCK_SECONDS
    while True:
        try:
            async with transaction(connection, {"lock_timeout": _LOCK_TIMEOUT, "statement_timeout": "0"}):
                return await _migrate(connection)
        except Exception as error:
            if getattr(error, "sqlstate", None) != LOCK_NOT_AVAILABLE or loop.time() >= give_up_at:
                raise
        # What queued behind this goes first.
        await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311


async def _migrate(connection: Connection) -> list[str]:
    await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATE_LOCK})")
    # Asked first: the server checks the privilege to create even where there is nothing to create.
    if not await connection.fetch("SELECT 1 FROM pg_namespace WHERE nspname = 'idempotency_gateway'"):
        await connection.execute("CREATE SCHEMA idempotency_gateway")
    await connection.execute(_MIGRATION_TABLE)
    applied = {row["version"] for row in await connection.fetch(_APPLIED)}
    missing = [each for each in migrations() if each[0] not in applied]
    for version, name, script in missing:
        await connection.execute(script)
        await connection.execute(
            "INSERT INTO idempotency_gateway.migration (version, name, checksum) VALUES ($1, $2, $3)",
            version,
            name,
            checksum(script),
        )
    return [name for _, name, _ in missing]


async def grant(connection: Connection, role: str) -> None:
    """Give this role what a gateway needs in the schema. Repeatable. Needs the owner of the schema."""
    ((quoted,),) = await connection.fetch("SELECT quote_ident($1)", role)
    async with transaction(connection, {"lock_timeout": _LOCK_TIMEOUT}):
        await connection.execute(_GRANT.format(role=quoted))


async def check_role(connection: Connection) -> None:
    """Check that this role may do all that the store does: that shows at the start, and not at the first response.

    Raises `StartRefused`.
    """
    rows = await connection.fetch(_LACKING)
    if rows:
        role, owner = rows[0]["role"], rows[0]["owner"]
        lacking = ", ".join(row["what"] for row in rows)
        raise StartRefused(
            f"the role {role} lacks rights in the schema idempotency_gateway ({lacking}): {advice(role, owner)}"
        )


def advice(role: str = "ROLE", owner: str = "that owns the schema or may create it") -> str:
    """What to do about a role that may not do what the store needs."""
    return f"run `idempotency-gateway migrate --grant {role}` as the role {owner}"


async def add_partitions(connection: Connection, replay_us: Collection[int], now_us: int | None) -> None:
    """Make room for responses with these windows, of now and of the coming days.

    Traffic goes on meanwhile: attaching locks nobody out. But it waits for an ANALYZE of the table, or for an index
    that is made, which may take hours: so this gives up soon, and the caller repeats what is worth it.
    """
    wanted = (now_us, sorted(set(replay_us)), DAYS_AHEAD)
    if not await connection.fetch(_MISSING_DAYS, *wanted):
        return
    async with transaction(connection, {"lock_timeout": _ATTACH_TIMEOUT}):
        await connection.execute(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
        for row in await connection.fetch(_MISSING_DAYS, *wanted):
            await connection.execute("SELECT idempotency_gateway.add_partition($1)", row["day"])


async def drop_partition(connection: Connection, now_us: int | None) -> bool:
    """Let the responses of one past day go, and return whether there was such a day.

    It tries once and briefly for the lock that this takes: a long reader makes it fail.
    """
    past = await connection.fetch(_PAST_DAYS, now_us)
    if past:
        async with transaction(connection, {"lock_timeout": _DROP_TIMEOUT}):
            await connection.execute("SELECT idempotency_gateway.drop_partition($1)", past[0]["day"])
    return bool(past)
