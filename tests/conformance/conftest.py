"""The fixtures of the suite: each store in turn, opened on fresh data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.store.base import Store
from tests.conformance.stores import STORES, Database, cases


@pytest.fixture(params=cases(STORES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """One backend, empty."""
    with STORES[request.param](request, tmp_path) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    """A started store on the backend."""
    store = database.open_store()
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def other_store(database: Database, store: Store) -> AsyncIterator[Store]:
    """A second gateway's store on the same data as `store`."""
    other = database.open_store()
    await other.start()
    try:
        yield other
    finally:
        await other.close()
