"""A durable store that reads and takes small rows, and refuses long ones: as with a quota, or a disk without room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import apsw
import asyncpg

LONG_BYTES: Final = 20_000
"""A response body that is longer is refused."""
_LOCK_MILLISECONDS: Final = 10_000


class Quota(Protocol):
    """`section` is the `store` section of a gateway. The store has to have its tables when `begin` is called."""

    section: dict[str, Any]

    async def begin(self) -> None:
        """Refuse long rows from now on."""

    async def end(self) -> None:
        """Take them again."""


class SqliteQuota:
    """Satisfies `Quota`."""

    def __init__(self, section: dict[str, Any]) -> None:
        self.section = section
        self._path = Path(urlsplit(section["durable"]).path)

    async def begin(self) -> None:
        # An error of the statement, and not of the value: the value could be taken later.
        await self._execute(
            f"CREATE TRIGGER quota BEFORE INSERT ON response WHEN length(new.body) > {LONG_BYTES} "
            "BEGIN SELECT abs(-9223372036854775808); END"
        )

    async def end(self) -> None:
        await self._execute("DROP TRIGGER quota")

    async def _execute(self, statement: str) -> list[Any]:
        return await asyncio.to_thread(self._execute_now, statement)

    def _execute_now(self, statement: str) -> list[Any]:
        connection = apsw.Connection(str(self._path))
        try:
            # The gateway may be writing at this moment.
            connection.set_busy_timeout(_LOCK_MILLISECONDS)
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


class PostgresQuota:
    """Satisfies `Quota`."""

    def __init__(self, section: dict[str, Any]) -> None:
        self.section = section

    async def begin(self) -> None:
        await self._execute(
            "CREATE OR REPLACE FUNCTION quota() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'the quota is used up' USING ERRCODE = '53100'; END $$",
            "CREATE TRIGGER quota BEFORE INSERT ON idempotency_gateway.response FOR EACH ROW "
            f"WHEN (length(new.body) > {LONG_BYTES}) EXECUTE FUNCTION quota()",
        )

    async def end(self) -> None:
        # A trigger leaves the partitions first, and who inserts has the table first: without its lock the two may wait
        # for one another.
        await self._execute(
            "LOCK TABLE idempotency_gateway.response", "DROP TRIGGER quota ON idempotency_gateway.response"
        )

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.section["durable"])
        try:
            async with connection.transaction():
                for statement in statements:
                    await connection.execute(statement)
        finally:
            await connection.close()


def quota_of(section: dict[str, Any]) -> Quota:
    """The quota of the store in this section."""
    return SqliteQuota(section) if section["durable"].startswith("sqlite") else PostgresQuota(section)
