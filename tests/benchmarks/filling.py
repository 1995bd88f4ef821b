"""Stores with very many records, beside a gateway that has them open.

Owns how a store comes to be full. It has at least one completed record, which a gateway made, so that no schema is
repeated here; the others are that one again, with ids, digests and tokens of their own and with the times asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import apsw
import asyncpg

from gateway.core.identity.operation_id import derivation_of
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

# `core.identity.operation_id.derive_operation_id`, for what is known of a record by its id.
_DERIVED: Final = r"""
CREATE FUNCTION pg_temp.derived(scope bytea, key bytea) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(
        set_byte(set_byte(d.bits, 6, (get_byte(d.bits, 6) & 15) | 128), 8, (get_byte(d.bits, 8) & 63) | 128), 'hex'
    )::uuid
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


def fill(store: Mapping[str, str], records: int, times: Mapping[str, str] = ALIVE, *, left_days_ago: int = 0) -> None:
    """Make that many completed records. In Postgres their answers may be of a day that could have left so long ago."""
    url = store["durable"]
    if url.startswith("sqlite"):
        _fill_sqlite(url.removeprefix("sqlite://"), records, times)
    else:
        asyncio.run(_fill_postgres(url, records, times, left_days_ago))


async def _fill_postgres(url: str, records: int, times: Mapping[str, str], left_days_ago: int) -> None:
    connection = await asyncpg.connect(url, timeout=60.0, command_timeout=3_600.0)
    try:
        await connection.execute("SET synchronous_commit = off")
        day = "drop_day"
        made_us = 0
        if left_days_ago:
            now_us = await connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            made_us = now_us - (left_days_ago + 2) * _DAY_US
            day = str(await connection.fetchval("SELECT idempotency_gateway.drop_day($1, $2)", made_us, _REPLAY_US))
        last = await connection.fetchval("SELECT last_value FROM idempotency_gateway.token")
        ((service, operation),) = await connection.fetch(
            "SELECT service, operation FROM idempotency_gateway.recipe LIMIT 1"
        )
        await connection.execute(_DERIVED.format(prefix=derivation_of(service, operation).hex()))
        digest = f"sha256(({last} + n)::text::bytea)"
        own = {
            "operation_id": f"pg_temp.derived(scope_digest, {digest})",
            "attempt_id": "gen_random_uuid()",
            "token": "nextval('idempotency_gateway.token')",
            "key_digest": digest,
            "drop_day": day,
            **{name: value.format(n="n") for name, value in times.items()},
        }
        columns = [
            name
            for (name,) in await connection.fetch(
                "SELECT attname FROM pg_attribute"
                " WHERE attrelid = 'idempotency_gateway.operation'::regclass AND attnum > 0"
            )
        ]
        await connection.execute(
            f"INSERT INTO idempotency_gateway.operation ({', '.join(columns)})"
            f" SELECT {', '.join(own.get(name, name) for name in columns)}"
            " FROM (SELECT * FROM idempotency_gateway.operation WHERE state = 'completed' LIMIT 1) t,"
            f" generate_series(1, {records}) n"
        )
        async with connection.transaction():
            if made_us:
                # Seen by nobody before it is full: the gateway lets a past day go whenever it looks.
                await connection.execute("SELECT idempotency_gateway.add_partition($1)", int(day))
            await connection.execute(
                "INSERT INTO idempotency_gateway.response (token, drop_day, reason, headers, body)"
                " SELECT o.token, o.drop_day, t.reason, t.headers, t.body FROM idempotency_gateway.operation o,"
                f" (SELECT * FROM idempotency_gateway.response LIMIT 1) t WHERE o.token > {last}"
            )
        await connection.execute(
            "UPDATE idempotency_gateway.upkeep SET passed_token = (SELECT last_value FROM idempotency_gateway.token)"
        )
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


def _fill_sqlite(path: str, records: int, times: Mapping[str, str]) -> None:
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -1048576; PRAGMA wal_autocheckpoint = 100000")
        own = {
            "id": "randomblob(16)",
            "attempt_id": "randomblob(16)",
            "token": "(SELECT token FROM sequence) + n",
            "key_digest": "randomblob(32)",
            **{name: value.format(n="n") for name, value in times.items()},
        }
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(operation)") if name != "row"]
        with connection:
            ((last,),) = connection.execute("SELECT max(row) FROM operation")
            connection.execute(
                f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {records})"
                f" INSERT INTO operation ({', '.join(columns)})"
                f" SELECT {', '.join(own.get(name, name) for name in columns)}"
                " FROM numbers, (SELECT * FROM operation WHERE state = 'completed' LIMIT 1)"
            )
            connection.execute(
                "INSERT INTO response SELECT o.row, t.body FROM operation o, (SELECT * FROM response LIMIT 1) t"
                " WHERE o.row > ?",
                (last,),
            )
            connection.execute("UPDATE sequence SET token = (SELECT max(token) FROM operation)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()
