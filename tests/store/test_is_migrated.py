"""Whether a store's schema is up to date can be asked without changing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.store.base import NotApplied, StartRefused
from gateway.store.postgres import store as postgres
from gateway.store.sqlite import store as sqlite


def test_sqlite_without_a_file(tmp_path: Path) -> None:
    """A file that is missing is not made by asking, and one that is empty stays so."""
    path = tmp_path / "operations.db"
    assert not sqlite.is_migrated(path)
    assert not path.exists()
    path.touch()
    assert not sqlite.is_migrated(path)
    assert path.read_bytes() == b""


async def test_sqlite_that_was_started(tmp_path: Path) -> None:
    """A store that was started once is up to date, while it runs and after."""
    path = tmp_path / "operations.db"
    store = sqlite.SqliteStore(path)
    await store.start()
    assert sqlite.is_migrated(path)
    await store.close()
    assert sqlite.is_migrated(path)


def test_sqlite_that_is_none(tmp_path: Path) -> None:
    """A file of another kind is refused."""
    path = tmp_path / "operations.db"
    path.write_bytes(b"not a database at all, but long enough to be taken for one" * 20)
    with pytest.raises(StartRefused):
        sqlite.is_migrated(path)


async def test_postgres(postgres_url: str) -> None:
    """A database without the schema is not up to date; after a migration it is."""
    assert not await postgres.is_migrated(postgres_url)
    assert not await postgres.is_migrated(postgres_url)
    assert await postgres.migrate(postgres_url)
    assert await postgres.is_migrated(postgres_url)


async def test_postgres_that_is_away(tmp_path: Path) -> None:
    """A server that cannot be reached says nothing about its schema."""
    with pytest.raises(NotApplied):
        await postgres.is_migrated(f"postgresql://u@/d?host={tmp_path}")
