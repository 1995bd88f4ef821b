"""The fixtures of the suite: each store in turn, opened on fresh data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.store.base import Store
from gateway.store.redis.durable import Unsupported
from tests.conformance.hand import started
from tests.conformance.stores import STORES, Database, is_left_to_proof, is_refused


def _place(item: pytest.Item) -> tuple[str, str, str]:
    """The store of a test, its module and its name; without parameters it is of no store."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return "", "", ""
    return str(item.callspec.params.get("database")), item.module.__name__.rpartition(".")[2], item.originalname


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to `make proof` what is of little use on a store."""
    store, module, _ = _place(item)
    if is_left_to_proof(store, module):
        item.add_marker(pytest.mark.full)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    except Unsupported as error:
        if not is_refused(*_place(item)):
            raise
        item.runtest = partial(_raise, error)  # type: ignore[method-assign]


def _raise(error: Exception) -> None:
    raise error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """What a store refuses it refuses by this error, and by no other."""
    if not is_refused(*_place(item)):
        yield
        return
    with pytest.raises(Unsupported):
        yield


@pytest.fixture(params=STORES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with STORES[request.param](request, tmp_path) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    async with started(database.open_store()) as store:
        yield store


@pytest.fixture
async def other_store(database: Database, store: Store) -> AsyncIterator[Store]:
    """A second gateway's store on the same data as `store`."""
    async with started(database.open_store()) as other:
        yield other
