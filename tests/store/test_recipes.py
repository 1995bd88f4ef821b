"""Recipes as a program before this one left them: under the operation name alone, whosever it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from gateway.store.base import RecipeConflict, Store
from gateway.store.postgres import PostgresStore
from gateway.store.sqlite import SqliteStore
from tests.conformance.hand import SERVICE, Hand, do
from tests.store.postgres_sessions import session


class _Postgres:
    def __init__(self, url: str) -> None:
        self._url = url
        self.store: Store = PostgresStore(url)

    async def leave(self, text: str, recipe: bytes) -> None:
        async with session(self._url) as beside:
            await beside.execute("INSERT INTO idempotency_gateway.recipe VALUES ($1, $2)", text, recipe)

    async def texts(self) -> list[str]:
        async with session(self._url) as beside:
            return [row["operation"] for row in await beside.fetch("SELECT * FROM idempotency_gateway.recipe")]


class _Sqlite:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.store: Store = SqliteStore(path)

    async def leave(self, text: str, recipe: bytes) -> None:
        with closing(apsw.Connection(str(self._path))) as beside:
            beside.execute("INSERT INTO recipe VALUES (?, ?)", (text, recipe))

    async def texts(self) -> list[str]:
        with closing(apsw.Connection(str(self._path))) as beside:
            return [text for text, _ in beside.execute("SELECT * FROM recipe")]


_Left = _Postgres | _Sqlite


@pytest.fixture(params=["sqlite", "postgres"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> _Left:
    """A store, and a way to leave something in it."""
    if request.param == "sqlite":
        return _Sqlite(tmp_path / "store" / "operations.db")
    return _Postgres(request.getfixturevalue("postgres_url"))


async def test_an_old_recipe_that_is_ours_is_adopted(left: _Left) -> None:
    """What equals ours stands under our name from then on, and says nothing to the other services any more."""
    store = left.store
    await store.start()
    try:
        await left.leave("charges", b"one")
        await do(store, Hand(), Hand.claim)
        assert await store.agree_recipes(SERVICE, {"charges": b"one"}, frozenset()) == []
        assert await left.texts() == [f"{SERVICE}/charges"]
        assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset()) == [RecipeConflict("charges", 1)]
    finally:
        await store.close()


async def test_an_old_recipe_that_differs_is_a_change(left: _Left) -> None:
    """What differs may be ours from before a change, or from under another name of the service: living keys count."""
    store = left.store
    await store.start()
    try:
        await left.leave("charges", b"one")
        await do(store, Hand(), Hand.claim)
        for service in (SERVICE, "store"):
            conflict = [RecipeConflict("charges", 1)]
            assert await store.agree_recipes(service, {"charges": b"two"}, frozenset()) == conflict
        assert await left.texts() == ["charges"]
        assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset(("charges",))) == []
        assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset()) == []
    finally:
        await store.close()


async def test_an_old_recipe_without_a_route_may_be_ours(left: _Left) -> None:
    """What stands under the operation name alone is looked at by every service, and each counts its own keys."""
    store = left.store
    await store.start()
    try:
        await left.leave("charges", b"one")
        await do(store, Hand(), Hand.claim)
        assert await store.strays(SERVICE, ()) == {"charges": 1}
        assert await store.strays("books", ()) == {}
    finally:
        await store.close()
