"""The tables of the portable dialect, and what a server has to be like.

The tables are in the schema of the other dialect, and so is the table of migrations: each dialect refuses a database
that the other one has used, because it would find none of its keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from gateway.store import level
from gateway.store.base import NotApplied, StartRefused
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.engine import DURABILITY, SERVER_MAJOR_MIN, Durability, Engine, engine_of, losses
from gateway.store.relational.statements import numbered, statements


def texts(among: str, keys: str, response: str = "r.row = o.id") -> dict[str, str]:
    """The statements, with what compares a column with keys, and finds the response of an operation."""
    words = {"row": "id", "row_of": "?", "greatest": "greatest", "join": "JOIN", "among": among, "keys": keys}
    found = statements("gateway.store.portable", response=response, **words)
    return {name: numbered(text) for name, text in found.items()}


TEXTS: Final[Mapping[str, str]] = texts("= ANY(?::BYTEA[])", "unnest(?::BYTEA[])")
# Where the rows of a table are on many nodes, each statement is about one of them.
TEXTS_OF_ONE_ROW: Final[Mapping[str, str]] = texts("= ?", "(SELECT ?::BYTEA)")
SCHEMA_VERSION: Final = 1
SCHEMA: Final = files("gateway.store.portable").joinpath("sql/schema_0001.sql").read_text()
"""The first schema, with its comments."""

_NAME: Final = "portable"
_MIGRATIONS: Final = """
CREATE TABLE IF NOT EXISTS idempotency_gateway.migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL DEFAULT '',
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)
"""
_EXISTS: Final = """
SELECT 1 FROM information_schema.tables WHERE table_schema = 'idempotency_gateway' AND table_name = 'migration'
"""
_APPLIED: Final = "SELECT version, name, checksum FROM idempotency_gateway.migration"
_LEVEL: Final = "SELECT level FROM idempotency_gateway.epoch WHERE one = 1"
_NOTE: Final = """
INSERT INTO idempotency_gateway.migration (version, name, checksum) VALUES ($1, $2, $3) ON CONFLICT (version) DO NOTHING
"""
_GRANTS: Final = (
    "GRANT USAGE ON SCHEMA idempotency_gateway TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idempotency_gateway TO {role}",
)
# What a statement that makes something ends with if another program makes it at the same moment.
_MADE_MEANWHILE: Final = frozenset(("23505", "40001", "42710", "42P06", "42P07"))
_TRIES_MAX: Final = 10


async def check_server(connection: Connection, durability: Durability) -> Engine:
    """Check that the server may be used. Raises `StartRefused`, `NotApplied`."""
    engine = await engine_of(connection)
    if engine in (Engine.POSTGRESQL, Engine.CITUS):
        # One query each: on the other engines these are unknown, or say nothing.
        ((number,),) = await connection.fetch("SELECT current_setting('server_version_num')::INTEGER / 10000")
        if number < SERVER_MAJOR_MIN:
            raise StartRefused(f"PostgreSQL {number} is too old: {SERVER_MAJOR_MIN} or later is needed")
        names = list(DURABILITY)
        rows = await connection.fetch("SELECT current_setting(s) FROM unnest($1::text[]) AS s", names)
        settings = dict(zip(names, (value for (value,) in rows), strict=True))
        for setting, what in losses(settings, durability).items():
            raise StartRefused(f"PostgreSQL has {setting} = off: {what}")
        # Of small tables it would read all rows, and every transaction would then conflict with every other.
        await connection.execute("SET enable_seqscan = off")
    ((read_only,),) = await connection.fetch("SELECT current_setting('transaction_read_only')")
    if read_only == "on":
        raise NotApplied(f"{engine} is read-only: a standby, or a role or database set to read-only")
    return engine


async def applied_version(connection: Connection) -> int:
    """The version of the schema, 0 when there is none yet. Raises `StartRefused` for another one, and for a
    level that this program does not serve."""
    if not await connection.fetch(_EXISTS):
        return 0
    rows = await connection.fetch(_APPLIED)
    for row in rows:
        if row["name"] != _NAME or (row["version"] <= SCHEMA_VERSION and row["checksum"] != _checksum(row["version"])):
            raise StartRefused(
                "the schema idempotency_gateway was made by another program, or for another store.dialect: use that "
                "one, or give this one a database of its own"
            )
    if not rows:
        return 0
    level.check((await connection.fetch(_LEVEL))[0][0])
    return max(int(row["version"]) for row in rows)


async def bring_up_to_date(connection: Connection) -> list[str]:
    """Make what is missing, and return the names of what was applied. Repeatable, and safe if several programs do
    it."""
    done = []
    found = await applied_version(connection)
    for version in range(found + 1, SCHEMA_VERSION + 1):
        for statement in ("CREATE SCHEMA IF NOT EXISTS idempotency_gateway", _MIGRATIONS, *_script(version)):
            await _repeated(connection.execute, statement)
        if not found:
            # No older program has ever used it.
            await _repeated(connection.execute, TEXTS["raise_level"], level.PROGRAM_LEVEL)
        await _repeated(connection.execute, _NOTE, version, _NAME, _checksum(version))
        done.append(f"{version:04}_{_NAME}")
    return done


async def grant(connection: Connection, role: str) -> None:
    """Grant this role the rights that a gateway needs. Repeatable. Only the owner of the schema can do it."""
    ((quoted,),) = await connection.fetch("SELECT quote_ident($1)", role)
    for statement in _GRANTS:
        await _repeated(connection.execute, statement.format(role=quoted))


def _script(version: int) -> list[str]:
    return [statement for each in TEXTS[f"schema_{version:04}"].split(";") if (statement := each.strip())]


def _checksum(version: int) -> str:
    return sha256(TEXTS[f"schema_{version:04}"].encode()).hexdigest()


async def _repeated(execute: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    for tries in range(1, _TRIES_MAX + 1):
        try:
            await execute(*arguments)
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _MADE_MEANWHILE or tries == _TRIES_MAX:
                raise
        else:
            return
