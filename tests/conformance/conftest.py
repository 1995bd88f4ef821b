"""The fixtures of the suite: each store in turn, opened on fresh data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.store.base import Store
from gateway.store.redis.durable import Unsupported
from tests.conformance.stores import STORES, Database, cases, is_refused


def _is_refused(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        # Without parameters, and so of no store.
        return False
    store = item.callspec.params.get("database")
    return is_refused(str(store), item.module.__name__.rpartition(".")[2], item.originalname)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """A store may refuse in the setup already."""
    try:
        yield
    except Unsupported as error:
        if not _is_refused(item):
            raise
        item.runtest = partial(_raise, error)  # type: ignore[method-assign]


def _raise(error: Exception) -> None:
    raise error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """What a store refuses it refuses by this error, and by no other."""
    if not _is_refused(item):
        yield
        return
    with pytest.raises(Unsupported):
        yield


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
