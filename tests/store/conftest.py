"""What the tests of one store share: a disk that can fail, and durable stores with a way into their tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.store.redis import store as redis_store
from tests.store.backends import Backend, on_postgres, on_sqlite
from tests.support.failing_disk import FailingDisk, failing_disk


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk


@pytest.fixture
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read from Redis may take as long as a busy machine needs for it."""
    monkeypatch.setattr(redis_store, "GET_SECONDS", 30.0)
    monkeypatch.setattr(redis_store, "SEEN_SECONDS", 30.0)


@pytest.fixture(params=["postgres", "sqlite"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("migrated_url") if request.param == "postgres" else None


@pytest.fixture
async def backend(database_url: str | None, tmp_path: Path) -> AsyncIterator[Backend]:
    async with on_sqlite(tmp_path) if database_url is None else on_postgres(database_url) as backend:
        yield backend
        for store in backend.stores:
            await store.close()
