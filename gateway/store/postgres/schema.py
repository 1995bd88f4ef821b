"""The schema of the Postgres store: what a server must be to be used, and how its schema comes up to date.

It owns version numbers, migrations and partitions, over a connection that it is given. Migrations go forward only and
run one program at a time. A schema serves the program that knows it and the one before: a program refuses what is two
ahead of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final
from uuid import UUID

from gateway.store.base import EpochChanged, NotApplied, StartRefused
from gateway.store.epoch import WitnessNote, missing
from gateway.store.operations import Epoch
from gateway.store.postgres.link import Connection
from gateway.store.postgres.statements import MIGRATE_LOCK, PARTITION_LOCK, load, migrations

SERVER_MAJOR_MIN: Final = 14
KNOWN_VERSION: Final = migrations()[-1][0]
# What a migration may take, or whatever else has to go through all records.
MIGRATE_SECONDS: Final = 300.0

# What an acknowledged commit depends on, and what to do about each where it is off. The first two stand in for what
# some storage does by itself: there the server is right to do without, and only who runs it can know.
DURABILITY: Final[Mapping[str, str]] = {
    "fsync": (
        "after a crash of its host it may be corrupt, or have forgotten acknowledged responses. Set it to on; only "
        "where the storage itself keeps every acknowledged commit (as Neon's does), accept it by "
        "store.accept_server_settings: [fsync]"
    ),
    "full_page_writes": (
        "a page that a crash leaves half written is corrupt for good. Set it to on; only where the storage never "
        "leaves a page half written (as ZFS and Neon's do not), accept it by "
        "store.accept_server_settings: [full_page_writes]"
    ),
    "synchronous_commit": (
        "a crash forgets the responses that were acknowledged last. Set it to on, for all or for this role "
        "(ALTER ROLE gateway SET synchronous_commit = on)"
    ),
}

_GREETING: Final = """
SELECT
    current_setting('server_version_num')::integer / 10000 AS major,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS read_only,
    current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes,
    to_regclass('idempotency_gateway.migration') IS NOT NULL AS exists
"""

_MIGRATION_TABLE: Final = """
CREATE TABLE IF NOT EXISTS idempotency_gateway.migration (
    version    integer     NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL DEFAULT '',
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

# For how many days room is made before they begin.
DAYS_AHEAD: Final = 2
_ATTACH_TIMEOUT: Final = "100ms"
# Also where the table has no such column yet.
_APPLIED: Final = """
SELECT version, coalesce(to_jsonb(m) ->> 'checksum', '') AS checksum FROM idempotency_gateway.migration AS m
"""

_EPOCH: Final = load("epoch")

# Whose rights this role lacks: to attach and detach partitions, to make them, to draw tokens.
_LACKING: Final = """
SELECT quote_ident(current_user) AS role, quote_ident(pg_get_userbyid(lacking.owner)) AS owner
FROM (
    SELECT relowner FROM pg_class
    WHERE oid = 'idempotency_gateway.response'::regclass AND NOT pg_has_role(relowner, 'USAGE')
    UNION ALL
    SELECT nspowner FROM pg_namespace
    WHERE nspname = 'idempotency_gateway' AND NOT has_schema_privilege(oid, 'CREATE')
    UNION ALL
    SELECT relowner FROM pg_class
    WHERE oid = 'idempotency_gateway.token'::regclass
        AND NOT (has_sequence_privilege(oid, 'USAGE') AND has_sequence_privilege(oid, 'UPDATE'))
) AS lacking (owner)
LIMIT 1
"""


@asynccontextmanager
async def transaction(connection: Connection, *, lock_timeout: str) -> AsyncIterator[None]:
    """A transaction that waits no longer than that for a lock, and holds none for long after its gateway vanished.

    Both are said each time: behind a pooler no session keeps them.
    """
    async with connection.transaction():
        await connection.execute(
            f"SET LOCAL lock_timeout = '{lock_timeout}'; SET LOCAL idle_in_transaction_session_timeout = '5s'"
        )
        yield


async def greet(connection: Connection, accepts_off: Collection[str] = ()) -> None:
    """Check that this is a server to entrust operations to, and that its schema is not too new. Called on every
    connection.

    `accepts_off` are the settings of `DURABILITY` that may be off, because somebody said that its storage does that.

    Raises `StartRefused` for a server or a schema that must not be used, `NotApplied` for a standby.
    """
    (row,) = await connection.fetch(_GREETING)
    if row["major"] < SERVER_MAJOR_MIN:
        raise StartRefused(f"PostgreSQL {row['major']} is too old: {SERVER_MAJOR_MIN} or later is needed")
    if row["read_only"]:
        raise NotApplied("PostgreSQL is read-only: a standby, or a role or database set to read-only")
    for setting, consequence in DURABILITY.items():
        if row[setting] == "off" and setting not in accepts_off:
            raise StartRefused(f"PostgreSQL has {setting} = off: {consequence}")
    version, known = await _version(connection) if row["exists"] else 0, KNOWN_VERSION
    if version > known + 1:
        raise StartRefused(
            f"the schema idempotency_gateway has version {version}, this program knows {known} and serves up to "
            f"{known + 1}: run a newer program"
        )


async def _version(connection: Connection) -> int:
    (row,) = await connection.fetch("SELECT coalesce(max(version), 0) AS version FROM idempotency_gateway.migration")
    return int(row["version"])


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
    async with transaction(connection, lock_timeout="60s"):
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATE_LOCK})")
        # Asked first: the server checks the privilege to create even where there is nothing to create.
        if not await connection.fetch("SELECT 1 FROM pg_namespace WHERE nspname = 'idempotency_gateway'"):
            await connection.execute("CREATE SCHEMA idempotency_gateway")
        await connection.execute(_MIGRATION_TABLE)
        rows = await connection.fetch("SELECT version FROM idempotency_gateway.migration")
        applied = {row["version"] for row in rows}
        names = []
        for version, name, script in migrations():
            if version in applied:
                continue
            await connection.execute(script)
            await connection.execute(
                "INSERT INTO idempotency_gateway.migration (version, name, checksum) VALUES ($1, $2, $3)",
                version,
                name,
                checksum(script),
            )
            names.append(name)
        return names


async def check_role(connection: Connection) -> None:
    """Check that this role may do all that the store does. With grants on the tables alone a claim succeeds, and its
    answer cannot be recorded for want of a partition.

    Raises `StartRefused`.
    """
    for row in await connection.fetch(_LACKING):
        role, owner = row["role"], row["owner"]
        raise StartRefused(
            f"the role {role} may not do all that is needed in the schema idempotency_gateway of {owner}: "
            + advice(role, owner)
        )


def advice(role: str = "this_role", owner: str = "owner") -> str:
    """What to do about a role that may not do what the store needs."""
    return (
        "run `idempotency-gateway migrate` with a role that may create the schema, and make this role a member of it "
        f"(GRANT {owner} TO {role}): the gateway makes and drops partitions, which only the owner may"
    )


async def look_epoch(connection: Connection, links: Collection[UUID] = ()) -> Epoch:
    """Which memory is behind the connection, with the witnesses of these links."""
    (row,) = await connection.fetch(_EPOCH, None, list(links))
    witnesses = dict(zip(row["links"], row["numbers"], strict=True))
    return Epoch(row["identity"], row["token"], row["now_us"], row["memo"], row["generation"], witnesses)


def check_epoch(found: Epoch, known: Epoch, seen_token: int, notes: Iterable[WitnessNote], beyond: int) -> None:
    """Raises `EpochChanged` when it is not the memory that was there before, or an older state of it.

    Also when another gateway wrote down meanwhile what became of it: that is to be heard first. `notes` and `beyond`
    are those of `missing`.
    """
    if found.identity != known.identity:
        raise EpochChanged("behind the address is another PostgreSQL than before, or one that was promoted")
    if found.token < max(known.token, seen_token):
        raise EpochChanged("PostgreSQL is in an older state than before")
    if (why := missing(notes, found, beyond)) is not None:
        raise EpochChanged(why)
    if found.memo != known.memo:
        raise EpochChanged("another gateway wrote down what became of the memory of PostgreSQL")


def partition(drop_day: int) -> str:
    return f"idempotency_gateway.response_{drop_day}"


async def add_partitions(connection: Connection, replay_us: Collection[int], now_us: int | None) -> None:
    """Make room for responses with these windows, of now and of the coming days.

    Traffic goes on meanwhile: attaching locks nobody out. But it waits for whoever analyses the table, or makes an
    index, which may take hours: so this gives up soon, and whoever calls it says again what is worth it.
    """
    if not await _missing(connection, replay_us, now_us):
        return
    async with transaction(connection, lock_timeout=_ATTACH_TIMEOUT):
        await connection.execute(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
        attached, detached = dict(await _attached(connection)), await _detached(connection)
        for day in await _missing(connection, replay_us, now_us):
            name = partition(day)
            if attached.get(name):
                # Whoever wanted to drop it was interrupted, and the clock was set back since.
                await connection.execute(f"ALTER TABLE idempotency_gateway.response DETACH PARTITION {name} FINALIZE")
            elif name not in detached:
                await connection.execute(f"CREATE TABLE {name} (LIKE idempotency_gateway.response INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE idempotency_gateway.response ATTACH PARTITION {name} FOR VALUES IN ({day})"
            )


async def _missing(connection: Connection, replay_us: Collection[int], now_us: int | None) -> list[int]:
    """The days of these windows, of responses recorded now or soon, that have no partition to write to."""
    days = await connection.fetch(
        """
        SELECT DISTINCT idempotency_gateway.drop_day(
            coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + a.ahead * 86400000000,
            w.replay_us
        ) AS drop_day
        FROM unnest($2::bigint[]) AS w (replay_us) CROSS JOIN generate_series(0, $3::bigint) AS a (ahead)
        """,
        now_us,
        sorted(set(replay_us)),
        DAYS_AHEAD,
    )
    there = {name for name, is_pending in await _attached(connection) if not is_pending}
    return [row["drop_day"] for row in days if partition(row["drop_day"]) not in there]


async def drop_partition(connection: Connection, now_us: int | None, *, is_session: bool) -> bool:
    """Let the answers of one past day go, and return whether there was such a day.

    Nobody queues behind it: the partition is detached concurrently, and dropped when no statement knows it any more.
    What an interrupted run left is finished by the next. Without a session of our own (`is_session`), which could not
    be told when to give up, it is one short try for all locks.
    """
    (clock,) = await connection.fetch(
        """
        SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 86400000000 AS today
        """,
        now_us,
    )
    today = int(clock["today"])
    past = [(name, is_pending) for name, is_pending in await _attached(connection) if _day_of(name) <= today]
    if past:
        name, is_pending = past[0]
        detach = f"ALTER TABLE idempotency_gateway.response DETACH PARTITION {name}"
        if is_session:
            # Not in a transaction, where it is not allowed.
            await connection.execute(f"{detach} {'FINALIZE' if is_pending else 'CONCURRENTLY'}")
        else:
            async with transaction(connection, lock_timeout="50ms"):
                await connection.execute("SET LOCAL statement_timeout = '2s'")
                await connection.execute(f"{detach} FINALIZE" if is_pending else detach)
    for name in await _detached(connection):
        if _day_of(name) <= today:
            async with transaction(connection, lock_timeout="1s"):
                await connection.execute(f"DROP TABLE IF EXISTS {name}")
    return bool(past)


def _day_of(name: str) -> int:
    return int(name.rpartition("_")[2])


async def _attached(connection: Connection) -> list[tuple[str, bool]]:
    """Every partition, and whether its detaching was interrupted."""
    rows = await connection.fetch(
        """
        SELECT c.relname, i.inhdetachpending
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'idempotency_gateway.response'::regclass
        ORDER BY c.relname
        """
    )
    return [(f"idempotency_gateway.{row['relname']}", row["inhdetachpending"]) for row in rows]


async def _detached(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        """
        SELECT c.relname
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'idempotency_gateway' AND c.relkind = 'r' AND c.relname ~ '^response_[0-9]+$'
            AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
        """
    )
    return [f"idempotency_gateway.{row['relname']}" for row in rows]
