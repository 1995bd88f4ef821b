"""Several gateways on Redis alone: who waits, and who remembers, is told of what the others change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.core.operation import Purge, State
from gateway.protect import duplicates as waiting
from gateway.store.operations import Query
from gateway.store.redis import connection
from tests.http.gateway.asking import until
from tests.support.eventually import eventually
from tests.support.house import house, neighbour, status_of
from tests.support.redis import RedisServer

PATIENCE_SECONDS = 30.0


@pytest.fixture
def store(durable_redis: RedisServer) -> dict[str, Any]:
    """The `store` section, on an empty store; what is in a gateway's memory stays there longer than any test."""
    durable_redis.flush()
    return {"durable": durable_redis.durable_url, "replicas": 0, "cache_max_age": "1h"}


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without news nobody who waits would look again for an hour."""
    for name in ("_PAUSE_SECONDS_MIN", "_PAUSE_SECONDS_MAX"):
        monkeypatch.setattr(waiting, name, 3600.0)
    # Nor would who begins to listen, on however busy a machine, be told to look by that.
    monkeypatch.setattr(connection, "_SUBSCRIBE_SECONDS", PATIENCE_SECONDS)


async def test_a_duplicate_that_waits_at_another_gateway(store: dict[str, Any], tmp_path: Path) -> None:
    """It gets the response when the first request does, although it looked before and will not look again."""
    # When its wait is over it would look again.
    waits = {"in_flight": {"wait": f"{2 * PATIENCE_SECONDS:g}s", "max_wait": "10m"}}
    async with (
        house(store, tmp_path / "a") as home,
        neighbour(store, tmp_path / "b", home.upstream, route=waits) as other,
    ):
        first, hold = await home.begin()
        again = asyncio.create_task(other.send())
        readers = other.gateway.parts.coordinator.waiting._readers
        await eventually(lambda: [each for each in readers.values() if each.latest], PATIENCE_SECONDS, "it has looked")
        hold.set()
        assert status_of(await first) == (200, "stored")
        done, _ = await asyncio.wait((again,), timeout=PATIENCE_SECONDS / 2)
        assert done, "nobody has told it"
        assert status_of(await again) == (200, "replayed")


async def test_a_purge_reaches_what_another_gateway_remembers(store: dict[str, Any], tmp_path: Path) -> None:
    async with house(store, tmp_path / "a") as home, neighbour(store, tmp_path / "b", home.upstream) as other:
        assert status_of(await home.send()) == (200, "stored")
        assert status_of(await other.send()) == (200, "replayed")
        (found,) = await home.gateway._store.cold.find(Query(frozenset((State.COMPLETED,))))
        assert found.record is not None
        await home.gateway._store.apply(Purge(found.record.identity.operation_id))
        await until((410, "key-expired"), other.send)
