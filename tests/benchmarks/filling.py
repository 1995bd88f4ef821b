"""Stores with very many records, beside a gateway that has them open."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

import apsw
import asyncpg

from gateway.core.identity.key import derivation_of
from gateway.core.operation import microseconds

_DAY_US: Final = microseconds(86_400)
# The defaults of a route.
_REPLAY_US: Final = _DAY_US
_REMEMBER_US: Final = 7 * _DAY_US

# What a record says of its time, for `times` of a fill: true of either store, `{n}` is the record's number.
ALIVE: Final[Mapping[str, str]] = {"due_us": "due_us + {n}"}
# Half are to be retired, the other half to be collected.
EXPIRED: Final[Mapping[str, str]] = {
    "due_us": f"due_us - {2 * _REPLAY_US} + {{n}}",
    "replay_until_us": f"replay_until_us - {2 * _REPLAY_US} + {{n}}",
    "remember_until_us": f"remember_until_us - ({{n}} % 2) * {2 * _REMEMBER_US}",
}

# `core.identity.scope.derive_operation_id`, for what is known of a record by its id.
_DERIVED: Final = r"""
CREATE FUNCTION pg_temp.derived(scope bytea, key bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT set_byte(set_byte(d.bits, 6, (get_byte(d.bits, 6) & 15) | 128), 8, (get_byte(d.bits, 8) & 63) | 128)
    FROM (
        SELECT substring(sha256(
            '\x{prefix}'::bytea || int8send(length(scope)::bigint) || scope || int8send(length(key)::bigint) || key
        ) FOR 16) AS bits
    ) d
$$
"""
# Their responses are over, and their keys remembered.
RETIRED: Final[Mapping[str, str]] = {
    "due_us": f"due_us - {2 * _REPLAY_US}",
    "replay_until_us": f"replay_until_us - {2 * _REPLAY_US}",
}

# Each was accepted a microsecond after the one before it, in the next scope.
_WAITING: Final[Mapping[str, str]] = {
    name: f"{name} + {{n}}" for name in ("accepted_us", "since_us", "next_attempt_us", "deliver_until_us", "due_us")
}
_SCOPES: Final = 1_000


def fill(store: Mapping[str, str], records: int, times: Mapping[str, str] = ALIVE) -> None:
    """Make that many completed records."""
    _fill(store["durable"], "completed", records, times)


def fill_accepted(store: Mapping[str, str], records: int) -> None:
    """Make that many accepted requests that wait, of a thousand scopes."""
    _fill(store["durable"], "accepted", records, _WAITING)


def _fill(url: str, state: str, records: int, times: Mapping[str, str]) -> None:
    if not url.startswith("sqlite"):
        asyncio.run(_fill_postgres(url, state, records, times))
        return
    connection = apsw.Connection(url.removeprefix("sqlite://"))
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -1048576; PRAGMA wal_autocheckpoint = 100000")
        with connection:
            _copy_sqlite(connection, state, records, times)
            connection.execute("UPDATE sequence SET token = (SELECT max(token) FROM operation)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()


def _copied(table: str, columns: Collection[str], own: Mapping[str, str], source: str) -> str:
    """A statement that copies the row `t` of a source as often as the source says, but for what each has of its own."""
    values = ", ".join(own.get(name, f"t.{name}") for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {source}"


def _at(times: Mapping[str, str], number: str) -> dict[str, str]:
    return {name: value.format(n=number) for name, value in times.items()}


def _kept(row: str, number: str) -> dict[str, str]:
    """What a delivery and a request have of their operation."""
    of_operation = {"row": row, "acceptance_id": "o.attempt_id", "scope_digest": "o.scope_digest"}
    return of_operation | _at(_WAITING, number)


def _copy_sqlite(connection: apsw.Connection, state: str, records: int, times: Mapping[str, str]) -> None:
    own = {
        "id": "randomblob(16)",
        "attempt_id": "randomblob(16)",
        "token": "(SELECT token FROM sequence) + n",
        "key_digest": "randomblob(32)",
        **({"scope_digest": f"CAST(printf('%032d', n % {_SCOPES}) AS BLOB)"} if state == "accepted" else {}),
        **_at(times, "n"),
    }

    def columns(table: str) -> list[str]:
        return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]

    ((last,),) = connection.execute("SELECT max(row) FROM operation")
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {records})"
    source = f"numbers, (SELECT * FROM operation WHERE state = '{state}' LIMIT 1) t"
    copied = _copied("operation", [name for name in columns("operation") if name != "row"], own, source)
    connection.execute(f"{numbers} {copied}")
    made = f"WHERE o.row > {last}"
    if state == "completed":
        both = "operation o, (SELECT * FROM response LIMIT 1) t"
        connection.execute(f"INSERT INTO response SELECT o.row, t.body FROM {both} {made}")
        return
    for table in ("delivery", "request"):
        source = f"operation o, (SELECT * FROM {table} LIMIT 1) t {made}"
        connection.execute(_copied(table, columns(table), _kept("o.row", f"(o.row - {last})"), source))


async def _fill_postgres(url: str, state: str, records: int, times: Mapping[str, str]) -> None:
    connection = await asyncpg.connect(
        url, timeout=60.0, command_timeout=3_600.0, server_settings={"search_path": "idempotency_gateway,pg_temp"}
    )
    try:
        await connection.execute("SET synchronous_commit = off")
        await _copy_postgres(connection, state, records, times)
        await connection.execute("UPDATE epoch SET passed_token = (SELECT last_value FROM token)")
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


async def _copy_postgres(connection: Any, state: str, records: int, times: Mapping[str, str]) -> None:
    async def columns(table: str) -> list[str]:
        rows = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND attgenerated = ''", table
        )
        return [name for (name,) in rows]

    is_accepted = state == "accepted"
    last: int = await connection.fetchval("SELECT last_value FROM token")
    names_in = "delivery" if is_accepted else "recipe"
    names = await connection.fetchrow(f"SELECT service, operation FROM {names_in} LIMIT 1")
    await connection.execute(_DERIVED.format(prefix=derivation_of(*names).hex()))
    digest = f"sha256(({last} + n)::text::bytea)"
    scope = f"lpad((n % {_SCOPES})::text, 32, '0')::bytea" if is_accepted else "t.scope_digest"
    own = {
        "id": f"pg_temp.derived({scope}, {digest})",
        "scope_digest": scope,
        "attempt_id": "uuid_send(gen_random_uuid())",
        "token": "nextval('token')",
        "key_digest": digest,
        **_at(times, "n"),
    }
    source = f"(SELECT * FROM operation WHERE state = '{state}' LIMIT 1) t, generate_series(1, {records}) n"
    await connection.execute(_copied("operation", await columns("operation"), own, source))
    made = f"WHERE o.token > {last}"
    if is_accepted:
        for table in ("delivery", "request"):
            source = f"operation o, (SELECT * FROM {table} LIMIT 1) t {made} ORDER BY o.token"
            kept = _kept("o.id", f"(o.token - {last})")
            await connection.execute(_copied(table, await columns(table), kept, source))
        return
    day = "drop_day(o.completed_us, o.replay_until_us - o.completed_us)"
    async with connection.transaction():
        # Seen by nobody before they are full: the gateway lets a past day go whenever it looks.
        await connection.execute(
            f"SELECT add_partition(d.day) FROM (SELECT DISTINCT {day} AS day FROM operation o {made}) d"
            " WHERE to_regclass('response_' || d.day) IS NULL"
        )
        both = "operation o, (SELECT body FROM response LIMIT 1) t"
        await connection.execute(f"INSERT INTO response SELECT o.token, {day}, t.body FROM {both} {made}")
