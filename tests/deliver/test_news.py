"""Work that others announce: deliveries begin, pause and go on without waiting for a poll."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import deliver as worker
from gateway.core.operation import Audit
from gateway.store.postgres.store import PostgresStore
from tests.support.accepting import ASYNC, accepting
from tests.support.eventually import eventually
from tests.support.house import House, house, neighbour, sqlite_store
from tests.support.upstream import Answer, Received

AUDIT = Audit("ann", "the service is being moved")


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without news nothing would be found for an hour."""
    for name in ("_POLL_SECONDS", "_IDLE_SECONDS_MAX"):
        monkeypatch.setattr(worker, name, 3600.0)


@asynccontextmanager
async def two_gateways(store: dict[str, Any], directory: Path) -> AsyncIterator[tuple[House, House]]:
    """One that accepts only, and one that delivers."""
    async with (
        house(store, directory / "a", **accepting(delivers=False)) as front,
        neighbour(store, directory / "b", front.upstream, **accepting(delivers=True)) as back,
    ):
        yield front, back


async def accept(home: House, key: str) -> None:
    assert (await home.send(key, headers=[ASYNC])).status == 202


@pytest.mark.parametrize("has_fast", [False, True], ids=["postgres", "behind a pooler, with redis"])
async def test_accepted_elsewhere(tmp_path: Path, postgres_url: str, redis_url: str, has_fast: bool) -> None:
    """What a gateway that does not deliver accepts is delivered at once by one that does."""
    pooled = {"durable": f"{postgres_url}&pgbouncer=true" if "?" in postgres_url else f"{postgres_url}?pgbouncer=true"}
    store = pooled | {"fast": redis_url} if has_fast else {"durable": postgres_url}
    async with two_gateways(store, tmp_path) as (front, _):
        await accept(front, "k1")
        await front.upstream.wait_for_requests(1)


async def test_a_pause_and_its_end(tmp_path: Path, postgres_url: str) -> None:
    """A command that runs on the durable store alone, and ends at once, takes effect in every gateway."""
    async with two_gateways({"durable": postgres_url}, tmp_path) as (front, back):
        delivery = back.gateway.parts.delivery
        await command(postgres_url, "pause")
        await eventually(lambda: delivery._paused, 10.0, "the pause is known")
        await accept(front, "k1")
        await accept(back, "k2")
        assert front.upstream.requests == []
        await command(postgres_url, "resume")
        await front.upstream.wait_for_requests(2)


async def command(url: str, verb: str) -> None:
    store = PostgresStore(url)
    await store.start()
    try:
        service, operation = "shop", "charge"
        assert await (store.pause if verb == "pause" else store.resume)(service, operation, AUDIT)
        store.cold.announce_work()
    finally:
        await store.close()


async def test_each_of_two_that_were_postponed_comes_when_it_is_due(tmp_path: Path) -> None:
    """The nearer one does not hide the other."""
    seen: set[bytes] = set()

    def unavailable_once(request: Received) -> Answer:
        (key,) = request.values("Idempotency-Key")
        is_known = key in seen
        seen.add(key)
        later = (("Retry-After", "1"),) if key == b"late" else ()
        return Answer(201) if is_known else Answer(503, headers=later)

    changes = accepting(delivers=True, route={"delivery": {"schedule": ["100ms"]}})
    async with house(sqlite_store(tmp_path), tmp_path, **changes) as home:
        home.upstream.on("/charges", unavailable_once)
        for key in ("late", "soon"):
            await accept(home, key)
        await home.upstream.wait_for_requests(4)
