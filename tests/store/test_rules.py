"""A sweep knows the rules of the core in SQL of its own: of any record at any time it does what the core says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.cases import HISTORIES, PAUSES
from tests.conformance.hand import started
from tests.conformance.pair import Pair
from tests.conformance.stores import Database, PostgresDatabase, SqliteDatabase
from tests.conformance.test_retention import sweep_all
from tests.conformance.test_table import play_pairs
from tests.store.backends import Backend
from tests.support.memory_store import ManualClock

# What never is due.
TAMPER = "UPDATE operation SET due_us = 1 WHERE state IN ('in_doubt', 'dead_letter')"


@pytest.fixture
def database(database_url: str | None, tmp_path: Path) -> Database:
    return PostgresDatabase(database_url) if database_url else SqliteDatabase(tmp_path / "state" / "operations.db")


async def test_a_sweep_writes_down_what_the_clock_did(database: Database, backend: Backend) -> None:
    """To no record anything else, whatever is written as the time at which it is due: no doubt is ended by it."""
    clock = ManualClock()
    async with started(database.open_store()) as store:
        for name, history in HISTORIES.items():
            pair = Pair.new(clock)
            await play_pairs(history, [pair], store, database, clock)
            for pause in (0.0, PAUSES["past-remember"]):
                await database.advance(pause)
                clock.advance(pause)
                await backend.execute(TAMPER)
                await sweep_all(store)
                await pair.look(store)
                assert pair.differences(exact=True) == [], (name, pause)
