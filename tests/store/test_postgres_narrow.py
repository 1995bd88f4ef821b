"""Tombstones in Postgres: they move to a table of narrow rows, and no claim misses one on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import pytest

from gateway.core.operation import Command, Content, State
from gateway.core.outbox import Outbox
from gateway.store.operations import Swept
from gateway.store.postgres.connection import READ_COMMITTED, SERIALIZABLE, transaction
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import REMEMBER_SECONDS, REPLAY_SECONDS, SERVICE, Hand, Speech, do, state
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually
from tests.support.memory_store import ManualClock

OUTBOX: Final = Outbox(SERVICE)
WIDE: Final = "SELECT count(*) FROM ONLY idempotency_gateway.operation"
NARROW: Final = "SELECT count(*) FROM idempotency_gateway.narrow"
WAITS: Final = (
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


_MOVE: Final = (
    "WITH gone AS (DELETE FROM ONLY idempotency_gateway.operation RETURNING *)"
    " INSERT INTO idempotency_gateway.narrow (id, version, token, remember_until_us, scope_digest, kind)"
    " SELECT id, version, token, remember_until_us, scope_digest, 'kind'::bytea FROM gone"
)


@asynccontextmanager
async def place(url: str) -> AsyncIterator[tuple[PostgresStore, ManualClock, Any, Any]]:
    """A store and its clock, and two sessions beside it."""
    clock = ManualClock()
    async with opened(url, clock_us=clock, outbox=OUTBOX) as store, session(url) as one, session(url) as two:
        yield store, clock, one, two


async def retired(store: PostgresStore, clock: ManualClock, *hands: Hand) -> None:
    """Let the responses of these be over, and a sweep find that."""
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.complete)
    clock.advance(REPLAY_SECONDS + 1)
    assert (await store.cold.sweep(100)).retired == len(hands)


async def rows(beside: Any) -> tuple[int, int]:
    return await beside.fetchval(WIDE), await beside.fetchval(NARROW)


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        (READ_COMMITTED, "SELECT FROM idempotency_gateway.operation FOR UPDATE"),
        (SERIALIZABLE, "SAVEPOINT before_it_looks"),
    ],
    ids=["a statement", "a snapshot"],
)
async def test_a_record_stays_while_something_is_under_way(mode: str, first: str, migrated_url: str) -> None:
    """A transaction that writes may have begun before the key was used; one with a snapshot, before it looked."""
    async with place(migrated_url) as (store, clock, slow, beside):
        hand, other = Hand(), Hand()
        async with transaction(slow, {}, mode):
            await slow.execute(first)
            await retired(store, clock, hand)
            assert await rows(beside) == (1, 0)
            assert await state(store, hand) is State.TOMBSTONE
        await retired(store, clock, other)
        assert await rows(beside) == (1, 1)
        clock.advance(REMEMBER_SECONDS)
        assert await store.cold.sweep(100) == Swept(collected=2)


def _claim_with_content(hand: Hand) -> Command:
    return replace(hand.claim(), attempt_id=uuid4(), content=Content(sha256(b"content").digest(), 1))


@pytest.mark.parametrize("speech", [_claim_with_content, Hand.erase], ids=["claim", "erase"])
async def test_a_command_that_waits_for_a_record_on_its_way(speech: Speech, migrated_url: str) -> None:
    """It waits for the row that a sweep moves, and finds it where it is then: the key is not free."""
    async with place(migrated_url) as (store, clock, mover, beside):
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        async with mover.transaction():
            await mover.execute("SELECT FROM idempotency_gateway.operation FOR UPDATE")
            late = asyncio.ensure_future(store.apply(speech(hand)))
            await eventually(lambda: beside.fetchval(WAITS), 10)
            await mover.execute(_MOVE)
        await asyncio.gather(late, return_exceptions=True)
        assert late.exception() is not None or late.result().snapshot.record is not None
        assert await rows(beside) == (0, 1)


async def test_a_claim_while_a_record_is_on_its_way(migrated_url: str) -> None:
    """It sees the row where it was, and not yet where it will be: the key is not free, whenever that is committed."""
    async with place(migrated_url) as (store, clock, mover, beside):
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        async with mover.transaction():
            await mover.execute(_MOVE)
            late = asyncio.ensure_future(store.apply(replace(hand.claim(), attempt_id=uuid4())))

            async def has_looked() -> bool:
                return late.done() or await beside.fetchval(WAITS)

            await eventually(has_looked, 10)
        result = await late
        assert result.snapshot.state is State.TOMBSTONE
        assert await rows(beside) == (0, 1)
