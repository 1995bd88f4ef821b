"""One Redis for several durable stores: nobody is answered from the copies of another store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.http.gateway.asking import until
from tests.store.copies import client
from tests.support.eventually import eventually
from tests.support.house import house, status_of
from tests.support.postgres import Postgres, PostgresServer
from tests.support.upstream import Answer

PATIENCE_SECONDS = 30.0


async def until_copied(url: str, count: int = 1) -> None:
    """Return once Redis has so many copies."""

    def is_copied() -> bool:
        with client(url) as redis:
            return len(redis.keys("idempotency-gateway:*{*}")) >= count

    await eventually(is_copied, PATIENCE_SECONDS, "Redis has the copies")


@pytest.mark.parametrize("is_copy", [False, True], ids=["new", "copied-database"])
async def test_two_stores_on_one_redis_answer_for_themselves(
    postgres_server: Postgres, postgres_url: str, redis_url: str, tmp_path: Path, is_copy: bool
) -> None:
    """A key that production has used is a new one in staging, though both have one `service` and one Redis."""
    production: dict[str, Any] = {"durable": postgres_url, "fast": redis_url}
    async with house(production, tmp_path / "production"):
        # The schema is there, and nobody is connected, so that the database can be copied.
        pass
    template = urlsplit(postgres_url).path.removeprefix("/") if is_copy else "template1"
    copied = await postgres_server.new_database(template)
    try:
        staging = {"durable": copied, "fast": redis_url}
        async with house(production, tmp_path / "production") as first, house(staging, tmp_path / "staging") as second:
            for home, body in ((first, b"charged"), (second, b"rehearsed")):
                home.upstream.on("/charges", Answer(201, body=body))
                stored = await home.send()
                assert (status_of(stored), stored.body) == ((201, "stored"), body)
            await until_copied(redis_url, count=2)
        # Neither remembers anything by itself, and each finds its own copy.
        async with house(production, tmp_path / "production") as first, house(staging, tmp_path / "staging") as second:
            for home, body in ((first, b"charged"), (second, b"rehearsed")):
                again = await home.send()
                assert (status_of(again), again.body) == ((201, "replayed"), body)
    finally:
        await postgres_server.drop_database(copied)


async def test_copies_answer_before_postgres_is_there(
    own_postgres: PostgresServer, redis_url: str, tmp_path: Path
) -> None:
    """A gateway that starts while Postgres is away replays from Redis if its host knew the store; no other does."""
    store = {"durable": own_postgres.url, "fast": redis_url}
    async with house(store, tmp_path / "known") as home:
        assert status_of(await home.send()) == (200, "stored")
        await until_copied(redis_url)
    own_postgres.stop()
    async with house(store, tmp_path / "known") as known, house(store, tmp_path / "fresh") as fresh:
        assert status_of(await known.send()) == (200, "replayed")
        assert status_of(await known.send("k2")) == (503, "store-unavailable")
        assert status_of(await fresh.send()) == (503, "store-unavailable")
        own_postgres.start()
        # Once the fresh host has met the store.
        await until((200, "replayed"), fresh.send)
        assert not known.upstream.requests
        assert not fresh.upstream.requests
