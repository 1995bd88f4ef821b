"""Which engine a server is, of those that speak the protocol of PostgreSQL."""

from __future__ import annotations

from enum import StrEnum

from gateway.store.postgres.connection import Connection


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
