"""Stores with very many records, beside a gateway that has them open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
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
    _fill(store, records, times, _complete_sqlite, _complete_postgres)


def fill_accepted(store: Mapping[str, str], records: int) -> None:
    """Make that many accepted requests that wait, of a thousand scopes."""
    _fill(store, records, _WAITING, _accept_sqlite, _accept_postgres)


def _fill(
    store: Mapping[str, str],
    records: int,
    times: Mapping[str, str],
    in_sqlite: Callable[[apsw.Connection, int, Mapping[str, str]], None],
    in_postgres: Callable[[Any, int, Mapping[str, str]], Awaitable[None]],
) -> None:
    url = store["durable"]
    if not url.startswith("sqlite"):
        asyncio.run(_fill_postgres(url, lambda connection: in_postgres(connection, records, times)))
        return
    connection = apsw.Connection(url.removeprefix("sqlite://"))
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -1048576; PRAGMA wal_autocheckpoint = 100000")
        with connection:
            in_sqlite(connection, records, times)
            connection.execute("UPDATE sequence SET token = (SELECT max(token) FROM operation)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()


async def _fill_postgres(url: str, work: Callable[[Any], Awaitable[None]]) -> None:
    connection = await asyncpg.connect(url, timeout=60.0, command_timeout=3_600.0)
    try:
        await connection.execute("SET synchronous_commit = off")
        await work(connection)
        await connection.execute(
            "UPDATE idempotency_gateway.epoch SET passed_token = (SELECT last_value FROM idempotency_gateway.token)"
        )
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


def _copied(table: str, columns: Collection[str], own: Mapping[str, str], source: str) -> str:
    """A statement that copies the row `t` of a source as often as the source says, but for what each has of its own."""
    values = ", ".join(own.get(name, f"t.{name}") for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {source}"


def _at(times: Mapping[str, str], number: str) -> dict[str, str]:
    return {name: value.format(n=number) for name, value in times.items()}


async def _complete_postgres(connection: Any, records: int, times: Mapping[str, str]) -> None:
    last = await _copy_postgres(connection, "completed", "recipe", records, times)
    day = "idempotency_gateway.drop_day(o.completed_us, o.replay_until_us - o.completed_us)"
    made = f"FROM idempotency_gateway.operation o WHERE o.token > {last}"
    async with connection.transaction():
        # Seen by nobody before they are full: the gateway lets a past day go whenever it looks.
        await connection.execute(
            f"SELECT idempotency_gateway.add_partition(d.day) FROM (SELECT DISTINCT {day} AS day {made}) d"
            " WHERE to_regclass('idempotency_gateway.response_' || d.day) IS NULL"
        )
        await connection.execute(
            f"INSERT INTO idempotency_gateway.response SELECT o.token, {day}, t.body {made}".replace(
                "operation o", "operation o, (SELECT body FROM idempotency_gateway.response LIMIT 1) t"
            )
        )


async def _accept_postgres(connection: Any, records: int, times: Mapping[str, str]) -> None:
    scope = f"lpad((n % {_SCOPES})::text, 32, '0')::bytea"
    last = await _copy_postgres(connection, "accepted", "delivery", records, times, scope)
    own = {
        "row": "o.id",
        "acceptance_id": "o.attempt_id",
        "scope_digest": "o.scope_digest",
        **_at(times, f"(o.token - {last})"),
    }
    for table in ("delivery", "request"):
        source = f"idempotency_gateway.operation o, (SELECT * FROM idempotency_gateway.{table} LIMIT 1) t"
        columns = await _columns(connection, table)
        await connection.execute(
            _copied(f"idempotency_gateway.{table}", columns, own, f"{source} WHERE o.token > {last} ORDER BY o.token")
        )


async def _copy_postgres(
    connection: Any, state: str, names_in: str, records: int, times: Mapping[str, str], scope: str = "t.scope_digest"
) -> int:
    """Copy an operation in this state, of the names in that table; returns the last token before."""
    last: int = await connection.fetchval("SELECT last_value FROM idempotency_gateway.token")
    names = await connection.fetchrow(f"SELECT service, operation FROM idempotency_gateway.{names_in} LIMIT 1")
    await connection.execute(_DERIVED.format(prefix=derivation_of(*names).hex()))
    digest = f"sha256(({last} + n)::text::bytea)"
    own = {
        "id": f"pg_temp.derived({scope}, {digest})",
        "scope_digest": scope,
        "attempt_id": "uuid_send(gen_random_uuid())",
        "token": "nextval('idempotency_gateway.token')",
        "key_digest": digest,
        **_at(times, "n"),
    }
    source = f"(SELECT * FROM idempotency_gateway.operation WHERE state = '{state}' LIMIT 1) t"
    columns = await _columns(connection, "operation")
    await connection.execute(
        _copied("idempotency_gateway.operation", columns, own, f"{source}, generate_series(1, {records}) n")
    )
    return last


async def _columns(connection: Any, table: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND attgenerated = ''",
        f"idempotency_gateway.{table}",
    )
    return [name for (name,) in rows]


def _complete_sqlite(connection: apsw.Connection, records: int, times: Mapping[str, str]) -> None:
    last = _copy_sqlite(connection, "completed", records, times)
    connection.execute(
        "INSERT INTO response SELECT o.row, t.body FROM operation o, (SELECT * FROM response LIMIT 1) t"
        " WHERE o.row > ?",
        (last,),
    )


def _accept_sqlite(connection: apsw.Connection, records: int, times: Mapping[str, str]) -> None:
    scope = f"CAST(printf('%032d', n % {_SCOPES}) AS BLOB)"
    last = _copy_sqlite(connection, "accepted", records, {**times, "scope_digest": scope})
    own = {
        "row": "o.row",
        "acceptance_id": "o.attempt_id",
        "scope_digest": "o.scope_digest",
        **_at(times, f"(o.row - {last})"),
    }
    for table in ("delivery", "request"):
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        source = f"operation o, (SELECT * FROM {table} LIMIT 1) t WHERE o.row > {last}"
        connection.execute(_copied(table, columns, own, source))


def _copy_sqlite(connection: apsw.Connection, state: str, records: int, times: Mapping[str, str]) -> int:
    """Copy an operation in this state; returns the last row before."""
    own = {
        "id": "randomblob(16)",
        "attempt_id": "randomblob(16)",
        "token": "(SELECT token FROM sequence) + n",
        "key_digest": "randomblob(32)",
        **_at(times, "n"),
    }
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(operation)") if name != "row"]
    ((last,),) = connection.execute("SELECT max(row) FROM operation")
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {records})"
    source = f"numbers, (SELECT * FROM operation WHERE state = '{state}' LIMIT 1) t"
    connection.execute(f"{numbers} {_copied('operation', columns, own, source)}")
    return int(last)
