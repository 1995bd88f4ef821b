"""A durable store that reads and takes small rows, and refuses long ones: as with a quota, or a disk without room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import apsw

from tests.support.postgres import session

LONG_BYTES: Final = 20_000
"""A response body that is longer is refused."""
_LOCK_MILLISECONDS: Final = 10_000
# By kind, to begin and to end. In SQLite it is an error of the statement, and not of the value: the value could be
# taken later. In Postgres a trigger leaves the partitions first, and who inserts has the table first: without its lock
# the two may wait for one another.
_STATEMENTS: Final = {
    "sqlite": (
        f"CREATE TRIGGER quota BEFORE INSERT ON response WHEN length(new.body) > {LONG_BYTES} "
        "BEGIN SELECT abs(-9223372036854775808); END",
        "DROP TRIGGER quota",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION quota() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'the quota is used up' USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER quota BEFORE INSERT ON idempotency_gateway.response FOR EACH ROW "
        f"WHEN (length(new.body) > {LONG_BYTES}) EXECUTE FUNCTION quota()",
        "LOCK TABLE idempotency_gateway.response; DROP TRIGGER quota ON idempotency_gateway.response",
    ),
}


class Quota:
    """`section` is the `store` section of a gateway. The store has to have its tables when `begin` is called."""

    def __init__(self, section: dict[str, Any]) -> None:
        self.section = section
        self._url: str = section["durable"]
        self._begin, self._end = _STATEMENTS[urlsplit(self._url).scheme]

    async def begin(self) -> None:
        """Refuse long rows from now on."""
        await self._execute(self._begin)

    async def end(self) -> None:
        await self._execute(self._end)

    async def _execute(self, statements: str) -> None:
        if self._url.startswith("sqlite"):
            await asyncio.to_thread(self._execute_in_sqlite, statements)
            return
        async with session(self._url) as connection:
            # Several statements in one message are one transaction.
            await connection.execute(statements)

    def _execute_in_sqlite(self, statement: str) -> None:
        connection = apsw.Connection(str(Path(urlsplit(self._url).path)))
        try:
            # The gateway may be writing at this moment.
            connection.set_busy_timeout(_LOCK_MILLISECONDS)
            connection.execute(statement).fetchall()
        finally:
            connection.close()


quota_of = Quota
