"""Durable stores, each with a way into its tables that is not the product's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import apsw

from gateway.core.confidential import Sealing
from gateway.core.outbox import Outbox, Part, Subscription
from gateway.store.operations import ManagedStore
from gateway.store.postgres.store import PostgresStore
from gateway.store.sealed import SealedStore
from gateway.store.sqlite.store import SqliteStore
from tests.conformance.hand import SERVICE
from tests.store.postgres_sessions import session

OUTBOX: Final = Outbox(SERVICE, "urn:shop", (Subscription("sink", include=frozenset(Part)),))


@dataclass
class Backend:
    """One durable store. `blob` is bytes as SQL writes them, `listing` the statement that lists its tables."""

    open_bare: Callable[[Outbox], ManagedStore]
    execute: Callable[[str], Awaitable[list[tuple[object, ...]]]]
    blob: Callable[[bytes], str]
    listing: str
    directory: Path | None = None
    stores: list[ManagedStore] = field(default_factory=list)
    bare: ManagedStore | None = None
    """The latest store, without what seals in front of it."""

    async def store(self, sealing: Sealing) -> SealedStore:
        self.bare = self.open_bare(replace(OUTBOX, sealing=sealing))
        store = SealedStore(self.bare, sealing)
        await store.start()
        self.stores.append(store)
        return store

    async def swap(self, table: str, column: str, one: str, other: str) -> None:
        """Exchange the column of the rows that two conditions find."""
        values = [(await self.execute(f"SELECT {column} FROM {table} WHERE {each}"))[0][0] for each in (one, other)]
        for which, value in zip((other, one), values, strict=True):
            await self.execute(f"UPDATE {table} SET {column} = '{value}' WHERE {which}")

    async def tables(self, text: str) -> set[str]:
        rows = {name: await self.execute(f"SELECT * FROM {name}") for (name,) in await self.execute(self.listing)}
        return {str(name) for name, found in rows.items() if text in repr(found)}

    async def has(self, text: str) -> bool:
        """Whether it is in any table, or in what is left of a row in a file."""
        files = [] if self.directory is None else self.directory.iterdir()
        return bool(await self.tables(text)) or any(text.encode() in each.read_bytes() for each in files)


@asynccontextmanager
async def on_sqlite(directory: Path) -> AsyncIterator[Backend]:
    path = directory / "state" / "operations.db"

    async def execute(statement: str) -> list[tuple[object, ...]]:
        with closing(apsw.Connection(str(path))) as connection:
            return list(connection.execute(statement))

    listing = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    open_bare = lambda outbox: SqliteStore(path, outbox=outbox)  # noqa: E731
    yield Backend(open_bare, execute, lambda each: f"x'{each.hex()}'", listing, path.parent)


@asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Backend]:
    async with session(url) as connection:
        await connection.execute("SET search_path = idempotency_gateway")

        async def execute(statement: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in await connection.fetch(statement)]

        listing = (
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
            " AND relnamespace = 'idempotency_gateway'::regnamespace"
        )
        open_bare = lambda outbox: PostgresStore(url, outbox=outbox)  # noqa: E731
        yield Backend(open_bare, execute, lambda each: f"'\\x{each.hex()}'::bytea", listing)
