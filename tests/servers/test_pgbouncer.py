"""A real pgbouncer in transaction mode: it is no obstacle, and what it loses is neither forgotten nor run again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from gateway.core.operation import State
from tests.conformance.hand import Hand, do, state
from tests.store.postgres_sessions import opened
from tests.support.eventually import eventually
from tests.support.house import house, neighbour, status_of
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.serving import serving
from tests.support.upstream import Answer

PATIENCE_SECONDS = 60.0


@pytest.fixture
def pgbouncer(own_postgres: PostgresServer, server_workspace: Path) -> Iterator[PgBouncer]:
    place = server_workspace / f"pgbouncer-{own_postgres.port}"
    with PgBouncer(own_postgres.url, place).running() as pooler:
        yield pooler


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "noticed"])
async def test_every_verb(pgbouncer: PgBouncer, is_told: bool) -> None:
    """Stores that share fewer sessions than they have callers do all that a store does."""
    url = pgbouncer.url if is_told else pgbouncer.url.partition("?")[0]
    async with opened(url) as store, opened(url) as other:
        hands = [Hand() for _ in range(50)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.renew, Hand.complete) for hand in hands))
        assert [await state(other, hand) for hand in hands] == [State.COMPLETED] * 50
        await do(other, Hand(), Hand.claim, Hand.abandon, Hand.takeover, Hand.complete, Hand.purge, Hand.erase)
        await do(other, Hand(), Hand.claim, Hand.abandon, Hand.disprove, Hand.retry, Hand.forget)
        doubted = Hand()
        await do(store, doubted, Hand.claim, Hand.abandon)
        assert await store.recover(doubted.operation_id, doubted.token, 60_000_000, is_urgent=False) is not None
        await do(other, doubted, Hand.prove)
        await store.sweep(100)
        await store.tally()
        assert not (await store.compare_configuration(serving(recipes={"charges": b"one"}))).conflicts
        changed = serving(recipes={"charges": b"two"}, gateway_id=UUID(int=2))
        assert len((await other.compare_configuration(changed)).conflicts) == 1


async def test_two_gateways_behind_it(pgbouncer: PgBouncer, tmp_path: Path) -> None:
    """Duplicates at both gateways are one execution, also when the pooler dies and comes back in between."""
    store = {"durable": pgbouncer.url}
    async with house(store, tmp_path / "one") as one, neighbour(store, tmp_path / "two", one.upstream) as two:
        one.upstream.on("/charges", lambda received: Answer(201, body=received.body))
        keys = [f"key-{number}" for number in range(40)]
        twice = [home.send(key, deadline_seconds=PATIENCE_SECONDS) for key in keys for home in (one, two)]
        answers = await asyncio.gather(*twice)
        assert {answer.status for answer in answers} == {201}
        assert len(one.upstream.requests) == len(keys)
        pgbouncer.kill()
        assert status_of(await one.send("new")) == (503, "store-unavailable")
        pgbouncer.start()

        async def is_back() -> bool:
            return status_of(await two.send("new"))[0] == 201

        await eventually(is_back, PATIENCE_SECONDS, "the store is reached again")
        again = await asyncio.gather(*[home.send(key) for key in keys for home in (one, two)])
        assert {status_of(answer) for answer in again} == {(201, "replayed")}
        assert len(one.upstream.requests) == len(keys) + 1
