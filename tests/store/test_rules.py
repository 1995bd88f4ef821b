"""A sweep knows the rules of the core in SQL of its own: of any record at any time it does what the core says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import apsw
import pytest

from tests.conformance.cases import HISTORIES, PAUSES
from tests.conformance.hand import started
from tests.conformance.pair import Pair
from tests.conformance.stores import Database, PostgresDatabase, SqliteDatabase
from tests.conformance.test_retention import sweep_all
from tests.conformance.test_table import play_pairs
from tests.store.postgres_sessions import session
from tests.support.memory_store import ManualClock

# What never is due.
TAMPER = "UPDATE {}operation SET due_us = 1 WHERE state IN ('in_doubt', 'dead_letter')"
Place = tuple[Database, Callable[[], Awaitable[object]]]


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Place:
    path = tmp_path / "state" / "operations.db"

    async def tamper() -> None:
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute(TAMPER.format(""))

    return SqliteDatabase(path), tamper


@pytest.fixture
async def on_postgres(migrated_url: str) -> AsyncIterator[Place]:
    async with session(migrated_url) as beside:
        yield PostgresDatabase(migrated_url), partial(beside.execute, TAMPER.format("idempotency_gateway."))


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty database, and what writes past its store that all is due which never is."""
    return request.getfixturevalue(f"on_{request.param}")


async def test_a_sweep_writes_down_what_the_clock_did(place: Place) -> None:
    """To no record anything else, whatever is written as the time at which it is due: no doubt is ended by it."""
    (database, tamper), clock = place, ManualClock()
    async with started(database.open_store()) as store:
        for name, history in HISTORIES.items():
            pair = Pair.new(clock)
            await play_pairs(history, [pair], store, database, clock)
            for pause in (0.0, PAUSES["past-remember"]):
                await database.advance(pause)
                clock.advance(pause)
                await tamper()
                await sweep_all(store)
                await pair.look(store)
                assert pair.differences(exact=True) == [], (name, pause)
