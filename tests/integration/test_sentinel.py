"""A short search for what nobody may read; `python -m tests.integration.sentinel` has the long one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.sentinel import RedisOutage, redis_outage, search
from tests.integration.test_journal import LockedSqlite, Outage, PostgresOutage

_OPERATIONS = 24


@pytest.fixture(
    params=["postgres-redis", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("sqlite", "redis"))]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Outage, str | None]]:
    """A durable store that can go away, and the URL of the fast tier before it."""
    if request.param == "sqlite":
        yield LockedSqlite(tmp_path / "store" / "operations.db"), None
    elif request.param == "redis":
        with redis_outage(tmp_path) as outage:
            yield outage, None
    else:
        yield PostgresOutage(request.getfixturevalue("own_postgres")), request.getfixturevalue("redis_url")


async def test_it_is_nowhere(store: tuple[Outage, str | None], tmp_path: Path) -> None:
    """Whatever a caller, the service, a sender or an operator says is encrypted wherever it is kept, and in no log."""
    outage, redis = store
    found = await search(outage, tmp_path, operations=_OPERATIONS, redis=redis)
    assert not any(found.places.values()), found
    done = {"stored", "replayed", "accepted", "in-doubt", "journaled", "key-reused", "released", "response-not-stored"}
    absent = {"accepted"} if isinstance(outage, RedisOutage) else set()
    assert done - set(found.verdicts) <= {"response-not-stored", *absent}, found


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=pytest.mark.full)])
async def test_without_encryption_it_is_found(kind: str, tmp_path: Path) -> None:
    """The search would find it: in the store, the journal and the spool; and never in the log or a metric."""
    with ExitStack() as stack:
        outage: Outage = (
            stack.enter_context(redis_outage(tmp_path))
            if kind == "redis"
            else LockedSqlite(tmp_path / "store" / "operations.db")
        )
        found = await search(outage, tmp_path, operations=12, is_encrypted=False)
    assert all(found.places[when] for when in ("journal", "spool", "store")), found
    assert not found.places["log"], found
    assert not found.places["metrics"], found
